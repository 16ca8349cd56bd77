"""Minutes with traffic, and how many of them reach the latency goal.

A minute is held to the p95 of itself and the four minutes before it. By nearest rank, p95 is within GOAL_MS exactly
when at least 95 % of the requests are, so that counts are enough.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Integer, Subquery, case, cast, func, literal, select

from sidecar.probes.goal import GOAL_MS, TRAILING

from .cover import MINUTE
from .expressions import epoch, epoch_minute, r, utc
from .schema import rollups
from .source import Source

#: Rollups that are read where there is not one a minute that knows what is asked for: of two days, in a fleet's
#: traffic. Of longer windows they are too many.
MOST_ROLLUPS = 200_000

_rolled = rollups.c


class Minutes(NamedTuple):
    """Minutes with ok requests of known latency, and those of them that reach the goal."""

    number: int
    reached: int


def minutes(connection: Connection, source: Source) -> dict[datetime | None, Minutes] | None:
    """By start of the step, or of None where the window is not split; those without a minute are left out.

    A minute belongs to the step of its first such request in the window, which is the step that holds its start where
    steps are of whole minutes. Where there are only rollups, as far as minutes are kept. None where these are too many.
    """
    if source.pieces is None:
        counts = _of_rows(source)
    else:
        counts = _of_rollups(source)
        if source.filters.names and _too_many(connection, source):
            return None
    trailing = [
        func.sum(counts.c[name]).over(order_by=counts.c.minute, range_=(1 - TRAILING, 0)).label(name)
        for name in ("timed", "fast")
    ]
    sums = select(counts.c.first, *trailing).subquery().c
    step = literal(0) if source.step_s is None else sums.first - sums.first % literal(source.step_s, Integer)
    reached = func.count().filter(100 * sums.fast >= 95 * sums.timed)
    query = select(step.label("step_at"), func.count(), reached).where(sums.first.is_not(None)).group_by("step_at")
    return {
        None if source.step_s is None else utc(at): Minutes(int(number), int(good))
        for at, number, good in connection.execute(query)
    }


def _of_rows(source: Source) -> Subquery:
    """By minute: requests, those within the goal, and when the first one in the window began (Unix s)."""
    since = utc(source.since)
    trailing = since.replace(second=0, microsecond=0) - timedelta(minutes=TRAILING - 1)
    inside = r.started_at >= trailing, r.started_at < utc(source.until), *source.named(r)
    return (
        select(
            cast(epoch_minute(r.started_at), Integer).label("minute"),
            func.count().label("timed"),
            func.count().filter(r.latency_ms <= GOAL_MS).label("fast"),
            # Of the window's first minute, only a part may lie in it.
            func.min(case((r.started_at >= since, epoch(r.started_at)))).label("first"),
        )
        .where(*inside, r.outcome == "ok", r.latency_ms.is_not(None))
        .group_by("minute")
        .subquery()
    )


def _of_rollups(source: Source) -> Subquery:
    """The same of a window of whole minutes."""
    minute = cast(epoch_minute(_rolled.at), Integer)
    return (
        select(
            minute.label("minute"),
            func.sum(_rolled.timed).label("timed"),
            func.sum(_rolled.fast).label("fast"),
            func.min(case((_rolled.at >= utc(source.since), epoch(_rolled.at)))).label("first"),
        )
        .where(*_spans(source), *source.named(_rolled), _rolled.timed > 0)
        .group_by("minute")
        .subquery()
    )


def _spans(source: Source) -> list[ColumnElement[bool]]:
    since = utc(source.since - (TRAILING - 1) * MINUTE)
    # One rollup a minute knows all requests.
    dimension = source.dimension if source.filters.names else "whole"
    return [
        _rolled.span_s == MINUTE,
        _rolled.dimension == dimension,
        _rolled.at >= since,
        _rolled.at < utc(source.until),
    ]


def _too_many(connection: Connection, source: Source) -> bool:
    # Only the index of spans is read.
    some = select(literal(1)).where(*_spans(source)).limit(MOST_ROLLUPS + 1).subquery()
    return (connection.scalar(select(func.count()).select_from(some)) or 0) > MOST_ROLLUPS
