"""What drafts of other lengths would gain, by the rates of the positions and the draft's cost. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..probes.truncation import ENOUGH_STEPS
from . import figures
from .figures import Row

#: Share of the steps that accept a position, below which its drafting is mostly in vain where no cost is known: with a
#: draft step of a fifth of a verify step, which is a fast draft, it takes as long as it saves.
LEAST_SURVIVAL = 0.2


@dataclass(frozen=True, slots=True)
class Lengths:
    """What drafts of other lengths would gain, by the positions' own rates."""

    k: int
    #: Share of the steps that accept positions 1..i, at index i - 1.
    survival: list[float]
    #: Draft step / verify step; None where it is not known.
    cost: float | None

    def length(self, k: int) -> float:
        """Tokens a step: 1 + E(k)."""
        return 1 + sum(self.survival[:k])

    def gain(self, k: int, cost: float) -> float:
        """Of plain decoding: (1 + E) / (1 + k c)."""
        return self.length(k) / (1 + k * cost)

    @property
    def best(self) -> int:
        """The smallest k of the greatest gain; without a cost, the last position that is often enough accepted."""
        if self.cost is None:
            return max((i + 1 for i, share in enumerate(self.survival) if share >= LEAST_SURVIVAL), default=1)
        cost = self.cost
        return max(range(1, self.k + 1), key=lambda k: (round(self.gain(k, cost), 6), -k))


def lengths(rows: Sequence[Row], cost: float | None) -> Lengths | None:
    """None where positions are not told of enough steps."""
    found, steps = figures.by_position(rows)
    ks = [row["num_speculative_tokens"] for row in rows if figures.counted(row) is not None]
    k = min(max((each for each in ks if each), default=0), len(found.reached))
    if not k or steps < ENOUGH_STEPS or not found.reached[0]:
        return None
    survival, alive = [], 1.0
    for cut, came in zip(found.rejected_at[:k], found.reached[:k], strict=True):
        alive *= (came - cut) / came if came else 0.0
        survival.append(alive)
    return Lengths(k, survival, cost)


def cost_bound(ours: Sequence[Row], all_rows: Sequence[Row]) -> float | None:
    """An upper bound of draft step / target step, (T(k) / T(0) - 1) / k; None where too little was served without.

    T(k) is the median over requests of (latency - TTFT) / verify steps after the first, T(0) that of the time per token
    of requests without speculation, both of streams at a concurrency of 4 at most. It is a bound, as T(k) also holds
    what verifying k tokens at once takes longer than one.
    """
    ks = [row["num_speculative_tokens"] for row in ours if row["num_speculative_tokens"]]
    steps = sorted(
        (row["latency_ms"] - row["ttft_ms"]) / (row["verify_steps"] - 1)
        for row in figures.ok(ours)
        if row["ttft_ms"] is not None
        and row["latency_ms"]
        and (row["verify_steps"] or 0) > 4
        and row["concurrency"] <= 4
    )
    plain = sorted(
        row["tpot_ms"]
        for row in figures.ok(all_rows)
        if row["arm"] not in figures.SPECULATIVE and row["tpot_ms"] and row["concurrency"] <= 4
    )
    if not ks or len(steps) < 20 or len(plain) < 20:
        return None
    ratio = steps[len(steps) // 2] / plain[len(plain) // 2]
    return float(max((ratio - 1) / max(ks), 0.001))
