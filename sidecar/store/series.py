"""Acceptance and truncation over a window: whole, by steps of time, by groups of requests."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Float, RowMapping, Select, cast, func, select

from . import figures
from .expressions import (
    MAX_GROUPS,
    counted,
    group_name,
    group_order,
    listed,
    named_column,
    positions,
    r,
    step_start,
    truncated,
    utc,
)
from .schema import rollups
from .source import Source

Conditions = list[ColumnElement[bool]]

_rolled = rollups.c
# In floats: products of the largest counts are no whole numbers of a database.
_accepted, _drafted = (cast(r[name], Float(53)) for name in ("accepted_tokens", "draft_tokens"))
_SUMS = ("verify_steps", "draft_tokens", "accepted_tokens")
#: The sums that acceptance figures are made of: of rows that count, and of rollups of such.
ACCEPTANCE: list[ColumnElement[Any]] = [
    func.count().label("requests"),
    *(func.sum(r[name]).label(name) for name in _SUMS),
    func.sum(_accepted * _accepted).label("aa"),
    func.sum(_accepted * _drafted).label("ad"),
    func.sum(_drafted * _drafted).label("dd"),
    func.min(r.num_speculative_tokens).label("k_least"),
    func.max(r.num_speculative_tokens).label("k_most"),
    func.count(r.num_speculative_tokens).label("k_told"),
    func.count().filter(*listed).label("listed"),
    func.sum(r.verify_steps).filter(*listed).label("listed_steps"),
    func.sum(truncated).filter(*listed).label("truncated_steps"),
]
ROLLED_ACCEPTANCE: list[ColumnElement[Any]] = [
    func.sum(_rolled.counted).label("requests"),
    *(func.sum(_rolled[name]).label(name) for name in (*_SUMS, "aa", "ad", "dd")),
    func.min(_rolled.num_speculative_tokens).label("k_least"),
    func.max(_rolled.num_speculative_tokens).label("k_most"),
    func.sum(_rolled.counted).filter(_rolled.num_speculative_tokens.is_not(None)).label("k_told"),
    *(func.sum(_rolled[name]).label(name) for name in ("listed", "listed_steps", "truncated_steps")),
]


def acceptance_rows(source: Source) -> tuple[list[ColumnElement[Any]], Conditions]:
    """Sums and conditions of what counts in p."""
    if source.pieces is None:
        return ACCEPTANCE, [*source.rows(), counted]
    return ROLLED_ACCEPTANCE, [*source.rollups(source.dimension), _rolled.counted > 0]


def acceptance_series(connection: Connection, source: Source) -> dict[str, Any]:
    sums, where = acceptance_rows(source)
    rows = connection.execute(_grouped(source, connection, where, sums, _rolled.counted)).all()
    return series(
        source, [point(source, row._mapping) | figures.acceptance(figures.summed(row._mapping)) for row in rows]
    )


def truncation_series(connection: Connection, source: Source) -> dict[str, Any]:
    if source.pieces is None:
        where, steps, rejected_at, reached = (
            [*source.rows(), counted, *listed],
            r.verify_steps,
            r.rejected_at,
            r.reached,
        )
    else:
        where = [*source.rollups(source.dimension), _rolled.listed > 0]
        steps, rejected_at, reached = _rolled.listed_steps, _rolled.rejected_at, _rolled.reached
    most = connection.scalar(select(_positions(connection, source)).where(*where)) or 0
    elements = [sum_at(connection, column, i) for column in (rejected_at, reached) for i in range(most)]
    sums: list[ColumnElement[Any]] = [func.sum(steps).label("verify_steps"), *elements]
    rows = connection.execute(_grouped(source, connection, where, sums, _rolled.listed)).all()
    lists = [[None if value is None else int(value) for value in row[len(row) - 2 * most :]] for row in rows]
    # Lists of rollups may end in positions that none of these requests drafted.
    number = max((i + 1 - most for each in lists for i in range(most, len(each)) if each[i] is not None), default=0)
    points = [
        point(source, row._mapping) | figures.truncation(row.verify_steps, each[:number], each[most : most + number])
        for row, each in zip(rows, lists, strict=True)
    ]
    total = figures.truncation_total(points, number)
    return {
        **series(source, points),
        "positions": number,
        "total": total,
        "first_position_share": figures.first_position_share(total),
    }


def keys(
    source: Source, connection: Connection, where: Conditions, weight: ColumnElement[int]
) -> list[ColumnElement[Any]]:
    """The columns to group by. `weight`: how many requests a rollup counts for."""
    rolled = source.pieces is not None
    columns = _rolled if rolled else r
    found: list[ColumnElement[Any]] = []
    if source.step_s is not None:
        found.append(step_start(source.step_s, _rolled.at if rolled else r.started_at).label("step_at"))
    if source.by is not None:
        largest: list[Any] = []
        if (column := named_column(source.by, columns)) is not None:
            size = func.sum(weight) if rolled else func.count()
            sizes = select(column).where(*where, column.is_not(None)).group_by(column)
            largest = list(connection.scalars(sizes.order_by(size.desc(), column).limit(MAX_GROUPS)))
        found.append(group_name(source.by, largest, columns).label("step_group"))
    return found


def point(source: Source, row: RowMapping | Mapping[str, Any]) -> dict[str, Any]:
    """Where the point of a row with `keys` lies."""
    return {
        "at": None if source.step_s is None else utc(row["step_at"]),
        "group": None if source.by is None else row["step_group"],
    }


def series(source: Source, points: list[dict[str, Any]]) -> dict[str, Any]:
    """Oldest first; steps and groups without requests have no point."""

    def order(point: dict[str, Any]) -> tuple[Any, ...]:
        return point["at"] or utc(0), group_order(source.by, point["group"])

    return {
        "window_s": source.window_s,
        "step_s": source.step_s,
        "by": source.by,
        **source.head,
        "points": sorted(points, key=order),
    }


def sum_at(connection: Connection, column: Any, index: int) -> ColumnElement[Any]:
    """The sum of the elements of JSON lists at an index; null where no list has one."""
    if connection.dialect.name == "postgresql":
        return func.sum(cast(column[index].as_string(), BigInteger))
    # Written out: SQLAlchemy would cast to text and back, which takes as long as all the rest.
    return func.sum(func.json_extract(column, f"$[{index}]"))


def _positions(connection: Connection, source: Source) -> Any:
    """The aggregate that counts the positions of lists."""
    postgresql = connection.dialect.name == "postgresql"
    if source.pieces is None:
        return positions(postgresql=postgresql)
    return func.max((func.jsonb_array_length if postgresql else func.json_array_length)(_rolled.reached))


def _grouped(
    source: Source,
    connection: Connection,
    where: Conditions,
    sums: Sequence[ColumnElement[Any]],
    weight: ColumnElement[int],
) -> Select[Any]:
    found = keys(source, connection, where, weight)
    # By name: PostgreSQL would take the two copies of a CASE with parameters for different expressions.
    return select(*found, *sums).where(*where).group_by(*(key.name for key in found))
