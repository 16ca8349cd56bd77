"""Quantiles of ok requests by nearest rank: of n sorted values the one at rank ceil(q n), as percentile_disc.

Ranks are whole numbers here, so that no rounding of q n decides.
"""

from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, Subquery, case, func, select
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
    keys = split.keys(connection, where)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for prefix, column, percents in _QUANTILES:
        for row in connection.execute(_ranked([*keys, _side], r[column], percents, where)):
            point = split.point(row)
            entry = found.setdefault(tuple(point.values()), point)
            side = entry.setdefault(_SIDES[row.side], figures.latency_side())
            if column == "latency_ms":
                side["requests"] = row.size
            side.update({f"{prefix}p{q}_ms": getattr(row, f"p{q}") for q in percents})
    return [{**dict.fromkeys(_SIDES.values(), figures.latency_side()), **point} for point in found.values()]


def _at_rank(rows: CTE, side: int, column: str, q: int, size: int) -> ScalarSelect[Any]:
    value = rows.c[column]
    below = -(-size * q // 100) - 1
    above = size - 1 - below
    chosen = select(value).where(rows.c.side == side, value.is_not(None)).limit(1)
    if above < below:
        return chosen.order_by(value.desc()).offset(above).scalar_subquery()
    return chosen.order_by(value).offset(below).scalar_subquery()


def _ranked(
    keys: list[ColumnElement[Any]], column: ColumnElement[Any], percents: tuple[int, ...], where: Conditions
) -> Select[Any]:
    """For each combination of keys: `size`, the number of values, and `p50`, … the values at the ranks."""
    base: Subquery = select(*keys, column.label("value")).where(*where, column.is_not(None)).subquery()
    same = [base.c[key.name] for key in keys]
    ranked = select(
        *same,
        base.c.value,
        func.row_number().over(partition_by=same, order_by=base.c.value).label("rank"),
        func.count().over(partition_by=same).label("size"),
    ).subquery()
    chosen = [
        func.max(case((ranked.c.rank == (ranked.c.size * q + 99) // 100, ranked.c.value))).label(f"p{q}")
        for q in percents
    ]
    groups = [ranked.c[key.name] for key in keys]
    return select(*groups, func.max(ranked.c.size).label("size"), *chosen).group_by(*groups)
