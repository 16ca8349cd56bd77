"""Gates and tables of a run of the lab, and of two runs side by side, as HTML. Pure; no Streamlit, no network."""

from collections.abc import Sequence
from math import floor, isfinite, log10
from typing import NamedTuple

from dashboard.frames.lab_summary import Cell as Value
from dashboard.frames.lab_summary import Gate, Result, Summary, Table
from dashboard.frames.table import Cell, Row, Tone, table
from dashboard.words import DEFINITIONS, NO_DATA

RESULTS: dict[Result, str] = {"passed": "✓ passed", "failed": "✗ failed", "cannot tell": "? cannot tell"}
#: Gates in the order in which they matter.
_ORDER: tuple[Result, ...] = ("failed", "cannot tell", "passed")
#: Rows of a table that are shown.
MOST_ROWS = 200
_DASH = "–"
#: On a phone a gate is a block, its words below its figures: beside them they would be out of sight.
_STYLE = """<style>
@media (max-width: 640px) {
  .sw-gates thead { display: none; }
  .sw-gates tr { display: grid; grid-template-columns: 1fr auto auto; border-bottom: 1px solid rgba(128,128,128,.25); }
  .sw-gates .sw-table td { border-bottom: none; padding-bottom: 0; }
  .sw-gates .sw-table td:nth-child(1) { grid-column: 1 / -1; max-width: none; white-space: normal; font-weight: 600; }
  .sw-gates td:nth-child(4)::before { content: "limit "; }
  .sw-gates td:nth-child(4).sw-none { display: none; }
  .sw-gates .sw-table td:nth-child(5) { grid-column: 1 / -1; padding-bottom: .4rem; }
}
</style>"""


def gates_table(gates: Sequence[Gate]) -> str:
    """As HTML, the failed ones first."""
    heads: list[tuple[str, Sequence[str]]] = [
        ("gate", ("gate",)),
        ("result", ()),
        ("value", ()),
        ("limit", ()),
        ("in words", ()),
    ]
    ranked = sorted(gates, key=lambda gate: _ORDER.index(gate.result))
    return f'{_STYLE}<div class="sw-gates">{table(heads, [_gate(each) for each in ranked], "Gates")}</div>'


def _gate(gate: Gate) -> Row:
    decimals = _decimals([each for each in (gate.value, gate.limit) if each is not None])
    failed = gate.result == "failed"
    tone: Tone = "bad" if failed else "none" if gate.result == "cannot tell" else ""
    return Row(
        [
            Cell(gate.name, more=gate.name),
            Cell(RESULTS[gate.result], tone),
            Cell(_figure(gate, decimals), "bad" if failed else "" if gate.value is not None else "none"),
            _cell(gate.limit, decimals),
            Cell(gate.words, words=True),
        ],
        marked=failed,
    )


def _figure(gate: Gate, decimals: int) -> str:
    """More digits where rounding would show a missed limit as met."""
    value, limit = gate.value, gate.limit
    if value is None:
        # Some conditions are no numbers, as whether tokenizers are aligned.
        return NO_DATA if gate.passed is None else _DASH
    text = _number(value, decimals)
    while limit is not None and value != limit and text == _number(limit, decimals) and decimals < 9:
        decimals += 1
        text = _number(value, decimals)
    return text


class Drawn(NamedTuple):
    title: str
    html: str
    #: Rows beyond those that are shown.
    more: int


def tables(found: Summary) -> list[Drawn]:
    """As the lab gives them, what is worst first."""
    return [_drawn(each) for each in found.tables if each.columns]


def _drawn(found: Table) -> Drawn:
    shown = found.rows[:MOST_ROWS]
    decimals = [_decimals([row[at] for row in shown if isinstance(row[at], float)]) for at in range(len(found.columns))]
    rows = [Row([_cell(value, decimals[at]) for at, value in enumerate(row)]) for row in shown]
    html = table([(name, _terms(name)) for name in found.columns], rows, found.title)
    return Drawn(found.title, html, len(found.rows) - len(shown))


def _terms(column: str) -> tuple[str, ...]:
    """What defines the name of a column, where the words of the dashboard know it."""
    term = "acceptance rate p" if column == "p" else column
    return (term,) if term in DEFINITIONS else ()


def _cell(value: Value, decimals: int) -> Cell:
    if value is None or value == "":
        return Cell(_DASH, "none", more=NO_DATA)
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, str):
        return Cell(value, more=value if len(value) > 20 else "", words=len(value) > 60)
    return Cell(_number(value, decimals))


def _decimals(values: Sequence[float]) -> int:
    """So many that the largest has three figures, as in the lab's own reports."""
    most = max((abs(value) for value in values if isfinite(value)), default=0.0)
    return min(max(2 - floor(log10(most)), 0), 9) if most else 0


def _number(value: float, decimals: int) -> str:
    if not isfinite(value):
        return NO_DATA
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{decimals}f}"


# Two runs


def compared(one: Summary, other: Summary) -> list[Drawn]:
    """Gates side by side, then of each table that both have, the figures of each row that either has."""
    names = ("this run", "the other")
    found = []
    if one.gates and other.gates:
        found.append(Drawn("Gates of both", _gates_of_both(one.gates, other.gates, names), 0))
    others = {each.title: each for each in other.tables}
    for each in one.tables:
        beside = others.get(each.title)
        if beside is not None and beside.columns == each.columns and each.columns:
            both = _side_by_side(each, beside, names)
            found += [_drawn(both)] if len(both.columns) > 1 else []
    return found


def _gates_of_both(one: Sequence[Gate], other: Sequence[Gate], names: Sequence[str]) -> str:
    heads: list[tuple[str, Sequence[str]]] = [("gate", ("gate",)), ("limit", ())]
    for name in names:
        heads += [(name, ()), (f"{name}, value", ())]
    by_name = [{gate.name: gate for gate in gates} for gates in (one, other)]
    rows = []
    for name in dict.fromkeys([*by_name[0], *by_name[1]]):
        both = [each.get(name) for each in by_name]
        told = [gate for gate in both if gate is not None]
        decimals = _decimals([x for gate in told for x in (gate.value, gate.limit) if x is not None])
        cells = [Cell(name), _cell(told[0].limit, decimals)]
        for gate in both:
            if gate is None:
                cells += [Cell(_DASH, "none")] * 2
            else:
                cells += _gate(gate).cells[1:3]
        rows.append(Row(cells))
    return table(heads, rows, "Gates of both")


def _side_by_side(one: Table, other: Table, names: Sequence[str]) -> Table:
    """By the first column; of the other columns those of figures that differ, each twice."""
    by_key = [{_key(row): row for row in each.rows} for each in (one, other)]
    keys = list(dict.fromkeys([*by_key[0], *by_key[1]]))
    columns = [one.columns[0]]
    cells: list[list[Value]] = [[key] for key in keys]
    for at, column in enumerate(one.columns[1:], 1):
        values = [[row[at] if (row := rows.get(key)) else None for rows in by_key] for key in keys]
        known = [value for both in values for value in both if value is not None]
        if any(isinstance(value, str) for value in known) or all(first == second for first, second in values):
            continue
        columns += [f"{column}, {name}" for name in names]
        for row, both in zip(cells, values, strict=True):
            row.extend(both)
    return Table(title=f"{one.title}: what differs", columns=columns, rows=cells)


def _key(row: Sequence[Value]) -> str:
    return str(row[0])
