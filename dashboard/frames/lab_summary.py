"""What a run of the lab found, as the lab wrote it: gates, tables, plots. Pure.

The sidecar hands it on as it is. What this dashboard does not understand of it, as of a lab of another version, is left
out and counted, and the rest is shown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, TypeVar

import msgspec

Cell = str | int | float | bool | None
#: `words` say why where it cannot be told.
Result = Literal["passed", "failed", "cannot tell"]

T = TypeVar("T")


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of the verdict."""

    name: str
    #: None: cannot be told.
    passed: bool | None = None
    value: float | None = None
    limit: float | None = None
    words: str = ""

    @property
    def result(self) -> Result:
        return "cannot tell" if self.passed is None else "passed" if self.passed else "failed"


class Table(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    columns: list[str]
    #: As long as `columns`, each.
    rows: list[list[Any]]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """As long as the plot's `x`; `low` and `high` are both there or neither is."""

    name: str
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    kind: Literal["bars", "lines", "heat"]
    x: list[str | int | float]
    series: list[Series]
    x_title: str = ""
    y_title: str = ""
    #: A limit, drawn as a line at this y.
    mark: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    gates: list[Gate] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    #: Paths by what they are called, relative to the run's folder.
    files: dict[str, str] = field(default_factory=dict)
    #: Parts that were not understood, by what they are.
    unread: dict[str, int] = field(default_factory=dict)


def read(summary: Mapping[str, Any] | None) -> Summary:
    """Never raises; of nothing, nothing."""
    found = summary or {}
    unread: dict[str, int] = {}

    def parts(name: str, kind: type[T]) -> list[T]:
        told = found.get(name) or []
        if not isinstance(told, list):
            unread[name] = 1
            return []
        read_ones = [_part(each, kind) for each in told]
        if missing := sum(each is None for each in read_ones):
            unread[name] = missing
        return [each for each in read_ones if each is not None]

    gates, tables = parts("gates", Gate), [_even(each) for each in parts("tables", Table)]
    plots = [_drawable(each) for each in parts("plots", Plot)]
    files = found.get("files")
    paths = {} if not isinstance(files, dict) else {name: path for name, path in files.items() if isinstance(path, str)}
    return Summary(gates, tables, plots, paths, unread)


def _part(told: object, kind: type[T]) -> T | None:
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError:
        return None


def _even(table: Table) -> Table:
    width = len(table.columns)
    rows = [[_cell(each) for each in row[:width]] + [None] * (width - len(row)) for row in table.rows]
    return Table(title=table.title, columns=table.columns, rows=rows)


def _cell(value: Any) -> Cell:
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def _drawable(plot: Plot) -> Plot:
    """With series that have a value or None at each x."""
    width = len(plot.x)

    def fit(values: Iterable[float | None]) -> list[float | None]:
        finite = [value if value is not None and isfinite(value) else None for value in values][:width]
        return finite + [None] * (width - len(finite))

    def ends(series: Series) -> tuple[list[float | None] | None, list[float | None] | None]:
        if series.low is None or series.high is None:
            return None, None
        return fit(series.low), fit(series.high)

    made = []
    for each in plot.series:
        low, high = ends(each)
        made.append(Series(name=each.name, y=fit(each.y), low=low, high=high))
    return msgspec.structs.replace(plot, series=made)
