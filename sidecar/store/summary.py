"""The figures of one window on one page."""

from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Integer, and_, cast, desc, func, select, true

from sidecar.probes.acceptance import CountWindow, one
from sidecar.probes.goal import GOAL_MS, TRAILING, within_goal
from sidecar.record import Arm, Outcome

from . import figures
from .cover import MINUTE
from .expressions import SPECULATING_ARMS, counted, epoch_minute, r, speculating, utc
from .latency import by_concurrency, latency_series
from .schema import rollups
from .series import acceptance_rows, sum_at
from .source import Source

_MAX_REASONS = 20

_rolled = rollups.c


def summary(connection: Connection, source: Source, now: float) -> dict[str, Any]:
    sums = _sums(connection, source)
    missing: dict[str, int] = {}
    if sums["served"] > sums["covered"]:
        missing = _missing(connection, source)
    exact = source.pieces is None
    span_s = source.window_s if exact else source.until - source.since
    return {
        **source.head,
        "last_100": last_100(connection, now),
        **_acceptance(connection, source),
        "latency": {
            **_latency(connection, source),
            "baseline_share": figures.ratio(sums["baseline"], sums["requests"]),
        },
        "slo": {
            "latency_under_800ms_ratio": figures.ratio(sums["fast"], sums["timed"]),
            "p95_latency_under_800ms_ratio": (_minutes_of_rows if exact else _minutes_of_rollups)(connection, source),
        },
        "traffic": {
            "requests": sums["requests"],
            "ok": sums["ok"],
            "outcomes": {outcome.value: sums[outcome] for outcome in Outcome if sums[outcome]},
            "requests_per_s": sums["requests"] / span_s,
            "completion_tokens_per_s": sums["tokens"] / span_s,
            "streaming": sums["streaming"],
        },
        "coverage": {"requests": figures.ratio(sums["covered"], sums["served"]), "missing": missing},
        "versions": versions(connection),
    }


def _latency(connection: Connection, source: Source) -> dict[str, Any]:
    found = latency_series(connection, source)
    (sides,) = found["points"]
    ours, theirs = sides["speculative"], sides["autoregressive"]
    compared = by_concurrency(connection, source, found["baseline"])
    return {
        "speculative": ours,
        "autoregressive": theirs,
        "baseline": found["baseline"],
        **figures.latency_ratio(ours["requests"], theirs["requests"], compared),
    }


def last_100(connection: Connection, now: float) -> dict[str, Any]:
    """Acceptance figures of the last 100 requests that speculated before `now`, however long ago."""
    newest = (
        select(r.verify_steps, r.draft_tokens, r.accepted_tokens, r.num_speculative_tokens, r.rejected_at, r.reached)
        .where(counted, r.started_at < utc(now))
        .order_by(r.started_at.desc())
        .limit(100)
    )
    window = CountWindow(100)
    for row in connection.execute(newest):
        window.put(one(*row))
    return figures.acceptance(window.figures())


def versions(connection: Connection) -> dict[str, Any]:
    """What the newest request that speculated was served by; of the newest request if none did."""
    columns = (r.fingerprint, r.model, r.draft_model, r.num_speculative_tokens)
    newest = select(*columns).order_by(r.started_at.desc(), r.id.desc()).limit(1)
    row = connection.execute(newest.where(counted)).one_or_none() or connection.execute(newest).one_or_none()
    return dict(zip((column.name for column in columns), row or [None] * 4, strict=True))


def _sums(connection: Connection, source: Source) -> dict[str, int]:
    """All that one pass gives; without a GROUP BY, for which SQLite would sort the rows."""
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
        where = source.rollups("temperature")
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
    row = connection.execute(select(*(count.label(name) for name, count in counts.items())).where(*where)).mappings()
    return {name: int(value or 0) for name, value in row.one().items()}


def _missing(connection: Connection, source: Source) -> dict[str, int]:
    if source.pieces is None:
        reason = func.coalesce(r.acceptance_reason, r.acceptance_quality).label("why")
        where = [*source.rows(), r.outcome == "ok", speculating, r.acceptance_quality != "ok"]
        query = select(reason, func.count().label("number")).where(*where)
    else:
        # By reason, from each rollup's object.
        each = func.jsonb_each_text if connection.dialect.name == "postgresql" else func.json_each
        reasons = each(_rolled.missing).table_valued("key", "value")
        number = func.sum(cast(reasons.c.value, BigInteger)).label("number")
        query = select(reasons.c.key.label("why"), number).select_from(rollups).join(reasons, true())
        query = query.where(*source.rollups(""), _rolled.missing.is_not(None))
    rows = connection.execute(query.group_by("why").order_by(desc("number"), "why").limit(_MAX_REASONS))
    return {row.why: int(row.number) for row in rows}


def _acceptance(connection: Connection, source: Source) -> dict[str, Any]:
    sums, where = acceptance_rows(source)
    rejected_at = r.rejected_at if source.pieces is None else _rolled.rejected_at
    first = sum_at(connection, rejected_at, 0).label("first")
    row = connection.execute(select(*sums, first).where(*where)).mappings().one()
    # PostgreSQL adds up in decimals.
    first_cut, cut, steps = (int(row[name] or 0) for name in ("first", "truncated_steps", "listed_steps"))
    return {
        "acceptance": figures.acceptance(figures.summed(row)),
        "truncation": {
            "truncation_rate": figures.ratio(cut, steps),
            "first_position_share": figures.ratio(first_cut, cut),
        },
    }


def _minutes_of_rows(connection: Connection, source: Source) -> float | None:
    """The share of minutes with traffic whose p95 is within GOAL_MS.

    A minute is held to the p95 of itself and the four minutes before it. By nearest rank, p95 is within the
    limit exactly when at least 95 % of the requests are.
    """
    since = utc(source.since)
    first = since.replace(second=0, microsecond=0)
    minute = epoch_minute(r.started_at).label("minute")
    timed = [r.started_at < utc(source.until), r.outcome == "ok", r.latency_ms.is_not(None)]
    rows = connection.execute(
        select(minute, func.count(), func.count().filter(r.latency_ms <= GOAL_MS))
        .where(r.started_at >= first - timedelta(minutes=TRAILING - 1), *timed)
        .group_by("minute")
    )
    counts = {int(at): (int(n), int(fast)) for at, n, fast in rows}
    start = int(first.timestamp()) // 60
    minutes = [at for at in counts if at > start]
    # Of the first minute, only a part may lie in the window.
    inside = [r.started_at >= since, r.started_at < first + timedelta(minutes=1), *timed]
    if connection.execute(select(r.id).where(*inside).limit(1)).first() is not None:
        minutes.append(start)
    return figures.ratio(within_goal(minutes, counts), len(minutes))


def _minutes_of_rollups(connection: Connection, source: Source) -> float | None:
    """The same of a window of whole minutes, as far as minutes are kept."""
    minute = cast(epoch_minute(_rolled.at), Integer).label("minute")
    trailing = [
        func.sum(_rolled[name]).over(order_by=minute, range_=(1 - TRAILING, 0)).label(name)
        for name in ("timed", "fast")
    ]
    sums = (
        select(minute, *trailing)
        .where(
            _rolled.span_s == MINUTE,
            _rolled.dimension == "whole",
            _rolled.at >= utc(source.since - (TRAILING - 1) * MINUTE),
            _rolled.at < utc(source.until),
            _rolled.timed > 0,
        )
        .subquery()
    )
    reached = func.count().filter(100 * sums.c.fast >= 95 * sums.c.timed)
    row = connection.execute(select(func.count(), reached).where(sums.c.minute >= int(source.since) // MINUTE)).one()
    return figures.ratio(row[1], row[0])
