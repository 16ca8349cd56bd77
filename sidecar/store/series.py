"""Acceptance, truncation and latency over a window: whole, by steps of time, by groups of requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Float, Select, case, cast, func, select

from . import figures
from .expressions import (
    MAX_GROUPS,
    check_steps,
    counted,
    group_name,
    group_order,
    named_column,
    r,
    step_start,
    utc,
)

Conditions = list[ColumnElement[bool]]

#: Positions beyond this are left out of truncation answers.
MAX_POSITIONS = 64


# In floats: products of the largest counts are no whole numbers of a database.
_accepted, _drafted = (cast(r[name], Float(53)) for name in ("accepted_tokens", "draft_tokens"))
#: The sums that acceptance figures are made of.
ACCEPTANCE: list[ColumnElement[Any]] = [
    func.count().label("requests"),
    *(func.sum(r[name]).label(name) for name in ("verify_steps", "draft_tokens", "accepted_tokens")),
    func.sum(_accepted * _accepted).label("aa"),
    func.sum(_accepted * _drafted).label("ad"),
    func.sum(_drafted * _drafted).label("dd"),
    func.min(r.num_speculative_tokens).label("k_least"),
    func.max(r.num_speculative_tokens).label("k_most"),
    func.count(r.num_speculative_tokens).label("k_told"),
]

#: Of the rows that count in p, those that count in truncation figures.
listed: Conditions = [r.rejected_at.is_not(None), r.reached.is_not(None)]


@dataclass(frozen=True, slots=True)
class Split:
    """How an answer is divided: by steps of `step_s` seconds, by a column, both, or not at all."""

    window_s: int
    step_s: int | None = None
    by: str | None = None

    def keys(self, connection: Connection, where: Conditions) -> list[ColumnElement[Any]]:
        """The columns to group by. Raises ValueError for a split that cannot be served."""
        check_steps(self.window_s, self.step_s, self.by)
        largest: list[Any] = []
        if (column := named_column(self.by)) is not None:
            sizes = select(column).where(*where, column.is_not(None)).group_by(column)
            largest = list(connection.scalars(sizes.order_by(func.count().desc(), column).limit(MAX_GROUPS)))
        keys: list[ColumnElement[Any]] = []
        if self.step_s is not None:
            keys.append(step_start(self.step_s).label("step_at"))
        if self.by is not None:
            keys.append(group_name(self.by, largest).label("step_group"))
        return keys

    def point(self, row: Any) -> dict[str, Any]:
        """Where the point of a row with `keys` lies."""
        return {
            "at": None if self.step_s is None else utc(row.step_at),
            "group": None if self.by is None else row.step_group,
        }

    def series(self, points: list[dict[str, Any]]) -> dict[str, Any]:
        """Oldest first; steps and groups without rows have no point."""

        def order(point: dict[str, Any]) -> tuple[Any, ...]:
            return point["at"] or utc(0), group_order(self.by, point["group"])

        return {
            "window_s": self.window_s,
            "step_s": self.step_s,
            "by": self.by,
            "points": sorted(points, key=order),
        }

    @property
    def whole(self) -> bool:
        return self.step_s is None and self.by is None


def acceptance_series(connection: Connection, split: Split, where: Conditions) -> dict[str, Any]:
    where = [*where, counted]
    rows = connection.execute(_grouped(split, connection, where, ACCEPTANCE)).all()
    return split.series([split.point(row) | figures.acceptance_sums(figures.summed(row._mapping)) for row in rows])


def truncation_series(connection: Connection, split: Split, where: Conditions) -> dict[str, Any]:
    where = [*where, counted, *listed]
    number = connection.scalar(select(positions(connection)).where(*where)) or 0
    elements: list[ColumnElement[Any]] = [
        sum_at(connection, column, i) for column in (r.rejected_at, r.reached) for i in range(number)
    ]
    sums: list[ColumnElement[Any]] = [func.sum(r.verify_steps).label("verify_steps"), *elements]
    points = []
    for row in connection.execute(_grouped(split, connection, where, sums)):
        counts = [None if value is None else int(value) for value in row[len(row) - 2 * number :]]
        point = figures.truncation(row.verify_steps, counts[:number], counts[number:])
        points.append(split.point(row) | point)
    total = figures.truncation_total(points, number)
    return {
        **split.series(points),
        "positions": number,
        "total": total,
        "first_position_share": figures.first_position_share(total),
    }


def positions(connection: Connection) -> Any:
    """The aggregate that counts the positions of `listed` rows, MAX_POSITIONS at most."""
    postgresql = connection.dialect.name == "postgresql"
    length = func.jsonb_array_length(r.reached) if postgresql else func.json_array_length(r.reached)
    # Lists have k elements: there is no need to take them apart where k is known.
    known = func.coalesce(r.num_speculative_tokens, length)
    return func.max(case((known > MAX_POSITIONS, MAX_POSITIONS), else_=known))


def sum_at(connection: Connection, column: Any, index: int) -> ColumnElement[Any]:
    """The sum of the elements of JSON lists at an index; null where no list has one."""
    if connection.dialect.name == "postgresql":
        return func.sum(cast(column[index].as_string(), BigInteger))
    # Written out: SQLAlchemy would cast to text and back, which takes as long as all the rest.
    return func.sum(func.json_extract(column, f"$[{index}]"))


def _grouped(
    split: Split, connection: Connection, where: Conditions, sums: Sequence[ColumnElement[Any]]
) -> Select[Any]:
    keys = split.keys(connection, where)
    # By name: PostgreSQL would take the two copies of a CASE with parameters for different expressions.
    return select(*keys, *sums).where(*where).group_by(*(key.name for key in keys))
