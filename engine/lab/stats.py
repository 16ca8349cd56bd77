"""Small statistics that two or more commands need. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student  # type: ignore[import-untyped]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval; the bounds are None where there are too few values for one."""

    value: float
    low: float | None
    high: float | None
    number: int


def geometric_mean(ratios: Sequence[float], confidence: float = 0.95) -> Estimate | None:
    """Of ratios, with the t interval of the mean of their logarithms; None where there are none.

    Of pairs a/b and b/a it gives 1, which the arithmetic mean does not. Raises ValueError for one that is not above 0.
    """
    if any(not 0 < ratio < math.inf for ratio in ratios):
        raise ValueError("a ratio must be a number above 0")
    found = mean([math.log(ratio) for ratio in ratios], confidence)
    if found is None:
        return None
    low, high = (None if bound is None else math.exp(bound) for bound in (found.low, found.high))
    return Estimate(math.exp(found.value), low, high, found.number)


def mean(values: Sequence[float], confidence: float = 0.95) -> Estimate | None:
    """With the interval of Student's t; None where there are no values."""
    n = len(values)
    if not n:
        return None
    middle = math.fsum(values) / n
    if n < 2:
        return Estimate(middle, None, None, n)
    variance = math.fsum((value - middle) ** 2 for value in values) / (n - 1)
    half = float(student.ppf((1 + confidence) / 2, n - 1)) * math.sqrt(variance / n)
    return Estimate(middle, middle - half, middle + half, n)


@dataclass(frozen=True, slots=True)
class Line:
    """y = `intercept` + `slope` x by least squares."""

    slope: float
    intercept: float


def line(points: Sequence[tuple[float, float]]) -> Line | None:
    """Through points (x, y); None where these have fewer than two x.

    Of (k, mean time of a verify step at k) the slope is the draft step's time.
    """
    n = len(points)
    if len({x for x, _ in points}) < 2:
        return None
    middle_x = math.fsum(x for x, _ in points) / n
    middle_y = math.fsum(y for _, y in points) / n
    spread = math.fsum((x - middle_x) ** 2 for x, _ in points)
    slope = math.fsum((x - middle_x) * (y - middle_y) for x, y in points) / spread
    return Line(slope, middle_y - slope * middle_x)
