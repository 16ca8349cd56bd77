"""Whether a figure of every minute has changed over a run, and since when. Pure.

One detector for all figures (p of a scenario and of the mix, latency, similarity): at each minute, the most likely
moment of one change in the mean is looked for, and the part before is compared with the part behind, however large it
is (a generalised likelihood ratio over the moment; Siegmund, Sequential Analysis, 1985; Lai 1995). Nothing has to be
told of sizes or directions. The noise is learned from the part before: minutes are more unlike each other than their
tokens would make them (overdispersion), and neighbours resemble each other (autocorrelation).

False alarms, in simulated runs without any change (p of 0.78, 22 requests a minute, requests' own p beta distributed
with intraclass correlation 0.1, in every minute a shift of logit p of standard deviation 0.15, `rho` its correlation
from one minute to the next; a run has five such figures, and counts where any of them raised one):

    minutes   rho 0          rho 0.3        rho 0.6
    60        2 of 1000      4 of 1000      48 of 1000
    1440      0 of 100       4 of 100       8 of 100

So ALPHA is kept where minutes know little of each other, and not where they resemble their neighbours strongly. The
figures of a run were simulated apart from each other, and the mix is not.

Minutes until a drop from 0.78 at minute 30 of 60 was found, of one figure of five in the same world: the median of
those runs in which it was found before the end, and how many of 200 these were:

    to        rho 0          rho 0.3
    0.43      2 (200)        2 (200)
    0.60      3 (200)        4 (200)
    0.70      13 (141)       14 (123)
    0.74      14 (19)        16.5 (26)

`tests/engine/lab/soak/test_drift.py` repeats a part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

#: Chance of a false alarm that a run is allowed in all its figures of one kind together: what is aimed at, see above.
ALPHA = 0.01
#: Points that there must be before one can be told from another, and behind a change.
LEAST_REFERENCE, LEAST_AFTER = 5, 2
#: Minutes of a run in which a change can be found: of the clock's minutes, the first and the last are cut.
LEAST_MINUTES = LEAST_REFERENCE + LEAST_AFTER + 1
#: Moments that are compared in a run are not independent: as many as so many a point would be, as simulated.
_LOOKS = 4.0
#: More is not learned of how neighbours resemble each other: the estimate itself is noisy.
_MOST_RHO = 0.7
#: Points behind the one at which a change was found that still tell when it began.
_MORE = 5


@dataclass(frozen=True, slots=True)
class Point:
    """One minute, or some that were taken together. `y` is on the scale of the test, `weight` in observations of it."""

    start: float
    """Minutes since the run began."""
    end: float
    y: float
    weight: float
    noise: float = 0.0
    """Least variance of one observation, where it is known from within the minute (0: only minutes tell)."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the mean that was found: times in minutes since the run began, `before` and `after` as y."""

    found: float
    began: float
    before: float
    after: float
    p_value: float
    """Two-sided, of this comparison alone."""


@dataclass(frozen=True, slots=True)
class NoTest:
    """Why there is no result."""

    reason: str


@dataclass(frozen=True, slots=True)
class Trend:
    """Mann-Kendall's test and Theil-Sen's slope, per hour, with its 99 % interval."""

    slope: float
    low: float
    high: float
    p_value: float


def reference(minutes: float) -> float:
    """Minutes of a run that are taken for how things are: 15 %, 3 to 10."""
    return min(max(3.0, 0.15 * minutes), 10.0)


def changes(
    points: Sequence[Point], *, warm_up: float, expected: int, tests: int = 1, least: float = 0.0
) -> list[Change] | NoTest:
    """Every change, in the order of time; each is looked for from the last one on.

    `warm_up`: minutes in which none is looked for; `expected`: points of the whole run, `tests`: figures that are
    looked at like this one (Bonferroni); `least`: a smaller change does not matter, on the scale of y.
    """
    first = next((number for number, point in enumerate(points) if point.start >= warm_up), len(points))
    first = max(first, LEAST_REFERENCE)
    if len(points) < first + LEAST_AFTER:
        return NoTest(
            f"too few points: {len(points)} of the {first + LEAST_AFTER} that it takes"
            f" ({first} as the reference, {LEAST_AFTER} behind a change)"
        )
    limit = ALPHA / (tests * _LOOKS * max(expected, len(points)))
    y, w, noise = (np.array([getattr(point, name) for point in points]) for name in ("y", "weight", "noise"))
    found: list[Change] = []
    start, reach = 0, first
    while (hit := _first(y[start:], w[start:], noise[start:], reach - start, limit, least)) is not None:
        moment, seen, p_value, before, after = hit
        at = start + moment
        found.append(Change(points[start + seen].end, points[at].start, before, after, p_value))
        start, reach = at, max(at + LEAST_REFERENCE, start + seen + 1)
    return found


def _first(
    y: NDArray[np.float64], w: NDArray[np.float64], noise: NDArray[np.float64], reach: int, limit: float, least: float
) -> tuple[int, int, float, float, float] | None:
    """(first point behind the change, point at which it was found, p value, mean before, mean behind)."""
    if len(y) < reach + LEAST_AFTER:
        return None
    sums, weights = _cumulated(w * y), _cumulated(w)
    moments = np.arange(reach, len(y))
    # Values that are all the same have none; a score must not be none by none.
    variance = np.maximum(_variance(y, w, noise)[moments], 1e-18)
    mean = sums[moments] / weights[moments]
    # Scores at which a comparison is a change: the fewer points its variance is known from, the higher.
    needed = stats.t.isf(limit / 2, moments - 1)
    for seen in range(reach + LEAST_AFTER - 1, len(y)):
        possible = moments[: seen - LEAST_AFTER + 2 - reach]
        behind = weights[seen + 1] - weights[possible]
        before, after = mean[: len(possible)], (sums[seen + 1] - sums[possible]) / behind
        error = np.sqrt(variance[: len(possible)] * (1 / behind + 1 / weights[possible]))
        score = np.abs(after - before) / error
        score[np.abs(after - before) < least] = 0.0
        best = int(np.argmax(score / needed[: len(possible)]))
        if score[best] > needed[best]:
            p_value = float(2 * stats.t.sf(score[best], possible[best] - 1))
            # When it began, and to what, a few points more tell better; one variance, that of what is compared.
            last = min(seen + _MORE, len(y) - 1)
            possible = moments[: seen - reach + 1]
            behind = weights[last + 1] - weights[possible]
            before, after = mean[: len(possible)], (sums[last + 1] - sums[possible]) / behind
            best = int(np.argmax(np.abs(after - before) / np.sqrt(1 / behind + 1 / weights[possible])))
            return int(possible[best]), seen, p_value, float(before[best]), float(after[best])
    return None


def _variance(y: NDArray[np.float64], w: NDArray[np.float64], noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of one observation, from the first n points, for each n: minutes' own, wider by how neighbours go together."""
    n = np.arange(len(y) + 1)
    sums, weights = _cumulated(w * y), np.maximum(_cumulated(w), 1e-12)
    mean = sums / weights
    squares = np.maximum(_cumulated(w * y * y) - weights * mean**2, 0.0)
    own = squares / np.maximum(n - 1, 1)
    # Correlation of neighbours, with weights alike enough to be left out. In n points it is too low by (1 + 4 rho) / n
    # on average, and off by 1 / sqrt n: the higher end of what it may be is taken.
    plain = _cumulated(y) / np.maximum(n, 1)
    spread = np.maximum(_cumulated(y * y) - n * plain**2, 1e-12)
    products = np.concatenate([[0.0], _cumulated(y[1:] * y[:-1])])
    ends = np.concatenate([[0.0], y])
    crossed = products - plain * (2 * n * plain - y[0] - ends) + np.maximum(n - 1, 0) * plain**2
    rho = crossed / spread
    at_least_one = np.maximum(n, 1)
    rho = rho + (1 + 4 * np.clip(rho, 0, 1)) / at_least_one + 1 / np.sqrt(at_least_one)
    rho = np.clip(rho, 0.0, _MOST_RHO)
    known = _cumulated(noise) / np.maximum(n, 1)
    # What is known from within minutes is independent from one to the next.
    found: NDArray[np.float64] = np.maximum(own, known) * np.where(own > known, (1 + rho) / (1 - rho), 1.0)
    return found


def _cumulated(values: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(values)])
    return found


def trend(minutes: Sequence[float], values: Sequence[float], least: int = 10) -> Trend | NoTest:
    """Whether values rise or fall all along. Neighbours are put together, so that 20 at most are compared."""
    if len(values) < least:
        return NoTest(f"too few points: {len(values)} of the {least} that it takes")
    parts = min(20, max(least, len(values) // 3))
    x = np.array([np.mean(part) for part in np.array_split(np.array(minutes, float), parts)])
    y = np.array([np.median(part) for part in np.array_split(np.array(values, float), parts)])
    p_value = float(stats.kendalltau(x, y).pvalue)
    slope = stats.theilslopes(y, x, 0.99)
    return Trend(
        float(slope.slope) * 60,
        float(slope.low_slope) * 60,
        float(slope.high_slope) * 60,
        1.0 if math.isnan(p_value) else p_value,
    )
