"""Acceptance, truncation and latency over a window: whole, by steps of time, by groups of requests."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, case, cast, func, select

from . import figures
from .expressions import (
    MAX_GROUPS,
    check_steps,
    counted,
    group_name,
    group_order,
    named_column,
    r,
    speculating,
    step_start,
    utc,
)

Conditions = list[ColumnElement[bool]]

#: Positions beyond this are left out of truncation answers.
MAX_POSITIONS = 64
#: Name, column and percents of the latency figures.
_QUANTILES: tuple[tuple[str, ColumnElement[Any], tuple[int, ...]], ...] = (
    ("", r.latency_ms, (50, 95, 99)),
    ("ttft_", r.ttft_ms, (50, 95)),
    ("tpot_", r.tpot_ms, (50,)),
)


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
        return [step_start(self.step_s).label("step_at"), group_name(self.by, largest).label("step_group")]

    def point(self, at: int | None, group: str | None) -> dict[str, Any]:
        return {"at": None if at is None else utc(at), "group": group}

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
    sums = (func.count(), func.sum(r.verify_steps), func.sum(r.draft_tokens), func.sum(r.accepted_tokens))
    points = [
        {**split.point(at, group), **figures.acceptance(*values)}
        for at, group, *values in connection.execute(_grouped(split, connection, where, sums))
    ]
    if split.whole and not points:
        points = [{**split.point(None, None), **figures.acceptance(0, 0, 0, 0)}]
    return split.series(points)


def truncation_series(connection: Connection, split: Split, where: Conditions) -> dict[str, Any]:
    where = [*where, counted, r.rejected_at.is_not(None), r.reached.is_not(None)]
    drafted = func.coalesce(r.num_speculative_tokens, list_length(connection, r.reached))
    positions = min(connection.scalar(select(func.max(drafted)).where(*where)) or 0, MAX_POSITIONS)
    sums = (
        func.sum(r.verify_steps),
        *(_sum_at(column, i) for column in (r.rejected_at, r.reached) for i in range(positions)),
    )
    points = []
    for at, group, steps, *values in connection.execute(_grouped(split, connection, where, sums)):
        counts = [None if value is None else int(value) for value in values]
        point = figures.truncation(steps, counts[:positions], counts[positions:])
        points.append({**split.point(at, group), **point})
    total = figures.truncation_total(points, positions)
    if split.whole and not points:
        points = [total]
    return {
        **split.series(points),
        "positions": positions,
        "total": total,
        "first_position_share": figures.first_position_share(total),
    }


def latency_series(connection: Connection, split: Split, where: Conditions) -> dict[str, Any]:
    where = [*where, r.outcome == "ok"]
    keys = split.keys(connection, where)
    side = case((speculating, 1), else_=0).label("side")
    found: dict[tuple[int | None, str | None], dict[int, dict[str, Any]]] = {}
    for name, column, percents in _QUANTILES:
        for at, group, speculative, count, *values in connection.execute(
            _quantiles([*keys, side], column, percents, where)
        ):
            entry = found.setdefault((at, group), {}).setdefault(speculative, figures.latency_side())
            if column is r.latency_ms:
                entry["requests"] = count
            entry.update({f"{name}p{q}_ms": value for q, value in zip(percents, values, strict=True)})
    if split.whole and not found:
        found[None, None] = {}
    points = [
        {
            **split.point(at, group),
            "speculative": sides.get(1) or figures.latency_side(),
            "autoregressive": sides.get(0) or figures.latency_side(),
        }
        for (at, group), sides in found.items()
    ]
    return split.series(points)


def list_length(connection: Connection, column: ColumnElement[Any]) -> ColumnElement[int]:
    if connection.dialect.name == "postgresql":
        return func.jsonb_array_length(column)
    return func.json_array_length(column)


def _grouped(
    split: Split, connection: Connection, where: Conditions, sums: tuple[ColumnElement[Any], ...]
) -> Select[Any]:
    statement = select(*split.keys(connection, where), *sums).where(*where)
    # By name: PostgreSQL would take the two copies of a CASE with parameters for different expressions.
    return statement.group_by("step_at", "step_group")


def _sum_at(column: Any, index: int) -> ColumnElement[Any]:
    return func.sum(cast(column[index].as_string(), BigInteger))


def _quantiles(
    keys: list[ColumnElement[Any]], column: ColumnElement[Any], percents: tuple[int, ...], where: Conditions
) -> Select[Any]:
    """For each combination of keys: the number of values, and the value at rank ceil(percent n / 100)."""
    names = [key.name for key in keys]
    base = select(*keys, column.label("value")).where(*where, column.is_not(None)).subquery()
    same = [base.c[name] for name in names]
    ranked = select(
        *same,
        base.c.value,
        func.row_number().over(partition_by=same, order_by=base.c.value).label("rank"),
        func.count().over(partition_by=same).label("size"),
    ).subquery()
    chosen = [
        func.max(case((ranked.c.rank == (ranked.c.size * q + 99) // 100, ranked.c.value))) for q in percents
    ]
    groups = [ranked.c[name] for name in names]
    return select(*groups, func.max(ranked.c.size), *chosen).group_by(*groups)
