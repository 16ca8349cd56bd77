"""Engines for the `database_url` setting: SQLite in WAL mode, or PostgreSQL through psycopg.

Writing and reading use engines of their own: SQLite writers take the lock at BEGIN, readers cannot write.
"""

import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError

#: Longest wait for another process's SQLite lock before an attempt counts as failed.
BUSY_TIMEOUT_MS = 1000
#: Longest time that reading may take: a statement on PostgreSQL, an answer on SQLite.
READ_TIMEOUT_S = 30
_CONNECT_TIMEOUT_S = 3
#: A server that has gone without a word, as a machine that was switched off, is found out within a minute. The system
#: would take two hours, for which the keeper and readers wait.
_ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}


class DatabaseUrlError(ValueError):
    """The setting `database_url` cannot work; the message is one line and says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"database_url: {reason}")


def parse_url(database_url: str) -> URL:
    """The URL with its driver filled in. Raises DatabaseUrlError; opens nothing."""
    examples = "use sqlite:///path/to/specwatch.db or postgresql://user:password@host:5432/name"
    try:
        url = make_url(database_url)
    except (ArgumentError, ValueError):
        # The text itself may hold a password, so it is not repeated.
        raise DatabaseUrlError(f"not a database URL; {examples}") from None
    match url.drivername:
        case "sqlite" | "sqlite+pysqlite":
            if url.host or not url.database or url.database.startswith((":memory:", "file:")):
                raise DatabaseUrlError(
                    "SQLite needs the path of a file: three slashes before a relative path, four before "
                    "an absolute one (sqlite:///specwatch.db, sqlite:////var/lib/specwatch/specwatch.db)"
                )
            if url.query:
                raise DatabaseUrlError("options after '?' are not supported for SQLite")
            return url.set(drivername="sqlite")
        case "postgresql" | "postgres" | "postgresql+psycopg":
            if not url.database:
                raise DatabaseUrlError("names no database: postgresql://user:password@host:5432/name")
            return url.set(drivername="postgresql+psycopg")
        case other:
            raise DatabaseUrlError(f"{other!r} is not supported; {examples}")


def check_url(database_url: str) -> None:
    """Raise DatabaseUrlError for what no amount of waiting will cure: call before starting.

    Makes the folder of an SQLite file if it is missing. A server that is down is no error here.
    """
    url = parse_url(database_url)
    if url.drivername != "sqlite":
        try:
            import psycopg  # noqa: F401
        except ImportError as error:
            raise DatabaseUrlError(f"PostgreSQL needs the package psycopg[binary]: {error}") from None
        return
    path = Path(url.database or "").absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseUrlError(f"cannot make the folder {path.parent}: {error.strerror}") from None
    if path.is_dir():
        raise DatabaseUrlError(f"{path} is a folder, not a file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise DatabaseUrlError(f"cannot write to the folder {path.parent}")
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise DatabaseUrlError(f"cannot write to the file {path}")


def writing_engine(database_url: str) -> Engine:
    """An engine whose transactions begin by taking SQLite's write lock. One connection."""
    url = parse_url(database_url)
    if url.drivername == "sqlite":
        return _sqlite(url)
    return _postgresql(url, pool_size=1, max_overflow=0, pool_timeout=5, pool_recycle=1800)


def reading_engine(database_url: str, timeout_s: float = READ_TIMEOUT_S) -> Engine:
    """An engine that cannot write; each transaction sees one state of the database, and takes `timeout_s` at most."""
    url = parse_url(database_url)
    if url.drivername == "sqlite":
        return _sqlite(url, timeout_s)
    # Connecting takes some milliseconds, and has a limit where a server hangs: what is kept and asked has none.
    engine = _postgresql(url, poolclass=NullPool, isolation_level="REPEATABLE READ")

    @event.listens_for(engine, "connect")
    def _read_only(connection: Any, _record: object) -> None:
        connection.read_only = True

    @event.listens_for(engine, "begin")
    def _bounded(connection: Any) -> None:
        # Local to the transaction, so that it also holds behind a pooler such as PgBouncer.
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{timeout_s:g}s'")

    return engine


@contextmanager
def silence_ends(connection: Connection, after_s: float) -> Iterator[None]:
    """A PostgreSQL server that has not let `connection` go by then is cut off, as if the network had failed."""
    if connection.dialect.name != "postgresql":
        yield
        return
    watch = threading.Timer(after_s, _cut, (connection.connection.driver_connection,))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _cut(connection: Any) -> None:
    # Closed meanwhile: all the better.
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def _postgresql(url: URL, **options: Any) -> Engine:
    # Prepared statements do not survive a pooler in transaction mode, and gain little here.
    arguments = {"connect_timeout": _CONNECT_TIMEOUT_S, "prepare_threshold": None, **_ALIVE}
    return create_engine(
        url,
        hide_parameters=True,
        connect_args={name: value for name, value in arguments.items() if name not in url.query},
        **options,
    )


def _sqlite(url: URL, timeout_s: float | None = None) -> Engine:
    """For reading where `timeout_s` bounds it."""
    read_only = timeout_s is not None
    path = Path(url.database or "").absolute()
    # A reader must not leave an empty file where the database is still to be made.
    target = f"file:{quote(str(path))}?mode={'rw' if read_only else 'rwc'}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            target,
            uri=True,
            timeout=BUSY_TIMEOUT_MS / 1000,
            # The driver begins nothing by itself: the listener below does.
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _prepare_sqlite(connection, path, timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection

    if read_only:
        # Opening costs a tenth of a millisecond, and finds the file that is there now.
        engine = create_engine(url, creator=connect, poolclass=NullPool, hide_parameters=True)
    else:
        engine = create_engine(url, creator=connect, pool_size=1, max_overflow=0, pool_timeout=5, hide_parameters=True)
        _keep_to_the_file(engine, path)
    begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _keep_to_the_file(engine: Engine, path: Path) -> None:
    """Open the file that is there: one that was deleted or replaced, as by a backup, takes rows and loses them."""

    @event.listens_for(engine, "connect")
    def _note(_connection: object, record: Any) -> None:
        record.info["file"] = _file(path)

    @event.listens_for(engine, "checkout")
    def _compare(_connection: object, record: Any, _proxy: object) -> None:
        if _file(path) != record.info["file"]:
            raise DisconnectionError(f"{path} was replaced")


def _file(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _prepare_sqlite(connection: sqlite3.Connection, path: Path, timeout_s: float | None) -> None:
    if timeout_s is not None:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA mmap_size = 268435456")
        # A reading connection serves one transaction, so its age is that of the answer.
        deadline = monotonic() + timeout_s
        connection.set_progress_handler(lambda: monotonic() > deadline, 1_000_000)
        return
    mode = _enter_wal(connection)
    if mode != "wal":
        raise sqlite3.OperationalError(
            f"database_url: {path} cannot use write-ahead logging (journal mode stays {mode!r}); "
            "network file systems do not offer it"
        )
    # With WAL, a power cut may lose the last moments but never the file.
    connection.execute("PRAGMA synchronous = NORMAL")
    # In pages: 16 MB.
    connection.execute("PRAGMA wal_autocheckpoint = 4000")


def _enter_wal(connection: sqlite3.Connection) -> str:
    # Changing the mode does not wait for a lock as other statements do, and instances may start together.
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return str(mode)
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
