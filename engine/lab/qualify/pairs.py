"""Latency with and without speculation, of the same prompts at like concurrency, request by request. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sidecar.probes.latency import MIN_FOR_RATIO, comparison, quantile

from ..stats import Estimate, geometric_mean

#: Resamples of an interval; p95 of fifty values moves in jumps, and more make it no finer.
_RESAMPLES = 1_000


class Timed(msgspec.Struct, frozen=True):
    """One request, ms."""

    latency_ms: float
    ttft_ms: float | None
    completion_tokens: int | None


class Pair(msgspec.Struct, frozen=True):
    """A prompt that was answered with speculation and without, in the same round."""

    prompt: str
    scenario: str
    concurrency: int
    #: `true_ar`: by an engine that never speculates; `spec_disabled`: by the same engine, which was asked not to.
    baseline: str
    #: None where it failed.
    speculative: Timed | None
    #: None as well where the engine drafted for it all the same.
    plain: Timed | None


@dataclass(frozen=True, slots=True)
class Ratio:
    """Times with speculation / times without: below 1 is faster."""

    concurrency: int
    #: None: of all.
    scenario: str | None
    baseline: str
    pairs: int
    speculative_p95_ms: float | None
    baseline_p95_ms: float | None
    #: Of the p95 latencies.
    ratio: float | None
    #: 95 % interval of it.
    low: float | None
    high: float | None
    #: Why there is no ratio.
    reason: str | None
    #: Of the times per token, prompt by prompt; None below two pairs.
    per_token: Estimate | None


def ratio(pairs: Sequence[Pair], concurrency: int, baseline: str, scenario: str | None = None) -> Ratio:
    """Of the pairs at `concurrency` against `baseline`, of one scenario or all, whose two sides were both measured."""
    ours: list[float] = []
    theirs: list[float] = []
    per_token: list[float] = []
    for pair in pairs:
        if pair.concurrency != concurrency or pair.baseline != baseline or scenario not in (None, pair.scenario):
            continue
        if pair.speculative is None or pair.plain is None:
            continue
        ours.append(pair.speculative.latency_ms)
        theirs.append(pair.plain.latency_ms)
        times = _per_token(pair.speculative), _per_token(pair.plain)
        if times[0] and times[1]:
            per_token.append(times[0] / times[1])
    found = comparison(str(concurrency), len(ours), len(theirs), quantile(ours, 95), quantile(theirs, 95))
    low, high = (None, None) if found.ratio is None else _interval(ours, theirs)
    return Ratio(
        concurrency,
        scenario,
        baseline,
        len(ours),
        found.speculative_p95_ms,
        found.baseline_p95_ms,
        found.ratio,
        low,
        high,
        found.reason,
        geometric_mean(per_token) if len(per_token) > 1 else None,
    )


def enough(pairs: int) -> bool:
    return pairs >= MIN_FOR_RATIO


def _per_token(timed: Timed) -> float | None:
    """Latency / completion tokens: what a caller waits for each, the first one's share included."""
    return timed.latency_ms / timed.completion_tokens if timed.completion_tokens else None


def _interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """95 % by resampling the pairs (Efron's percentiles); the same each time."""
    chance = random.Random(len(ours))  # noqa: S311 - no secret
    places = range(len(ours))
    found = []
    for _ in range(_RESAMPLES):
        chosen = chance.choices(places, k=len(ours))
        above, below = quantile([ours[i] for i in chosen], 95), quantile([theirs[i] for i in chosen], 95)
        if above is not None and below:
            found.append(above / below)
    found.sort()
    return found[len(found) * 25 // 1000], found[min(len(found) * 975 // 1000, len(found) - 1)]
