"""The three gates of a draft, and whether drafting pays at all. Pure; times are ms.

A draft step must take less than a third of a target step, p must be above 0.65, and both must know the tokens by the
same ids (the operators' guide of this project). A draft that passes may still not pay with a large k, which
break-even tells.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

import msgspec
from scipy.stats import t as student  # type: ignore[import-untyped]

from sidecar.probes.acceptance import break_even
from sidecar.probes.tokenizer_check.report import Report
from sidecar.probes.tokenizer_check.report import Verdict as Aligned

from ..stats import Estimate
from ..summary import Gate
from .scenarios import ENOUGH, Overall, Scenario, Standing, more_needed

#: Prompts that a mean step time needs before its interval is trusted.
ENOUGH_TRIALS = 12
#: Share of the replies that a mean leaves out at either end.
_TRIMMED = 0.2


class Verdict(StrEnum):
    QUALIFIED = "qualified"
    IN_PART = "qualified in part"
    REJECTED = "rejected"
    CANNOT_TELL = "cannot tell"

    @property
    def certifies(self) -> bool:
        """Whether scenarios that are good enough are certified by it."""
        return self in (Verdict.QUALIFIED, Verdict.IN_PART)


class PlainKind(StrEnum):
    """What a plain step was."""

    #: Of an engine that never speculates.
    TRUE_AR = "true_ar"
    #: Of the same engine, where nothing is drafted.
    DISABLED = "spec_disabled"
    #: Of the same engine, which runs the draft once a step all the same, to keep its cache.
    DISABLED_DRAFT_RUNS = "spec_disabled, the draft runs once a step"


class Steps(msgspec.Struct, frozen=True):
    """Of one reply: the time after its first token, the steps that took it, and how late that token was."""

    ms: float
    steps: int
    first_ms: float = 0.0


class Trial(msgspec.Struct, frozen=True):
    """One prompt, alone in the engine, with each number of draft tokens."""

    prompt: str
    #: By the cap in force.
    by_k: dict[int, Steps]
    #: None where there is no plain decoding.
    plain: Steps | None


@dataclass(frozen=True, slots=True)
class StepTimes:
    """T(k): the mean time of a verify step of k draft tokens; T(0): of a plain step."""

    trials: int
    by_k: dict[int, Estimate]
    plain: Estimate | None
    plain_kind: PlainKind | None
    #: A draft step: how much longer a step takes for each token more that it drafts.
    draft: Estimate | None
    #: c, draft step / target step; an upper bound of it where `bounded`.
    c: Estimate | None
    bounded: bool
    #: T(K) / T(0), of the largest k.
    of_plain: Estimate | None

    @property
    def k(self) -> int | None:
        return max(self.by_k, default=None)


# ---- step times


def step_times(trials: Sequence[Trial], plain_kind: PlainKind | None) -> StepTimes:
    """From trials that all have the same k.

    T(k) is the mean over replies of (time after the first token / verify steps): the first token comes of the prefill,
    which verifies nothing. A fifth of the replies at either end is left out (trimmed mean), as a machine's other work
    shows as a few that are far off.
    draft step = (T(K) - T(1)) / (K - 1), c = draft step / T(0). With one k only, c <= (T(k)/T(0) - 1)/k: a verify step
    takes longer than a plain one by k draft steps at least. Intervals by the jackknife over the prompts, so that what
    is long in all of a prompt's replies cancels.
    """
    ks = sorted(set.intersection(*(set(trial.by_k) for trial in trials))) if trials else []
    with_plain = [trial for trial in trials if trial.plain is not None]
    draft_runs = plain_kind is PlainKind.DISABLED_DRAFT_RUNS

    def at(k: int) -> Callable[[Sequence[Trial]], float | None]:
        return lambda some: _mean([trial.by_k[k] for trial in some])

    def draft_step(some: Sequence[Trial]) -> float | None:
        return _slope([(k, _mean([trial.by_k[k] for trial in some])) for k in ks])

    def target_step(some: Sequence[Trial]) -> float | None:
        found = _mean([trial.plain for trial in some if trial.plain is not None])
        if found is None or not draft_runs:
            return found
        # A step that ran the draft once is longer than one of the target alone by a draft step, of which steps of one
        # k tell nothing: taken for the target's alone, it would make any draft look as if it cost nothing.
        draft = draft_step(some)
        return None if draft is None or draft >= found else found - max(draft, 0.0)

    def of_plain(some: Sequence[Trial]) -> float | None:
        return _quotient(at(ks[-1])(some), target_step(some))

    def c(some: Sequence[Trial]) -> float | None:
        if len(ks) > 1:
            return _quotient(draft_step(some), target_step(some))
        quotient = of_plain(some)
        return None if quotient is None else (quotient - 1) / ks[0]

    useful = bool(ks and with_plain and (ks[-1] > 0))
    return StepTimes(
        len(with_plain or trials),
        {k: found for k in ks if (found := _jackknife(trials, at(k))) is not None},
        _jackknife(with_plain, target_step) if with_plain else None,
        plain_kind if with_plain else None,
        _jackknife(trials, draft_step) if len(ks) > 1 else None,
        _jackknife(with_plain, c) if useful else None,
        len(ks) == 1,
        _jackknife(with_plain, of_plain) if useful else None,
    )


def _mean(found: Sequence[Steps]) -> float | None:
    """Trimmed, of the times of a step.

    A first token later than the median is taken to have been held up with those behind it: where a busy machine has
    all events come at once, the reply would seem to have taken no time.
    """
    first = median(each.first_ms for each in found) if found else 0.0
    times = sorted((each.ms + max(each.first_ms - first, 0.0)) / each.steps for each in found)
    cut = int(_TRIMMED * len(times))
    kept = times[cut : len(times) - cut]
    return math.fsum(kept) / len(kept) if kept else None


def _slope(points: Sequence[tuple[int, float | None]]) -> float | None:
    """By least squares."""
    told = [(k, ms) for k, ms in points if ms is not None]
    middle_k = sum(k for k, _ in told) / len(told) if told else 0.0
    spread = sum((k - middle_k) ** 2 for k, _ in told)
    return sum((k - middle_k) * ms for k, ms in told) / spread if spread else None


def _quotient(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _jackknife(trials: Sequence[Trial], statistic: Callable[[Sequence[Trial]], float | None]) -> Estimate | None:
    """With Student's t of n - 1 (Efron and Tibshirani, An Introduction to the Bootstrap, ch. 11)."""
    value, n = statistic(trials), len(trials)
    if value is None:
        return None
    without = [statistic([*trials[:i], *trials[i + 1 :]]) for i in range(n)] if n > 2 else []
    told = [each for each in without if each is not None]
    if not told or len(told) < n:
        return Estimate(value, None, None, n)
    middle = math.fsum(told) / n
    error = math.sqrt((n - 1) / n * math.fsum((each - middle) ** 2 for each in told))
    half = float(student.ppf(0.975, n - 1)) * error
    return Estimate(value, value - half, value + half, n)


# ---- gates


def draft_step_gate(times: StepTimes | str, limit: float, *, unlike: bool = False) -> Gate:
    """A word in place of times: why there are none. `unlike`: see `StepPlan`; what is dear all the same, is."""
    if isinstance(times, str):
        return Gate("draft step", None, None, limit, _sentence(times))
    c, k = times.c, times.k
    if c is None or k is None:
        words = "No step was measured both with drafts and without."
        if times.plain_kind is PlainKind.DISABLED_DRAFT_RUNS:
            words = "This engine runs the draft in plain steps too, so that what it takes cannot be told: give --plain."
        return Gate("draft step", None, None, limit, words)
    if c.low is None or c.high is None or times.trials < ENOUGH_TRIALS:
        words = f"Steps of {times.trials} of {ENOUGH_TRIALS} prompts were measured, which are too few to tell."
        return Gate("draft step", None, c.value, limit, words)
    told = f"{c.value:.3f} of a target step (95 % interval {c.low:.3f} to {c.high:.3f})"
    if c.value <= 0:
        words = f"A draft step seems to take {told}, which cannot be: measure again, with nothing else on the machine."
        return Gate("draft step", None, c.value, limit, words)
    if unlike and c.low < limit:
        words = (
            f"A draft step seems to take {told}, but a GPU may have run steps of {k} draft tokens with CUDA graphs and "
            "others without: have the lab start the engine, by -c FILE, or give --plain."
        )
        return Gate("draft step", None, c.value, limit, words)
    if times.bounded:
        passed = True if c.high < limit else None
        words = (
            f"A draft step takes at most {told}: a bound from steps of {k} draft tokens and plain ones, as no steps of "
            "another length were measured."
        )
        if passed is None:
            words += " What it takes itself may be below the limit"
            words += "." if k == 1 else ": one that the lab starts, by -c FILE, would tell."
        return Gate("draft step", passed, c.value, limit, words)
    passed = True if c.high < limit else False if c.low >= limit else None
    draft, plain = times.draft, times.plain
    assert draft is not None
    assert plain is not None
    words = f"A draft step takes {draft.value:.2f} ms, {told}, which takes {plain.value:.2f} ms."
    if times.plain_kind is PlainKind.DISABLED_DRAFT_RUNS:
        words += " The draft ran once in each plain step, which is taken off."
    if passed is None:
        words += f" The limit of {limit:.3f} lies in between: measure more prompts, with nothing else on the machine."
    return Gate("draft step", passed, c.value, limit, words)


def p_gate(found: Overall, limit: float) -> Gate:
    p, low, high = found.p, found.low, found.high
    if p is None:
        return Gate("p", None, None, limit, "No request tells how many tokens were drafted and accepted.")
    if low is None or high is None or found.requests < ENOUGH:
        return Gate("p", None, p, limit, f"p is {p:.3f}, but of {found.requests} requests only; {ENOUGH} are needed.")
    words = f"p is {p:.3f} (95 % interval {low:.3f} to {high:.3f}) of {found.requests} requests, by the file's shares."
    passed = True if low >= limit else False if high < limit else None
    if passed is None:
        more = more_needed(p, low, high, found.requests, limit)
        words += f" The limit of {limit:g} lies in between" + (
            "." if more is None else f": some {more} more prompts are likely to tell."
        )
    if found.left_out:
        words += f" Nothing is known of {', '.join(found.left_out)}."
    return Gate("p", passed, p, limit, words)


def tokenizer_gate(checked: Report | str) -> Gate:
    """A word in place of the report: why there is none."""
    if isinstance(checked, str):
        return Gate("tokenizers", None, None, None, _sentence(f"they were not compared: {checked}"))
    ordinary, special = checked.ordinary, checked.special
    shared, same = ordinary.shared + special.shared, ordinary.same_id + special.same_id
    words = f"Of {shared} tokens that target and draft have in common {same} have the same id."
    if checked.findings and checked.verdict is not Aligned.ALIGNED:
        words += f" {checked.findings[0].sentence}"
    passed = {Aligned.ALIGNED: True, Aligned.MISALIGNED: False, Aligned.UNKNOWN: None}[checked.verdict]
    return Gate("tokenizers", passed, same / shared if shared else None, None, words)


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:].rstrip(".") + "."


# ---- whether it pays


@dataclass(frozen=True, slots=True)
class BreakEven:
    k: int
    #: p per token from which k draft tokens a step pay, by c and k alone; None where none does, or c is not known.
    p: float | None
    #: p per token, as measured.
    measured: float | None
    #: T(k) / T(0): tokens that a step must give to pay; measured, so that it has what c leaves out.
    tokens: float | None
    #: Tokens that a step gives: 1 + E.
    given: float | None

    @property
    def pays(self) -> bool | None:
        return None if self.tokens is None or self.given is None else self.given >= self.tokens


def break_even_of(times: StepTimes | str, found: Overall, k: int | None) -> BreakEven | None:
    """At `k` draft tokens, as the engine is configured."""
    if not k:
        return None
    c = None if isinstance(times, str) or times.c is None or times.bounded else max(times.c.value, 0.0)
    tokens = None if isinstance(times, str) or times.of_plain is None or times.k != k else times.of_plain.value
    p = None if c is None else break_even(k, c)
    return BreakEven(k, p, found.p_per_token, tokens, found.mean_acceptance_length)


# ---- verdict


def verdict(needed: Sequence[Gate], beside: Sequence[Gate], scenarios: Sequence[Scenario]) -> Verdict:
    """`needed`: gates that must have passed; `beside`: those that only must not have failed."""
    if any(gate.passed is False for gate in (*needed, *beside)):
        return Verdict.REJECTED
    if any(gate.passed is None for gate in needed):
        return Verdict.CANNOT_TELL
    if not any(each.certified for each in scenarios):
        rejected = bool(scenarios) and all(each.standing is Standing.REJECTED for each in scenarios)
        return Verdict.REJECTED if rejected else Verdict.CANNOT_TELL
    return Verdict.QUALIFIED if all(each.certified for each in scenarios) else Verdict.IN_PART
