"""Latency with and without speculation. C09, C31."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import record

from sidecar.probes.latency import (
    AUTOREGRESSIVE,
    BASELINES,
    SIZE,
    Comparison,
    Latencies,
    Measure,
    Side,
    headline,
    quantile,
    side_of,
)
from sidecar.record import Arm, Outcome


def fill(
    latencies: Latencies, arm: Arm, values: Iterable[tuple[float, int]], upstream: str = "speculative", at: int = 1
) -> None:
    """`values`: (seconds, number of requests)."""
    for seconds, number in values:
        for _ in range(number):
            latencies.add(record(arm=arm, upstream=upstream, latency_ms=seconds * 1e3, concurrency=at))


def test_c09_p_is_fine_and_yet_it_is_slower_at_high_concurrency() -> None:
    latencies = Latencies()
    fill(latencies, Arm.SPECULATIVE, [(1.75, 60)])
    fill(latencies, Arm.BASELINE, [(3.0, 50)], AUTOREGRESSIVE)
    fill(latencies, Arm.SPECULATIVE, [(9.0, 80)], at=32)
    fill(latencies, Arm.AUTOREGRESSIVE, [(6.0, 50)], AUTOREGRESSIVE, at=32)
    found = {each.concurrency: each.ratio for each in latencies.compare(Side.TRUE_AR)}
    assert found == {"1": pytest.approx(0.583, abs=5e-4), "17-32": 1.5}
    best = latencies.ratio()
    assert best is not None
    assert (best[0], best[1].concurrency, best[1].ratio) == (Side.TRUE_AR, "17-32", 1.5)


def test_c09_disabled_is_not_the_baseline() -> None:
    latencies = Latencies()
    fill(latencies, Arm.SPECULATIVE, [(5.0, 60)])
    fill(latencies, Arm.BASELINE, [(5.5, 49)], AUTOREGRESSIVE)
    fill(latencies, Arm.BASELINE, [(5.8, 100)])
    (true,), (disabled,) = latencies.compare(Side.TRUE_AR), latencies.compare(Side.SPEC_DISABLED)
    assert (true.baseline, true.ratio) == (49, None)
    assert disabled.ratio == 5000 / 5800
    fell_back = latencies.ratio()
    assert fell_back == (Side.SPEC_DISABLED, disabled)
    fill(latencies, Arm.BASELINE, [(5.5, 1)], AUTOREGRESSIVE)
    now = latencies.ratio()
    assert now is not None
    assert (now[0], now[1].ratio) == (Side.TRUE_AR, 5000 / 5500)


def test_c31_ratio_of_p95_by_nearest_rank() -> None:
    latencies = Latencies()
    fill(latencies, Arm.SPECULATIVE, [(0.5, 40), (1.0, 40), (1.75, 20)])
    fill(latencies, Arm.BASELINE, [(0.5, 10), (1.0, 20), (3.0, 70)], AUTOREGRESSIVE)
    (found,) = latencies.compare(Side.TRUE_AR)
    assert found == Comparison("1", 100, 100, 1750, 3000, 1750 / 3000, None)
    assert found.ratio == pytest.approx(0.583, abs=5e-4)


def test_c31_no_traffic_is_no_data_and_three_requests_are_no_ratio() -> None:
    latencies = Latencies()
    assert latencies.compare(Side.TRUE_AR) == []
    assert latencies.ratio() is None
    fill(latencies, Arm.SPECULATIVE, [(1.0, 60)])
    fill(latencies, Arm.BASELINE, [(2.0, 3)], AUTOREGRESSIVE)
    (found,) = latencies.compare(Side.TRUE_AR)
    assert (found.ratio, found.reason) == (None, "too few to compare: 3 of 50 baseline requests")


def test_what_failed_or_was_not_measured_is_left_out() -> None:
    latencies = Latencies()
    latencies.add(record(outcome=Outcome.CLIENT_ABORT))
    latencies.add(record(latency_ms=None, ttft_ms=20.0))
    assert latencies.values(Side.SPECULATIVE, "1") == []
    assert latencies.values(Side.SPECULATIVE, "1", Measure.TTFT) == [20.0]
    fill(latencies, Arm.SPECULATIVE, [(1.0, 2 * SIZE)])
    assert len(latencies.values(Side.SPECULATIVE, "1")) == SIZE


def test_sides() -> None:
    assert {side_of(record(arm=arm)) for arm in (Arm.SPECULATIVE, Arm.PROBE)} == {Side.SPECULATIVE}
    assert {side_of(record(arm=arm)) for arm in (Arm.BASELINE, Arm.AUTOREGRESSIVE)} == {Side.SPEC_DISABLED}
    assert side_of(record(arm=Arm.BASELINE, upstream=AUTOREGRESSIVE)) is Side.TRUE_AR


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.integers(1, 100))
def test_a_quantile_is_the_least_value_that_enough_do_not_exceed(values: list[float], percent: int) -> None:
    found = quantile(values, percent)
    enough = [value for value in values if 100 * sum(each <= value for each in values) >= percent * len(values)]
    assert found == min(enough)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([], 50, None),
        ([7], 95, 7),
        ([3, 1, 2], 50, 2),
        ([1, 2, 3, 4], 50, 2),
        (range(1, 21), 95, 19),
        (range(1, 101), 95, 95),
        (range(1, 101), 99, 99),
        ([1, 2], 100, 2),
    ],
)
def test_quantiles_are_by_nearest_rank(values: Iterable[float], percent: int, expected: float | None) -> None:
    assert quantile(list(values), percent) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ((Arm.SPECULATIVE, "speculative"), (Arm.BASELINE, "speculative"), (Arm.BASELINE, "autoregressive"))
            ),
            st.sampled_from((1, 2, 5, 40)),
            st.sampled_from((49, 50, 51, 80)),
            st.none() | st.sampled_from((0.0, 1.0, 2.0)),
        ),
        max_size=8,
    )
)
def test_the_ratio_is_that_of_the_comparison_with_most_requests(
    groups: list[tuple[tuple[Arm, str], int, int, float | None]],
) -> None:
    latencies = Latencies()
    for (arm, upstream), concurrency, number, seconds in groups:
        for _ in range(number):
            latency_ms = None if seconds is None else seconds * 1e3
            latencies.add(record(arm=arm, upstream=upstream, concurrency=concurrency, latency_ms=latency_ms))
    best = [(side, headline(latencies.compare(side))) for side in BASELINES]
    assert latencies.ratio() == next(((side, found) for side, found in best if found is not None), None)
