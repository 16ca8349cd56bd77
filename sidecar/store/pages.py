"""Single rows of `requests`, newest first. However few match, and however many there are, the look is bounded."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Double, and_, cast, func, or_, select

from .cover import HOUR, MINUTE
from .cursor import read_cursor, write_cursor
from .expressions import OTHER, Filters, r, utc
from .rows import clean
from .schema import requests, rollups, rollups_due

MAX_PAGE = 500
#: Rows that are looked at for one page, and at a time.
MOST_LOOKED_AT, AT_A_TIME = 200_000, 20_000
#: Rows that are looked at for one id. Only the index of times is read: 0.4 s beside other work.
MOST_FOR_AN_ID = 500_000
#: How far one look at the rollups of hours goes back for the next hour that has rows of the filters.
_JUMP = timedelta(days=31)
#: Columns store whole ones.
_MICROSECOND = timedelta(microseconds=1)

_REQUEST = [column for column in requests.columns if column.name != "id"]
_hour, _due = rollups.c, rollups_due.c


@dataclass(frozen=True, slots=True)
class Only:
    """Which of the rows of `Filters`; None means any. Rows that do not tell what is asked for are none of them."""

    #: A verify step had its first rejection at that position, 1 or more.
    truncated_at: int | None = None
    #: The id in the reply.
    reply_id: str | None = None
    latency_over_ms: float | None = None
    #: Accepted / drafted tokens, of figures that are trusted.
    p_below: float | None = None
    #: num_speculative_tokens.
    k: int | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        if self.truncated_at is not None:
            rejected = cast(r.rejected_at[self.truncated_at - 1].as_string(), BigInteger)
            found += [r.acceptance_quality == "ok", rejected > 0]
        if self.reply_id is not None:
            found.append(r.reply_id == clean(self.reply_id))
        if self.latency_over_ms is not None:
            found.append(r.latency_ms > self.latency_over_ms)
        if self.p_below is not None:
            p = cast(r.accepted_tokens, Double) / func.nullif(r.draft_tokens, 0)
            found += [r.acceptance_quality == "ok", p < self.p_below]
        if self.k is not None:
            found.append(r.num_speculative_tokens == self.k)
        return found


ALL = Only()


def page(
    connection: Connection, filters: Filters, only: Only, limit: int, cursor: str | None, now: float
) -> dict[str, Any]:
    """`RequestPage`. Raises BadCursor.

    Of names, and of what `only` asks for, it may have fewer rows than `limit`, or none, and a cursor all the same.
    """
    limit = max(1, min(limit, MAX_PAGE))
    wanted = [*filters.conditions(), *only.conditions()]
    query = select(r.id, *_REQUEST).where(*wanted).order_by(r.started_at.desc(), r.id.desc())
    end = filters.until
    if cursor is not None:
        at, number = read_cursor(cursor)
        query = query.where(r.started_at <= at, or_(r.started_at < at, r.id < number))
        end = at + _MICROSECOND if end is None else min(at + _MICROSECOND, end)
    if not filters.names and only == ALL:
        found = [dict(row) for row in connection.execute(query.limit(limit + 1)).mappings()]
        return _page(found, limit)
    oldest, newest = connection.execute(select(_first(descending=False), _first(descending=True))).one()
    if newest is None:
        return _page([], limit)
    since = oldest if filters.since is None else max(oldest, filters.since)
    end = newest + _MICROSECOND if end is None else min(newest + _MICROSECOND, end)
    rows: list[dict[str, Any]] = []
    for _ in range(MOST_LOOKED_AT // AT_A_TIME):
        end = _jump(connection, filters, end, now)
        if end <= since:
            return _page(rows, limit)
        times = select(r.started_at).where(r.started_at < end, r.started_at >= since).order_by(r.started_at.desc())
        start = connection.scalar(times.offset(AT_A_TIME - 1).limit(1)) or since
        part = query.where(r.started_at < end, r.started_at >= start).limit(limit + 1 - len(rows))
        rows += [dict(row) for row in connection.execute(part).mappings()]
        if len(rows) > limit or start == since:
            return _page(rows, limit)
        end = start
    return {**_page(rows, limit), "next_cursor": write_cursor(end, 0)}


def find(
    connection: Connection, request_id: str, until: datetime | None
) -> tuple[dict[str, Any] | None, datetime | None]:
    """`RequestRow` of an id: of the newest request before `until` that has it, as clients may use one again.

    Of the newest MOST_FOR_AN_ID; where it is none of them, also before which time there are more.
    """
    times = select(r.started_at, r.request_id, r.instance).order_by(r.started_at.desc())
    if until is not None:
        times = times.where(r.started_at < until)
    newest = times.limit(MOST_FOR_AN_ID).subquery().c
    # Any second key would have the database go on to the last row of that id before it answers.
    key = connection.execute(
        select(newest.started_at, newest.request_id, newest.instance)
        .where(newest.request_id == clean(request_id))
        .limit(1)
    ).one_or_none()
    if key is None:
        rest = connection.execute(times.offset(MOST_FOR_AN_ID).limit(1)).one_or_none()
        return None, None if rest is None else rest.started_at + _MICROSECOND
    # By the whole key, not by number: on PostgreSQL days are tables of their own.
    same = [r[name] == value for name, value in key._mapping.items()]
    return dict(connection.execute(select(*_REQUEST).where(*same)).mappings().one()), None


def _page(rows: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """`limit` of the rows; where there is one more, a cursor to it."""
    numbers = [row.pop("id") for row in rows]
    cursor = write_cursor(rows[limit - 1]["started_at"], numbers[limit - 1]) if len(rows) > limit else None
    return {"requests": rows[:limit], "next_cursor": cursor}


def _first(*, descending: bool) -> Any:
    order = r.started_at.desc() if descending else r.started_at
    return select(r.started_at).order_by(order).limit(1).scalar_subquery()


def _jump(connection: Connection, filters: Filters, end: datetime, now: float) -> datetime:
    """A time up to `end` (exclusive) such that no row of the filters lies between the two."""
    # The last two hours may have no rollups yet.
    if end > utc(now // HOUR * HOUR - HOUR):
        return end
    hours = select(_hour.at).where(_hour.span_s == HOUR, _hour.dimension == "")
    oldest: datetime | None = connection.scalar(hours.order_by(_hour.at).limit(1))
    if oldest is None or end <= oldest:
        return end
    names = {name: value for name, value in filters.names.items() if name != "instance"}
    match: list[ColumnElement[bool]] = [_hour[name].in_((value, OTHER)) for name, value in names.items()]
    since = max(end - _JUMP, oldest)
    inside = and_(_hour.at < end, _hour.at >= since, *match)
    waits = _due.family == "requests", _due.span_s.in_((MINUTE, HOUR)), _due.at < end, _due.at >= since
    found = [
        connection.scalar(hours.where(inside).order_by(_hour.at.desc()).limit(1)),
        connection.scalar(select(func.max(_due.at)).where(*waits)),
    ]
    newest = max((at for at in found if at is not None), default=None)
    if newest is None:
        return since
    start: datetime = newest.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return min(end, start + timedelta(hours=1))
