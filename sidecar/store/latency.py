"""Quantiles of ok requests by nearest rank: of n sorted values the one at rank ceil(q n), as percentile_disc.

From rows, where ranks are whole numbers, so that no rounding of q n decides; or from sketches (`sketched`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
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

from sidecar.probes.goal import GOAL_MS
from sidecar.probes.latency import MIN_FOR_RATIO, Comparison, Side, comparison

from . import figures, sketched
from .expressions import group_name, group_order, r
from .series import Conditions, keys, point, series
from .sketched import BASELINE, MEASURES, baseline_of, side_of
from .source import Source

_FIGURES = [(name, f"{measure}_ms", q) for measure, names in MEASURES.items() for name, q in names.items()]
_COLUMNS = [f"{measure}_ms" for measure in MEASURES]

side_of_row = side_of(r)
_COUNTS: dict[str, ColumnElement[int]] = {
    **{column: func.count(r[column]) for column in _COLUMNS},
    "fast": func.count(case((r.latency_ms <= GOAL_MS, 1))),
}


def latency_series(connection: Connection, source: Source) -> dict[str, Any]:
    if source.pieces is not None:
        baseline, points = sketched.latency(connection, source)
    else:
        read = _split if source.step_s or source.by else _whole
        baseline, points = read(connection, source, [*source.rows(), r.outcome == "ok"])
    for each in points:
        each["ratio"] = figures.p95_ratio(each["speculative"], each[BASELINE])
    return {**series(source, points), "baseline": baseline}


def by_concurrency(connection: Connection, source: Source, baseline: Side | None) -> list[Comparison]:
    """p95 of latency with and without speculation, by concurrency; only where both sides have enough requests."""
    if baseline is None:
        return []
    if source.pieces is not None:
        return sketched.by_concurrency(connection, source, baseline)
    sides = Side.SPECULATIVE, baseline
    where = [*source.rows(), r.outcome == "ok", r.latency_ms.is_not(None), side_of_row.in_(sides)]
    bucket = group_name("concurrency", []).label("bucket")
    counted = select(bucket, side_of_row, func.count()).where(*where).group_by("bucket", "side")
    sizes = {(row[0], Side(row[1])): row[2] for row in connection.execute(counted)}
    names = sorted({name for name, _ in sizes}, key=lambda name: group_order("concurrency", name))
    pairs = [[(name, side) for side in sides] for name in names]
    rows = select(bucket, side_of_row, r.latency_ms).where(*where).cte("ok_rows").prefix_with("MATERIALIZED")
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


def _whole(connection: Connection, source: Source, where: Conditions) -> tuple[Side | None, list[dict[str, Any]]]:
    """One answer for the window: the rows are read twice, and sorted no further than the ranks asked for."""
    sizes = _sizes(connection, where)
    baseline = baseline_of({side: sizes[side, "latency_ms"] for side in Side})
    rows = select(side_of_row, *(r[column] for column in _COLUMNS)).where(*where).cte("ok_rows")
    rows = rows.prefix_with("MATERIALIZED")
    labels: dict[str, Side | None] = {Side.SPECULATIVE: Side.SPECULATIVE, BASELINE: baseline}
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
            0 if side is None else sizes[side, "fast"],
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
    """How many values each side has of each column, and of `fast`."""
    counts = {(side, name): count.filter(side_of_row == side) for side in Side for name, count in _COUNTS.items()}
    row = connection.execute(select(*counts.values()).where(*where)).one()
    return dict(zip(counts, row, strict=True))


def _split(connection: Connection, source: Source, where: Conditions) -> tuple[Side | None, list[dict[str, Any]]]:
    """Answers for the groups: all rows in the order of groups and values, numbered once through."""
    parts = keys(source, connection, where, literal(1))
    baseline, labels, sizes = in_order(connection, parts, where)
    parts, where = [*parts, side_of_row], [*where, side_of_row.in_([side for side in labels if side is not None])]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for measure, figures_of in MEASURES.items():
        names_of = {10 * q: name for name, q in figures_of.items()}
        for (i, share), value in at_shares(connection, parts, sizes, f"{measure}_ms", where, names_of).items():
            where_it_lies = point(source, sizes[i]._mapping)
            entry = found.setdefault(tuple(where_it_lies.values()), where_it_lies)
            side = entry.setdefault(labels[sizes[i].side], figures.latency_side(sizes[i].latency_ms, sizes[i].fast))
            side[names_of[share]] = value
    sides = dict.fromkeys((Side.SPECULATIVE.value, BASELINE), figures.latency_side())
    return baseline, [{**sides, **each} for each in found.values()]


def in_order(
    connection: Connection, parts: Sequence[ColumnElement[Any]], where: Conditions
) -> tuple[Side | None, dict[Side | None, str], list[Any]]:
    """The kind of baseline; what either side is called; how many values each group and side has, in their order."""
    names = [*(part.name for part in parts), "side"]
    sizes = connection.execute(
        select(*parts, side_of_row, *(count.label(name) for name, count in _COUNTS.items()))
        .where(*where)
        .group_by(*names)
        .order_by(*names)
    ).all()
    totals: Counter[Side] = Counter()
    for group in sizes:
        totals[Side(group.side)] += group.latency_ms
    baseline = baseline_of(totals)
    labels: dict[Side | None, str] = {Side.SPECULATIVE: Side.SPECULATIVE.value, baseline: BASELINE}
    return baseline, labels, [group for group in sizes if group.side in labels]


def at_shares(
    connection: Connection,
    keys: Sequence[ColumnElement[Any]],
    sizes: Sequence[Any],
    column: str,
    where: Conditions,
    shares: Iterable[int],
) -> dict[tuple[int, int], float]:
    """By group, of `sizes`, and share, per mille: the value of nearest rank. Groups without values are left out."""
    shares = list(shares)
    places: dict[tuple[int, int], int] = {}
    before = 0
    for i, group in enumerate(sizes):
        if size := getattr(group, column):
            places |= {(i, share): before - (-size * share // 1000) for share in shares}
            before += size
    values = _at_places(connection, keys, column, where, places.values())
    return {key: values[place] for key, place in places.items()}


def _at_places(
    connection: Connection,
    keys: Sequence[ColumnElement[Any]],
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
