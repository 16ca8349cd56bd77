"""Draft text and final text, position by position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.demo.weights import CHECKPOINTS

from sidecar.probes.drafts import Mark, Step, choices, positions
from sidecar.probes.vocabulary import read

A, R, D, B, N = Mark.ACCEPTED, Mark.REJECTED, Mark.DISCARDED, Mark.BONUS, Mark.NOT_DRAFTED
PAIR = read(str(CHECKPOINTS / "target"), str(CHECKPOINTS / "target"))


@pytest.mark.parametrize(
    ("name", "steps", "tokens", "marked"),
    [
        ("nothing drafted", [([], [7])], 1, [[(N, None, 7)]]),
        ("all accepted", [([1, 2], [1, 2, 3])], 3, [[(A, 1, 1), (A, 2, 2), (B, None, 3)]]),
        ("rejected at once", [([1, 2], [9])], 1, [[(R, 1, 9), (D, 2, None)]]),
        ("rejected later", [([1, 2, 3], [1, 9])], 2, [[(A, 1, 1), (R, 2, 9), (D, 3, None)]]),
        ("rejected last", [([1, 2], [1, 9])], 2, [[(A, 1, 1), (R, 2, 9)]]),
        ("ids unseen", [([-1, -1], [1, 9])], 2, [[(A, 1, 1), (R, -1, 9)]]),
        ("cut inside a step", [([1, 2, 3], [1, 2, 9])], 2, [[(A, 1, 1), (A, 2, 2)]]),
        ("cut before a step", [([1], [1, 2]), ([3], [3, 4])], 2, [[(A, 1, 1), (B, None, 2)]]),
        ("cut at a rejection", [([1, 2], [9]), ([1], [1, 2])], 1, [[(R, 1, 9), (D, 2, None)]]),
        ("no reply", [([1], [1, 2])], 0, []),
        ("no steps", [], 5, []),
    ],
)
def test_positions(name: str, steps: list[Step], tokens: int, marked: list[list[tuple[object, ...]]]) -> None:
    assert [[tuple(each) for each in step] for step in positions(steps, tokens)] == marked, name


def test_the_draft_text_is_the_drafts_choice_at_every_position() -> None:
    steps = [([], [10]), ([11, 12, 13], [11, 22]), ([23, 24], [23, 24, 25])]
    draft, final = choices(steps, 6)
    assert final == [(False, number) for number in (10, 11, 22, 23, 24, 25)]
    assert draft == [(False, 10), (True, 11), (True, 12), (True, 23), (True, 24), (False, 25)]


def test_an_unseen_id_that_was_rejected_leaves_no_draft_text() -> None:
    assert choices([([-1, -1], [1, 2, 3])], 3).draft == [(True, 1), (True, 2), (False, 3)]
    assert choices([([-1, -1], [1, 9]), ([4], [4, 5])], 4).draft is None


ids = st.integers(0, 2047)
accepted_steps = st.lists(
    st.tuples(st.lists(ids, max_size=5), ids).map(lambda step: (step[0], [*step[0], step[1]])), max_size=12
)
any_steps = st.lists(
    st.tuples(st.lists(ids, max_size=5), st.lists(ids, min_size=1, max_size=5)).map(
        lambda step: (step[0], [*step[0][: len(step[1]) - 1], step[1][-1]])
    ),
    max_size=12,
)


@given(accepted_steps, st.integers(0, 60))
def test_with_all_accepted_both_texts_are_equal(steps: list[Step], tokens: int) -> None:
    draft, final = choices(steps, tokens)
    assert draft is not None
    assert PAIR.decode(draft) == PAIR.decode(final)
    assert len(final) == min(tokens, sum(len(emitted) for _, emitted in steps))


@given(any_steps, st.integers(0, 60))
def test_both_texts_have_the_replys_positions(steps: list[Step], tokens: int) -> None:
    draft, final = choices(steps, tokens)
    emitted = [number for _, step in steps for number in step]
    assert [number for _, number in final] == emitted[:tokens]
    assert draft is not None
    assert len(draft) == len(final)
    seen = [each.target for step in positions(steps, tokens) for each in step if each.target is not None]
    assert seen == emitted[:tokens]
