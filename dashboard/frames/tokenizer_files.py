"""What the files of two tokenizers tell: the report of `specwatch tokenizers`. Pure."""

from collections.abc import Sequence

import msgspec

from dashboard import shapes
from dashboard.frames.base import count, percent
from dashboard.frames.table import Cell, Row, table
from dashboard.frames.tokenizers import SEVERITIES, visible
from dashboard.words import NO_DATA


class Finding(msgspec.Struct):
    severity: str
    sentence: str


class Group(msgspec.Struct):
    target: int
    draft: int
    shared: int
    same_id: int


class OtherId(msgspec.Struct):
    text: str
    target_id: int
    draft_id: int
    special: bool


class Report(msgspec.Struct):
    """What the board shows of `specwatch tokenizers --json`."""

    findings: list[Finding]
    ordinary: Group
    special: Group
    moved_tokens: int
    moved: list[OtherId]
    offsets: list[tuple[int, int]]
    first_difference: int | None
    coverage: float | None
    coverage_of_texts: float | None
    padding_only: bool
    target_rows: int | None
    draft_rows: int | None
    target_holes: int
    draft_holes: int
    texts: int
    texts_alike: int


def report_of(static: shapes.StaticCheck) -> Report | None:
    """None where there is none, or one of another version's shape."""
    try:
        return None if static.report is None else msgspec.convert(static.report, Report)
    except msgspec.ValidationError:
        return None


def findings(static: shapes.StaticCheck, report: Report | None) -> list[tuple[str, str]]:
    """Severity in words and sentence, the worst first."""
    if report is None:
        return [("", sentence) for sentence in static.sentences]
    return [(SEVERITIES.get(each.severity, each.severity), each.sentence) for each in report.findings]


def counts_table(report: Report) -> str:
    heads: list[tuple[str, Sequence[str]]] = [
        ("tokens", ()),
        ("in the target", ()),
        ("in the draft", ()),
        ("in both", ()),
        ("by the same id", ()),
        ("by another id", ()),
    ]
    rows = [_group(name, each) for name, each in (("ordinary", report.ordinary), ("special", report.special))]
    return table(heads, rows, "Tokens of both models")


def _group(name: str, each: Group) -> Row:
    moved = each.shared - each.same_id
    figures = [Cell(f"{number:,}") for number in (each.target, each.draft, each.shared, each.same_id)]
    return Row([Cell(name), *figures, Cell(f"{'✗ ' if moved else ''}{moved:,}", "bad" if moved else "")])


def facts_table(report: Report) -> str:
    """What else the files tell."""
    heads: list[tuple[str, Sequence[str]]] = [("figure", ()), ("value", ())]
    return table(heads, [Row([Cell(name), Cell(value)]) for name, value in _facts(report)], "What else the files tell")


def _facts(report: Report) -> list[tuple[str, str]]:
    found = [
        ("The draft can propose of the target's tokens", _share(report.coverage)),
        ("The same of the tokens of the probe texts", _share(report.coverage_of_texts)),
    ]
    if report.texts:
        found.append(("Probe texts that both split alike", f"{report.texts_alike:,} of {report.texts:,}"))
    if report.offsets:
        told = ", ".join(f"{offset:+d} ({count(number, 'token')})" for offset, number in report.offsets)
        found.append(("Ids moved by", told))
    if report.first_difference is not None:
        found.append(("First id that stands for another token", f"{report.first_difference}"))
    sizes = f"{_size(report.target_rows)} in the target, {_size(report.draft_rows)} in the draft"
    found.append(("vocab_size", f"{sizes}{': padding only' if report.padding_only else ''}"))
    if report.target_holes or report.draft_holes:
        holes = f"{report.target_holes:,} in the target, {report.draft_holes:,} in the draft"
        found.append(("Ids without a token", holes))
    return found


def _share(value: float | None) -> str:
    return NO_DATA if value is None else percent(value, 1.0)


def _size(rows: int | None) -> str:
    return "not known" if rows is None else f"{rows:,}"


def other_ids_table(report: Report) -> str:
    """Special ones first, then by the target's id."""
    heads: list[tuple[str, Sequence[str]]] = [
        ("token", ()),
        ("id in the target", ()),
        ("id in the draft", ()),
        ("kind", ()),
    ]
    rows = [
        Row(
            [
                Cell(visible(each.text)),
                Cell(str(each.target_id)),
                Cell(f"{each.draft_id} ({each.draft_id - each.target_id:+d})"),
                Cell("special" if each.special else "ordinary"),
            ]
        )
        for each in report.moved
    ]
    return table(heads, rows, "Tokens that have another id in the draft, by the files")
