from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import text

from sidecar.api.models import RequestRow, Transition
from sidecar.store import schema
from sidecar.store.engine import writing_engine
from sidecar.store.rows import COLUMNS, TRANSITION_COLUMNS
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
    assert tuple(Transition.model_fields) == TRANSITION_COLUMNS
