"""C01, C04, C05: what a block says, what it cannot say, and what is not believed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.record import Acceptance, AcceptanceQuality, AcceptanceSource
from sidecar.tap import acceptance
from sidecar.tap.chat import read_chat


def from_block(value: object) -> Acceptance:
    return acceptance.from_block(json.dumps(value).encode())


def block(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "acceptance_histogram": [39, 1, 0, 3],
        "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129,
        "num_spec_tokens": 3,
    }
    return {key: value for key, value in (base | changes).items() if value is not ...}


def test_c01_worked_example() -> None:
    figures = from_block(block())
    assert figures.quality is AcceptanceQuality.OK
    assert figures.source is AcceptanceSource.RESPONSE
    assert figures.accepted_tokens is not None
    assert figures.draft_tokens is not None
    assert figures.verify_steps is not None
    assert figures.accepted_tokens / figures.draft_tokens == pytest.approx(0.07752, abs=5e-6)
    assert 1 + figures.accepted_tokens / figures.verify_steps == pytest.approx(1.23256, abs=5e-6)
    assert figures.rejected_at == (39, 1, 0)
    assert figures.reached == (43, 4, 3)  # and so 4, 3, 3 of 43 survived positions 1, 2, 3
    assert figures.histogram is not None
    assert figures.histogram[3] == 3  # full acceptance: no cut at a fourth position


def test_c01_string_keyed_histogram() -> None:
    figures = from_block(block(acceptance_histogram={"0": 39, "1": 1, "3": 3}))
    assert figures.quality is AcceptanceQuality.OK
    assert figures.histogram == (39, 1, 0, 3)


def test_c01_block_under_the_only_choice() -> None:
    reply = read_chat(json.dumps({"choices": [{"index": 0, "metrics": {"speculative_decoding": block()}}]}).encode())
    assert reply is not None
    figures = reply.acceptance
    assert figures is not None
    assert figures.accepted_tokens == 10


@pytest.mark.parametrize(
    ("name", "changes", "quality"),
    [
        ("histogram of 42 steps", {"acceptance_histogram": [38, 1, 0, 3]}, "inconsistent"),
        ("histogram of other tokens", {"acceptance_histogram": [39, 0, 1, 3]}, "inconsistent"),
        ("more accepted than drafted", {"num_accepted_draft_tokens": 130}, "inconsistent"),
        ("more drafted than k a step", {"num_draft_tokens": 130}, "inconsistent"),
        ("histogram longer than k", {"acceptance_histogram": [40, 0, 0, 2, 1]}, "inconsistent"),
        (
            "per-step lists of other sums",
            {"per_step_accepted": [1] * 43, "per_step_drafted": [3] * 43},
            "inconsistent",
        ),
        (
            "per-step lists of fewer steps",
            {"per_step_accepted": [3, 3, 3, 1], "per_step_drafted": [33, 33, 33, 30]},
            "inconsistent",
        ),
        ("accepted without drafts", {"num_draft_tokens": 0}, "inconsistent"),
        ("a count is missing", {"num_spec_steps": ...}, "unknown"),
        ("a count is text", {"num_spec_steps": "43"}, "unknown"),
        ("a count is a truth value", {"num_spec_steps": True}, "unknown"),
        ("a count is negative", {"num_draft_tokens": -1}, "unknown"),
        ("a count is huge", {"num_draft_tokens": 2**60}, "unknown"),
        ("k is impossible", {"num_spec_tokens": 0}, "unknown"),
        ("histogram of text", {"acceptance_histogram": ["39", 1, 0, 3]}, "unknown"),
        ("histogram with impossible keys", {"acceptance_histogram": {"-1": 3}}, "unknown"),
        ("histogram that would fill memory", {"acceptance_histogram": {"999999999999": 1}}, "unknown"),
    ],
)
def test_figures_that_are_not_believed(name: str, changes: dict[str, Any], quality: str) -> None:
    figures = from_block(block(**changes))
    assert figures.quality == quality, name
    assert figures.reason
    assert figures.raw  # kept as it came
    assert figures.rejected_at is None


@pytest.mark.parametrize(
    ("name", "taken", "made", "histogram"),
    [
        ("a step accepted more than it drafted", [2, 0], [1, 4], [1, 0, 1]),
        ("a step accepted more than k", [4, 0], [3, 3], None),
        ("a step drafted more than k", [2, 0], [5, 0], [1, 0, 1]),
        ("the histogram has other steps", [3, 0, 1], [3, 2, 3], [0, 2, 1, 0]),
    ],
)
def test_steps_that_are_not_believed(name: str, taken: list[int], made: list[int], histogram: list[int] | None) -> None:
    found = from_block(
        block(
            num_spec_steps=len(taken),
            num_draft_tokens=sum(made),
            num_accepted_draft_tokens=sum(taken),
            acceptance_histogram=histogram,
            per_step_accepted=taken,
            per_step_drafted=made,
        )
    )
    assert found.quality is AcceptanceQuality.INCONSISTENT, name
    assert found.reason
    assert found.raw
    assert found.reached is None


@pytest.mark.parametrize(
    ("taken", "made", "steps"),
    [([4, 2, 0, 3], [4, 4, 4, 3], "44424033"), ([3, 0], [3, 0], "3300"), ([35], [35], "zz"), ([0], [36], None)],
)
def test_steps_one_after_the_other(taken: list[int], made: list[int], steps: str | None) -> None:
    figures = from_block(
        block(
            num_spec_steps=len(taken),
            num_draft_tokens=sum(made),
            num_accepted_draft_tokens=sum(taken),
            num_spec_tokens=max(made),
            acceptance_histogram=None,
            per_step_accepted=taken,
            per_step_drafted=made,
        )
    )
    assert figures.quality is AcceptanceQuality.OK
    assert figures.steps == steps
    assert from_block(block()).steps is None


def test_c04_drafts_that_a_grammar_made_void_are_no_data() -> None:
    void = block(num_draft_tokens=0, num_accepted_draft_tokens=0, acceptance_histogram=[43, 0, 0, 0])
    assert from_block(void).reason == "nothing was drafted for this request"


def test_c04_a_zero_block_is_no_data() -> None:
    zero = block(num_spec_steps=0, num_draft_tokens=0, num_accepted_draft_tokens=0, acceptance_histogram=[0, 0, 0, 0])
    figures = from_block(zero)
    assert figures.source is AcceptanceSource.NONE
    assert figures.draft_tokens is None
    assert figures.reason == "nothing was drafted for this request"


def test_c05_steps_are_never_derived_from_tokens() -> None:
    figures = from_block(
        block(
            num_spec_steps=1,
            num_draft_tokens=7,
            num_accepted_draft_tokens=6,
            num_spec_tokens=7,
            acceptance_histogram=[0, 0, 0, 0, 0, 0, 1, 0],
        )
    )
    assert figures.quality is AcceptanceQuality.OK
    assert figures.verify_steps == 1
    assert figures.accepted_tokens == 6


def test_a_short_draft_fully_accepted_is_no_truncation() -> None:
    figures = from_block(
        block(
            num_spec_steps=2,
            num_draft_tokens=5,
            num_accepted_draft_tokens=4,
            acceptance_histogram=[0, 0, 2, 0],
            per_step_accepted=[2, 2],
            per_step_drafted=[2, 3],
        )
    )
    assert figures.rejected_at == (0, 0, 1)
    assert figures.reached == (2, 2, 1)


def test_positions_stay_unknown_where_the_histogram_cannot_tell_them() -> None:
    figures = from_block(
        block(num_spec_steps=2, num_draft_tokens=5, num_accepted_draft_tokens=4, acceptance_histogram=[0, 0, 2, 0])
    )
    assert figures.quality is AcceptanceQuality.OK
    assert figures.rejected_at is None


def drafts(k: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """(accepted, drafted) by verify step: all of k tokens, as most replies, or some shorter."""
    full = st.tuples(st.integers(0, k), st.just(k))
    any_length = st.integers(0, k).flatmap(lambda made: st.tuples(st.integers(0, made), st.just(made)))
    return st.lists(full, min_size=1, max_size=30) | st.lists(any_length, min_size=1, max_size=30)


@given(drafts(6).filter(lambda run: any(made for _, made in run)), st.booleans(), st.booleans(), st.booleans())
def test_any_true_block_is_believed_and_its_positions_are_those_of_its_steps(
    run: list[tuple[int, int]], with_histogram: bool, with_k: bool, with_steps: bool
) -> None:
    histogram = [0] * 7
    rejected, reached = [0] * 6, [0] * 6
    for taken, made in run:
        histogram[taken] += 1
        for position in range(min(taken + 1, made)):
            reached[position] += 1
        if taken < made:
            rejected[taken] += 1
    found = from_block(
        {
            "acceptance_histogram": histogram if with_histogram else None,
            "num_spec_steps": len(run),
            "num_accepted_draft_tokens": sum(taken for taken, _ in run),
            "num_draft_tokens": sum(made for _, made in run),
            "num_spec_tokens": 6 if with_k else None,
            "per_step_accepted": [taken for taken, _ in run] if with_steps else None,
            "per_step_drafted": [made for _, made in run] if with_steps else None,
        }
    )
    assert found.quality is AcceptanceQuality.OK
    assert found.histogram == (tuple(histogram) if with_histogram else None)
    if with_steps or (with_histogram and with_k and all(made == 6 for _, made in run)):
        size = 6 if with_k else max(made for _, made in run)
        assert found.rejected_at == tuple(rejected[:size])
        assert found.reached == tuple(reached[:size])
    else:
        assert found.rejected_at is None
        assert found.reached is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(
    json_values
    | st.dictionaries(
        st.sampled_from([*block(), "per_step_accepted", "per_step_drafted"]),
        json_values | st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=5),
    )
)
def test_no_block_raises(anything: object) -> None:
    figures = from_block(anything)
    if figures.quality is AcceptanceQuality.OK:
        assert figures.draft_tokens
    else:
        assert figures.reason
