from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import text

from sidecar.api.models import RequestRow, Transition
from sidecar.store import schema
from sidecar.store.engine import writing_engine
from sidecar.store.queries import Reader
from sidecar.store.rows import COLUMNS, TABLE_COLUMNS
from sidecar.store.upgrade import HEAD, revision, upgrade


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
