"""What the frames of every page share: a figure as shown, and texts with units.

What is not known is shown as "no data" with the reason, never as 0 or NaN.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dashboard.words import NO_DATA

#: What the API calls the groups beyond the largest twenty, and those without a name: none is one kind of request.
NO_NAMES = ("other", "unknown")


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure as shown: what it is, its value, how it stands, and what it rests on."""

    label: str
    value: str
    help: str
    #: Goal in words and whether it is met; None where there is no goal or no value.
    verdict: str | None = None
    met: bool | None = None
    note: str = ""
    #: How it went in the time range, oldest first; None at a step without data.
    trend: Sequence[float | None] = ()
    #: A line across the trend.
    limit: float | None = None


# Texts


def ratio(value: float, limit: float | None = None) -> str:
    return _digits(value, limit, 3, "{:.{}f}")


def percent(value: float, limit: float | None = None) -> str:
    return _digits(value * 100, None if limit is None else limit * 100, 1, "{:.{}f}") + " %"


def _digits(value: float, limit: float | None, digits: int, form: str) -> str:
    """More digits when rounding would show a missed limit as met."""
    while limit is not None and value != limit and round(value, digits) == limit and digits < 9:
        digits += 1
    return form.format(value, digits)


def milliseconds(value: float | None) -> str:
    if value is None:
        return NO_DATA
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def count(value: int, noun: str) -> str:
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def sentence(words: str) -> str:
    """With a capital and a full stop; nothing stays nothing."""
    return f"{words[:1].upper()}{words[1:].rstrip('.')}." if words else ""


def span(seconds: float) -> str:
    """A duration as a person would say it: its two largest units."""
    whole = max(0, int(seconds))
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, whole = divmod(whole, size)
        if amount or (unit == "s" and not parts):
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2])


def utc(at: datetime) -> datetime:
    """A time without a zone is UTC by contract."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def iso(at: datetime) -> str:
    """As the API and addresses of pages take a time."""
    return utc(at).isoformat().replace("+00:00", "Z")


def plain(text: str) -> str:
    """Text of others, safe where Streamlit reads Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>()#+\-.!|~$:&^])", r"\\\1", " ".join(text.split()))


def judged(label: str, value: str, helped: str, met: bool, goal: str, note: str) -> Tile:
    verdict = f"✓ goal met: {goal}" if met else f"✗ goal missed: {goal}"
    return Tile(label, value, helped, verdict=verdict, met=met, note=note)
