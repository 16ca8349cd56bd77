import json
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Column, Engine, MetaData, Table, select, text
from support.postgres import Cluster
from support.records import figures, record
from support.rolled import rollups

from sidecar.api.models import RequestRow, Transition
from sidecar.record import Record
from sidecar.store import schema
from sidecar.store.engine import writing_engine
from sidecar.store.expressions import Filters
from sidecar.store.inserts import Inserts
from sidecar.store.partitions import drop, ensure, partitions
from sidecar.store.queries import Reader
from sidecar.store.refresh import refresh_all
from sidecar.store.rows import COLUMNS, TABLE_COLUMNS, request_row
from sidecar.store.upgrade import HEAD, revision, upgrade

from .test_rollups import plain

DAY = 86_400


def test_revisions_lead_to_the_schema(database_url: str) -> None:
    upgrade(database_url)
    engine = writing_engine(database_url)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


def test_the_head_is_known() -> None:
    config = Config()
    config.set_main_option("script_location", "sidecar.store:migrations")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_again_and_at_once(database_url: str) -> None:
    # SQLite makes the others wait no longer than the busy timeout; the writer would try again.
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(upgrade, [database_url] * 3))
    upgrade(database_url)
    engine = writing_engine(database_url)
    with engine.begin() as connection:
        assert revision(connection) == HEAD
    engine.dispose()


def test_a_newer_database_is_refused(database_url: str) -> None:
    upgrade(database_url)
    engine = writing_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'later'"))
    with pytest.raises(CommandError, match="later"):
        upgrade(engine)
    engine.dispose()


def test_the_tables_have_the_columns_of_the_api() -> None:
    assert tuple(RequestRow.model_fields) == COLUMNS
    assert tuple(Transition.model_fields) == TABLE_COLUMNS["transitions"]


@pytest.mark.parametrize("older", ["0001", "0002", "0003"])
def test_rows_of_older_tables_are_kept(database_url: str, older: str) -> None:
    """Rows that changed nothing told of orders to the engine; they are no decisions now."""
    engine = writing_engine(database_url)
    config = Config()
    config.set_main_option("script_location", "sidecar.store:migrations")
    rows = [
        ("here", "auto", "speculative", "speculative", "cap 2"),
        ("here", "autoregressive", "speculative", "autoregressive", "slow"),
        ("there", "speculative", "speculative", "speculative", "keep"),
        ("here", "autoregressive", "autoregressive", "autoregressive", "cap 0"),
        ("here", "auto", "autoregressive", "speculative", "again"),
    ]
    insert = text(
        "INSERT INTO transitions (at, instance, mode, from_state, to_state, reason) "
        "VALUES (:at, :instance, :mode, :before, :after, :reason)"
    )
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, older)
        for second, row in enumerate(rows):
            named = dict(zip(("instance", "mode", "before", "after", "reason"), row, strict=True))
            connection.execute(insert, named | {"at": f"2026-01-01 00:00:0{second}.000000+00:00"})
    upgrade(engine)
    with engine.begin() as connection:
        found = connection.execute(text("SELECT reason, slice, trigger, evidence FROM transitions ORDER BY id")).all()
    engine.dispose()
    triggers = ["engine", "operator", "operator", "engine", "operator"]
    assert found == [(row[4], "", trigger, None) for row, trigger in zip(rows, triggers, strict=True)]
    reader = Reader(database_url)
    assert [row["reason"] for row in reader.last_decisions("here")] == ["again"]
    assert len(reader.transitions()) == 5
    reader.close()


def old_row(item: Record) -> dict[str, object]:
    """As the versions before had it."""
    row = dict(zip(COLUMNS, request_row(item), strict=True))
    for name in ("truncated_steps", "reply_id", "steps"):
        del row[name]
    known = {name: None if value != value else value for name, value in row.items()}
    lists = {
        name: known[name] and json.loads(str(known[name]))
        for name in ("acceptance_histogram", "rejected_at", "reached")
    }
    started_at = datetime.fromisoformat(str(row["started_at"])).replace(tzinfo=UTC)
    return known | lists | {"started_at": started_at, "stream": bool(row["stream"])}


@pytest.mark.parametrize("older", ["0001", "0002", "0003", "0004", "0005"])
def test_requests_of_older_tables_are_kept_and_get_rollups(database_url: str, older: str) -> None:
    """Also those of the future, of a clock that was wrong; rows that come later join them."""
    now = time.time()
    ages = [DAY * i for i in range(5)] * 3 + [0.5, 40 * DAY, 400 * DAY, -10 * DAY]
    items = [record(started_at=round(now - age - i, 6), scenario=f"s{i % 3}") for i, age in enumerate(ages)]
    engine = writing_engine(database_url)
    config = Config()
    config.set_main_option("script_location", "sidecar.store:migrations")
    ids = text("SELECT id, request_id FROM requests ORDER BY id")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, older)
        table = Table("requests", MetaData(), *(Column(c.name, c.type) for c in schema.requests.c if c.name != "id"))
        connection.execute(table.insert(), [old_row(item) for item in items])
        before = connection.execute(ids).all()
    assert upgrade(engine) == older
    with engine.begin() as connection:
        assert connection.execute(ids).all() == before
        assert [tuple(row) for row in connection.execute(text("SELECT DISTINCT family FROM rollups_due"))] == [
            ("requests",)
        ]
    refresh_all(engine, now + 20 * DAY)
    late = [record(started_at=at) for at in (now + 1, now - 40.1 * DAY, now + 30 * DAY, now - 1000 * DAY)]
    with engine.begin() as connection:
        Inserts(engine).insert("requests", connection, [request_row(item) for item in late])
        after = connection.execute(ids).all()
    assert after[: len(before)] == before
    assert {row.request_id for row in after[len(before) :]} == {item.request_id for item in late}
    refresh_all(engine, now + 40 * DAY)
    with engine.begin() as connection:
        found = connection.execute(select(schema.rollups)).mappings().all()
    assert plain(dict(row) for row in found) == plain(rollups(items + late))
    reader, cursor, pages = Reader(database_url), None, []
    while True:
        page = reader.requests(Filters(), 5, cursor)
        pages += page["requests"]
        if (cursor := page["next_cursor"]) is None:
            break
    reader.close()
    newest = sorted(items + late, key=lambda item: -item.started_at)
    assert [row["request_id"] for row in pages] == [item.request_id for item in newest]
    engine.dispose()


def test_columns_are_added_without_a_row_being_touched(database_url: str) -> None:
    """Rows of before have null there, and those that come later join them, in partitions of before too."""
    now = time.time()
    items = [record(started_at=now - 10 - DAY * (i % 2) - i * 1e-3) for i in range(2000)]
    engine = writing_engine(database_url)
    config = Config()
    config.set_main_option("script_location", "sidecar.store:migrations")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0006")
        names = [c for c in schema.requests.c if c.name not in ("id", "reply_id", "steps")]
        table = Table("requests", MetaData(), *(Column(c.name, c.type) for c in names))
        ensure(connection, {datetime.fromtimestamp(item.started_at, UTC).date().isoformat() for item in items})
        connection.execute(table.insert(), [old_row(item) | {"truncated_steps": 20} for item in items])
    before = stored(engine)
    assert upgrade(engine) == "0006"
    # Of an SQLite file, the pages that hold the schema, what is free, and the revision.
    changed = sum(old != new for old, new in zip(before, stored(engine), strict=False))
    assert changed <= (0 if engine.dialect.name == "postgresql" else len(before) // 20)
    late = record(started_at=now - 5 - DAY, reply_id="chatcmpl-a", acceptance=figures((1, 1), steps="1011"))
    with engine.begin() as connection:
        Inserts(engine).insert("requests", connection, [request_row(late)])
    engine.dispose()
    reader = Reader(database_url)
    for item, told in ((items[0], (None, None)), (items[1], (None, None)), (late, ("chatcmpl-a", "1011"))):
        row, _ = reader.request(item.request_id)
        assert row is not None
        assert (row["reply_id"], row["steps"]) == told
        assert row["truncated_steps"] is not None
    reader.close()


def stored(engine: Engine) -> list[object]:
    """What is another where rows were written anew: files of the partitions, or pages of the file."""
    if engine.dialect.name == "postgresql":
        files = text(
            "SELECT pg_relation_filenode(c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = 'requests'::regclass ORDER BY relname"
        )
        with engine.begin() as connection:
            return list(connection.scalars(files))
    engine.dispose()
    path = Path(str(engine.url.database))
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    return [content[at : at + 4096] for at in range(0, len(content), 4096)]


@pytest.mark.parametrize("rows", [0, 3])
def test_who_may_read_the_table_that_was_there_may_go_on(
    postgres: Cluster, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    """And views of it, which follow the old table, are told of."""
    engine = writing_engine(postgres.new_url())
    config = Config()
    config.set_main_option("script_location", "sidecar.store:migrations")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0005")
        table = Table("requests", MetaData(), *(Column(c.name, c.type) for c in schema.requests.c if c.name != "id"))
        if rows:
            connection.execute(table.insert(), [old_row(record(started_at=time.time())) for _ in range(rows)])
        connection.execute(text("GRANT SELECT ON requests TO pg_monitor WITH GRANT OPTION"))
        connection.execute(text("GRANT INSERT ON requests TO PUBLIC"))
        connection.execute(text("CREATE VIEW mine AS SELECT count(*) FROM requests"))
    upgrade(engine)
    assert "the view mine reads rows of before this upgrade only" in caplog.text
    may = text("SELECT has_table_privilege('pg_monitor', 'requests', :privilege)")
    with engine.begin() as connection:
        granted = {
            privilege: connection.scalar(may, {"privilege": privilege})
            for privilege in ("SELECT WITH GRANT OPTION", "INSERT", "DELETE")
        }
        assert granted == {"SELECT WITH GRANT OPTION": True, "INSERT": True, "DELETE": False}
        assert connection.scalar(text("SELECT count(*) FROM requests")) == rows
    engine.dispose()


def test_the_table_that_was_there_becomes_a_partition(postgres: Cluster) -> None:
    """Nothing of it is copied, and its index serves on."""
    engine = writing_engine(postgres.new_url())
    config = Config()
    config.set_main_option("script_location", "sidecar.store:migrations")
    file = text("SELECT pg_relation_filenode(:name)")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0005")
        table = Table("requests", MetaData(), *(Column(c.name, c.type) for c in schema.requests.c if c.name != "id"))
        connection.execute(table.insert(), [old_row(record(started_at=time.time()))])
        before = [connection.scalar(file, {"name": name}) for name in ("requests", "uq_requests_request")]
    upgrade(engine)
    with engine.begin() as connection:
        (old,) = partitions(connection)
        assert old.since is None
        assert old.has(datetime.now(UTC).date().isoformat())
        names = (old.name, "uq_requests_request_before")
        assert [connection.scalar(file, {"name": name}) for name in names] == before
        drop(connection, old)
        Inserts(engine).insert("requests", connection, [request_row(record(started_at=time.time()))])
        assert connection.scalar(text("SELECT id FROM requests")) == 2
    engine.dispose()
