"""Brings a database to the newest revision."""

import threading

from sqlalchemy import Connection, Engine, inspect, text

from .engine import writing_engine

#: The newest revision in `migrations/versions`; a test compares them.
HEAD = "0008"
# Any fixed number: instances that start together take turns on it.
_LOCK = 5_287_301_846
#: Alembic's context is one for all threads of a process.
_ALONE = threading.Lock()


def upgrade(database: str | Engine) -> str | None:
    """Run the revisions that `database` (a `database_url`, or an engine of `writing_engine`) lacks.

    Returns the revision that was there; None for a new database.

    One transaction; safe to call from several processes at once and when there is nothing to do. Raises
    DatabaseUrlError for a URL that cannot work, SQLAlchemyError or alembic's CommandError otherwise (the
    latter when the database was made by a newer Specwatch).
    """
    if isinstance(database, str):
        engine = writing_engine(database)
        try:
            return upgrade(engine)
        finally:
            engine.dispose()
    with database.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        if (found := revision(connection)) != HEAD:
            _run_revisions(connection)
        return found


def revision(connection: Connection) -> str | None:
    """The revision a database is at; None for a new one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _run_revisions(connection: Connection) -> None:
    # Imported late: alembic takes as long to load as the rest of the sidecar, and is seldom needed.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "sidecar.store:migrations")
    config.attributes["connection"] = connection
    with _ALONE:
        command.upgrade(config, "head")
