"""Latency of the last requests with and without speculation, and their ratio at like concurrency. Pure.

Requests without speculation are of two kinds, which are never mixed: *true_ar*, served by an engine that never
speculates, and *spec_disabled*, by the speculative engine without drafts. The latter share their steps with requests
that speculate, and an engine with speculation switched off can be slower than one without it.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from ..record import Arm, Outcome, Record
from .slices import CONCURRENCIES

#: Name of the upstream whose engine never speculates.
AUTOREGRESSIVE = "autoregressive"
#: Requests that each side of a ratio needs.
MIN_FOR_RATIO = 50
#: Requests kept of each side and concurrency.
SIZE = 500


class Side(StrEnum):
    SPECULATIVE = "speculative"
    TRUE_AR = "true_ar"
    SPEC_DISABLED = "spec_disabled"


BASELINES = (Side.TRUE_AR, Side.SPEC_DISABLED)


class Measure(StrEnum):
    """Fields of a record, ms."""

    LATENCY = "latency_ms"
    TTFT = "ttft_ms"
    TPOT = "tpot_ms"


class Comparison(msgspec.Struct, frozen=True):
    """One bucket of concurrency. Times are ms, quantiles are p95."""

    concurrency: str
    #: Requests that the values are of.
    speculative: int
    baseline: int
    speculative_p95_ms: float | None
    baseline_p95_ms: float | None
    #: p95 with speculation / p95 without it.
    ratio: float | None
    #: Why there is none.
    reason: str | None


class Latencies:
    """The last ok requests: `SIZE` of each side and concurrency."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Side, str], deque[tuple[float | None, ...]]] = {}

    def add(self, record: Record) -> None:
        if record.outcome is not Outcome.OK:
            return
        key = side_of(record), CONCURRENCIES.name(record.concurrency)
        row = record.latency_ms, record.ttft_ms, record.tpot_ms
        self._rows.setdefault(key, deque(maxlen=SIZE)).append(row)

    def values(self, side: Side, concurrency: str, measure: Measure = Measure.LATENCY) -> list[float]:
        """In the order of their ends."""
        at = list(Measure).index(measure)
        rows = self._rows.get((side, concurrency), ())
        return [value for row in rows if (value := row[at]) is not None]

    def compare(self, baseline: Side, measure: Measure = Measure.LATENCY) -> list[Comparison]:
        """By concurrency, lowest first; those without a request that speculated are left out."""
        found = []
        for name in CONCURRENCIES.names:
            ours, theirs = self.values(Side.SPECULATIVE, name, measure), self.values(baseline, name, measure)
            if ours:
                found.append(comparison(name, len(ours), len(theirs), quantile(ours, 95), quantile(theirs, 95)))
        return found

    def ratio(self, measure: Measure = Measure.LATENCY) -> tuple[Side, Comparison] | None:
        """The comparison with most requests that speculated; with the true baseline, if that can be had.

        As `headline` of `compare` has it, but only what comes into question is sorted, for this is asked often.
        """
        ours = [(name, self.values(Side.SPECULATIVE, name, measure)) for name in CONCURRENCIES.names]
        ours.sort(key=lambda each: -len(each[1]))
        for baseline in BASELINES:
            for name, values in ours:
                theirs = self.values(baseline, name, measure)
                if min(len(values), len(theirs)) < MIN_FOR_RATIO:
                    continue
                p95s = quantile(values, 95), quantile(theirs, 95)
                found = comparison(name, len(values), len(theirs), *p95s)
                if found.ratio is not None:
                    return baseline, found
        return None

    def clear(self) -> None:
        self._rows.clear()


def side_of(record: Record) -> Side:
    if record.arm in (Arm.SPECULATIVE, Arm.PROBE):
        return Side.SPECULATIVE
    return Side.TRUE_AR if record.upstream == AUTOREGRESSIVE else Side.SPEC_DISABLED


def quantile(values: Sequence[float], percent: int) -> float | None:
    """Nearest rank: of n sorted values the one at rank ceil(n percent / 100); in whole numbers, so that it is exact."""
    return sorted(values)[-(-len(values) * percent // 100) - 1] if values else None


def comparison(
    concurrency: str, speculative: int, baseline: int, ours: float | None, theirs: float | None
) -> Comparison:
    """From the numbers of requests and their p95."""
    short = [
        f"{number} of {MIN_FOR_RATIO} {name} requests"
        for name, number in (("speculative", speculative), ("baseline", baseline))
        if number < MIN_FOR_RATIO
    ]
    reason, ratio = None, None
    if short:
        reason = "too few to compare: " + ", ".join(short)
    elif theirs == 0:
        reason = "the baseline's p95 is 0 ms"
    elif ours is not None and theirs is not None:
        ratio = ours / theirs
    return Comparison(concurrency, speculative, baseline, ours, theirs, ratio, reason)


def headline(found: Sequence[Comparison]) -> Comparison | None:
    """Of those with a ratio, the one with most requests that speculated."""
    return max((each for each in found if each.ratio is not None), key=lambda each: each.speculative, default=None)
