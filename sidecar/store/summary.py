"""The figures of one window on one page."""

from typing import Any

from sqlalchemy import BigInteger, Connection, Select, cast, desc, func, select, true

from sidecar.probes.acceptance import CountWindow, one

from . import figures, traffic
from .expressions import counted, r, speculating, utc
from .latency import by_concurrency, latency_series
from .minutes import minutes
from .schema import rollups
from .series import acceptance_rows, sum_at
from .source import Source, TooManyRows, of_rows

_MAX_REASONS = 20
#: Requests that figures are of which are not of a window, and how many are looked at for so many of a kind.
_LAST, MOST_LOOKED_AT = 100, 200_000

_rolled = rollups.c
#: What `probes.acceptance.one` takes.
_COUNTED = (r.verify_steps, r.draft_tokens, r.accepted_tokens, r.num_speculative_tokens, r.rejected_at, r.reached)


def summary(connection: Connection, source: Source, now: float) -> dict[str, Any]:
    """What `Reader.summary` answers. Raises EmptyWindow."""
    ((place, sums),) = traffic.counted(connection, source)
    missing: dict[str, int] = {}
    if sums["served"] > sums["covered"]:
        missing = _missing(connection, source)
    found = _acceptance(connection, source)
    by_step = minutes(connection, source)
    of_minutes = None if by_step is None else traffic.known(source, sums, by_step.get(place["at"]))
    return {
        **source.head,
        "last_100": _last_100(connection, source, found["acceptance"]),
        **found,
        "latency": {
            **_latency(connection, source, now),
            "baseline_share": figures.ratio(sums["baseline"], sums["requests"]),
        },
        "slo": traffic.goal(sums, of_minutes),
        "traffic": traffic.traffic(source, sums),
        "coverage": {"requests": traffic.coverage(sums), "missing": missing},
        "versions": versions(connection),
    }


def _latency(connection: Connection, source: Source, now: float) -> dict[str, Any]:
    found = latency_series(connection, source)
    (sides,) = found["points"]
    ours, theirs = sides["speculative"], sides["autoregressive"]
    answer = {"speculative": ours, "autoregressive": theirs, "baseline": found["baseline"]}
    of = source
    if found["baseline"] is not None and not source.dimension:
        # What rollups know of concurrency is of all scenarios and models.
        try:
            of = of_rows(connection, source, "concurrency", now)
        except TooManyRows as error:
            return {**answer, **figures.no_ratio(str(error))}
    compared = by_concurrency(connection, of, found["baseline"])
    return {**answer, **figures.latency_ratio(ours["requests"], theirs["requests"], compared)}


def _last_100(connection: Connection, source: Source, inside: dict[str, Any]) -> dict[str, Any]:
    """`AcceptanceFigures` of the last 100; of a kind of requests, those in the window, whose figures are `inside`."""
    if not source.filters.names:
        return last_100(connection, source.until)
    if inside["requests"] <= _LAST:
        return inside
    names = [r[name] for name in source.filters.names]
    window = counted, r.started_at >= utc(source.since), r.started_at < utc(source.until)
    # Else the database would look through all of the window for what few requests are.
    newest = select(*_COUNTED, *names).where(*window).order_by(r.started_at.desc()).limit(MOST_LOOKED_AT).subquery().c
    return _of_last(
        connection, select(*(newest[column.name] for column in _COUNTED)).where(*source.named(newest)).limit(_LAST)
    )


def last_100(connection: Connection, now: float) -> dict[str, Any]:
    """Acceptance figures of the last 100 requests that speculated before `now`, however long ago."""
    before = counted, r.started_at < utc(now)
    return _of_last(connection, select(*_COUNTED).where(*before).order_by(r.started_at.desc()).limit(_LAST))


def _of_last(connection: Connection, newest: Select[Any]) -> dict[str, Any]:
    window = CountWindow(_LAST)
    for row in connection.execute(newest):
        window.put(one(*row))
    return figures.acceptance(window.figures())


def versions(connection: Connection) -> dict[str, Any]:
    """What the newest request that speculated was served by; of the newest request if none did."""
    columns = (r.fingerprint, r.model, r.draft_model, r.num_speculative_tokens)
    newest = select(*columns).order_by(r.started_at.desc(), r.id.desc()).limit(1)
    row = connection.execute(newest.where(counted)).one_or_none() or connection.execute(newest).one_or_none()
    return dict(zip((column.name for column in columns), row or [None] * 4, strict=True))


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
