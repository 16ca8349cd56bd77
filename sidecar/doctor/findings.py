"""What a check says: a finding, or why it could not look."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .facts import Facts


class Severity(StrEnum):
    """In falling order."""

    #: It does not work, or speculation costs more than it gains.
    FAULT = "fault"
    #: It works less well than it could, or will not for long.
    WARNING = "warning"
    #: Worth knowing; nothing has to be done.
    NOTE = "note"
    #: Looked at, and nothing is wrong.
    FINE = "fine"

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen. Sentences without markup; secrets are taken out where they are shown."""

    #: Kebab case; stable, for scripts.
    id: str
    severity: Severity
    #: What is so, in one line.
    title: str
    #: What was seen, with numbers.
    seen: tuple[str, ...] = ()
    #: Why it is likely so, and what to do; empty where nothing is wrong.
    cause: str = ""
    remedy: str = ""
    #: A command that shows it.
    command: str = ""


@dataclass(frozen=True, slots=True)
class NotLooked:
    """A check that could not be made, which is no sign of health."""

    id: str
    why: str
    #: How to look by hand.
    command: str = ""


Result = Finding | NotLooked


@dataclass(frozen=True, slots=True)
class Check:
    """`look` gives one result at least."""

    id: str
    look: Callable[[Facts], Iterable[Result]]


@dataclass(frozen=True, slots=True)
class Report:
    """What all checks gave."""

    findings: list[Finding]
    not_looked: list[NotLooked]

    @property
    def worst(self) -> Severity:
        return min((each.severity for each in self.findings), key=lambda each: each.rank, default=Severity.FINE)

    def of(self, *severities: Severity) -> list[Finding]:
        return [each for each in self.findings if each.severity in severities]

    @property
    def exit_status(self) -> int:
        return int(bool(self.of(Severity.FAULT, Severity.WARNING)))


def run(checks: Sequence[Check], facts: Facts) -> Report:
    """The results of all checks, the worst first, else in the order of the checks.

    A check that fails itself is one that could not be made: the others go on.
    """
    findings: list[Finding] = []
    not_looked: list[NotLooked] = []
    for check in checks:
        try:
            results = list(check.look(facts))
        except Exception as error:
            results = [NotLooked(check.id, f"the check itself failed: {type(error).__name__}: {error}")]
        for result in results or [NotLooked(check.id, "there was nothing to look at")]:
            if isinstance(result, Finding):
                findings.append(result)
            else:
                not_looked.append(result)
    findings.sort(key=lambda each: each.severity.rank)
    return Report(findings, not_looked)


def fault(name: str, title: str, *seen: str, cause: str, remedy: str, command: str = "") -> Finding:
    return Finding(name, Severity.FAULT, title, seen, cause, remedy, command)


def warning(name: str, title: str, *seen: str, cause: str, remedy: str, command: str = "") -> Finding:
    return Finding(name, Severity.WARNING, title, seen, cause, remedy, command)


def note(name: str, title: str, *seen: str, cause: str = "", remedy: str = "", command: str = "") -> Finding:
    return Finding(name, Severity.NOTE, title, seen, cause, remedy, command)


def fine(name: str, title: str, *seen: str) -> Finding:
    return Finding(name, Severity.FINE, title, seen)


def as_json(report: Report, hide: Callable[[str], str] = str) -> dict[str, Any]:
    """For programs; `severity` is a word of `Severity`. `hide` takes secrets out of a text."""
    return {
        "verdict": report.worst.value,
        "exit_status": report.exit_status,
        "findings": [
            {
                "id": each.id,
                "severity": each.severity.value,
                "title": hide(each.title),
                "seen": [hide(text) for text in each.seen],
                "cause": hide(each.cause),
                "remedy": hide(each.remedy),
                "command": hide(each.command),
            }
            for each in report.findings
        ],
        "not_looked_at": [
            {"id": each.id, "why": hide(each.why), "command": hide(each.command)} for each in report.not_looked
        ],
    }
