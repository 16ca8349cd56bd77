"""Sums over rows, with the formulas of the sidecar's own figures. Pure; rows are `RequestRow`s, newest first."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..probes.acceptance import Counted, Figures, one
from ..probes.latency import quantile
from ..probes.truncation import Positions, positions

Row = Mapping[str, Any]

#: What counts as lately: the last hour, and where that has fewer requests, the last so many.
HOUR_S, FEW = 3600.0, 200
SPECULATIVE = ("speculative", "probe")


def at(row: Row) -> float:
    """Unix time of its start; rows of the API have it as text."""
    found = row["started_at"]
    return (datetime.fromisoformat(found) if isinstance(found, str) else found).timestamp()


def lately(rows: Sequence[Row], now: float) -> list[Row]:
    """Rows by which the present is judged: those of the last hour, or the last 200 where these are more."""
    hour = [row for row in rows if at(row) >= now - HOUR_S]
    return hour if len(hour) >= FEW else list(rows[:FEW])


def span(rows: Sequence[Row], now: float) -> str:
    """What rows are of, in words."""
    if not rows:
        return "no requests"
    ago = max(now - at(rows[-1]), 0.0)
    return f"the last {len(rows)} requests (since {_ago(ago)})"


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"


def counted(row: Row) -> Counted | None:
    """As `probes.acceptance.counted`, of a row."""
    steps, drafted, accepted = row["verify_steps"], row["draft_tokens"], row["accepted_tokens"]
    if row["outcome"] not in ("ok", "truncated") or row["acceptance_quality"] != "ok":
        return None
    if not steps or not drafted or accepted is None:
        return None
    return one(steps, drafted, accepted, row["num_speculative_tokens"], row["rejected_at"], row["reached"])


def acceptance(rows: Iterable[Row]) -> Figures:
    total, ks = Counted(), set()
    for row in rows:
        if (each := counted(row)) is not None:
            total.put(each)
            ks.add(each.num_speculative_tokens)
    return total.figures(ks.pop() if len(ks) == 1 else None) if total.requests else total.figures(None)


def by_position(rows: Iterable[Row]) -> tuple[Positions, int]:
    """Rejections by position, and the verify steps that they are of."""
    told = [
        each
        for row in rows
        if (each := counted(row)) is not None and each.rejected_at is not None and each.reached is not None
    ]
    return positions(told), sum(each.verify_steps for each in told)


def grouped(rows: Iterable[Row], name: Callable[[Row], str]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(name(row), []).append(row)
    return found


def values(rows: Iterable[Row], column: str) -> list[float]:
    return [float(row[column]) for row in rows if row[column] is not None]


def speculative(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["arm"] in SPECULATIVE]


def ok(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["outcome"] == "ok"]


def share(part: int, whole: int) -> float:
    """0 where there is nothing."""
    return part / whole if whole else 0.0


def most(found: Iterable[str | None], number: int = 3) -> list[tuple[str, int]]:
    return [(str(name), count) for name, count in Counter(found).most_common(number) if name is not None]


@dataclass(frozen=True, slots=True)
class Ratio:
    """p95 / p95 of two samples."""

    value: float
    low: float
    high: float


def p95_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio | None:
    """With a wide interval: that of each side's order statistics, the worst of both put together.

    A quantile lies between the values at ranks n q -+ 1.96 sqrt(n q (1 - q)), 95 % of the times (the binomial's normal
    approximation; Conover, Practical Nonparametric Statistics, 3.2). None below 20 values a side, or for a p95 of 0.
    """
    if min(len(ours), len(theirs)) < 20:
        return None
    (low, middle, high), (least, usual, most_) = _quantile(ours), _quantile(theirs)
    if not least or not usual:
        return None
    return Ratio(middle / usual, low / most_, high / least)


def _quantile(values_: Sequence[float], q: float = 0.95) -> tuple[float, float, float]:
    ordered, n = sorted(values_), len(values_)
    wide = 1.96 * math.sqrt(n * q * (1 - q))
    low, high = (min(max(math.ceil(rank), 1), n) for rank in (n * q - wide, n * q + wide))
    return ordered[low - 1], quantile(ordered, 95) or 0.0, ordered[high - 1]


def percent(value: float) -> str:
    return f"{value:.0%}" if value >= 0.1 or not value else f"{value:.1%}"


def ms(value: float) -> str:
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms"
