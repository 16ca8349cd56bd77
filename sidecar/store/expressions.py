"""Pieces of SQL that the queries share: which rows count, windows, filters, time steps and groups."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    SQLColumnExpression,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.functions import FunctionElement

from sidecar.probes.slices import CONCURRENCIES, DIMENSIONS, PROMPT_LENGTHS, TEMPERATURES, UNKNOWN, UNSET, Buckets
from sidecar.probes.truncation import MOST_POSITIONS
from sidecar.record import Arm

from .rows import clean
from .schema import requests, rollups

Columns = ReadOnlyColumnCollection[str, Column[Any]]

r: Columns = requests.c

#: Groups of scenarios and models beyond the largest so many are pooled as OTHER: clients choose the names.
MAX_GROUPS = 20
OTHER = "other"
#: Steps in one answer, and in one split by a column.
MAX_STEPS = 1500
MAX_STEPS_GROUPED = 500

BUCKETS = {
    "temperature": (UNSET, *TEMPERATURES.names),
    "prompt_length": (*PROMPT_LENGTHS.names, UNKNOWN),
    "concurrency": CONCURRENCIES.names,
}

SPECULATING_ARMS = (Arm.SPECULATIVE.value, Arm.PROBE.value)

#: Served with speculation, whether or not the engine then drafted anything.
speculating = r.arm.in_(SPECULATING_ARMS)
#: Rows that count in the acceptance rate p.
counted = and_(
    # Spelt out as in the partial index, which is used only then.
    r.acceptance_quality == literal("ok", literal_execute=True),
    r.draft_tokens > literal(0, literal_execute=True),
    r.accepted_tokens.is_not(None),
    r.verify_steps.is_not(None),
    r.outcome.in_(("ok", "truncated")),
)
#: Of these, the ones that count in truncation figures.
listed = [r.rejected_at.is_not(None), r.reached.is_not(None)]


class _list_sum(FunctionElement[int]):
    """The sum of a JSON list of whole numbers."""

    type = BigInteger()
    inherit_cache = True


@compiles(_list_sum, "sqlite")
def _list_sum_sqlite(element: _list_sum, compiler: Any, **options: Any) -> str:
    elements = f"json_each({compiler.process(element.clauses, **options)})"
    return f"(SELECT sum(value) FROM {elements})"  # noqa: S608 - a column's name


@compiles(_list_sum, "postgresql")
def _list_sum_postgresql(element: _list_sum, compiler: Any, **options: Any) -> str:
    elements = f"jsonb_array_elements_text({compiler.process(element.clauses, **options)})"
    return f"(SELECT sum(CAST(value AS BIGINT)) FROM {elements} AS elements (value))"  # noqa: S608


#: Verify steps of a `listed` row that were cut. Rows of before 0006 have only the list.
truncated = func.coalesce(r.truncated_steps, _list_sum(r.rejected_at))


class epoch(FunctionElement[int]):
    """Whole seconds since 1970 of a time column."""

    type = BigInteger()
    inherit_cache = True


@compiles(epoch, "sqlite")
def _epoch_sqlite(element: epoch, compiler: Any, **options: Any) -> str:
    # Without its fraction, of which SQLite rounds the last half millisecond of a second up to the next.
    return f"CAST(strftime('%s', substr({compiler.process(element.clauses, **options)}, 1, 19)) AS INTEGER)"


@compiles(epoch, "postgresql")
def _epoch_postgresql(element: epoch, compiler: Any, **options: Any) -> str:
    return f"CAST(floor(extract(epoch FROM {compiler.process(element.clauses, **options)})) AS BIGINT)"


class epoch_minute(FunctionElement[int]):
    """Whole minutes since 1970 of a time column."""

    type = BigInteger()
    inherit_cache = True


@compiles(epoch_minute, "sqlite")
@compiles(epoch_minute, "postgresql")
def _epoch_minute(element: epoch_minute, compiler: Any, **options: Any) -> str:
    # Division of whole numbers, in both.
    return f"({compiler.process(epoch(*element.clauses), **options)} / 60)"


@dataclass(frozen=True, slots=True)
class Filters:
    """Which rows to look at; None means any. `since` (inclusive) and `until` (exclusive) are aware times."""

    scenario: str | None = None
    model: str | None = None
    upstream: str | None = None
    arm: str | None = None
    outcome: str | None = None
    instance: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def names(self) -> dict[str, str]:
        """What columns must be, cleaned as the stored text was."""
        names = ("scenario", "model", "upstream", "arm", "outcome", "instance")
        return {name: clean(value) for name in names if (value := getattr(self, name)) is not None}

    def conditions(self) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = [r[name] == value for name, value in self.names.items()]
        if self.since is not None:
            found.append(r.started_at >= self.since)
        if self.until is not None:
            found.append(r.started_at < self.until)
        return found


def utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def step_start(step_s: int, column: ColumnElement[Any] = r.started_at) -> ColumnElement[int]:
    """Unix time at which a row's step began; steps are counted from 1970."""
    seconds = epoch(column)
    return seconds - seconds % literal(step_s, Integer)


def check_steps(window_s: int, step_s: int | None, by: str | None) -> None:
    """Raise ValueError when an answer would get too long."""
    limit = MAX_STEPS_GROUPED if by else MAX_STEPS
    if step_s is not None and window_s / step_s > limit:
        raise ValueError(
            f"{window_s} s in steps of {step_s} s are more than {limit} points: take a step of at least "
            f"{-(-window_s // limit)} s"
        )


def named_column(by: str | None, columns: Columns = r) -> SQLColumnExpression[Any] | None:
    """The column of a group whose names are free, so that there may be any number of them."""
    name = {"scenario": "scenario", "model": "model", "k": "num_speculative_tokens"}.get(by or "")
    return None if name is None else columns[name]


def group_name(by: str, largest: list[Any], columns: Columns = r) -> ColumnElement[str]:
    """The name of a row's group, or of a rollup's. `largest`: the values of `named_column` with groups of their own."""
    column = named_column(by, columns)
    if column is not None:
        return case((column.is_(None), UNKNOWN), (column.in_(largest), cast(column, Text)), else_=literal(OTHER))
    if columns is rollups.c and by in BUCKETS:
        return rollups.c.bucket
    match by:
        case "temperature":
            return _bucket(r.temperature, TEMPERATURES, UNSET)
        case "prompt_length":
            return _bucket(r.prompt_tokens, PROMPT_LENGTHS, UNKNOWN)
        case "concurrency":
            return _bucket(r.concurrency, CONCURRENCIES, UNKNOWN)
    raise ValueError(f"by must be one of {', '.join(DIMENSIONS)}, not {by!r}")


def group_order(by: str | None, group: str | None) -> tuple[float, str]:
    """Sorts groups: buckets and k by size, others by name, pooled and unknown ones last."""
    name = group or ""
    if by in BUCKETS:
        return BUCKETS[by].index(name), name
    if name in (OTHER, UNKNOWN):
        return float("inf"), name
    return (int(name) if by == "k" else 0), name


def _bucket(column: Any, buckets: Buckets, missing: str) -> ColumnElement[Any]:
    *closed, last = buckets.names
    named = zip(buckets.bounds, closed, strict=True)
    return case((column.is_(None), missing), *((column <= bound, name) for bound, name in named), else_=literal(last))


def positions(*, postgresql: bool) -> ColumnElement[int]:
    """The aggregate that tells the length of the longest lists of rows, MOST_POSITIONS at most."""
    length = func.jsonb_array_length if postgresql else func.json_array_length
    # Lists have k elements: there is no need to take them apart where k is known.
    known = func.coalesce(r.num_speculative_tokens, length(r.reached))
    return func.max(case((known > MOST_POSITIONS, MOST_POSITIONS), else_=known))
