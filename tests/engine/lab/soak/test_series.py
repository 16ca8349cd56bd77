import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.lab.soak import series
from support.soak_rows import row, told

Requests = list[tuple[int, int]]
requests = st.lists(
    st.integers(1, 200).flatmap(lambda drafted: st.tuples(st.integers(0, drafted), st.just(drafted))), max_size=12
)


@given(st.lists(requests, max_size=30))
def test_points_take_every_token_in_once(minutes: list[Requests]) -> None:
    rows = [row(i, {"a": each}) for i, each in enumerate(minutes)]
    points = series.p_points(rows, "a")
    drafted = sum(point.weight for point in points)
    assert drafted <= sum(d for each in minutes for _, d in each)
    for point in points:
        assert 0 <= point.y <= math.pi / 2
        assert point.noise >= 0.25
        assert point.start < point.end
        inside = [each for i, each in enumerate(minutes) if point.start <= i < point.end]
        assert sum(map(len, inside)) >= series.LEAST_REQUESTS
        assert point.weight == sum(d for each in inside for _, d in each)
        assert series.to_p(point.y) == pytest.approx(sum(a for each in inside for a, _ in each) / point.weight)


def test_minutes_with_few_requests_are_taken_together() -> None:
    rows = [row(i, {"rare": [(30, 40), (20, 40)]}) for i in range(7)]
    assert [(point.start, point.end) for point in series.p_points(rows, "rare")] == [(0, 3), (3, 6)]


def test_the_noise_is_what_the_interval_tells() -> None:
    alike, unlike = [(20, 40)] * 10, [(40, 40), (0, 40)] * 5
    [same] = series.p_points([row(0, {"a": alike})], "a")
    [other] = series.p_points([row(0, {"a": unlike})], "a")
    assert same.noise == 0.25
    # Requests of 40 tokens that are all alike within tell as much as 10 tokens, n/(n-1) for the mean.
    assert other.noise == pytest.approx(40 / 4 * 10 / 9)


@pytest.mark.parametrize(
    "change",
    [{"partial": True}, {"unread": "GET /api/v1/summary: refused"}, {"gap_s": 60}],
    ids=["partial", "unread", "gap"],
)
def test_what_is_no_whole_minute_is_left_out(change: dict[str, Any]) -> None:
    rows = [row(0, {"a": [(1, 2)] * 9}), row(1, {"b": [(1, 2)] * 9}, **change)]
    assert series.scenarios(rows) == ["a"]
    assert len(series.p_points(rows, None)) == 1
    assert len(series.latency_points(rows, "p95_ms")) == 1


def test_the_ratio_needs_both_sides() -> None:
    rows = [row(i, {"a": [(1, 2)] * 9}) for i in range(3)]
    rows[1]["baseline"]["requests"] = series.LEAST_BASELINE - 1
    points = series.ratio_points(rows, "p50_ms", "p50_ms")
    assert [point.start for point in points] == [0, 2]
    assert [math.exp(point.y) for point in points] == pytest.approx([0.5, 0.5])


def test_similarity_is_the_mean_of_pairs() -> None:
    rows = [row(i, {"a": [(1, 2)]}, similarity={"pairs": 3, "mean": 0.9 - i / 10}) for i in range(2)]
    [point] = series.similarity_points(rows)
    assert (point.y, point.weight) == (pytest.approx(0.85), 6)


def test_an_interval_is_none_for_a_single_request() -> None:
    assert told([(1, 2)])["low"] is None
