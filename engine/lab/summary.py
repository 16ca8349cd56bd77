"""What a run of the lab found, built once and drawn three times: on the dashboard, as HTML and as Markdown.

It is the field `summary` of run.json. Columns and axes name their units.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

#: A cell of a table: numbers are drawn rounded, truths as yes and no, None as a dash.
Cell = str | int | float | bool | None


class Kind(StrEnum):
    #: A group of bars at each x, one a series.
    BARS = "bars"
    #: A line a series, broken where y is None.
    LINES = "lines"
    #: A row a series, a cell at each x; y is the colour, None blank.
    HEAT = "heat"


class Gate(msgspec.Struct, frozen=True):
    """A condition of the verdict."""

    name: str
    #: None: cannot be told; `words` say why.
    passed: bool | None
    value: float | None
    limit: float | None
    #: A sentence or two, which name the figures.
    words: str


class Table(msgspec.Struct, frozen=True):
    title: str
    columns: list[str]
    #: As long as `columns`, each; what is worst first.
    rows: list[list[Cell]]


class Series(msgspec.Struct, frozen=True):
    """As long as the plot's `x`, and so are `low` and `high` where there are any: the ends of an interval of each y."""

    name: str
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None


class Plot(msgspec.Struct, frozen=True):
    title: str
    kind: Kind
    x: list[str | int | float]
    series: list[Series]
    x_title: str
    y_title: str
    #: A limit, drawn as a line at this y.
    mark: float | None = None


class Summary(msgspec.Struct, frozen=True):
    title: str
    verdict: str
    #: Sentences, the weightiest first.
    reasons: list[str]
    gates: list[Gate] = []
    tables: list[Table] = []
    plots: list[Plot] = []
    #: Paths by what they are called, relative to the run's folder.
    files: dict[str, str] = {}

    def json(self) -> dict[str, Any]:
        """As run.json has it."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


def read(summary: Mapping[str, Any]) -> Summary:
    """The other way. Raises ValueError, which names the field."""
    try:
        return msgspec.convert(summary, Summary)
    except msgspec.ValidationError as error:
        raise ValueError(f"summary: {error}") from None
