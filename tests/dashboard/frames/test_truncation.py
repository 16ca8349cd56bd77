"""Truncation in words and single figures."""

import pytest
from hypothesis import given
from support.payloads import law, no_nan, over_the_wire, texts
from support.positions import point, series, truncation_series

from dashboard import shapes
from dashboard.frames import truncation as frames
from dashboard.words import NO_DATA


def test_tiles_with_their_trends():
    found = series(
        point(steps=10, cut=4, rejected=[2, 2], reached=[10, 8]),
        (0, {"steps": 10, "cut": 4, "rejected": [1, 3], "reached": [10, 9]}),
        (2, {"steps": 10, "cut": 0, "rejected": [0, 0], "reached": [10, 10]}),
        share=0.5,
    )
    rate, first, full = frames.truncation_tiles(found)
    rest = [None] * 7
    assert (rate.value, rate.met, rate.trend, rate.limit) == ("40.0 %", False, [0.4, None, 0.0, *rest], 0.35)
    assert (first.value, first.met, first.trend, first.limit) == ("50.0 %", False, [0.25, None, None, *rest], 0.15)
    assert (full.value, full.trend) == ("60.0 %", [0.6, None, 1.0, *rest])


def test_tiles_without_a_truncated_step():
    _, first, full = frames.truncation_tiles(series(point(steps=10, cut=0, rejected=[0], reached=[10])))
    assert (first.value, first.note, full.value) == (
        NO_DATA,
        "No truncated step in this time range.",
        "100.0 %",
    )
    assert {tile.value for tile in frames.truncation_tiles(series(point(steps=0, cut=0)))} == {NO_DATA}


MOST = "Most truncations happen at position 2: 40.7 % of the steps that reach it"
TOTAL = point(steps=1000, cut=500, rejected=[90, 370, 40], reached=[1000, 910, 540])


@pytest.mark.parametrize(
    ("total", "scenarios", "words"),
    [
        (TOTAL, [], f"{MOST}."),
        (
            TOTAL,
            [
                point(group="chat", steps=500, cut=100, rejected=[0, 100], reached=[500, 400]),
                point(group="*billing*", steps=500, cut=270, rejected=[90, 180], reached=[500, 400]),
                # Neither tells which scenario is the worst: too few steps, and no scenario at all.
                point(group="rare", steps=50, cut=50, rejected=[0, 50], reached=[50, 50]),
                point(group="other", steps=500, cut=500, rejected=[0, 500], reached=[500, 500]),
            ],
            f"{MOST}; worst scenario: \\*billing\\* (45.0 %).",
        ),
        (
            TOTAL,
            [point(group="only", steps=500, cut=270, rejected=[90, 180], reached=[500, 400])],
            f"{MOST}.",
        ),
        (
            point(steps=40, cut=0, rejected=[0], reached=[40]),
            [],
            "No draft token was rejected in 40 verify steps.",
        ),
        (point(steps=40, cut=9), [], ""),
    ],
)
def test_the_position_that_stands_out(total, scenarios, words):
    assert frames.headline(total, scenarios) == words


def test_cliffs_are_told_of_the_whole_and_of_scenarios():
    whole = point(steps=9, cut=1, rejected=[1], reached=[9])
    assert frames.cliffs(whole, [whole], "scenario") == ""
    fallen = point(group="a_b", steps=9, cut=1, rejected=[1], reached=[9], cliff=3)
    words = frames.cliffs(whole, [whole, fallen], "scenario")
    assert words.startswith(
        r"**Acceptance falls off a cliff:** in scenario a\_b, behind position 3. Behind it next to "
    )
    assert "drafts of 3 tokens save what the rest costs" in words
    both = frames.cliffs(point(steps=9, cut=1, rejected=[1], reached=[9], cliff=1), [fallen], "scenario")
    assert "in all, behind position 1; in scenario" in both
    assert "drafts of 1 token save" in both


@pytest.mark.parametrize(("kind", "words"), [("decay", "No cliff but decay"), ("unknown", "no data")])
def test_without_a_cliff(kind, words):
    assert words in frames.shape_words(point(steps=9, cut=1, rejected=[1], reached=[9], shape=kind))


@law
@given(truncation_series())
def test_any_truncation(model):
    found = over_the_wire(model, shapes.TruncationSeries)
    no_nan(*texts(frames.truncation_tiles(found)))
    no_nan(
        frames.headline(found.total, found.points),
        frames.cliffs(found.total, found.points, "k"),
        frames.shape_words(found.total),
    )
