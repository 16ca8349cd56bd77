"""How long what is left of a sweep takes, by the batches that it has served. Pure; s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..progress import span
from .cells import PLAIN, Cell
from .recommend import LEAST_ROUNDS

#: Ks of a round of the confirmation, at most: k and both neighbours.
CONFIRMING = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """Mean seconds of a batch by concurrency: of plain decoding, and of any k. What was not served takes none."""

    plain: Mapping[int, float]
    drafting: Mapping[int, float]

    @classmethod
    def of(cls, cells: Sequence[Cell], warm_up: Pace | None = None) -> Pace:
        """Where there are no cells yet, of the warm-up."""
        plain, drafting = (
            {c: sum(each) / len(each) for c, each in _seconds(cells, is_plain).items()} for is_plain in (True, False)
        )
        if warm_up is None:
            return cls(plain, drafting)
        return cls({**warm_up.plain, **plain}, {**warm_up.drafting, **drafting})

    def round_s(self, concurrency: int, ks: int) -> float:
        return self.plain.get(concurrency, 0.0) + ks * self.drafting.get(concurrency, 0.0)

    def rounds_s(self, left: Mapping[int, tuple[int, int]]) -> float:
        """`left`: rounds and the ks of each, by concurrency."""
        return sum(rounds * self.round_s(c, ks) for c, (rounds, ks) in left.items())


def too_short(
    left_s: float, least: Mapping[int, tuple[int, int]], confirm: Mapping[int, tuple[int, int]], pace: Pace
) -> str:
    """A sentence where what is left of --minutes is up before there is a verdict, or one that is confirmed.

    `least`: the rounds that a verdict lacks, and the ks of each, by concurrency; `confirm`: those of the confirmation.
    """
    left_s = max(left_s, 0.0)
    least_s = pace.rounds_s(least)
    whole_s = least_s + pace.rounds_s(confirm)
    left = f"--minutes: {span(left_s)} are left"
    remedy = "give more, or fewer of --k and --concurrencies"
    if left_s < least_s:
        return f"{left}, and {LEAST_ROUNDS} rounds, the least for a verdict, take about {span(least_s)} more: {remedy}"
    if left_s < whole_s:
        return f"{left}, and {LEAST_ROUNDS} rounds with the confirmation take about {span(whole_s)} more: {remedy}"
    return ""


def _seconds(cells: Sequence[Cell], plain: bool) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for cell in cells:
        if (cell.k == PLAIN) == plain:
            found.setdefault(cell.concurrency, []).append(cell.seconds)
    return found
