"""Runs of the lab: written by a command beside a sidecar that may be running, a row a run, and read for the API."""

import re
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from sqlalchemy import URL, Connection, Engine, and_, event, or_, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import SQLAlchemyError

from .cursor import read_cursor, write_cursor
from .engine import DatabaseUrlError, parse_url, silence_ends, writing_engine
from .expressions import utc
from .rows import clean
from .schema import lab_runs
from .upgrade import HEAD, revision

State = Literal["running", "done", "failed", "interrupted"]

MAX_PAGE = 200
#: Bytes of JSON. A page of the dashboard draws all of a summary; the rest is some names and numbers.
MAX_SUMMARY, MAX_DETAIL = 2_000_000, 65_536
#: Characters of an id, which is part of URLs, and of a folder.
MAX_ID, MAX_FOLDER = 200, 4096
#: How long others' locks are waited for, and what one row may take in all, s. The sidecar's own writing takes less than
#: a second; a backup may take longer.
LOCK_TIMEOUT_S, LIMIT_S = 15, 30

#: Options that hold one: not `max_tokens`.
_SECRET = re.compile(r"(token|password|secret|api_?key)$", re.IGNORECASE)
_WHO = re.compile(r"//[^/@\s]+@")

_r = lab_runs.c
_SHORT = [column for column in lab_runs.columns if column.name not in ("number", "fingerprint", "summary", "options")]
_WHOLE = [column for column in lab_runs.columns if column.name != "number"]


class LabError(Exception):
    """The run is not recorded; the message says why, and the remedy."""


def put(database_url: str, run: Mapping[str, Any]) -> None:
    """Write the row of `run`, in place of what was recorded of its id.

    `run` has the fields of run.json, and `instance` and `folder`. `id`, `kind`, `state` and `started_at` must be there;
    times are Unix seconds, ISO 8601 or datetimes, UTC where they name no zone. `model`, `draft_model` and
    `num_speculative_tokens` are `target`, `draft` and `k` of `fingerprint` where they are left out, the first two else
    those of `options`. What else it has is not kept. Numbers that JSON does not know become null; of options, tokens
    and passwords become ***.

    Blocks for LIMIT_S at most. Raises LabError: also where the database has no tables, which are not made here, as a
    wrong URL would be noticed by nobody.
    """
    values = _values(run)
    try:
        url = parse_url(database_url)
        _check_there(url)
        engine = writing_engine(database_url)
    except DatabaseUrlError as error:
        raise LabError(str(error)) from None
    if url.drivername == "sqlite":
        _wait_longer(engine)
    try:
        with engine.begin() as connection, silence_ends(connection, LIMIT_S):
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
                connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{LIMIT_S}s'")
            _check_revision(revision(connection))
            _upsert(connection, values)
    except SQLAlchemyError as error:
        words = " ".join(str(getattr(error, "orig", None) or error).split())
        raise LabError(
            f"database_url: the database did not take the run: {words[:300]}; see that it runs, and that the URL is "
            "right"
        ) from None
    finally:
        engine.dispose()


def page(connection: Connection, kind: str | None, limit: int, cursor: str | None) -> dict[str, Any]:
    """`LabPage`: at most `limit` (up to MAX_PAGE) runs, newest first, of one kind or of all. Raises BadCursor.

    Of a summary only its title and its reasons are there.
    """
    limit = max(1, min(limit, MAX_PAGE))
    short = [_r.summary[name].label(name) for name in ("title", "reasons")]
    query = select(_r.number, *_SHORT, *short).order_by(_r.started_at.desc(), _r.number.desc())
    if kind is not None:
        query = query.where(_r.kind == clean(kind))
    if cursor is not None:
        at, number = read_cursor(cursor)
        query = query.where(or_(_r.started_at < at, and_(_r.started_at == at, _r.number < number)))
    rows = [dict(row) for row in connection.execute(query.limit(limit + 1)).mappings()]
    numbers = [row.pop("number") for row in rows]
    following = write_cursor(rows[limit - 1]["started_at"], numbers[limit - 1]) if len(rows) > limit else None
    return {"runs": [_short(row) for row in rows[:limit]], "next_cursor": following}


def find(connection: Connection, run_id: str) -> dict[str, Any] | None:
    """`LabRun` of an id; None where none has it."""
    row = connection.execute(select(*_WHOLE).where(_r.id == clean(run_id, MAX_ID))).mappings().one_or_none()
    if row is None:
        return None
    found = dict(row)
    summary = found["summary"] if isinstance(found["summary"], dict) else {}
    return _short(found | {name: summary.get(name) for name in ("title", "reasons")})


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """With a title and reasons that are a text and texts, whatever the summary has there."""
    title, reasons = row["title"], row["reasons"]
    row["title"] = title if isinstance(title, str) else None
    row["reasons"] = [each for each in reasons if isinstance(each, str)] if isinstance(reasons, list) else []
    return row


def _values(run: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a run but for `number`. Raises LabError."""
    state = _text(run, "state", 20)
    if state not in get_args(State):
        raise LabError(f"state: {state!r} is none of {', '.join(get_args(State))}")
    fingerprint, options = _object(run, "fingerprint", MAX_DETAIL), _object(run, "options", MAX_DETAIL)
    # What the engine told; of a run that has none yet, or needs none, what was asked for.
    told = (options or {}) | {name: value for name, value in (fingerprint or {}).items() if value is not None}
    k = run.get("num_speculative_tokens", (fingerprint or {}).get("k"))
    if k is not None and (type(k) is not int or not 0 <= k < 2**31):
        raise LabError(f"num_speculative_tokens: {k!r} is no number of tokens")
    ended_at = run.get("ended_at")
    return {
        "id": _text(run, "id", MAX_ID),
        "kind": _text(run, "kind", 50),
        "state": state,
        "verdict": _optional(run.get("verdict")),
        "started_at": _time("started_at", run.get("started_at")),
        "ended_at": None if ended_at is None else _time("ended_at", ended_at),
        "updated_at": datetime.now(UTC),
        "instance": clean(str(run.get("instance") or "")),
        "model": _optional(run.get("model", told.get("target"))),
        "draft_model": _optional(run.get("draft_model", told.get("draft"))),
        "num_speculative_tokens": k,
        "fingerprint": fingerprint,
        "summary": _object(run, "summary", MAX_SUMMARY),
        "options": _without_secrets(options),
        "folder": clean(str(run.get("folder") or ""), MAX_FOLDER),
        "version": clean(str(run.get("version") or "")),
    }


def _text(run: Mapping[str, Any], name: str, limit: int) -> str:
    value = run.get(name)
    if not isinstance(value, str) or not value:
        raise LabError(f"{name}: a run must have one, and it is a text")
    if len(value) > limit:
        raise LabError(f"{name}: has {len(value):,} characters; {limit} are the most")
    return clean(value, limit)


def _optional(value: object) -> str | None:
    return None if value is None else clean(str(value))


def _time(name: str, value: object) -> datetime:
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        elif isinstance(value, int | float):
            value = utc(value)
        if isinstance(value, datetime) and 1970 <= value.year <= 9000:
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise LabError(f"{name}: {str(value)[:40]!r} is no time: give Unix seconds, or as 2026-01-31T12:00:00Z")


def _object(run: Mapping[str, Any], name: str, limit: int) -> dict[str, Any] | None:
    value = run.get(name)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise LabError(f"{name}: is no object")
    found: dict[str, Any] = _storable(value)
    try:
        size = len(msgspec.json.encode(found))
    except (TypeError, ValueError, RecursionError) as error:
        raise LabError(f"{name}: is no JSON: {error}") from None
    if size > limit:
        remedy = "; leave out plots or rows of tables" if name == "summary" else ""
        raise LabError(f"{name}: has {size:,} bytes of JSON, and {limit:,} are kept at most{remedy}")
    return found


def _without_secrets(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Who may look at figures need not be able to order."""
    if options is None:
        return None
    return {
        name: "***" if _SECRET.search(name) and isinstance(value, str) else _unnamed(value)
        for name, value in options.items()
    }


def _unnamed(value: Any) -> Any:
    """Without what URLs tell of who asks."""
    if isinstance(value, str):
        return _WHO.sub("//***@", value)
    return [_unnamed(each) for each in value] if isinstance(value, list) else value


def _storable(value: Any) -> Any:
    """As JSON of both databases has it: no NaN, no infinity, no NUL, no lone surrogates."""
    if isinstance(value, str):
        return clean(value, len(value))
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {clean(str(key), MAX_FOLDER): _storable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(each) for each in value]
    return value


def _check_there(url: URL) -> None:
    # Opening would make the file.
    if url.drivername == "sqlite" and not Path(url.database or "").is_file():
        raise LabError(
            f"database_url: there is no file {url.database}; name the sidecar's database, or make one by "
            "`specwatch db upgrade`"
        )


def _check_revision(found: str | None) -> None:
    if found is None:
        raise LabError("database_url: this database holds no tables of Specwatch yet: run `specwatch db upgrade`")
    if found < HEAD:
        raise LabError(f"the database is at revision {found}, of an older Specwatch: run `specwatch db upgrade`")
    if found > HEAD:
        raise LabError(f"the database is at revision {found}, of a newer Specwatch: use that one")


def _wait_longer(engine: Engine) -> None:
    """A sidecar's writer takes its turns at once; a run has but one row, and nobody who would try again."""

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA busy_timeout = {LOCK_TIMEOUT_S * 1000}")


def _upsert(connection: Connection, values: dict[str, Any]) -> None:
    insert = postgresql_insert if connection.dialect.name == "postgresql" else sqlite_insert
    statement = insert(lab_runs).values(values)
    statement = statement.on_conflict_do_update(
        index_elements=[_r.id], set_={name: statement.excluded[name] for name in values if name != "id"}
    )
    connection.execute(statement)
