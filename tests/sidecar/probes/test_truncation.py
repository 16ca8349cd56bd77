"""Where verify steps are cut: shapes, warnings, places in the answer. C10."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine_request import EngineRequest, Hello
from sidecar.probes.acceptance import Counted, one
from sidecar.probes.truncation import (
    MOST_POSITIONS,
    Kind,
    Places,
    Positions,
    Shape,
    positions,
    shape,
    warnings,
)

#: Shares of the steps that accept each position, of a draft that is run wrongly beyond its fifth token.
C10 = [0.600, 0.385, 0.215, 0.108, 0.062, 0.0, 0.0, 0.0]


def draft(shares: Sequence[float], steps: int, rng: random.Random | None = None) -> Positions:
    """What `steps` steps do where position i accepts `shares[i]` of those that reach it; None: exactly that."""
    rejected_at, reached = [], []
    for share in shares:
        reached.append(steps)
        accepted = round(share * steps) if rng is None else sum(rng.random() < share for _ in range(steps))
        rejected_at.append(steps - accepted)
        steps = accepted
    return Positions(rejected_at, reached)


def test_c10_a_cliff_is_told_from_decay() -> None:
    accepted = [round(1000 * rate) for rate in C10]
    reached = [1000, *accepted[:-1]]
    rejected_at = [came - passed for came, passed in zip(reached, accepted, strict=True)]
    assert shape(rejected_at, reached) == Shape(Kind.CLIFF, 5, 6)
    assert shape(*draft([0.6] * 5, 1000)).kind is Kind.DECAY


def test_c10_none_of_n_is_not_never_drafted() -> None:
    short, long = draft([0.9, 0.9, 0.9], 1000), draft([0.9, 0.9, 0.9, 0.0, 0.0], 1000)
    assert shape(*short) == Shape(Kind.DECAY, None, 3)
    assert shape(*long) == Shape(Kind.CLIFF, 3, 4)
    assert long.reached[3:] == [729, 0]
    assert shape([*short.rejected_at, None], [*short.reached, None]) == shape(*short)


@pytest.mark.parametrize("found", [draft([], 0), draft([0.5], 1000), draft([0.1, 0.5, 0.0], 100), draft([0.0], 100)])
def test_too_little_to_tell(found: Positions) -> None:
    assert shape(*found).kind is Kind.UNKNOWN


@given(
    st.integers(1, 16),
    st.floats(0.05, 0.98),
    st.floats(2 / 3, 1),
    st.integers(1, 2000),
    st.integers(0, 2**32),
)
def test_no_even_decay_is_a_cliff(k: int, share: float, fall: float, steps: int, seed: int) -> None:
    found = draft([share * fall**i for i in range(k)], steps, random.Random(seed))
    assert shape(*found).kind is not Kind.CLIFF


def row(rejected_at: tuple[int, ...] | None, reached: tuple[int, ...] | None) -> Counted:
    return one(10, 40, 20, 4, rejected_at, reached)


def test_positions_are_summed_over_requests_that_tell_them() -> None:
    found = positions([row((5, 3), (10, 5)), row(None, None), row((1, 0, 4), (9, 8, 8))])
    assert found == ([6, 3, 4], [19, 13, 8])
    assert found.first_position_share == 6 / 13
    assert positions([]) == ([], [])
    assert positions([]).first_position_share is None
    assert len(positions([row((1,) * 200, (1,) * 200)]).reached) == MOST_POSITIONS


def test_warnings_need_enough_steps() -> None:
    assert warnings(Positions([20, 70], [99, 79]), 99) == []
    assert warnings(Positions([15, 85], [1000, 985]), 1000) == []
    assert warnings(Positions([16, 84], [1000, 984]), 1000) == [
        "16% of the truncations are at the first position (limit 15%)"
    ]
    assert warnings(Positions([0, 351], [1000, 1000]), 1000) == ["35% of the verify steps are truncated (limit 35%)"]


def test_places_are_by_the_tokens_before_a_step_and_of_the_last_hour() -> None:
    places = Places()
    request = EngineRequest("a-1", "a", Hello(1, 0), 5)
    for drafted, accepted in ((3, 3), (3, 0), (0, 0), *((3, 3),) * 8, (2, 1), (3, 2)):
        request.add([1] * drafted, [1] * (accepted + 1), 0, 1000)
    # Tokens before the steps: 0, 4, 5, then 6, 10 … 34, 38, 40.
    places.add(request, 1000.0)
    found = places.figures(1000.0)
    assert [*found] == ["0-31", "32-127"]
    assert found["0-31"] == (9, 27, 24, Positions([1, 0, 0], [9, 8, 8]))
    assert found["32-127"] == (3, 8, 6, Positions([0, 1, 1], [3, 3, 2]))
    places.add(request, 1000.0 + 1800)
    assert places.figures(1000.0 + 1800)["0-31"].verify_steps == 18
    assert places.figures(1000.0 + 3600)["0-31"].verify_steps == 9
    assert places.figures(1000.0 + 7200) == {}
