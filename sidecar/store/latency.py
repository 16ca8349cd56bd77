"""Quantiles of ok requests by nearest rank: of n sorted values the one at rank ceil(q n), as percentile_disc.

Ranks are whole numbers here, so that no rounding of q n decides.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

from msgspec import json
from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    ScalarSelect,
    Text,
    case,
    cast,
    func,
    literal,
    select,
)

from sidecar.probes.latency import AUTOREGRESSIVE, BASELINES, MIN_FOR_RATIO, Comparison, Side, comparison

from . import figures
from .expressions import group_name, group_order, r, speculating
from .series import Conditions, Split

#: Prefix of the figures' names, column and percents.
_QUANTILES = (("", "latency_ms", (50, 95, 99)), ("ttft_", "ttft_ms", (50, 95)), ("tpot_", "tpot_ms", (50,)))
_FIGURES = [(f"{prefix}p{q}_ms", column, q) for prefix, column, percents in _QUANTILES for q in percents]

#: What the baseline is called in answers, of whichever kind.
_BASELINE = "autoregressive"

_side = case(
    (speculating, Side.SPECULATIVE.value), (r.upstream == AUTOREGRESSIVE, Side.TRUE_AR), else_=Side.SPEC_DISABLED
).label("side")


def latency_series(connection: Connection, split: Split, where: Conditions) -> dict[str, Any]:
    where = [*where, r.outcome == "ok"]
    read = _split if split.step_s or split.by else _whole
    baseline, points = read(connection, split, where)
    return {**split.series(points), "baseline": baseline}


def by_concurrency(connection: Connection, where: Conditions, baseline: Side | None) -> list[Comparison]:
    """p95 of latency with and without speculation, by concurrency; only where both sides have enough requests."""
    if baseline is None:
        return []
    where = [*where, r.outcome == "ok", r.latency_ms.is_not(None), _side.in_((Side.SPECULATIVE, baseline))]
    bucket = group_name("concurrency", []).label("bucket")
    counted = select(bucket, _side, func.count()).where(*where).group_by("bucket", "side")
    sizes = {(row[0], Side(row[1])): row[2] for row in connection.execute(counted)}
    names = sorted({name for name, _ in sizes}, key=lambda name: group_order("concurrency", name))
    pairs = [[(name, side) for side in (Side.SPECULATIVE, baseline)] for name in names]
    rows = select(bucket, _side, r.latency_ms).where(*where).cte("ok_rows").prefix_with("MATERIALIZED")
    chosen = {
        key: _at_rank([rows.c.bucket == key[0], rows.c.side == key[1]], rows.c.latency_ms, 95, sizes[key])
        for pair in pairs
        if all(sizes.get(key, 0) >= MIN_FOR_RATIO for key in pair)
        for key in pair
    }
    found = _answer(connection, chosen)
    return [
        comparison(ours[0], sizes.get(ours, 0), sizes.get(theirs, 0), found.get(ours), found.get(theirs))
        for ours, theirs in pairs
    ]


def _chosen(sizes: dict[Side, int]) -> Side | None:
    """The kind of baseline that is answered for, by requests; the true one where it has enough."""
    best = max(BASELINES, key=lambda kind: min(sizes.get(kind, 0), MIN_FOR_RATIO))
    return best if sizes.get(best) else None


def _whole(connection: Connection, split: Split, where: Conditions) -> tuple[Side | None, list[dict[str, Any]]]:
    """One answer for the window: the rows are read twice, and sorted no further than the ranks asked for."""
    sizes = _sizes(connection, where)
    baseline = _chosen({side: sizes[side, "latency_ms"] for side in Side})
    rows = select(_side, *(r[column] for _, column, _ in _QUANTILES)).where(*where).cte("ok_rows")
    rows = rows.prefix_with("MATERIALIZED")
    labels: dict[str, Side | None] = {Side.SPECULATIVE: Side.SPECULATIVE, _BASELINE: baseline}
    found = _answer(
        connection,
        {
            (label, name): _at_rank([rows.c.side == side], rows.c[column], q, sizes[side, column])
            for label, side in labels.items()
            for name, column, q in _FIGURES
            if side is not None and sizes[side, column]
        },
    )
    sides = {
        label: figures.latency_side(
            0 if side is None else sizes[side, "latency_ms"],
            {name: found.get((label, name)) for name in figures.LATENCY_FIGURES},
        )
        for label, side in labels.items()
    }
    return baseline, [{"at": None, "group": None, **sides}]


def _answer(connection: Connection, chosen: dict[Any, ScalarSelect[Any]]) -> dict[Any, float]:
    if not chosen:
        return {}
    return dict(zip(chosen, connection.execute(select(*chosen.values())).one(), strict=True))


def _sizes(connection: Connection, where: Conditions) -> dict[tuple[Side, str], int]:
    """How many values each side has of each column."""
    columns = [column for _, column, _ in _QUANTILES]
    counts = {(side, column): func.count(r[column]).filter(_side == side) for side in Side for column in columns}
    row = connection.execute(select(*counts.values()).where(*where)).one()
    return dict(zip(counts, row, strict=True))


def _split(connection: Connection, split: Split, where: Conditions) -> tuple[Side | None, list[dict[str, Any]]]:
    """Answers for the groups: all rows in the order of groups and values, numbered once through."""
    keys = [*split.keys(connection, where), _side]
    names = [key.name for key in keys]
    columns = [column for _, column, _ in _QUANTILES]
    sizes = connection.execute(
        select(*keys, *(func.count(r[column]).label(column) for column in columns))
        .where(*where)
        .group_by(*names)
        .order_by(*names)
    ).all()
    totals: Counter[Side] = Counter()
    for group in sizes:
        totals[Side(group.side)] += group.latency_ms
    baseline = _chosen(totals)
    labels = {Side.SPECULATIVE: Side.SPECULATIVE.value, baseline: _BASELINE}
    sizes = [group for group in sizes if group.side in labels]
    where = [*where, _side.in_([side for side in labels if side is not None])]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for prefix, column, percents in _QUANTILES:
        places: dict[tuple[int, str], int] = {}
        before = 0
        for i, group in enumerate(sizes):
            size = getattr(group, column)
            if size:
                places |= {(i, f"{prefix}p{q}_ms"): before - (-size * q // 100) for q in percents}
            before += size
        values = _at_places(connection, keys, column, where, places.values())
        for (i, name), place in places.items():
            point = split.point(sizes[i])
            entry = found.setdefault(tuple(point.values()), point)
            side = entry.setdefault(labels[sizes[i].side], figures.latency_side(sizes[i].latency_ms))
            side[name] = values[place]
    sides = dict.fromkeys((Side.SPECULATIVE.value, _BASELINE), figures.latency_side())
    return baseline, [{**sides, **point} for point in found.values()]


def _at_places(
    connection: Connection,
    keys: list[ColumnElement[Any]],
    column: str,
    where: Conditions,
    places: Collection[int],
) -> dict[int, float]:
    """The values that come at `places`, counted from 1, when all are sorted by keys and then by value."""
    base = select(*keys, r[column].label("value")).where(*where, r[column].is_not(None)).subquery()
    order = [*(base.c[key.name] for key in keys), base.c.value]
    numbered = select(base.c.value, func.row_number().over(order_by=order).label("place")).subquery()
    # One parameter, however many places there are.
    listed = literal(json.encode(sorted(set(places))).decode(), Text)
    if connection.dialect.name == "postgresql":
        wanted = func.json_array_elements_text(cast(listed, JSON)).table_valued("value")
    else:
        wanted = func.json_each(listed).table_valued("value")
    chosen = select(cast(wanted.c.value, BigInteger))
    rows = connection.execute(select(numbered.c.place, numbered.c.value).where(numbered.c.place.in_(chosen)))
    return {row.place: row.value for row in rows}


def _at_rank(where: Conditions, value: ColumnElement[Any], q: int, size: int) -> ScalarSelect[Any]:
    """The value at rank ceil(q size / 100) of the `size` ones there are."""
    below = -(-size * q // 100) - 1
    above = size - 1 - below
    chosen = select(value).where(*where, value.is_not(None)).limit(1)
    if above < below:
        return chosen.order_by(value.desc()).offset(above).scalar_subquery()
    return chosen.order_by(value).offset(below).scalar_subquery()
