"""How many tokens each verify step drafted and accepted, as the row of a request tells it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scripted_engine import GREETING

from sidecar.engine_request import MOST_STEPS, EngineRequest

Step = tuple[int, int]


def request(steps: list[Step], most_ids: int = 8_192, invalid: int = 0) -> EngineRequest:
    """Its steps drafted and accepted so many."""
    made = EngineRequest("chatcmpl-a-01234567", "chatcmpl-a", GREETING, 9)
    for drafted, accepted in steps:
        made.add([1] * drafted, [1] * (accepted + 1), invalid, most_ids)
    return made


def decoded(digits: str) -> list[Step]:
    return [(int(digits[at], 36), int(digits[at + 1], 36)) for at in range(0, len(digits), 2)]


def step_of(most: int) -> st.SearchStrategy[Step]:
    return st.integers(0, most).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))


@given(st.lists(step_of(35), max_size=40))
def test_steps_are_read_back(steps: list[Step]) -> None:
    digits = request(steps).step_digits()
    assert digits is not None
    assert decoded(digits) == steps


@given(st.lists(step_of(35), max_size=20), st.sampled_from((36, 37, 255, 256, 1024)))
def test_what_no_digit_tells_is_not_told(steps: list[Step], many: int) -> None:
    assert request([*steps, (many, 3), (4, 4)]).step_digits() is None


def test_the_first_steps_of_a_long_reply_are_told_also_where_its_ids_are_not_kept() -> None:
    made = request([(4, 2)] * (MOST_STEPS + 3), most_ids=100)
    assert not made.ids_complete
    assert made.step_digits() == "42" * MOST_STEPS


@pytest.mark.parametrize(
    ("drafted", "emitted", "invalid", "digits"),
    [(0, 1, 0, "00"), (0, 3, 0, "00"), (4, 1, 4, "00"), (4, 3, 2, "22"), (35, 36, 0, "zz"), (10, 11, 0, "aa")],
)
def test_digits(drafted: int, emitted: int, invalid: int, digits: str) -> None:
    """Drafts that a grammar made void were not drafted; without a draft nothing is accepted."""
    made = EngineRequest("chatcmpl-a-01234567", "chatcmpl-a", GREETING, 9)
    made.add([1] * drafted, [1] * emitted, invalid, 100)
    assert made.step_digits() == digits
