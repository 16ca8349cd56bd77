"""The figures of one window on one page."""

from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, not_, select

from sidecar.probes.acceptance import CountWindow, one
from sidecar.probes.goal import GOAL_MS, TRAILING, within_goal
from sidecar.record import Arm, Outcome

from . import figures
from .expressions import Filters, counted, epoch_minute, r, speculating, utc, window
from .latency import by_concurrency, latency_series
from .series import ACCEPTANCE, Conditions, Split, listed, positions, sum_at

_MAX_REASONS = 20


def summary(connection: Connection, window_s: int, now: float) -> dict[str, Any]:
    where = window(window_s, now, Filters())
    sums = _sums(connection, where)
    missing: dict[str, int] = {}
    if sums["served"] > sums["covered"]:
        missing = _missing(connection, where)
    latency = _latency(connection, window_s, where)
    return {
        "last_100": last_100(connection, now),
        **_acceptance(connection, where),
        "latency": {**latency, "baseline_share": figures.ratio(sums["baseline"], sums["requests"])},
        "slo": {
            "latency_under_800ms_ratio": figures.ratio(sums["fast"], sums["timed"]),
            "p95_latency_under_800ms_ratio": _minutes_within_slo(connection, window_s, now),
        },
        "traffic": {
            "requests": sums["requests"],
            "ok": sums["ok"],
            "outcomes": {outcome.value: sums[outcome] for outcome in Outcome if sums[outcome]},
            "requests_per_s": sums["requests"] / window_s,
            "completion_tokens_per_s": sums["tokens"] / window_s,
            "streaming": sums["streaming"],
        },
        "coverage": {"requests": figures.ratio(sums["covered"], sums["served"]), "missing": missing},
        "versions": versions(connection),
    }


def _latency(connection: Connection, window_s: int, where: Conditions) -> dict[str, Any]:
    found = latency_series(connection, Split(window_s), where)
    (sides,) = found["points"]
    ours, theirs = sides["speculative"], sides["autoregressive"]
    compared = by_concurrency(connection, where, found["baseline"])
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


_ok = r.outcome == "ok"
_served = and_(_ok, speculating)
_trusted = r.acceptance_quality == "ok"


def _sums(connection: Connection, where: Conditions) -> dict[str, int]:
    """All that one pass over the rows gives; without a GROUP BY, for which SQLite would sort them."""
    timed = and_(_ok, r.latency_ms.is_not(None))
    conditions = {
        **{outcome.value: r.outcome == outcome.value for outcome in Outcome},
        "streaming": r.stream,
        "baseline": r.arm == Arm.BASELINE.value,
        "served": _served,
        "covered": and_(_served, _trusted),
        "timed": timed,
        "fast": and_(timed, r.latency_ms <= GOAL_MS),
    }
    traffic = select(
        *(_count(condition).label(name) for name, condition in conditions.items()),
        func.count().label("requests"),
        func.sum(r.completion_tokens).label("tokens"),
    )
    row = connection.execute(traffic.where(*where)).mappings().one()
    return {name: int(value or 0) for name, value in row.items()}


def _missing(connection: Connection, where: Conditions) -> dict[str, int]:
    reason = func.coalesce(r.acceptance_reason, r.acceptance_quality).label("why")
    rows = connection.execute(
        select(reason, func.count().label("requests"))
        .where(*where, _served, not_(_trusted))
        .group_by("why")
        .order_by(func.count().desc())
        .limit(_MAX_REASONS)
    )
    return {row.why: row.requests for row in rows}


def _acceptance(connection: Connection, where: Conditions) -> dict[str, Any]:
    where = [*where, counted]
    number = positions(connection).filter(*listed).label("positions")
    sums = connection.execute(select(*ACCEPTANCE, number).where(*where)).mappings().one()
    cuts = [sum_at(connection, r.rejected_at, i) for i in range(sums["positions"] or 0)]
    row = connection.execute(select(func.count(), func.sum(r.verify_steps), *cuts).where(*where, *listed)).one()
    # PostgreSQL adds up in decimals.
    told, steps, *found = (int(value or 0) for value in row)
    return {
        "acceptance": figures.acceptance(figures.summed(sums, sum(found), sums["requests"] - told)),
        "truncation": {
            "truncation_rate": figures.ratio(sum(found), steps),
            "first_position_share": figures.ratio(found[0], sum(found)) if found else None,
        },
    }


def _minutes_within_slo(connection: Connection, window_s: int, now: float) -> float | None:
    """The share of minutes with traffic whose p95 is within GOAL_MS.

    A minute is held to the p95 of itself and the four minutes before it. By nearest rank, p95 is within the
    limit exactly when at least 95 % of the requests are.
    """
    since = utc(now - window_s)
    first = since.replace(second=0, microsecond=0)
    minute = epoch_minute(r.started_at).label("minute")
    timed = [r.started_at < utc(now), _ok, r.latency_ms.is_not(None)]
    rows = connection.execute(
        select(minute, func.count(), _count(r.latency_ms <= GOAL_MS))
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


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.count().filter(condition)
