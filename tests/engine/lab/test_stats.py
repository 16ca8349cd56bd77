import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.lab.stats import Estimate, geometric_mean, line, mean


def test_the_interval_of_a_mean_is_students() -> None:
    # By hand: mean 3, standard deviation sqrt(2.5), t of 4 degrees of freedom at 97.5 % is 2.7764.
    found = mean([1, 2, 3, 4, 5])
    assert found is not None
    assert found.value == 3
    assert found.low == pytest.approx(3 - 2.7764451 * math.sqrt(2.5 / 5))
    assert found.high == pytest.approx(3 + 2.7764451 * math.sqrt(2.5 / 5))
    assert found.number == 5


@pytest.mark.parametrize(("values", "expected"), [([], None), ([2.0], Estimate(2.0, None, None, 1))])
def test_one_value_has_no_interval(values: list[float], expected: Estimate | None) -> None:
    assert mean(values) == expected
    assert geometric_mean(values) == expected


def test_a_ratio_and_its_inverse_cancel() -> None:
    found = geometric_mean([2, 0.5, 4, 0.25])
    assert found is not None
    assert found.value == pytest.approx(1)
    assert found.low is not None
    assert found.high is not None
    assert found.low * found.high == pytest.approx(1)


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        geometric_mean([1.0, ratio])


@given(st.lists(st.floats(0.01, 100), min_size=1), st.floats(0.1, 10))
def test_a_geometric_mean_scales(ratios: list[float], factor: float) -> None:
    one, other = geometric_mean(ratios), geometric_mean([ratio * factor for ratio in ratios])
    assert one is not None
    assert other is not None
    assert other.value == pytest.approx(one.value * factor)
    assert min(ratios) * 0.999999 <= one.value <= max(ratios) * 1.000001


def test_a_step_of_so_many_drafts_takes_so_long() -> None:
    # A target step of 40 ms and 3 ms a draft token.
    found = line([(k, 40 + 3 * k) for k in (1, 4, 10)])
    assert found is not None
    assert (found.slope, found.intercept) == (pytest.approx(3), pytest.approx(40))


@pytest.mark.parametrize("points", [[], [(1, 2)], [(1, 2), (1, 3)]])
def test_no_line_through_one_x(points: list[tuple[float, float]]) -> None:
    assert line(points) is None


def test_points_beside_a_line_have_the_one_of_least_squares() -> None:
    found = line([(0, 0), (1, 1), (2, 1), (3, 2)])
    assert found is not None
    assert (found.slope, found.intercept) == (pytest.approx(0.6), pytest.approx(0.1))
