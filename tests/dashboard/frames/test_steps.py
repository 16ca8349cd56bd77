"""Verify steps: every string is read or refused, and what is drawn is what was told."""

import re

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import board
from support.payloads import law, no_nan, numbers, over_the_wire

from dashboard import shapes
from dashboard.frames import steps
from dashboard.frames.steps import Step
from sidecar.api import models
from sidecar.engine_request import MOST_STEPS

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def row(**changes):
    return msgspec.convert(board.row(**changes), shapes.RequestRow)


def test_two_digits_a_step():
    assert steps.decode("44424033") == [Step(4, 4), Step(4, 2), Step(4, 0), Step(3, 3)]
    assert steps.decode("00za") == [Step(0, 0), Step(35, 10)]
    assert steps.decode("") == []
    assert steps.MOST_STEPS == MOST_STEPS


@pytest.mark.parametrize(
    ("digits", "told"),
    [
        ("444", "its 3 digits are no pairs"),
        ("4442!0", "step 3 is '!0', which is not two digits"),
        ("44Z0", "step 2 is 'Z0', which is not two digits"),
        ("44٤٤", "step 2 is '٤٤', which is not two digits"),
        ("4445", "step 2 has accepted 5 of 4"),
        ("  ", "step 1 is '  ', which is not two digits"),
    ],
)
def test_what_is_no_steps_is_refused(digits, told):
    with pytest.raises(steps.Unreadable, match=re.escape(told)):
        steps.decode(digits)


@given(
    st.lists(st.tuples(st.integers(0, 35), st.integers(0, 35)).map(lambda pair: (max(pair), min(pair))), max_size=60)
)
def test_what_the_engine_tells_is_read_back(told):
    digits = "".join(DIGITS[drafted] + DIGITS[accepted] for drafted, accepted in told)
    assert steps.decode(digits) == told


@law
@given(st.text(alphabet=st.one_of(st.sampled_from(DIGITS), st.characters()), max_size=40))
@example("\ud800\udfff")
@example("04")
def test_any_text_is_read_or_refused_in_one_line(text):
    try:
        found = steps.decode(text)
    except steps.Unreadable as error:
        assert "\n" not in str(error)
        return
    assert len(found) == len(text) / 2
    assert all(0 <= step.accepted <= step.drafted <= 35 for step in found)
    html = steps.drawn(found)
    assert html.count('<div class="sw-step') == len(found) + 1
    assert len(steps.step_table(found)) == len(found)


def test_each_kind_of_step_is_drawn():
    html = steps.drawn(steps.decode("0044424033"))
    columns = re.findall(r'<div class="sw-step([^"]*)" style="([^"]*)" title="([^"]*)"><b></b>(.*?)</div>', html)
    assert columns == [
        (" sw-blank", "--d:0;--a:0", "step 1: nothing drafted", "<u>1</u>"),
        ("", "--d:4;--a:4", "step 2: all 4 draft tokens accepted", '<i class="sw-full">✓</i>'),
        (
            *("", "--d:4;--a:2", "step 3: 2 of 4 draft tokens accepted, the next rejected, 1 discarded behind it"),
            '<i class="sw-cut">×</i>',
        ),
        (
            *("", "--d:4;--a:0", "step 4: 0 of 4 draft tokens accepted, the next rejected, 3 discarded behind it"),
            '<i class="sw-cut">×</i>',
        ),
        ("", "--d:3;--a:3", "step 5: all 3 draft tokens accepted", '<i class="sw-full">✓</i>'),
    ]
    assert steps.summary(steps.decode("0044424033")) == (
        "5 steps: 2 with every draft token accepted, 2 truncated, 1 without draft tokens; 9 of 15 draft tokens accepted"
    )


def test_every_tenth_step_is_numbered():
    assert re.findall(r"<u>(\d+)</u>", steps.drawn([Step(1, 1)] * 31)) == ["1", "10", "20", "30"]


def test_by_position():
    table = steps.position_table(row(rejected_at=[1, 0, 2], reached=[4, 3, 0]))
    assert list(table["position"]) == [1, 2, 3]
    assert list(table["hazard"]) == ["25.0 %", "0.0 %", "no data"]
    assert steps.position_table(row(reached=None)) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"arm": "baseline"}, "without speculation (arm baseline)"),
        ({"acceptance_source": "none", "acceptance_reason": "no block"}, "No acceptance figures: no block."),
        ({"acceptance_source": "none"}, "No acceptance figures: the sidecar gave no reason."),
        ({"draft_tokens": 0}, "Nothing was drafted for it."),
        ({"acceptance_source": "response"}, "which tells no single steps"),
        ({}, "replies that are several engine requests"),
    ],
)
def test_why_there_are_no_steps(changes, told):
    assert told in steps.unknown(row(steps=None, **changes))


@law
@given(st.builds(models.RequestRow))
def test_any_row(model):
    any_row = over_the_wire(model, shapes.RequestRow)
    no_nan(steps.unknown(any_row).replace(any_row.acceptance_reason or "x", ""))
    table = steps.position_table(any_row)
    assert table is None or not table.isna().to_numpy().any()
    if any_row.acceptance_histogram:
        figure = steps.by_accepted(any_row.acceptance_histogram)
        numbers(figure.data[0].y)
        figure.to_json()
