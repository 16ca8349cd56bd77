import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specwatch_engine.lab.qualify.pairs import Pair, Timed, ratio


def pair(i: int, ours: float | None, theirs: float | None, **changes: object) -> Pair:
    plain = {
        "prompt": f"p{i}",
        "scenario": "code" if i % 2 else "chat",
        "concurrency": 4,
        "baseline": "spec_disabled",
        "speculative": None if ours is None else Timed(ours, 10.0, 20),
        "plain": None if theirs is None else Timed(theirs, 10.0, 40),
    }
    return Pair(**(plain | changes))  # type: ignore[arg-type]


def pairs(number: int = 60) -> list[Pair]:
    return [pair(i, 100.0 + i, 200.0 + 2 * i) for i in range(number)]


def test_the_ratio_is_that_of_the_p95_latencies() -> None:
    found = ratio(pairs(), 4, "spec_disabled")
    assert (found.pairs, found.speculative_p95_ms, found.baseline_p95_ms) == (60, 156.0, 312.0)
    assert (found.ratio, found.reason) == (0.5, None)
    assert found.low == pytest.approx(0.5)
    assert found.high == pytest.approx(0.5)
    # Half the time, and half the tokens.
    assert found.per_token is not None
    assert found.per_token.value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given_pairs", "reason"),
    [
        (pairs(49), "too few to compare: 49 of 50 speculative requests, 49 of 50 baseline requests"),
        ([*pairs(49), pair(50, 1.0, None), pair(51, None, 1.0)], "49 of 50"),
        ([*pairs(49), pair(50, 1.0, 1.0, concurrency=8)], "49 of 50"),
        ([*pairs(49), pair(50, 1.0, 1.0, baseline="true_ar")], "49 of 50"),
        ([pair(i, 1.0, 0.0) for i in range(50)], "the baseline's p95 is 0 ms"),
        ([], "0 of 50"),
    ],
)
def test_there_is_none_without_enough_of_one_kind(given_pairs: list[Pair], reason: str) -> None:
    found = ratio(given_pairs, 4, "spec_disabled")
    assert (found.ratio, found.low, found.high) == (None, None, None)
    assert found.reason is not None
    assert reason in found.reason


def test_of_one_scenario() -> None:
    assert ratio(pairs(120), 4, "spec_disabled", "code").pairs == 60
    assert ratio(pairs(120), 4, "spec_disabled", "other").pairs == 0


times = st.floats(0.1, 1e5)


@settings(max_examples=5)  # each resamples two thousand times
@given(st.lists(st.tuples(times, times), min_size=50, max_size=60))
def test_the_interval_is_one_and_the_same_each_time(values: list[tuple[float, float]]) -> None:
    rows = [pair(i, ours, theirs) for i, (ours, theirs) in enumerate(values)]
    found = ratio(rows, 4, "spec_disabled")
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.high
    assert ratio(rows, 4, "spec_disabled") == found
