"""The report on a terminal: a line a finding, then what was seen and what to do."""

from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .findings import Finding, NotLooked, Report, Severity

_STYLES = {Severity.FAULT: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan", Severity.FINE: "green"}


def show(report: Report, console: Console, redact: Callable[[str], str], seconds: float) -> None:
    """Everything but what is fine in detail; that, and what was not looked at, in a line each."""

    def plain(text: str) -> str:
        """Neither secrets, nor markup, nor control characters of a terminal: logs and clients choose words."""
        return escape("".join(each if each.isprintable() else " " for each in redact(text)))

    table = Table(show_header=False, box=None, pad_edge=False)
    for each in report.findings:
        style = _STYLES[each.severity]
        table.add_row(f"[{style}]{each.severity}[/]", each.id, plain(each.title))
    console.print(table)
    for each in report.of(Severity.FAULT, Severity.WARNING, Severity.NOTE):
        console.print()
        console.print(f"[{_STYLES[each.severity]}]{each.severity}[/] [bold]{each.id}[/]: {plain(each.title)}")
        console.print(Padding(_details(each, plain), (0, 0, 0, 2)))
    if report.not_looked:
        console.print("\n[bold]Not looked at[/]")
        for why, things in _by_reason(report.not_looked).items():
            console.print(f"- {plain('; '.join(things))}: {plain(why)}" if things else f"- {plain(why)}")
        for missing in report.not_looked:
            if missing.command:
                console.print(f"  [dim]{missing.id}: {plain(missing.command)}[/]", soft_wrap=True)
    console.print()
    console.print(Text.from_markup(_sum(report, seconds)))


def _by_reason(missing: list[NotLooked]) -> dict[str, list[str]]:
    """What was not looked at, by why: most have one reason, as a database that is away."""
    found: dict[str, list[str]] = {}
    for each in missing:
        what, _, why = each.why.partition(": ")
        things = found.setdefault(why or what, [])
        if why and what not in things:
            things.append(what)
    return found


def _details(finding: Finding, plain: Callable[[str], str]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    rows = [("seen", each) for each in finding.seen]
    rows += [("likely", finding.cause), ("do", finding.remedy), ("look", finding.command)]
    for name, value in rows:
        if value:
            table.add_row(name, plain(value))
    return table


def _sum(report: Report, seconds: float) -> str:
    counts = {severity: len(report.of(severity)) for severity in Severity}
    said = ", ".join(
        f"[{_STYLES[severity]}]{count} {severity}{'s' if count != 1 and severity is not Severity.FINE else ''}[/]"
        for severity, count in counts.items()
        if count
    )
    return f"{said}; {len(report.not_looked)} not looked at; {seconds:.1f} s"
