"""Days of `requests` on PostgreSQL: there when rows come, whoever comes first, and few touched by a question."""

import re
import threading
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError
from support.postgres import Cluster
from support.records import NOW, record
from support.stored import count

from sidecar.store.engine import writing_engine
from sidecar.store.inserts import Inserts, refused_as_data
from sidecar.store.partitions import AHEAD, ahead, drop, ensure, partitions
from sidecar.store.rows import request_row
from sidecar.store.upgrade import upgrade


@pytest.fixture
def engine(postgres: Cluster) -> Iterator[Engine]:
    made = writing_engine(postgres.new_url())
    upgrade(made)
    yield made
    made.dispose()


def names(engine: Engine) -> list[str]:
    with engine.begin() as connection:
        return [each.name for each in partitions(connection)]


def put(engine: Engine, *times: float, name: str = "r") -> None:
    with engine.begin() as connection:
        rows = [request_row(record(started_at=at, request_id=f"{name}-{i}")) for i, at in enumerate(times)]
        Inserts(engine).insert("requests", connection, rows)


#: Nine days of rows.
MANY = (
    "INSERT INTO requests (request_id, started_at, instance, upstream, arm, scenario, endpoint, stream, outcome, "
    "acceptance_source, acceptance_quality, concurrency, bytes_in, bytes_out) "
    "SELECT 'many-' || i, timestamptz '2027-01-15 08:30+00' + i * interval '20 s', 'i', 'u', 'speculative', 's', 'e', "
    "false, 'ok', 'none', 'unknown', 1, 0, 0 FROM generate_series(1, 39000) AS i"
)


def plan(connection: Connection, query: str) -> str:
    return "\n".join(connection.execute(text(f"EXPLAIN {query}")).scalars())


def test_days_are_made_as_rows_need_them(engine: Engine) -> None:
    put(engine, 0.0, 86_399.999999, 86_400.0, NOW, 253_402_300_799.0)
    assert names(engine) == ["requests_19700101", "requests_19700102", "requests_20270115", "requests_99991231"]
    assert count(engine.url.render_as_string(hide_password=False)) == 5


def test_days_ahead(engine: Engine) -> None:
    with engine.begin() as connection:
        ahead(connection, NOW)
    made = names(engine)
    assert made == [f"requests_202701{15 + i}" for i in range(AHEAD + 1)]
    with engine.begin() as connection:
        ahead(connection, NOW)
    assert names(engine) == made


def test_a_day_that_was_rolled_back_is_made_again(engine: Engine) -> None:
    day = "2999-01-01"
    with engine.begin() as connection:
        ensure(connection, [day])
        ensure(connection, [day])
        connection.rollback()
    assert names(engine) == []
    put(engine, 32_472_144_000.0)
    assert names(engine) == ["requests_29990101"]


def test_a_day_that_was_dropped_is_made_again(engine: Engine) -> None:
    put(engine, NOW - 400 * 86_400)
    with engine.begin() as connection:
        (old,) = partitions(connection)
        drop(connection, old)
    put(engine, NOW - 400 * 86_400)
    assert names(engine) == [old.name]


def test_a_day_is_not_dropped_from_under_a_batch(engine: Engine) -> None:
    put(engine, NOW - 400 * 86_400)
    other = writing_engine(engine.url.render_as_string(hide_password=False))
    with engine.begin() as connection:
        ensure(connection, ["2025-12-11"])
        (old,) = partitions(connection)
        with pytest.raises(Exception, match="lock timeout"):
            with other.begin() as second:
                second.execute(text("SET LOCAL lock_timeout = 50"))
                drop(second, old)
    other.dispose()


def test_two_that_make_the_same_days_at_once(engine: Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    days = [NOW + 86_400 * i for i in range(10)]
    failed: list[Exception] = []

    def write(name: str) -> None:
        own = writing_engine(url)
        try:
            for at in days:
                put(own, at, name=name)
        except Exception as error:
            failed.append(error)
        own.dispose()

    threads = [threading.Thread(target=write, args=(f"w{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert len(names(engine)) == 10
    assert count(url) == 40


def test_readers_and_writers_of_other_days_go_on_while_a_day_is_made(engine: Engine) -> None:
    put(engine, NOW)
    other = writing_engine(engine.url.render_as_string(hide_password=False))
    begun = time.monotonic()
    with engine.begin() as connection:
        ensure(connection, ["2031-02-03"])
        with other.begin() as second:
            second.execute(text("SET LOCAL statement_timeout = '20s'"))
            Inserts(other).insert("requests", second, [request_row(record(started_at=NOW + 1))])
            assert second.scalar(text("SELECT count(*) FROM requests")) == 2
    assert time.monotonic() - begun < 20
    other.dispose()


def test_an_hour_touches_its_day_and_pages_sort_no_more_than_they_show(engine: Engine) -> None:
    put(engine, *(NOW + 3600 * i for i in range(240)))
    with engine.begin() as connection:
        connection.execute(text(MANY))
        connection.execute(text("ANALYZE requests"))
        within = "started_at >= '2027-01-18 10:00+00' AND started_at < '2027-01-18 11:00+00'"
        hour = plan(connection, f"SELECT count(*) FROM requests WHERE {within}")
        assert set(re.findall(r"requests_\d{8}", hour)) == {"requests_20270118"}
        page = plan(connection, "SELECT id FROM requests ORDER BY started_at DESC, id DESC LIMIT 100")
        assert "Append" in page
        assert "Merge Append" not in page
        assert "Incremental Sort" in page


def test_rows_that_come_twice_are_one(engine: Engine) -> None:
    for _ in range(2):
        put(engine, NOW, NOW + 86_400)
    assert count(engine.url.render_as_string(hide_password=False)) == 2


def test_sqlite_has_none(tmp_path: object) -> None:
    made = writing_engine(f"sqlite:///{tmp_path}/a.db")
    upgrade(made)
    with made.begin() as connection:
        ahead(connection, NOW)
        assert partitions(connection) == []
    made.dispose()


def test_rows_wait_where_another_clock_has_dropped_their_day(engine: Engine) -> None:
    """They are not taken for data that no database takes."""
    future = 32_472_144_000.0
    for name in ("one", "two"):
        put(engine, future, name=name)
    other = writing_engine(engine.url.render_as_string(hide_password=False))
    with other.begin() as connection:
        drop(connection, partitions(connection)[0])
    other.dispose()
    with pytest.raises(IntegrityError) as raised:
        put(engine, future)
    assert not refused_as_data(raised.value)
    # As the writer does.
    engine.dispose()
    put(engine, future)
    assert names(engine) == ["requests_29990101"]
