"""Sketches against the values themselves, sorted."""

from math import ceil, inf, nan
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.store.sketch import Sketch, make, merged, quantile

QUANTILES = (0.05, 0.5, 0.95, 0.99)
#: What is always kept as it is.
EXACT = 71

numbers = st.floats(-1e6, 1e6, width=32)


def of(values: list[float] | np.ndarray, *, high: bool = True) -> Sketch:
    blob = make(np.array(values, dtype=np.float64), high=high)
    assert blob is not None
    return merged([blob])


def error(sketch: Sketch, values: np.ndarray, q: float) -> float:
    """How far the rank of what is told for `q` lies from `q`."""
    told = quantile(sketch, q)
    ranked = np.sort(values.astype(np.float32))
    below, within = (np.searchsorted(ranked, told, side) / len(ranked) for side in ("left", "right"))
    return max(below - q, q - within, 0.0)


def bound(sketch: Sketch, q: float, errors: int = 2) -> float:
    """What the library promises at so many standard errors."""
    low, high = sketch.get_rank_lower_bound(q, errors), sketch.get_rank_upper_bound(q, errors)
    return float(max(q - low, high - q)) + 1 / sketch.n


@given(st.lists(numbers, min_size=1, max_size=EXACT), st.booleans(), st.sampled_from(QUANTILES))
def test_few_values_are_exact(values: list[float], high: bool, q: float) -> None:
    assert quantile(of(values, high=high), q) == sorted(values)[ceil(q * len(values)) - 1]


@given(st.lists(numbers | st.sampled_from((nan, inf, -inf, 1e300)), max_size=EXACT))
def test_what_is_no_number_never_gets_in(values: list[float]) -> None:
    finite = [value for value in values if -1e30 < value < 1e30]
    blob = make(np.array(values, dtype=np.float64))
    assert (blob is None) == (not finite)
    if blob is not None:
        sketch = merged([blob])
        assert (sketch.n, sketch.get_min_value(), sketch.get_max_value()) == (len(finite), min(finite), max(finite))


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.sampled_from((1, 2, 50, 231, 3000, 45_000)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_parts_tell_what_the_whole_does_in_any_order(seed: int, sizes: list[int], random: Random) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.lognormal(6, 1 + i / 10, size) for i, size in enumerate(sizes)]
    blobs = [make(part) for part in parts]
    random.shuffle(blobs)
    values = np.concatenate(parts)
    for sketch in (merged(blobs), of(values)):
        assert sketch.n == len(values)
        # What chance makes of it at all: three times the library's widest bound.
        assert all(error(sketch, values, q) <= 3 * bound(sketch, q, 3) for q in QUANTILES)


@pytest.mark.parametrize("high", [True, False])
def test_mostly_within_two_standard_errors(high: bool) -> None:
    """For 60 minutes merged to an hour, as it is done."""
    rng, missed = np.random.default_rng(1), 0
    for _ in range(50):
        parts = [rng.lognormal(6, 1, 231) for _ in range(60)]
        sketch, values = merged(make(part, high=high) for part in parts), np.concatenate(parts)
        missed += sum(error(sketch, values, q) > bound(sketch, q) for q in QUANTILES)
    assert missed <= 50 * len(QUANTILES) * 0.1


def test_tails_are_told_best() -> None:
    sketch = of(np.random.default_rng(1).lognormal(6, 1, 100_000))
    assert bound(sketch, 0.5) < 0.012
    assert bound(sketch, 0.95) < 0.0012
    assert bound(sketch, 0.99) < 0.0003
    assert bound(of(np.random.default_rng(1).normal(0.9, 0.1, 100_000), high=False), 0.05) < 0.0012


def test_nothing_is_none() -> None:
    assert make(np.array([])) is None
    assert merged([]) is None
    assert quantile(None, 0.5) is None
    assert quantile(Sketch(12, True), 0.5) is None


@pytest.mark.parametrize("blob", [b"", b"x", bytes(8), b"sixteen letters." * 9])
def test_what_is_no_sketch(blob: bytes) -> None:
    with pytest.raises(ValueError, match=r"no sketch|corruption"):
        merged([blob])
