"""Drift of synthetic minutes. The rates that `drift` states come from `simulate` here, with more runs."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from specwatch_engine.lab.soak.drift import Change, NoTest, Point, Trend, changes, reference, trend

FIGURES = 5


def minutes_of(
    rng: np.random.Generator,
    count: int,
    p: Sequence[float] | float = 0.78,
    *,
    rho: float = 0.0,
    requests: int = 22,
    spread: float = 0.15,
    icc: float = 0.1,
) -> list[Point]:
    """Minutes of requests whose own p is beta distributed around that of the minute, which wanders by itself."""
    wander = rng.normal(size=count)
    for i in range(1, count):
        wander[i] = rho * wander[i - 1] + math.sqrt(1 - rho * rho) * wander[i]
    mean = np.broadcast_to(np.asarray(p, float), count)
    own = 1 / (1 + np.exp(-(np.log(mean / (1 - mean)) + spread * wander)))
    alpha = (own * (1 - icc) / icc)[:, None].repeat(requests, 1)
    beta = ((1 - own) * (1 - icc) / icc)[:, None].repeat(requests, 1)
    drafted = np.maximum(rng.lognormal(math.log(90), 0.4, (count, requests)).astype(int), 5)
    accepted = rng.binomial(drafted, rng.beta(alpha, beta))
    all_accepted, all_drafted = accepted.sum(1), drafted.sum(1)
    pooled = all_accepted / all_drafted
    error = requests / (requests - 1) * ((accepted - pooled[:, None] * drafted) ** 2).sum(1) / all_drafted**2
    noise = error / (pooled * (1 - pooled) / all_drafted) / 4
    return [Point(i, i + 1, math.asin(math.sqrt(pooled[i])), float(all_drafted[i]), noise[i]) for i in range(count)]


def found(points: Sequence[Point], tests: int = FIGURES) -> list[Change]:
    result = changes(points, warm_up=reference(len(points)), expected=len(points), tests=tests)
    assert not isinstance(result, NoTest)
    return result


def simulate(seed: int, runs: int, count: int, rho: float) -> float:
    """Share of runs in which any of five figures raised a false alarm."""
    rng = np.random.default_rng(seed)
    return sum(any(found(minutes_of(rng, count, rho=rho)) for _ in range(FIGURES)) for _ in range(runs)) / runs


def delays(seed: int, runs: int, to: float, rho: float) -> list[float]:
    """Minutes from a change at minute 30 of 60 until it was found, of the runs in which it was."""
    rng = np.random.default_rng(seed)
    p = np.where(np.arange(60) < 30, 0.78, to)
    results = (found(minutes_of(rng, 60, p, rho=rho)) for _ in range(runs))
    return [result[0].found - 30 for result in results if result]


@pytest.mark.parametrize(
    ("count", "rho", "runs", "most"), [(60, 0.0, 20, 1), (60, 0.3, 20, 2), (60, 0.6, 20, 4), (1440, 0.3, 1, 0)]
)
def test_false_alarms_are_rare(count: int, rho: float, runs: int, most: int) -> None:
    assert simulate(7, runs, count, rho) * runs <= most


@pytest.mark.parametrize(("to", "least", "slowest"), [(0.43, 10, 2), (0.6, 10, 4), (0.7, 4, 20)])
def test_drops_are_found_soon(to: float, least: int, slowest: float) -> None:
    waits = delays(3, 10, to, 0.3)
    assert len(waits) >= least
    assert np.median(waits) <= slowest


def test_a_change_tells_when_it_began_and_both_levels() -> None:
    p = np.where(np.arange(60) < 35, 0.78, 0.43)
    [step] = found(minutes_of(np.random.default_rng(1), 60, p))
    assert step.began == 35
    assert step.found == 37
    assert math.sin(step.before) ** 2 == pytest.approx(0.78, abs=0.02)
    assert math.sin(step.after) ** 2 == pytest.approx(0.43, abs=0.06)


def test_a_rise_and_a_return_are_changes_too() -> None:
    p = np.select([np.arange(90) < 30, np.arange(90) < 60], [0.7, 0.9], 0.7)
    first, second = found(minutes_of(np.random.default_rng(2), 90, p))
    assert first.after > first.before
    assert second.after < second.before
    assert abs(first.began - 30) <= 1
    assert abs(second.began - 60) <= 1


def test_a_change_that_does_not_matter_is_none() -> None:
    rng = np.random.default_rng(3)
    points = [Point(i, i + 1, 1.0 + 0.01 * (i >= 40) + 1e-4 * rng.normal(), 1000.0) for i in range(80)]
    assert len(found(points)) == 1
    assert changes(points, warm_up=10, expected=80, least=0.03) == []


def test_one_odd_minute_is_no_change() -> None:
    rng = np.random.default_rng(4)
    y = 1.0 + 0.02 * rng.normal(size=60)
    y[40] -= 0.08
    assert found([Point(i, i + 1, value, 1.0) for i, value in enumerate(y)]) == []


@pytest.mark.parametrize("count", [0, 1, 6])
def test_too_few_points_are_told_with_the_number_that_it_takes(count: int) -> None:
    result = changes([Point(i, i + 1, 1.0, 1.0) for i in range(count)], warm_up=3, expected=8)
    assert isinstance(result, NoTest)
    assert result.reason.startswith(f"too few points: {count} of the 7 that it takes")


def test_minutes_all_alike_are_no_change() -> None:
    assert found([Point(i, i + 1, math.pi / 2, 500.0, 0.25) for i in range(60)]) == []
    assert found([Point(i, i + 1, 1.0, 500.0) for i in range(60)]) == []


@pytest.mark.parametrize(
    ("minutes", "expected"), [(5, 3.0), (20, 3.0), (40, 6.0), (60, 9.0), (1440, 10.0)], ids=lambda value: f"{value:g}"
)
def test_the_reference_is_the_first_part(minutes: float, expected: float) -> None:
    assert reference(minutes) == pytest.approx(expected)


def test_a_trend_is_told_per_hour() -> None:
    rng = np.random.default_rng(5)
    result = trend(range(60), [100 + 0.5 * i + rng.normal() for i in range(60)])
    assert isinstance(result, Trend)
    assert result.slope == pytest.approx(30, abs=2)
    assert result.low < 30 < result.high
    assert result.p_value < 1e-6


def test_no_trend() -> None:
    rng = np.random.default_rng(6)
    result = trend(range(60), rng.normal(size=60))
    assert isinstance(result, Trend)
    assert result.p_value > 0.01
    assert trend(range(60), [1.0] * 60) == Trend(0.0, 0.0, 0.0, 1.0)
    assert isinstance(trend(range(5), [1.0] * 5), NoTest)
