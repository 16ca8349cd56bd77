"""The figures of one window on one page."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, and_, case, func, literal, select

from . import figures
from .expressions import Filters, counted, epoch, r, speculating, utc, window
from .latency import latency_series
from .series import Conditions, Split, truncation_series

#: The promise that the SLO ratios are about.
SLO_MS = 800
_SLO_TRAILING_MINUTES = 5
_MAX_REASONS = 20


def summary(connection: Connection, window_s: int, now: float) -> dict[str, Any]:
    where = window(window_s, now, Filters())
    split = Split(window_s)
    (latency,) = latency_series(connection, split, where)["points"]
    truncated = truncation_series(connection, split, where)
    total = truncated["total"]
    return {
        "last_100": last_100(connection, now),
        "truncation": {
            "truncation_rate": figures.ratio(total["truncated_steps"], total["verify_steps"]),
            "first_position_share": truncated["first_position_share"],
        },
        "latency": {
            "speculative": latency["speculative"],
            "autoregressive": latency["autoregressive"],
            **figures.latency_ratio(latency["speculative"], latency["autoregressive"]),
        },
        **_sums(connection, window_s, where),
        "slo": _slo(connection, window_s, now),
        "versions": versions(connection),
    }


def last_100(connection: Connection, now: float) -> dict[str, Any]:
    """Acceptance figures of the last 100 requests that speculated before `now`, however long ago."""
    newest = (
        select(r.verify_steps, r.draft_tokens, r.accepted_tokens)
        .where(counted, r.started_at < utc(now))
        .order_by(r.started_at.desc())
        .limit(100)
        .subquery()
    )
    row = connection.execute(
        select(
            func.count(),
            func.sum(newest.c.verify_steps),
            func.sum(newest.c.draft_tokens),
            func.sum(newest.c.accepted_tokens),
        )
    ).one()
    return figures.acceptance(*row)


def versions(connection: Connection) -> dict[str, Any]:
    """What the newest request that speculated was served by; of the newest request if none did."""
    columns = (r.fingerprint, r.model, r.draft_model, r.num_speculative_tokens)
    newest = select(*columns).order_by(r.started_at.desc(), r.id.desc()).limit(1)
    row = connection.execute(newest.where(counted)).one_or_none() or connection.execute(newest).one_or_none()
    return dict(zip((column.name for column in columns), row or [None] * 4, strict=True))


def _sums(connection: Connection, window_s: int, where: Conditions) -> dict[str, Any]:
    """Acceptance, traffic and coverage, from one pass over the rows."""
    served = and_(r.outcome == "ok", speculating)
    trusted = r.acceptance_quality == "ok"
    rows = connection.execute(
        select(
            r.outcome,
            func.count().label("requests"),
            _count(r.stream).label("streaming"),
            func.coalesce(func.sum(r.completion_tokens), 0).label("tokens"),
            _count(served).label("served"),
            _count(and_(served, trusted)).label("covered"),
            _count(counted).label("counted"),
            *(_sum_if(counted, r[name]).label(name) for name in ("verify_steps", "draft_tokens", "accepted_tokens")),
        )
        .where(*where)
        .group_by(r.outcome)
    ).all()

    def total(name: str) -> int:
        return int(sum(getattr(row, name) or 0 for row in rows))

    outcomes = {row.outcome: row.requests for row in rows}
    return {
        "acceptance": figures.acceptance(
            total("counted"), total("verify_steps"), total("draft_tokens"), total("accepted_tokens")
        ),
        "traffic": {
            "requests": total("requests"),
            "ok": outcomes.get("ok", 0),
            "outcomes": outcomes,
            "requests_per_s": total("requests") / window_s,
            "completion_tokens_per_s": total("tokens") / window_s,
            "streaming": total("streaming"),
        },
        "coverage": {
            "requests": figures.ratio(total("covered"), total("served")),
            "missing": _missing(connection, [*where, served, r.acceptance_quality != "ok"]),
        },
    }


def _missing(connection: Connection, where: Conditions) -> dict[str, int]:
    reason = func.coalesce(r.acceptance_reason, r.acceptance_quality)
    rows = connection.execute(
        select(reason.label("why"), func.count())
        .where(*where)
        .group_by("why")
        .order_by(func.count().desc())
        .limit(_MAX_REASONS)
    )
    return dict(rows.tuples().all())


def _slo(connection: Connection, window_s: int, now: float) -> dict[str, Any]:
    """The share of ok requests within SLO_MS, and the share of minutes whose p95 is.

    A minute with traffic is held to the p95 of itself and the four minutes before it. By nearest rank, p95 is
    within the limit exactly when at least 95 % of the requests are.
    """
    since = int(now - window_s)
    first = since - since % 60 - 60 * (_SLO_TRAILING_MINUTES - 1)
    inside = r.started_at >= utc(now - window_s)
    fast = r.latency_ms <= SLO_MS
    rows = connection.execute(
        select(
            (epoch(r.started_at) // literal(60, Integer)).label("minute"),
            func.count(),
            _count(fast),
            _count(inside),
            _count(and_(inside, fast)),
        )
        .where(r.started_at >= utc(first), r.started_at < utc(now), r.outcome == "ok", r.latency_ms.is_not(None))
        .group_by("minute")
    ).all()
    counts = {int(at): (int(n), int(quick)) for at, n, quick, _, _ in rows}
    kept = 0
    minutes = [int(at) for at, _, _, n, _ in rows if n]
    for at in minutes:
        trailing = [counts.get(at - back, (0, 0)) for back in range(_SLO_TRAILING_MINUTES)]
        kept += 100 * sum(quick for _, quick in trailing) >= 95 * sum(n for n, _ in trailing)
    return {
        "latency_under_800ms_ratio": figures.ratio(
            sum(int(quick) for *_, quick in rows), sum(int(n) for _, _, _, n, _ in rows)
        ),
        "p95_latency_under_800ms_ratio": figures.ratio(kept, len(minutes)),
    }


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _sum_if(condition: ColumnElement[bool], column: ColumnElement[int]) -> ColumnElement[Any]:
    return func.sum(case((condition, column)))
