"""Pure figures of what was served: speed-ups with intervals, acceptance, step times, and the formulas beside them.

A time per token is (latency - time to first token) / (tokens - 1), the time to first token as `blocks_of` bounds it,
summed over replies before it is divided, so that a reply of three tokens does not weigh as one of three hundred. The
speed-up of a block is that of plain decoding over that of k, both over the prompts that every cell of the block
answered. Mixed traffic weighs each reply by its scenario's share of the file, as batches have more of the rare ones.
Over rounds, logarithms of ratios are averaged, with Student's t interval: rounds are what is independent.

The key of a target is a scenario's name, or MIXED.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from sidecar.probes.acceptance import Counted, one
from sidecar.probes.latency import quantile

from ..stats import Estimate, geometric_mean, line
from .cells import PLAIN, Answer, Block, Cell

#: The target of all scenarios together; no scenario can be called so.
MIXED = ""
#: Truncated steps of all steps above which the overhead eats half the gain: the seed's figure.
TRUNCATION_MARK = 0.35

#: Logarithms of ms per token by k, of one block.
Times = Mapping[int, float]


def ratio(logs: Sequence[float], alpha: float = 0.05) -> Estimate | None:
    """Of the logarithms of each round's ratio, with a two-sided interval that is wrong `alpha` of the time."""
    return geometric_mean([math.exp(each) for each in logs], 1 - alpha)


def words(found: Estimate) -> str:
    """As `1.84 (1.79 to 1.90)`."""
    if found.low is None or found.high is None:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def times(block: Block, target: str, shares: Mapping[str, float]) -> Times:
    """Empty where no prompt of the target was answered in every cell.

    A cell that lacks more than half of the answers others have is left out, so that it does not empty the block.
    """
    return _per_token(block, target, shares, lambda each, k: each.decode_ms)


def steps(block: Block, target: str, shares: Mapping[str, float]) -> Times:
    """Logarithms of verify steps per token by k, of the same replies: of the draft alone, the clock has no part."""
    return _per_token(block, target, shares, lambda each, k: each.tokens - 1.0 if k == PLAIN else each.steps)


def _per_token(
    block: Block, target: str, shares: Mapping[str, float], value: Callable[[Answer, int], float | None]
) -> Times:
    by_k = {
        k: {
            each.prompt: each
            for each in cell.answers
            if each.timed and target in (MIXED, each.scenario) and value(each, k) is not None
        }
        for k, cell in block.cells.items()
    }
    most = max((len(answers) for answers in by_k.values()), default=0)
    by_k = {k: answers for k, answers in by_k.items() if 2 * len(answers) > most}
    if not by_k:
        return {}
    common = sorted(set.intersection(*(set(answers) for answers in by_k.values())))
    weights = _weights([next(iter(by_k.values()))[name] for name in common], shares)
    found = {}
    for k, answers in by_k.items():
        replies = [(answers[name], weights[answers[name].scenario]) for name in common]
        amount = math.fsum((value(each, k) or 0.0) * weight for each, weight in replies)
        tokens = math.fsum((each.tokens - 1) * weight for each, weight in replies)
        if tokens and amount:
            found[k] = math.log(amount / tokens)
    return found


def differences(rounds: Iterable[Times], slower: int, faster: int) -> list[float]:
    """Logarithms of how many times faster `faster` was, of each round that has both."""
    return [each[slower] - each[faster] for each in rounds if slower in each and faster in each]


@dataclass(frozen=True, slots=True)
class Figures:
    """One k at one concurrency, for one target; None: not known. `r` is the speed-up over plain decoding."""

    k: int
    rounds: int
    requests: int
    r: Estimate | None
    #: Accepted / drafted tokens; weighed by the shares for mixed traffic.
    p: float | None
    #: 95 % interval of p, of a single scenario.
    p_low: float | None
    p_high: float | None
    #: Accepted / judged tokens: the chance of a token whose predecessors were accepted.
    p_per_token: float | None
    length: float | None
    drafted_a_step: float | None
    truncation: float | None
    p95_ms: float | None
    #: Tokens/s of all requests together; of mixed traffic only.
    throughput: float | None
    #: ms of a verify step; of plain decoding a token's.
    step_ms: float | None


def figures(blocks: Sequence[Block], k: int, target: str, shares: Mapping[str, float]) -> Figures:
    """Of all blocks at one concurrency."""
    cells = [block.cells[k] for block in blocks if k in block.cells]
    answers = [each for cell in cells for each in cell.answers if target in (MIXED, each.scenario)]
    told = [each for each in answers if each.steps and each.drafted and each.accepted is not None]
    weights = _weights(told, shares)
    verified, drafted, accepted = (_sum(told, name, weights) for name in ("steps", "drafted", "accepted"))
    cut = [each for each in told if each.truncated is not None]
    truncated = _sum(cut, "truncated", weights)
    cut_steps, cut_accepted = (_sum(cut, name, weights) for name in ("steps", "accepted"))
    interval = None
    if target != MIXED:
        sums = Counted()
        for each in told:
            sums.put(one(each.steps or 0, each.drafted or 0, each.accepted or 0, k))
        interval = sums.interval() if sums.draft_tokens else None
    seconds = sum(cell.seconds for cell in cells)
    compared = differences((times(block, target, shares) for block in blocks), PLAIN, k)
    return Figures(
        k,
        len(cells),
        len(answers),
        ratio(compared) if k != PLAIN else None,
        accepted / drafted if drafted else None,
        interval[0] if interval else None,
        interval[1] if interval else None,
        cut_accepted / (cut_accepted + truncated) if cut_accepted + truncated else None,
        1 + accepted / verified if verified else None,
        drafted / verified if verified else None,
        truncated / cut_steps if cut_steps else None,
        quantile([each.latency_ms for each in answers], 95),
        sum(cell.tokens for cell in cells) / seconds if seconds and target == MIXED else None,
        _step_ms(answers, k),
    )


@dataclass(frozen=True, slots=True)
class Steps:
    """T(k) = a + b k at one concurrency, in ms, of verify steps; `plain_ms` is T(0), a token of plain decoding.

    b is what one more draft token costs: a step of the draft model, and its verification.
    """

    a_ms: float
    b_ms: float
    plain_ms: float

    @property
    def c(self) -> float:
        """b / T(0), the draft step in target steps; below zero only by noise."""
        return self.b_ms / self.plain_ms


def step_times(blocks: Sequence[Block]) -> Steps | None:
    """None with fewer than two ks.

    Each block's T(k) is taken as a multiple of its T(0): a k that was dropped early has not seen the later drift.
    """
    points: list[tuple[float, float]] = []
    plain: list[float] = []
    for block in blocks:
        base = _step_ms(block.cells[PLAIN].answers, PLAIN) if PLAIN in block.cells else None
        if base is None:
            continue
        plain.append(base)
        found = {k: _step_ms(cell.answers, k) for k, cell in block.cells.items() if k != PLAIN}
        points += [(float(k), step / base) for k, step in found.items() if step is not None]
    fitted = line(points)
    mean = geometric_mean(plain)
    if fitted is None or mean is None:
        return None
    return Steps(fitted.intercept * mean.value, fitted.slope * mean.value, mean.value)


def slope(blocks: Sequence[Block]) -> float | None:
    """b / a of T(k) = a + b k, from all cells but plain decoding's; None with fewer than two ks.

    For comparing ks with each other, where plain decoding's own noise is no matter: each block may be as slow as it
    likes, deviations are of logarithms from its median, and their absolute values are made least, so that a cell that
    was held up does not count for more than one.
    """
    rows = [
        {k: math.log(ms) for k, cell in block.cells.items() if k != PLAIN and (ms := _step_ms(cell.answers, k))}
        for block in blocks
    ]
    rows = [row for row in rows if len(row) > 1]
    if not rows:
        return None

    def deviation(ratio_: float) -> float:
        total = 0.0
        for row in rows:
            rest = [value - math.log1p(ratio_ * k) for k, value in row.items()]
            middle = median(rest)
            total += math.fsum(abs(each - middle) for each in rest)
        return total

    # From a step that costs nothing to one as long as the target's, by steps finer than any noise.
    return min((0.0, *(0.001 * 1.03**i for i in range(235))), key=deviation)


def seeds_formula(k: int, p: float | None) -> float | None:
    """1 + (k - 1) p: the seed's ideal speed-up, which leaves the draft's own time out."""
    return None if p is None else 1 + (k - 1) * p


def formula(k: int, p: float | None, c: float | None) -> float | None:
    """(1 - p^(k+1)) / (1 - p) / (1 + k c): tokens a step emits over how long it takes (Leviathan et al. 2023, 3.8),
    with p per token.
    """
    if p is None or c is None or 1 + k * c <= 0:
        return None
    return sum(p**i for i in range(k + 1)) / (1 + k * c)


def same_text(blocks: Sequence[Block]) -> tuple[int, int]:
    """Of the pairs of a speculative and a plain reply to the same prompt: those of the same text, and all."""
    same = pairs = 0
    for block in blocks:
        if PLAIN not in block.cells:
            continue
        plain = {each.prompt: each.text for each in block.cells[PLAIN].answers}
        for k, cell in block.cells.items():
            matched = [each.text == plain[each.prompt] for each in cell.answers if k != PLAIN and each.prompt in plain]
            same, pairs = same + sum(matched), pairs + len(matched)
    return same, pairs


def failures(cells: Iterable[Cell]) -> Counter[str]:
    return sum((Counter(cell.failures) for cell in cells), Counter[str]())


def _weights(answers: Iterable[Answer], shares: Mapping[str, float]) -> dict[str, float]:
    counts = Counter(each.scenario for each in answers)
    return {name: shares.get(name, 0.0) / n for name, n in counts.items()}


def _sum(answers: Iterable[Answer], name: str, weights: Mapping[str, float]) -> float:
    return math.fsum(getattr(each, name) * weights[each.scenario] for each in answers)


def _step_ms(answers: Iterable[Answer], k: int) -> float | None:
    """Mean time of a step after the first token."""
    ms = number = 0.0
    for each in answers:
        if each.timed and (k == PLAIN or each.steps):
            ms += each.decode_ms
            number += each.tokens - 1 if k == PLAIN else each.steps or 0
    return ms / number if number else None
