"""Quantiles of ok requests by nearest rank: of n sorted values the one at rank ceil(q n), as percentile_disc.

Ranks are whole numbers here, so that no rounding of q n decides.
"""

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
from sqlalchemy.sql.selectable import CTE

from . import figures
from .expressions import r, speculating
from .series import Conditions, Split

#: Prefix of the figures' names, column and percents.
_QUANTILES = (("", "latency_ms", (50, 95, 99)), ("ttft_", "ttft_ms", (50, 95)), ("tpot_", "tpot_ms", (50,)))
_FIGURES = [(f"{prefix}p{q}_ms", column, q) for prefix, column, percents in _QUANTILES for q in percents]
_SIDES = {1: "speculative", 0: "autoregressive"}

_side = case((speculating, 1), else_=0).label("side")


def latency_series(connection: Connection, split: Split, where: Conditions) -> dict[str, Any]:
    where = [*where, r.outcome == "ok"]
    points = _split(connection, split, where) if split.step_s or split.by else [_whole(connection, where)]
    return split.series(points)


def _whole(connection: Connection, where: Conditions) -> dict[str, Any]:
    """One answer for the window: the rows are read twice, and sorted no further than the ranks asked for."""
    sizes = _sizes(connection, where)
    rows = select(_side, *(r[column] for _, column, _ in _QUANTILES)).where(*where).cte("ok_rows")
    rows = rows.prefix_with("MATERIALIZED")
    chosen = {
        (side, name): _at_rank(rows, side, column, q, sizes[side, column])
        for side in _SIDES
        for name, column, q in _FIGURES
        if sizes[side, column]
    }
    found: dict[tuple[int, str], float] = {}
    if chosen:
        found = dict(zip(chosen, connection.execute(select(*chosen.values())).one(), strict=True))
    sides = {
        label: figures.latency_side(
            sizes[side, "latency_ms"], {name: found.get((side, name)) for name in figures.LATENCY_FIGURES}
        )
        for side, label in _SIDES.items()
    }
    return {"at": None, "group": None, **sides}


def _sizes(connection: Connection, where: Conditions) -> dict[tuple[int, str], int]:
    """How many values each side has of each column."""
    columns = [column for _, column, _ in _QUANTILES]
    counts = {(side, column): func.count(r[column]).filter(_side == side) for side in _SIDES for column in columns}
    row = connection.execute(select(*counts.values()).where(*where)).one()
    return dict(zip(counts, row, strict=True))


def _split(connection: Connection, split: Split, where: Conditions) -> list[dict[str, Any]]:
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
            side = entry.setdefault(_SIDES[sizes[i].side], figures.latency_side(sizes[i].latency_ms))
            side[name] = values[place]
    return [{**dict.fromkeys(_SIDES.values(), figures.latency_side()), **point} for point in found.values()]


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


def _at_rank(rows: CTE, side: int, column: str, q: int, size: int) -> ScalarSelect[Any]:
    value = rows.c[column]
    below = -(-size * q // 100) - 1
    above = size - 1 - below
    chosen = select(value).where(rows.c.side == side, value.is_not(None)).limit(1)
    if above < below:
        return chosen.order_by(value.desc()).offset(above).scalar_subquery()
    return chosen.order_by(value).offset(below).scalar_subquery()
