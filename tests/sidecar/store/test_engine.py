import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError
from support.postgres import Cluster

from sidecar.store.engine import (
    DatabaseUrlError,
    _prepare_sqlite,
    check_url,
    parse_url,
    reading_engine,
    writing_engine,
)
from sidecar.store.upgrade import upgrade


def test_a_server_that_is_gone_without_a_word_is_found_out(postgres: Cluster) -> None:
    """Also by those who only wait for its answer."""
    url = postgres.new_url()
    for made in (writing_engine(url), reading_engine(url), writing_engine(f"{url}?keepalives_idle=7")):
        with made.connect() as connection:
            driver: Any = connection.connection.driver_connection
            told = driver.info.get_parameters()
        made.dispose()
        assert told["keepalives_idle"] in ("30", "7")
        assert (told["keepalives_interval"], told["keepalives_count"], told["tcp_user_timeout"]) == ("10", "3", "60000")
    assert told["keepalives_idle"] == "7"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "not a database URL"),
        ("specwatch.db", "not a database URL"),
        ("postgresql://user:se/cret@host:x/db", "not a database URL"),
        ("mysql://host/db", "'mysql' is not supported"),
        ("sqlite://", "needs the path of a file"),
        ("sqlite:///:memory:", "needs the path of a file"),
        ("sqlite://data/specwatch.db", "three slashes"),
        ("sqlite:///a.db?mode=memory", "options after '?'"),
        ("postgresql://host", "names no database"),
        ("postgresql+asyncpg://host/db", "'postgresql+asyncpg' is not supported"),
    ],
)
def test_urls_that_cannot_work(url: str, reason: str) -> None:
    with pytest.raises(DatabaseUrlError) as caught:
        check_url(url)
    message = str(caught.value)
    assert message.startswith("database_url: ")
    assert reason in message
    assert "\n" not in message
    assert "cret" not in message


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgresql_goes_through_psycopg(scheme: str) -> None:
    assert parse_url(f"{scheme}://me:secret@host/db").drivername == "postgresql+psycopg"


def test_folders_that_cannot_hold_a_database(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "a.db", tmp_path):
        with pytest.raises(DatabaseUrlError, match=r"^database_url: "):
            check_url(f"sqlite:///{path}")
    check_url(f"sqlite:///{tmp_path}/new/folder/a.db")
    assert (tmp_path / "new" / "folder").is_dir()


def test_sqlite_writes_ahead_and_locks_at_begin(tmp_path: Path) -> None:
    engine = writing_engine(f"sqlite:///{tmp_path}/50% of #1.db")
    with engine.begin() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        other = sqlite3.connect(tmp_path / "50% of #1.db", timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.close()
    engine.dispose()


def test_a_file_system_without_wal_is_named(tmp_path: Path) -> None:
    # This VFS has no shared memory, as network file systems have none.
    path = tmp_path / "a.db"
    connection = sqlite3.connect(f"file:{path}?vfs=unix-dotfile", uri=True)
    with pytest.raises(sqlite3.OperationalError, match=r"^database_url: .*a\.db cannot use write-ahead"):
        _prepare_sqlite(connection, path, None)
    connection.close()


def test_readers_cannot_write(database_url: str) -> None:
    upgrade(database_url)
    engine = reading_engine(database_url)
    with pytest.raises(DBAPIError, match=r"readonly|read-only"), engine.begin() as connection:
        connection.execute(text("DELETE FROM requests"))
    engine.dispose()


def test_a_reader_makes_no_file(tmp_path: Path) -> None:
    engine = reading_engine(f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(OperationalError, match="unable to open"), engine.begin():
        pass
    assert not list(tmp_path.iterdir())
