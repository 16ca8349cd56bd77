"""Pure decisions: which k is out of the race, when it is over, and which k is best.

Successive elimination (Even-Dar, Mannor, Mansour 2006): all ks that are left serve every round, and one leaves as soon
as it is surely slower than the fastest so far. Two ks within EQUAL of each other are practically the same; the smaller
one is then chosen, as it drafts less for nothing and leaves more of the machine to other requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..stats import Estimate
from .analysis import MIXED, Times, differences, ratio, times
from .cells import PLAIN, Block

#: Nothing is decided by fewer rounds.
LEAST_ROUNDS = 3
#: Of time per token: differences below are none in practice.
EQUAL = 0.02
#: How often a race may put the best k out wrongly, over all its looks and comparisons together.
ALPHA = 0.05

_EQUAL = math.log1p(EQUAL)


@dataclass(frozen=True, slots=True)
class Race:
    """How it stands at one concurrency after its blocks."""

    left: tuple[int, ...]
    #: Round (from 0) after which each k left.
    dropped: Mapping[int, int]
    #: Why no more rounds are needed; empty while they are.
    over: str

    @property
    def served(self) -> tuple[int, ...]:
        """The ks of the next round."""
        return () if self.over else self.left


def race(blocks: Sequence[Block], ks: Sequence[int], shares: Mapping[str, float]) -> Race:
    """Of the blocks at one concurrency, in the order of rounds, with `ks` (without plain decoding) at the start.

    Mixed traffic decides, as an engine has one k for a batch. A k stays for as long as it leads in some scenario, as
    long as mixed traffic has not decided.
    """
    rounds = [times(block, MIXED, shares) for block in blocks]
    scenarios = {name: [times(block, name, shares) for block in blocks] for name in shares} if len(shares) > 1 else {}
    left, dropped = tuple(ks), dict[int, int]()
    if len(left) == 1:
        # Nothing to choose from, but its speed-up is asked for.
        return Race(left, dropped, "")
    over = ""
    for seen in range(LEAST_ROUNDS, len(blocks) + 1):
        # A part of ALPHA for each look, however many there will be: 1/2, 1/6, 1/12, … of it, which add up to it.
        look = seen - LEAST_ROUNDS + 1
        out = surely_slower(rounds[:seen], left, ALPHA / (look * (look + 1)))
        spared = {leader(found[:seen], left) for found in scenarios.values()}
        contenders = [k for k in left if k not in out]
        over = _over(rounds[:seen], contenders)
        gone = out if over else out - spared
        dropped |= dict.fromkeys(sorted(gone), blocks[seen - 1].round)
        left = tuple(k for k in left if k not in gone)
        if over:
            break
    return Race(left, dropped, over)


def surely_slower(rounds: Sequence[Times], ks: Sequence[int], alpha: float = ALPHA) -> set[int]:
    """Those whose time per token is above the fastest's by an interval that leaves no doubt, `alpha` shared out by
    Bonferroni over the comparisons. One that is smaller than the fastest must be slower by more than EQUAL, as it would
    be chosen otherwise.
    """
    best = leader(rounds, ks)
    others = [k for k in ks if k != best]
    found = set()
    for k in others:
        # One-sided at alpha / comparisons.
        slower = ratio(differences(rounds, k, best), 2 * alpha / len(others)) if best is not None else None
        if slower is None or slower.low is None or best is None:
            continue
        if slower.low > 1 and (k > best or slower.value > 1 + EQUAL):
            found.add(k)
    return found


def leader(rounds: Sequence[Times], ks: Iterable[int]) -> int | None:
    """The fastest by the mean of its rounds, each against plain decoding of the same round."""
    found = {k: differences(rounds, PLAIN, k) for k in ks}
    speeds = {k: math.fsum(logs) / len(logs) for k, logs in found.items() if logs}
    return max(sorted(speeds), key=speeds.__getitem__) if speeds else None


def _over(rounds: Sequence[Times], ks: Sequence[int]) -> str:
    best = leader(rounds, ks)
    if best is None:
        return ""
    others = [k for k in ks if k != best]
    if not others:
        return f"k={best} alone is left"
    for k in others:
        slower = ratio(differences(rounds, k, best), 2 * ALPHA / len(others))
        if slower is None or slower.high is None or slower.low is None:
            return ""
        if slower.high > 1 + EQUAL or slower.low < 1 / (1 + EQUAL):
            return ""
    return f"k={', '.join(map(str, sorted(ks)))} are within {EQUAL:.0%} of each other"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is recommended for one target at one concurrency: `k`, 0 for plain decoding.

    `r` is the speed-up over plain decoding of k, or of the best k where plain decoding is chosen. `as_good` are the
    other ks that these rounds cannot tell from k.
    """

    k: int
    best: int
    r: Estimate
    as_good: tuple[int, ...]

    @property
    def gain(self) -> bool | None:
        """Whether speculation is faster here; None where the interval holds both."""
        if self.r.low is None or self.r.high is None:
            return None
        return True if self.r.low > 1 else False if self.r.high < 1 else None

    @property
    def no_gain(self) -> bool:
        """Whether it surely gains no more than what counts as equal."""
        return self.r.high is not None and self.r.high < 1 + EQUAL


@dataclass(frozen=True, slots=True)
class Shape:
    """What the cells of all ks tell together about the time per token of each: verify steps per token, by round (their
    logarithms, as `analysis.steps` has them), times a step of 1 + `slope` k.

    Verify steps are counted, so that the clock has no part in them, and the slope is of all cells; measured times of a
    single k are as noisy as its own few cells.
    """

    rounds: Sequence[Times]
    slope: float

    def longer(self, k: int, than: int) -> float | None:
        """Logarithm of how many times longer a token of k takes; None where no round has both."""
        logs = differences(self.rounds, k, than)
        if not logs:
            return None
        return math.fsum(logs) / len(logs) + math.log1p(self.slope * k) - math.log1p(self.slope * than)


def choose(rounds: Sequence[Times], ks: Iterable[int], shape: Shape | None = None) -> Choice | None:
    """The smallest k that is within EQUAL of the fastest; plain decoding where that is not slower. None: no figures.

    Where rounds cannot tell some ks from the fastest, its lead among them may be luck: `shape` decides among those.
    Those with too few rounds are passed over, unless all have.
    """
    ks = list(ks)
    counts = {k: len(differences(rounds, PLAIN, k)) for k in ks}
    enough = sorted([k for k in ks if counts[k] >= LEAST_ROUNDS] or [k for k in ks if counts[k]])
    best = leader(rounds, enough)
    if best is None:
        return None
    tied = [k for k in enough if k == best or not _told(rounds, k, best) or _loss(rounds, k, best) <= _EQUAL]
    losses = {k: _loss(rounds, k, best) for k in tied}
    if shape is not None:
        shaped = {k: longer for k in tied if (longer := shape.longer(k, best)) is not None}
        losses = shaped or losses
    least = min(losses.values())
    k = next(each for each, loss in losses.items() if loss <= least + _EQUAL)
    found = ratio(differences(rounds, PLAIN, k))
    assert found is not None
    as_good = [other for other in enough if other != k and not _told(rounds, other, k)]
    return Choice(k if found.value > 1 else PLAIN, k, found, tuple(as_good))


def _told(rounds: Sequence[Times], slower: int, faster: int) -> bool:
    """Whether it is surely slower."""
    found = ratio(differences(rounds, slower, faster), 2 * ALPHA)
    return found is not None and found.low is not None and found.low > 1


def _loss(rounds: Sequence[Times], k: int, best: int) -> float:
    logs = differences(rounds, k, best)
    return math.fsum(logs) / len(logs) if logs else math.inf


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A k beside the recommended one in the confirmation: how many times longer its tokens take."""

    k: int
    slower: Estimate

    @property
    def surely_slower(self) -> bool:
        return self.slower.low is not None and self.slower.low > 1

    @property
    def contradicts(self) -> bool:
        """Whether it is faster by more than what counts as equal, beyond doubt."""
        return self.slower.high is not None and self.slower.high < 1 / (1 + EQUAL)

    def words(self, k: int) -> str:
        low, high, value = self.slower.low, self.slower.high, self.slower.value
        name = "plain decoding" if self.k == PLAIN else f"k={self.k}"
        if low is None or high is None:
            return f"{name} had one round only, which tells nothing"
        reach = f"time per token {value - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"
        if self.surely_slower:
            small = ", which is practically nothing" if value < 1 + EQUAL else ""
            return f"{name} is slower than k={k}, {reach}{small}"
        if self.contradicts:
            return f"{name} is faster than k={k}, {reach}: the recommendation does not hold"
        if high < 1:
            return f"{name} is a little faster than k={k}, {reach}"
        return f"{name} is as good as k={k} as far as these rounds tell, {reach}"


def neighbours(k: int, most: int) -> tuple[int, ...]:
    """What confirms k: k - 1, k, k + 1, as far as there are such; plain decoding is served anyway."""
    return tuple(each for each in (k - 1, k, k + 1) if 1 <= each <= most)


def confirmed(rounds: Sequence[Times], k: int, most: int) -> list[Neighbour]:
    """Its neighbours against k, in the rounds of the confirmation."""
    beside = [each for each in (k - 1, k + 1) if 0 <= each <= most]
    found = ((each, ratio(differences(rounds, each, k))) for each in beside)
    return [Neighbour(each, slower) for each, slower in found if slower is not None]
