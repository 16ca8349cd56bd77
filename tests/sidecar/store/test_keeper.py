"""The keeper beside a writer: rollups soon after rows, through outages, and an end at once."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from support.postgres import Cluster, cluster
from support.records import record
from support.stored import rows_of, wait_for, writing

from sidecar.settings import RETENTION_DAYS
from sidecar.store import due, keeper, refresh, schema
from sidecar.store.cover import SETTLED_S
from sidecar.store.engine import DatabaseUrlError, reading_engine, writing_engine
from sidecar.store.keeper import Keeper, catch_up, prune
from sidecar.store.partitions import AHEAD, partitions

DAY = 86_400


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PAUSE_S", "_FIRST_PAUSE_S", "_LONGEST_PAUSE_S"):
        monkeypatch.setattr(keeper, name, 0.05)
    monkeypatch.setattr(keeper, "_TIMES_LONGER", 1.0)
    monkeypatch.setattr(keeper, "_LOOK_S", 0.2)


@pytest.fixture
def running(database_url: str) -> Iterator[Keeper]:
    made = Keeper(database_url, RETENTION_DAYS)
    made.start()
    yield made
    made.close(20)


def counted(database_url: str, span_s: int = 60) -> int:
    """Requests in the rollups."""
    engine = reading_engine(database_url)
    query = text("SELECT coalesce(sum(requests), 0) FROM rollups WHERE dimension = 'whole' AND span_s = :span")
    with engine.begin() as connection:
        found = int(connection.execute(query, {"span": span_s}).scalar_one())
    engine.dispose()
    return found


def test_rows_are_in_rollups_soon_and_old_ones_go(database_url: str, running: Keeper) -> None:
    now = time.time()
    began = [now - ago - i for ago in (0, 1, 90, 7200, 3 * DAY, 40 * DAY) for i in range(7)]

    def of_days_that_are_over() -> int:
        return sum(at // DAY * DAY + DAY + SETTLED_S <= time.time() for at in began)

    with writing(database_url) as writer:
        for at in began:
            writer.put(record(started_at=at))
        wait_for(lambda: writer.written == 42)
        wait_for(lambda: counted(database_url) == 42)
        wait_for(lambda: running.pruned["requests"] == 7)
        wait_for(lambda: counted(database_url, DAY) == of_days_that_are_over())
        began.append(now - 3 * DAY)
        writer.put(record(started_at=began[-1]))
        wait_for(lambda: counted(database_url, DAY) == of_days_that_are_over())
    wait_for(lambda: running.pending == 0)
    assert running.last_error is None
    assert running.passes > 0
    assert running.last_s < 20


def test_what_cannot_be_refreshed_does_not_keep_what_is_old(
    database_url: str, running: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def requests_of(*_: Any) -> Any:
        tried.append(None)
        raise ValueError("no such JSON")

    monkeypatch.setitem(refresh._MINUTES, "requests", requests_of)
    monkeypatch.setattr(refresh, "_ASIDE_S", 0.0)
    with writing(database_url) as writer:
        for ago in (0, 70 * DAY):
            writer.put(record(started_at=time.time() - ago))
        wait_for(lambda: running.pruned["requests"] == 1)
    assert tried


def test_days_ahead_are_there(postgres: Cluster) -> None:
    url = postgres.new_url()
    made = Keeper(url, RETENTION_DAYS)
    made.start()
    engine = writing_engine(url)
    with writing(url):
        wait_for(lambda: made.passes > 0)
    with engine.begin() as connection:
        assert len(partitions(connection)) == AHEAD + 1
    engine.dispose()
    made.close()


def test_it_waits_for_the_tables(database_url: str, running: Keeper) -> None:
    wait_for(lambda: running.last_error is not None or running.last_s > 0)
    with writing(database_url) as writer:
        writer.put(record(started_at=time.time()))
        wait_for(lambda: counted_or_none(database_url) == 1)
    wait_for(lambda: running.last_error is None)


def counted_or_none(database_url: str) -> int | None:
    try:
        return counted(database_url)
    except Exception:
        return None


def test_an_outage_ends_and_nothing_is_lost(tmp_path: Path) -> None:
    with cluster() as server:
        url = server.new_url()
        made = Keeper(url, RETENTION_DAYS)
        made.start()
        with writing(url) as writer:
            writer.put(record(started_at=time.time()))
            wait_for(lambda: counted_or_none(url) == 1)
            server.stop()
            wait_for(lambda: made.last_error is not None)
            writer.put(record(started_at=time.time()))
            server.start()
            wait_for(lambda: counted_or_none(url) == 2)
            wait_for(lambda: made.last_error is None)
        made.close()


def test_a_file_that_goes_and_comes(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "a.db"
    made = Keeper(url, RETENTION_DAYS)
    made.start()
    with writing(url) as writer:
        writer.put(record(started_at=time.time()))
        wait_for(lambda: counted_or_none(url) == 1)
        for file in tmp_path.glob("a.db*"):
            file.unlink()
        wait_for(lambda: made.last_error is not None or path.exists())

        def comes_back() -> bool:
            # What is written before the writer finds the file gone is gone with it.
            writer.put(record(started_at=time.time()))
            return bool(counted_or_none(url))

        wait_for(comes_back)
    made.close()


def test_it_ends_at_once_also_where_it_was_never_started(database_url: str) -> None:
    Keeper(database_url, RETENTION_DAYS).close()
    made = Keeper(database_url, RETENTION_DAYS)
    made.start()
    begun = time.monotonic()
    made.close(20)
    assert time.monotonic() - begun < 15
    assert not any(thread is made._thread for thread in threading.enumerate())


def test_it_does_not_wait_for_a_statement_to_end(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def requests_of(*_: Any) -> Any:
        begun.set()
        go_on.wait(30)
        return {}

    monkeypatch.setitem(refresh._MINUTES, "requests", requests_of)
    made = Keeper(database_url, RETENTION_DAYS)
    made.start()
    with writing(database_url) as writer:
        writer.put(record(started_at=time.time()))
        assert begun.wait(30)
        made.close(0.05)
    go_on.set()
    wait_for(lambda: not made._thread.is_alive())


def test_a_url_that_cannot_work() -> None:
    with pytest.raises(DatabaseUrlError):
        Keeper("mysql://h/d", RETENTION_DAYS)


def filled(database_url: str, minutes: int) -> None:
    now = time.time()
    with writing(database_url) as writer:
        for i in range(minutes):
            writer.put(record(started_at=now - 2 * DAY - 60 * i))
        wait_for(lambda: writer.written == minutes)


def test_catching_up_makes_what_is_over(database_url: str) -> None:
    filled(database_url, 200)
    told: list[tuple[int, int]] = []
    made, left = catch_up(database_url, lambda done, left: told.append((done, left)))
    assert left == 0
    assert 200 < made <= 207
    assert told[-1] == (made, 0)
    assert counted(database_url) == counted(database_url, 3600) == counted(database_url, DAY) == 200
    assert catch_up(database_url) == (0, 0)


def test_catching_up_with_much_takes_processes(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What none of them can do, as there are too many names in some minutes, is done as well."""
    monkeypatch.setattr(keeper, "LONG", 50)
    now = time.time() // DAY * DAY - 3 * DAY
    items = [record(started_at=now - 45 * i, scenario=f"s{i % 3}") for i in range(400)]
    items += [record(started_at=now - 50_000 - i / 100, scenario=f"name {i}") for i in range(7000)]
    with writing(database_url, capacity=10_000) as writer:
        for item in items:
            writer.put(item)
        wait_for(lambda: writer.written == len(items))
    told: list[tuple[int, int]] = []
    made, left = catch_up(database_url, lambda done, left: told.append((done, left)))
    assert left == 0
    assert made >= 300
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert counted(database_url) == counted(database_url, 3600) == counted(database_url, DAY) == len(items)


def test_catching_up_goes_on_alone_where_processes_end(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def work_off(*_: Any) -> None:
        raise BrokenProcessPool("a child process terminated abruptly")

    monkeypatch.setattr(keeper, "LONG", 5)
    monkeypatch.setattr(keeper, "work_off", work_off)
    filled(database_url, 20)
    assert catch_up(database_url)[1] == 0
    assert counted(database_url) == counted(database_url, DAY) == 20


def test_catching_up_beside_a_keeper(database_url: str, running: Keeper) -> None:
    filled(database_url, 200)
    assert catch_up(database_url)[1] == 0
    assert counted(database_url) == counted(database_url, DAY) == 200


def test_catching_up_ends_where_something_cannot_be_made(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(database_url, 5)
    monkeypatch.setattr(keeper, "_PATIENCE_S", 0.5)

    def requests_of(*_: Any) -> Any:
        raise ValueError("no such JSON")

    monkeypatch.setitem(refresh._MINUTES, "requests", requests_of)
    assert catch_up(database_url) == (0, 5)


def test_pruning_tells_what_is_gone_and_what_is_left(database_url: str) -> None:
    now = time.time()
    with pytest.raises(Exception, match=r"revision None|unable to open"):
        prune(database_url, RETENTION_DAYS, 1)
    with writing(database_url) as writer:
        for i in range(900):
            writer.put(record(started_at=now - 40 * DAY + i))
        wait_for(lambda: writer.written == 900)
    catch_up(database_url)
    looked = prune(database_url, RETENTION_DAYS, 0)
    assert (looked.deleted["requests"], looked.left["requests"], looked.done) == (0, 900, False)
    found = prune(database_url, RETENTION_DAYS, 60)
    assert (found.deleted["requests"], found.left["requests"], found.done) == (900, 0, True)
    assert found.left.keys() == {name for name, days in RETENTION_DAYS.items() if days is not None}
    assert rows_of(database_url, schema.requests) == []
    assert counted(database_url) == 900
    engine = writing_engine(database_url)
    with engine.begin() as connection:
        assert due.closed(connection, now) == 0
    engine.dispose()
