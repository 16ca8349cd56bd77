"""All requests over a window, whether or not they speculated: whole, by steps of time, by groups."""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, select

from sidecar.probes.goal import GOAL_MS
from sidecar.record import Arm, Outcome

from . import figures
from .expressions import SPECULATING_ARMS, r, utc
from .minutes import Minutes, minutes
from .schema import rollups
from .series import keys, point, series
from .source import EmptyWindow, Source

#: What `counted` counts.
Sums = dict[str, int]

_rolled = rollups.c


def traffic_series(connection: Connection, source: Source) -> dict[str, Any]:
    """`TrafficSeries`."""
    by_step = None if source.by is not None else minutes(connection, source)
    points = []
    for place, sums in counted(connection, source):
        of_minutes = None if by_step is None else known(source, sums, by_step.get(place["at"]))
        points.append(
            {
                **place,
                **traffic(source, sums, place["at"]),
                "coverage": coverage(sums),
                **goal(sums, of_minutes),
                "minutes": None if of_minutes is None else of_minutes.number,
            }
        )
    return series(source, points)


def counted(connection: Connection, source: Source) -> list[tuple[dict[str, Any], Sums]]:
    """All that one pass gives, and where each point lies. Raises EmptyWindow."""
    if source.since >= source.until:
        since, until = (f"{utc(at):%Y-%m-%dT%H:%M:%SZ}" for at in (source.since, source.until))
        ends = f"the window begins at {since} and ends at {until}"
        raise EmptyWindow(f"{ends}: ask for an earlier since, a later until, or a longer window")
    rolled = source.pieces is not None
    c = _rolled if rolled else r
    ok = c.outcome == "ok"
    served = and_(ok, c.arm.in_(SPECULATING_ARMS))
    conditions = {
        **{outcome.value: c.outcome == outcome.value for outcome in Outcome},
        "baseline": c.arm == Arm.BASELINE.value,
        "served": served,
    }
    counts: dict[str, ColumnElement[Any]]
    if rolled:
        counts = {name: func.sum(c.requests).filter(condition) for name, condition in conditions.items()}
        counts |= {name: func.sum(c[name]) for name in ("requests", "streaming", "timed", "fast")}
        counts |= {"covered": func.sum(c.trusted).filter(served), "tokens": func.sum(c.completion_tokens)}
        where = source.rollups(source.dimension)
    else:
        timed = and_(ok, c.latency_ms.is_not(None))
        conditions |= {
            "streaming": c.stream,
            "covered": and_(served, c.acceptance_quality == "ok"),
            "timed": timed,
            "fast": and_(timed, c.latency_ms <= GOAL_MS),
        }
        counts = {name: func.count().filter(condition) for name, condition in conditions.items()}
        counts |= {"requests": func.count(), "tokens": func.sum(c.completion_tokens)}
        where = source.rows()
    parts = keys(source, connection, where, _rolled.requests)
    query = select(*parts, *(count.label(name) for name, count in counts.items())).where(*where)
    # Without a GROUP BY where nothing is split, for which SQLite would sort the rows.
    rows = connection.execute(query.group_by(*(part.name for part in parts)) if parts else query).mappings()
    return [(point(source, row), {name: int(row[name] or 0) for name in counts}) for row in rows]


def traffic(source: Source, sums: Sums, at: datetime | None = None) -> dict[str, Any]:
    """`Traffic` of the window, or of its step from `at` on."""
    since, until = source.since, source.until
    if at is not None and source.step_s is not None:
        since, until = max(since, at.timestamp()), min(until, at.timestamp() + source.step_s)
    return {
        "requests": sums["requests"],
        "ok": sums["ok"],
        "outcomes": {outcome.value: sums[outcome] for outcome in Outcome if sums[outcome]},
        "requests_per_s": sums["requests"] / (until - since),
        "completion_tokens_per_s": sums["tokens"] / (until - since),
        "streaming": sums["streaming"],
    }


def coverage(sums: Sums) -> float | None:
    return figures.ratio(sums["covered"], sums["served"])


def goal(sums: Sums, of_minutes: Minutes | None) -> dict[str, Any]:
    """`Slo`."""
    reached = None if of_minutes is None else figures.ratio(of_minutes.reached, of_minutes.number)
    return {
        "latency_under_800ms_ratio": figures.ratio(sums["fast"], sums["timed"]),
        "p95_latency_under_800ms_ratio": reached,
    }


def known(source: Source, sums: Sums, found: Minutes | None) -> Minutes | None:
    """Those of a point with `sums`; None where there are requests, but no minutes, as these are no longer kept."""
    if found is None and source.pieces is not None and sums["timed"]:
        return None
    return found or Minutes(0, 0)
