"""Draws a summary: report.html, with plotly.min.js beside it, and report.md.

Neither loads anything from elsewhere, so that both can be mailed or kept with the run's folder. Where plotly is not
installed, plots are drawn as the tables that stand under them anyway.
"""

import importlib.resources
import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .summary import Cell, Plot, Summary

HTML, MARKDOWN, SCRIPT = "report.html", "report.md", "plotly.min.js"
#: Good verdicts, and those between good and bad; every other is drawn as a bad one, but for what cannot be told.
_GOOD = frozenset(("qualified", "recommended", "stable"))
_MIDDLING = frozenset(("qualified in part", "recommended, not confirmed", "no gain", "cannot tell"))
_DASH = "–"
#: What Markdown would take for its own.
_special = re.compile(r"[\\`*\[\]<>|~$]|(?<!\w)_|_(?!\w)|&(?=[\w#]+;)|^#|^[-+](?=\s)|^\d+(?=[.)]\s)")


class ReportError(Exception):
    """Nothing can be drawn: what is missing, and the remedy."""


class Grid(NamedTuple):
    """A table as text."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    #: Columns of numbers, which are set flush right.
    numeric: list[bool]


def write(
    folder: Path,
    summary: Summary,
    *,
    facts: Mapping[str, object] = {},
    definitions: Mapping[str, str] = {},
) -> dict[str, str]:
    """The files by what they are called, as `Summary.files` has them.

    `facts`: what was run where, by name. `definitions`: the words of the field that the report uses. Raises
    ReportError where jinja2 is missing, and OSError.
    """
    environment = _environment()
    script = _script()
    names = {
        "summary": summary,
        "facts": {name: _fact(value) for name, value in facts.items()},
        "definitions": definitions,
        "script": SCRIPT if script else None,
    }
    if script:
        shutil.copyfile(script, folder / SCRIPT)
    for name in (HTML, MARKDOWN):
        text = environment.get_template(f"{name}.jinja").render(names)
        # A file's name may have bytes that are no UTF-8: not worth losing the report of a day.
        (folder / name).write_text(text, encoding="utf-8", errors="replace")
    return {"report": HTML, "report as Markdown": MARKDOWN}


def ready() -> None:
    """Raises ReportError where `write` would: to be asked before a run that takes an hour."""
    _environment()


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Grid:
    """Numbers of one column with as many decimals as give the largest of them three figures."""
    by_column = [[row[at] for row in rows] for at in range(len(columns))]
    texts = [_column(cells) for cells in by_column]
    numeric = [any(_is_number(cell) for cell in cells) for cells in by_column]
    return Grid(title, list(columns), [list(row) for row in zip(*texts, strict=True)] if texts else [], numeric)


def data_of(plot: Plot) -> Grid:
    """A plot as a table: a row an x, a column a series."""
    columns, by_column = [plot.x_title], [list[Cell](plot.x)]
    for series in plot.series:
        columns.append(series.name)
        by_column.append(list(series.y))
        for name, ends in (("low", series.low), ("high", series.high)):
            if ends is not None:
                columns.append(f"{series.name}, {name}")
                by_column.append(list(ends))
    return grid(plot.title, columns, list(zip(*by_column, strict=True)))


def tone(verdict: str) -> str:
    return "good" if verdict in _GOOD else "middling" if verdict in _MIDDLING else "bad"


def passed(value: bool | None) -> str:
    return "cannot tell" if value is None else "passed" if value else "failed"


def markdown(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _special.sub(_escaped, " ".join(str(text).split()))


def _escaped(found: re.Match[str]) -> str:
    # A number cannot be escaped, the point behind it can.
    return found[0] + "\\" if found[0].isdigit() else "\\" + found[0]


def _environment() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise ReportError(f"{error}: the report is drawn with it; install specwatch[lab]") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=jinja2.select_autoescape(("html.jinja",)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(md=markdown, passed=passed, tone=tone, number=number)
    environment.globals.update(grid=grid, data_of=data_of, drawn=_drawn)
    return environment


def _script() -> Path | None:
    try:
        found = Path(str(importlib.resources.files("plotly") / "package_data" / SCRIPT))
    except ImportError:
        return None
    return found if found.is_file() else None


def _drawn(summary: Summary) -> list[dict[str, Any]]:
    """The plots as the script of the page takes them; JSON has no NaN."""
    found: list[dict[str, Any]] = []
    for each in summary.json()["plots"]:
        for series in each["series"]:
            for part in ("y", "low", "high"):
                series[part] = None if series[part] is None else [_finite(value) for value in series[part]]
        found.append(each | {"mark": _finite(each["mark"])})
    return found


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def number(value: float | None, decimals: int | None = None) -> str:
    if value is None or not math.isfinite(value):
        return _DASH
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{_decimals([value]) if decimals is None else decimals}f}"


def _decimals(values: Iterable[float]) -> int:
    most = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    # Of 1 as many as of what is just below it: most columns are of shares.
    return min(max(3 - math.ceil(math.log10(most)), 0), 9) if most else 0


def _column(cells: Sequence[Cell]) -> list[str]:
    decimals = _decimals(cell for cell in cells if isinstance(cell, float))
    return [_cell(cell, decimals) for cell in cells]


def _cell(cell: Cell, decimals: int) -> str:
    if cell is None or cell == "":
        return _DASH
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return cell if isinstance(cell, str) else number(cell, decimals)


def _fact(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_fact(each)}" for key, each in value.items()) or _DASH
    if isinstance(value, list | tuple):
        return ", ".join(map(_fact, value)) or _DASH
    if value is None or isinstance(value, bool | float):
        return _cell(value, _decimals([value]) if isinstance(value, float) else 0)
    return str(value)
