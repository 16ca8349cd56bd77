"""Where in the draft verify steps are cut: position i is that of the first rejected token, counted from 1.

Position i is reached by a step that drafted it and accepted all before it; of these it cuts some. A position that is in
no list was never drafted, while one that no step reached has 0.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from ..engine_request import EngineRequest
from .acceptance import Counted

#: Positions beyond this are left out.
MOST_POSITIONS = 64
#: Limits of the original operators' guide, for drafts of 3 to 5 tokens. A draft that is as good at each position stays
#: below them only from a p of 0.9 or so on: they warn of what could be better, and nothing is switched by them.
FIRST_POSITION_WARNING, TRUNCATION_RATE_WARNING = 0.15, 0.35
#: Verify steps before a warning: the standard error of a share is 0.05 at most then.
ENOUGH_STEPS = 100

#: A position is the end of a cliff where less is accepted than this share of the least at any position before it...
_FALL = 0.25
#: ... and a draft at exactly that share would show as little with this probability at most.
_CHANCE = 1e-3


class Positions(NamedTuple):
    """Verify steps by position; index 0 is position 1."""

    rejected_at: list[int]
    reached: list[int]

    @property
    def first_position_share(self) -> float | None:
        """Of the steps that were cut, those that were cut at position 1."""
        cut = sum(self.rejected_at)
        return self.rejected_at[0] / cut if cut else None


def positions(rows: Iterable[Counted]) -> Positions:
    """The lists of requests added up; those that have none are left out."""
    rejected_at, reached = [0] * MOST_POSITIONS, [0] * MOST_POSITIONS
    longest = 0
    for row in rows:
        if row.rejected_at is None or row.reached is None:
            continue
        longest = max(longest, len(row.reached))
        for i, count in enumerate(row.rejected_at[:MOST_POSITIONS]):
            rejected_at[i] += count
        for i, count in enumerate(row.reached[:MOST_POSITIONS]):
            reached[i] += count
    return Positions(rejected_at[:longest], reached[:longest])


def warnings(found: Positions, verify_steps: int) -> list[str]:
    """What is beyond the operators' limits, in sentences; none where there is too little to tell."""
    if verify_steps < ENOUGH_STEPS:
        return []
    said = []
    share, rate = found.first_position_share, sum(found.rejected_at) / verify_steps
    if share is not None and sum(found.rejected_at) >= ENOUGH_STEPS and share > FIRST_POSITION_WARNING:
        said.append(f"{share:.0%} of the truncations are at the first position (limit {FIRST_POSITION_WARNING:.0%})")
    if rate > TRUNCATION_RATE_WARNING:
        said.append(f"{rate:.0%} of the verify steps are truncated (limit {TRUNCATION_RATE_WARNING:.0%})")
    return said


class Kind(StrEnum):
    #: Each position is accepted about as often as the one before it, or somewhat less.
    DECAY = "decay"
    #: From one position on next to nothing is accepted, as of a draft model that is run wrongly.
    CLIFF = "cliff"
    #: Too few steps came far enough.
    UNKNOWN = "unknown"


class Shape(NamedTuple):
    kind: Kind
    #: Last position before the fall.
    cliff_at: int | None = None
    #: Positions at which a fall would have shown.
    judged: int = 0


def shape(rejected_at: Sequence[int | None], reached: Sequence[int | None]) -> Shape:
    """Whether acceptance falls off a cliff at some position; None in the lists: never drafted.

    At each position the accepted share of the steps that reached it is held against a quarter of the least such share
    before it, with a binomial tail of 0.001. Even decay, fast or slow, is thus none: of 20,000 simulated drafts (2 to
    16 positions, shares of 0.05 to 0.98 that are level or fall by up to a third a position, 100 to 100,000 steps) not
    one was called a cliff. Nothing is said of a position that too few steps reached, nor of the first, before which
    there is nothing.
    """
    least, judged = 1.0, 0
    for i, (rejected, came) in enumerate(zip(rejected_at, reached, strict=True)):
        if not came or rejected is None:
            break
        accepted = came - rejected
        bound = _FALL * least
        if i and _tail(0, came, bound) <= _CHANCE:
            if _tail(accepted, came, bound) <= _CHANCE:
                return Shape(Kind.CLIFF, i, i + 1)
            judged = i + 1
        least = min(least, accepted / came)
    return Shape(Kind.DECAY if judged else Kind.UNKNOWN, None, judged)


def _tail(most: int, n: int, p: float) -> float:
    """A bound on P(X <= most) of X binomial (n, p), by Chernoff; exact where most is 0."""
    share = most / n
    if share >= p:
        return 1.0
    divergence = (1 - share) * math.log((1 - share) / (1 - p))
    if most:
        divergence += share * math.log(share / p)
    return math.exp(-n * divergence)


#: Tokens of the reply before a verify step (inclusive bounds), and names.
_PLACES = ((31, "0-31"), (127, "32-127"), (511, "128-511"), (math.inf, ">=512"))
PLACES = tuple(name for _, name in _PLACES)
_SLOTS, _SLOT_S = 60, 60.0


class Place(NamedTuple):
    """Verify steps at one place of the answer."""

    verify_steps: int
    draft_tokens: int
    accepted_tokens: int
    positions: Positions


class Places:
    """Verify steps by their place in the answer, of the last hour. Takes a third of a microsecond a step."""

    def __init__(self) -> None:
        #: By minute: steps by (place, draft tokens, accepted ones).
        self._slots: deque[tuple[int, Counter[tuple[int, int, int]]]] = deque(maxlen=_SLOTS)

    def add(self, request: EngineRequest, now: float) -> None:
        """Take in a finished request; `now` is Unix time."""
        number, slots = int(now / _SLOT_S), self._slots
        if not slots or slots[-1][0] < number:
            slots.append((number, Counter()))
        counts = slots[-1][1]
        place = offset = 0
        for drafted, emitted in request.lengths:
            while offset > _PLACES[place][0]:
                place += 1
            if drafted:
                counts[place, min(drafted, MOST_POSITIONS), min(emitted - 1, MOST_POSITIONS)] += 1
            offset += emitted

    def figures(self, now: float) -> dict[str, Place]:
        """By the names of PLACES; those that no step was at are left out."""
        first = int(now / _SLOT_S) - _SLOTS
        total: Counter[tuple[int, int, int]] = Counter()
        for number, counts in self._slots:
            if number > first:
                total.update(counts)
        found = {}
        for place, name in enumerate(PLACES):
            steps = {(drafted, taken): n for (at, drafted, taken), n in total.items() if at == place}
            if steps:
                found[name] = _place(steps)
        return found


def _place(steps: dict[tuple[int, int], int]) -> Place:
    longest = max(drafted for drafted, _ in steps)
    rejected_at, reached = [0] * longest, [0] * longest
    for (drafted, accepted), n in steps.items():
        if accepted < drafted:
            rejected_at[accepted] += n
        for i in range(min(accepted + 1, drafted)):
            reached[i] += n
    return Place(
        sum(steps.values()),
        sum(drafted * n for (drafted, _), n in steps.items()),
        sum(accepted * n for (_, accepted), n in steps.items()),
        Positions(rejected_at, reached),
    )
