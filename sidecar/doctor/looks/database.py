"""The database: whether it can be had, takes rows, and is of this version. Nothing is written, and no file is made."""

import os
import sqlite3
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...settings import Settings
from ...store.engine import DatabaseUrlError, parse_url, reading_engine
from ...store.expressions import Filters
from ...store.queries import Reader
from ...store.upgrade import revision
from ..facts import DatabaseFacts, Unseen

#: Rows that are looked at, of the last so many seconds.
MOST_ROWS, SPAN_S = 2000, 86_400
_ANSWER_S = 6.0
#: What went wrong, in words of the drivers.
_WORDS = (
    ("password authentication failed", "password"),
    ("no password supplied", "password"),
    ("does not exist", "missing"),
    ("too many clients", "full"),
    ("remaining connection slots", "full"),
    ("database is locked", "locked"),
    ("disk is full", "disk"),
    ("No space left", "disk"),
    ("readonly database", "read_only"),
    ("malformed", "broken"),
    ("not a database", "broken"),
    ("disk I/O error", "broken"),
)


def look(settings: Settings) -> DatabaseFacts:
    """Blocks for some seconds at most."""
    try:
        url = parse_url(settings.database_url)
    except DatabaseUrlError as error:
        return DatabaseFacts("unknown", "", Unseen(str(error), "url"))
    if url.drivername == "sqlite":
        return _sqlite(settings.database_url, Path(url.database or "").absolute())
    place = f"{url.host or 'localhost'}:{url.port or 5432}/{url.database}"
    return _asked(settings.database_url, "postgresql", place, None)


def rows(settings: Settings, now: float) -> list[dict[str, Any]]:
    """`RequestRow`s, newest first. Raises DatabaseUnavailable or DatabaseUrlError."""
    reader = Reader(settings.database_url)
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    # A little beyond now, for the clocks of other instances.
    filters = Filters(since=datetime.fromtimestamp(now - SPAN_S, UTC))
    try:
        while len(found) < MOST_ROWS:
            page = reader.requests(filters, 500, cursor, now)
            found += page["requests"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
    finally:
        reader.close()
    return found


def day(settings: Settings, now: float) -> dict[str, Any]:
    """The database's part of the last day's `Summary`. Raises as `rows` does."""
    reader = Reader(settings.database_url)
    try:
        return reader.summary(SPAN_S, now)
    finally:
        reader.close()


def _sqlite(database_url: str, file: Path) -> DatabaseFacts:
    folder = file.parent
    if not folder.is_dir():
        return DatabaseFacts("sqlite", str(file), Unseen(f"there is no folder {folder}", "folder"), file)
    if file.is_dir():
        return DatabaseFacts("sqlite", str(file), Unseen(f"{file} is a folder", "url"), file)
    if not os.access(folder, os.W_OK | os.X_OK):
        return DatabaseFacts(
            "sqlite", str(file), Unseen(f"the folder {folder} cannot be written to", "permission"), file
        )
    if not file.exists():
        return DatabaseFacts("sqlite", str(file), Unseen(f"there is no file {file} yet", "missing"), file)
    if not os.access(file, os.R_OK | os.W_OK):
        return DatabaseFacts("sqlite", str(file), Unseen(f"the file {file} cannot be written to", "permission"), file)
    if (why := _refuses_rows(file)) is not None:
        return DatabaseFacts("sqlite", str(file), why, file)
    return _asked(database_url, "sqlite", str(file), file)


def _refuses_rows(file: Path) -> Unseen | None:
    """Whether the write lock can be had, which is given back at once."""
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(file))}?mode=rw", uri=True, timeout=3, isolation_level=None)
        ) as c:
            c.execute("BEGIN IMMEDIATE")
            c.execute("ROLLBACK")
    except sqlite3.Error as error:
        return _problem(error)
    return None


def _asked(database_url: str, kind: str, place: str, file: Path | None) -> DatabaseFacts:
    began = time.monotonic()
    engine = reading_engine(database_url, _ANSWER_S)
    try:
        with engine.begin() as connection:
            found = revision(connection)
            took = time.monotonic() - began
            facts: dict[str, Any] = {"revision": found, "took_s": took}
            if kind == "postgresql":
                facts |= _server(connection)
            if found is not None:
                facts["versions"] = _versions(connection)
    except Exception as error:  # of whichever driver
        return DatabaseFacts(kind, place, _problem(getattr(error, "orig", None) or error), file)
    finally:
        engine.dispose()
    return DatabaseFacts(kind, place, None, file, **facts)


def _server(connection: Any) -> dict[str, Any]:
    def ask(sql: str) -> Any:
        return connection.exec_driver_sql(sql).one()

    began = time.time()
    clock, replica, read_only = ask(
        "SELECT extract(epoch FROM clock_timestamp()), pg_is_in_recovery(), "
        "current_setting('default_transaction_read_only')"
    )
    ended = time.time()
    used, most = ask("SELECT (SELECT count(*) FROM pg_stat_activity), current_setting('max_connections')::int")
    (lacks,) = ask(
        "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename IN ('requests', "
        "'transitions')"
        " AND NOT has_table_privilege(quote_ident(tablename), 'INSERT')"
    )
    why = None
    if replica:
        why = "the server is a read replica"
    elif read_only == "on":
        why = "transactions are read-only there (default_transaction_read_only)"
    elif lacks:
        why = "the role may not insert into the tables"
    clock = float(clock)
    skew = 0.0 if began <= clock <= ended else clock - (ended if clock > ended else began)
    return {"read_only": why, "skew_s": skew, "connections": (int(used), int(most))}


def _versions(connection: Any) -> list[tuple[float, str, str, str]]:
    """What sidecars said of themselves; none in databases from before that table."""
    with suppress(Exception):
        found = connection.exec_driver_sql(
            "SELECT at, instance, name, value FROM versions WHERE upstream = '' ORDER BY id DESC LIMIT 500"
        ).all()
        return [(_seconds(at), str(instance), str(name), str(value)) for at, instance, name, value in found]
    return []


def _seconds(at: object) -> float:
    """SQLite's driver gives text in UTC, PostgreSQL's aware times."""
    found = at if isinstance(at, datetime) else datetime.fromisoformat(str(at))
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _problem(error: BaseException) -> Unseen:
    words = " ".join(str(error).split())[:300]
    code = next((code for text, code in _WORDS if text in words), "away")
    return Unseen(words, code)
