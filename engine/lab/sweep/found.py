"""What a sweep found, from its cells: race, choice and confirmation by concurrency; and the verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..stats import Estimate
from .analysis import MIXED, Figures, Steps, figures, slope, step_times, steps, times
from .cells import PLAIN, Block, Cell, blocks_of
from .recommend import LEAST_ROUNDS, Choice, Neighbour, Race, Shape, choose, confirmed, race

RECOMMENDED, NO_GAIN, CANNOT_TELL = "recommended", "no gain", "cannot tell"
#: Where the second run was not asked for, or did not come to its end.
UNCONFIRMED = "recommended, not confirmed"
EXIT = {RECOMMENDED: 0, UNCONFIRMED: 0, NO_GAIN: 1, CANNOT_TELL: 2}
SWEEP, CONFIRM = "sweep", "confirm"


@dataclass(frozen=True, slots=True)
class At:
    """All that is known of one concurrency."""

    concurrency: int
    blocks: Sequence[Block]
    race: Race
    steps: Steps | None
    figures: Mapping[int, Figures]
    """Of mixed traffic by k, plain decoding too."""
    choice: Choice | None
    by_scenario: Mapping[str, Choice | None]
    scenario_figures: Mapping[str, Mapping[int, Figures]]
    neighbours: Sequence[Neighbour] = ()
    confirmed_r: Estimate | None = None

    @property
    def gains(self) -> bool:
        """Whether speculation surely gains: by the rounds that chose k, and by those that had no part in choosing it,
        as of several ks the best looks better than it is.
        """
        if self.choice is None or not self.choice.gain:
            return False
        r = self.confirmed_r
        return r is None or r.low is None or r.low > 1

    @property
    def confirmed(self) -> bool:
        """Whether the rounds that had no part in choosing k are enough, and no neighbour is surely faster in them."""
        return bool(self.neighbours) and all(
            each.slower.number >= LEAST_ROUNDS and not each.contradicts for each in self.neighbours
        )

    @property
    def untold(self) -> tuple[int, ...]:
        """The ks that are not told apart from the chosen one: its neighbours by the confirmation, where there is one,
        else all by the rounds that chose it.
        """
        if self.choice is None or not self.choice.k:
            return ()
        if not self.confirmed:
            return self.choice.as_good
        return tuple(each.k for each in self.neighbours if each.k and not each.surely_slower)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the run was to do: `ks` in rising order, `most` the largest that the confirmation may try."""

    ks: Sequence[int]
    concurrencies: Sequence[int]
    shares: Mapping[str, float]
    most: int
    rounds: int
    baseline: str
    confirm: bool
    notes: Sequence[str] = field(default_factory=tuple)


def analyse(cells: Sequence[Cell], asked: Asked) -> list[At]:
    """By concurrency, of the whole blocks."""
    swept, confirmations = blocks_of(cells, SWEEP), blocks_of(cells, CONFIRM)
    found = []
    for concurrency in asked.concurrencies:
        blocks = [block for block in swept if block.concurrency == concurrency]
        if not blocks:
            continue
        stands = race(blocks, asked.ks, asked.shares)
        mixed = [times(block, MIXED, asked.shares) for block in blocks]
        rate = slope(blocks)
        choice = choose(mixed, stands.left, _shape(blocks, MIXED, asked, rate))
        later = [times(block, MIXED, asked.shares) for block in confirmations if block.concurrency == concurrency]
        scenarios = list(asked.shares) if len(asked.shares) > 1 else []
        r = None
        if choice is not None and later:
            r = _r([block for block in confirmations if block.concurrency == concurrency], choice.best, asked.shares)
        found.append(
            At(
                concurrency,
                blocks,
                stands,
                step_times(blocks),
                {k: figures(blocks, k, MIXED, asked.shares) for k in (PLAIN, *asked.ks)},
                choice,
                {n: _choice(blocks, n, asked, rate) for n in scenarios},
                {n: {k: figures(blocks, k, n, asked.shares) for k in asked.ks} for n in scenarios},
                confirmed(later, choice.k, asked.most) if choice is not None and choice.k and later else (),
                r,
            )
        )
    return found


def _choice(blocks: Sequence[Block], scenario: str, asked: Asked, rate: float | None) -> Choice | None:
    rounds = [times(block, scenario, asked.shares) for block in blocks]
    return choose(rounds, asked.ks, _shape(blocks, scenario, asked, rate))


def _shape(blocks: Sequence[Block], target: str, asked: Asked, rate: float | None) -> Shape | None:
    return None if rate is None else Shape([steps(block, target, asked.shares) for block in blocks], rate)


def _r(blocks: Sequence[Block], k: int, shares: Mapping[str, float]) -> Estimate | None:
    return figures(blocks, k, MIXED, shares).r


def verdict(found: Sequence[At]) -> str:
    """Recommended where speculation surely gains at some concurrency, and no confirmation says otherwise; in other
    words where a k lacks its confirmation.
    """
    choices = [at.choice for at in found]
    if not choices or None in choices or any(len(at.blocks) < LEAST_ROUNDS for at in found):
        return CANNOT_TELL
    if any(neighbour.contradicts for at in found for neighbour in at.neighbours):
        return CANNOT_TELL
    if any(
        at.confirmed_r is not None and (at.confirmed_r.high or 1.0) < 1 for at in found if at.choice and at.choice.k
    ):
        return CANNOT_TELL
    if any(at.gains for at in found):
        return RECOMMENDED if all(at.confirmed for at in found if at.choice and at.choice.k) else UNCONFIRMED
    if all(choice is not None and choice.no_gain for choice in choices):
        return NO_GAIN
    return CANNOT_TELL
