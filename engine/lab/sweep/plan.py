"""What is served, and in which order.

A block is one round at one concurrency: every k that is still in question, and plain decoding, serve the same prompts
one after the other, so that each speed-up is a ratio of two batches that ran within a minute of each other. Two things
could still favour a k: its place in the block, while the clock or the machine drifts, and what ran just before it
(caches, heat). The order of a block is therefore a row of a Williams square (Williams 1949: each k comes once at each
place, and once after each other one), and each row is followed by its mirror image in the next round, so that a drift
that is linear within a block cancels in every two rounds, long before the square is through. Labels and rows are drawn
by the seed.

The prompts of a block are one batch of mixed scenarios, and replies are attributed to their scenario afterwards. A
batch per scenario would cost as many times more batches as there are scenarios, each with its own idle tail while the
last requests finish; and an engine under real traffic has mixed batches, in which the step of one request takes as
long as its neighbours make it. What a scenario gains in its own company, on a replica of its own, is therefore not
measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from .cells import PLAIN, Block

if TYPE_CHECKING:
    from ..prompts import Prompt

#: A scenario has at least so many prompts in each batch, as one reply more or less says little.
LEAST = 2
#: Which ks (without plain decoding) are still in question at a concurrency after its blocks; none: it is decided.
Left = Callable[[int, Sequence[Block]], Sequence[int]]


class PlanError(ValueError):
    """An option that cannot be: a sentence that names it, with the remedy."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A block to be served: `order` are its ks in turn, plain decoding (0) among them."""

    round: int
    concurrency: int
    order: tuple[int, ...]


def numbers(text: str, option: str, least: int = 1) -> tuple[int, ...]:
    """Whole numbers and ranges, in rising order. Raises PlanError.

    >>> numbers("1-3,6", "--k")
    (1, 2, 3, 6)
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit()) or (dash and not (last.isascii() and last.isdigit())):
            raise PlanError(f"{option}: {text!r} is no list of numbers: write it as 1-10 or 1,2,4")
        low, high = int(first[:9]), int((last or first)[:9])
        if high < low:
            raise PlanError(f"{option}: {part.strip()} runs backwards: write {last}-{first}")
        if low < least:
            raise PlanError(f"{option}: {low} is too small: the least is {least}")
        if high - low >= 1000:
            raise PlanError(f"{option}: {part.strip()} are too many: name fewer than 1000")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def square(n: int) -> list[tuple[int, ...]]:
    """Orders of 0..n-1 in which each stands once at each place and follows each other one equally often.

    n rows for an even n, 2 n for an odd one. Every second row is the one before it backwards.
    """
    first = [0]
    for step in range(1, n):
        first.append((first[-1] + (step if step % 2 else -step)) % n)
    rows = [tuple((each + i) % n for each in first) for i in range((n + 1) // 2 if n % 2 == 0 else n)]
    if n % 2 == 0:
        rows = rows[: n // 2]
    return [order for row in rows for order in (row, row[::-1])]


def order(arms: Sequence[int], turn: int, seed: int) -> tuple[int, ...]:
    """The order of the ks in the block that is their `turn`-th (from 0) at a concurrency."""
    draw = _draw(seed, sorted(arms))
    names = sorted(arms)
    draw.shuffle(names)
    pairs = square(len(names))
    starts = list(range(0, len(pairs), 2))
    draw.shuffle(starts)
    place = turn // 2 % len(starts)
    # Which of the two comes first is drawn too: otherwise a rise over the whole run would favour one direction.
    flip = _draw(seed, sorted(arms), turn // 2).random() < 0.5
    return tuple(names[each] for each in pairs[starts[place] + ((turn % 2) ^ flip)])


def next_turn(
    done: Sequence[Block],
    concurrencies: Sequence[int],
    rounds: int,
    seed: int,
    left: Left,
) -> Turn | None:
    """What is to be served after the blocks in `done`; None when nothing is left.

    Concurrencies take turns in going first.
    """
    so_far = {c: [block for block in done if block.concurrency == c] for c in concurrencies}
    arms = {c: tuple(left(c, so_far[c])) for c in concurrencies}
    for number in range(rounds):
        shift = number % len(concurrencies)
        for c in (*concurrencies[shift:], *concurrencies[:shift]):
            if not arms[c] or any(block.round == number for block in so_far[c]):
                continue
            here = (PLAIN, *arms[c])
            turn = sum(block.arms == frozenset(here) for block in so_far[c])
            return Turn(number, c, order(here, turn, seed + c))
    return None


def rounds_left(
    done: Sequence[Block], concurrencies: Sequence[int], rounds: int, left: Left
) -> dict[int, tuple[int, int]]:
    """How many rounds are left at each concurrency at most, as `next_turn` goes on, and of how many ks."""
    found = {}
    for c in concurrencies:
        blocks = [block for block in done if block.concurrency == c]
        if ks := len(left(c, blocks)):
            found[c] = (max(rounds - len(blocks), 0), ks)
    return found


def batch_size(concurrency: int, scenarios: int, asked: int | None) -> int:
    """Prompts of a batch: so many that its idle tail is short beside it, and each scenario has its least.

    Raises PlanError where `asked` is fewer than can be in flight.
    """
    if asked is not None:
        if asked < concurrency:
            raise PlanError(
                f"--batch: {asked} prompts never keep {concurrency} requests in flight: give at least {concurrency}"
            )
        return max(asked, scenarios)
    return max(3 * concurrency, LEAST * scenarios, 12)


class Deal:
    """Deals batches of prompts: the shares of the file, but at least LEAST of each scenario; no prompt comes again
    before all of its scenario were there. A third of each scenario is held out for the confirmation.

    `shares`: of the scenarios in the file, from which `prompts` were taken; `sizes`: prompts of a batch by concurrency.
    Raises PlanError where there are so few that a batch is smaller than its concurrency.
    """

    def __init__(
        self, prompts: Sequence[Prompt], shares: Mapping[str, float], sizes: Mapping[int, int], seed: int
    ) -> None:
        by_scenario: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            by_scenario.setdefault(prompt.scenario, []).append(prompt)
        draw = _draw(seed)
        self._seed = seed
        self._counts = {c: _counts(shares, size) for c, size in sizes.items()}
        self._piles: dict[bool, dict[str, list[Prompt]]] = {False: {}, True: {}}
        #: Scenarios with so few prompts that the confirmation has to take those of the sweep.
        self.shared: list[str] = []
        for name, found in sorted(by_scenario.items()):
            draw.shuffle(found)
            cut = len(found) - len(found) // 3
            if cut == len(found):
                self.shared.append(name)
            self._piles[False][name] = found[:cut]
            self._piles[True][name] = found[cut:] or found
        for c in sizes:
            if (size := self._size(c, held_out=False)) < c:
                raise PlanError(
                    f"--concurrencies: a batch has {size} prompts, which never keep {c} requests in flight (a third of "
                    "all is held out for the confirmation): give more prompts, or name fewer in flight"
                )
            if self._size(c, held_out=True) < c:
                self._share(c)

    def batch(self, number: int, concurrency: int, *, held_out: bool = False) -> list[Prompt]:
        """That of round `number` at `concurrency`; always the same."""
        found: list[Prompt] = []
        for name, pile in self._piles[held_out].items():
            a_round = [counts[name] for counts in self._counts.values()]
            before = number * sum(a_round) + sum(a_round[: list(self._counts).index(concurrency)])
            count = self._counts[concurrency][name]
            # A prompt may not be twice in a batch: its replies are told apart by its id.
            found += [pile[(before + i) % len(pile)] for i in range(min(count, len(pile)))]
        _draw(self._seed, number, concurrency, held_out).shuffle(found)
        return found

    def _size(self, concurrency: int, *, held_out: bool) -> int:
        """Prompts of a batch."""
        counts = self._counts[concurrency]
        return sum(min(counts[name], len(pile)) for name, pile in self._piles[held_out].items())

    def _share(self, concurrency: int) -> None:
        """Let the confirmation have the sweep's prompts too, of scenarios whose held out ones do not fill a batch."""
        for name, pile in self._piles[True].items():
            if name not in self.shared and len(pile) < self._counts[concurrency][name]:
                self._piles[True][name] = pile + self._piles[False][name]
                self.shared.append(name)


def _counts(share: Mapping[str, float], size: int) -> dict[str, int]:
    """Whole numbers near `share` x `size` (largest remainders), at least LEAST each, or 1 where that is too much."""
    least = LEAST if LEAST * len(share) <= size else 1
    exact = {name: part * size for name, part in share.items()}
    found = {name: max(int(each), least) for name, each in exact.items()}
    for name in sorted(exact, key=lambda each: int(exact[each]) - exact[each]):
        if sum(found.values()) >= size:
            break
        if exact[name] >= least:
            found[name] += 1
    return found


def _draw(*of: object) -> Random:
    """The same for the same."""
    return Random(" ".join(map(str, of)))  # noqa: S311 - which comes first is no secret
