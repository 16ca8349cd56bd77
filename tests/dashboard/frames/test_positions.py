"""Heat maps of positions."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.payloads import law, numbers, over_the_wire
from support.positions import AT, point, series, truncation_series

from dashboard import shapes
from dashboard.frames import positions as frames

FIRST = {"steps": 10, "cut": 2, "rejected": [2, 0], "reached": [10, None]}
THIRD = {"steps": 10, "cut": 0, "rejected": [0, 0], "reached": [10, 10]}
WHOLE = point(steps=20, cut=2, rejected=[2, 0], reached=[20, 10])


def test_never_drafted_is_blank_and_nothing_rejected_is_zero():
    heat, markers, full = frames.over_time(series(WHOLE, (0, FIRST), (2, THIRD)), "hazard").data
    assert [list(row) for row in heat.z] == [[0.2, None, 0.0], [None, None, 0.0]]
    assert len(heat.x) == 4, "cells are given by their edges"
    assert markers.text[0] == "2026-11-29 18:00 UTC<br>position 1: rejected 2 of 10 reached<br>hazard 20.0 %"
    assert markers.text[1] == "2026-11-29 18:01 UTC<br>no data"
    assert markers.text[3] == "2026-11-29 18:00 UTC<br>position 2: never drafted"
    assert full.y == (0.8, None, 1.0)
    found = series(WHOLE, point(group="a", **FIRST), point(group="b", **THIRD))
    heat, _, bars = frames.by_group(found, "scenario", "counts").data
    assert [list(row) for row in heat.z] == [[2, None], [0, 0]]
    assert bars.x == (0.8, 1.0)


def test_each_cell_tells_a_click_its_position_and_its_step_or_group():
    markers = frames.over_time(series(WHOLE, (0, FIRST), (2, THIRD)), "hazard").data[1]
    assert [list(pick) for pick in markers.customdata] == [
        [position, f"2026-11-29T18:0{minute}:00Z"] for position in ("1", "2") for minute in (0, 1, 2)
    ]
    assert markers.x[:3] == tuple(AT + timedelta(minutes=minute, seconds=30) for minute in range(3))
    assert markers.y == (1, 1, 1, 2, 2, 2)
    groups = series(WHOLE, point(group="<i>", **FIRST), point(group="b", **THIRD))
    markers = frames.by_group(groups, "scenario", "hazard").data[1]
    assert [list(pick) for pick in markers.customdata] == [["1", "<i>"], ["2", "<i>"], ["1", "b"], ["2", "b"]]
    assert markers.text[0].startswith("&lt;i&gt;<br>")
    assert list(zip(markers.x, markers.y, strict=True)) == [(1, 0), (2, 0), (1, 1), (2, 1)]


def test_a_single_step_is_as_wide_as_a_step():
    heat = frames.over_time(series(WHOLE, (0, FIRST)), "hazard").data[0]
    assert heat.x == (AT, AT + timedelta(minutes=1))


@pytest.mark.parametrize(
    ("by", "names", "order"),
    [
        ("scenario", ["fine", "idle", "bad"], ["bad", "fine", "idle"]),
        ("model", ["fine", "idle", "bad"], ["bad", "fine", "idle"]),
        ("k", ["2", "4", "10"], ["k = 2", "k = 4", "k = 10"]),
    ],
)
def test_worst_first_but_k_by_size(by, names, order):
    points = [
        point(group=name, steps=steps, cut=cut, rejected=[cut, 0], reached=[steps, 0])
        for name, steps, cut in zip(names, (9, 0, 9), (3, 0, 8), strict=True)
    ]
    assert list(frames.by_group(series(WHOLE, *points), by, "hazard").layout.yaxis.ticktext) == order


def shapes_of(figure, kind):
    return [each for each in figure.layout.shapes if each.type == kind and each.layer != "below"]


def test_a_cliff_is_a_line_behind_its_position():
    whole = point(steps=20, cut=2, rejected=[2, 0], reached=[20, 10], cliff=1)
    (line,) = shapes_of(frames.over_time(series(whole, (0, FIRST), (2, THIRD)), "hazard"), "line")
    assert (line.y0, line.y1, line.x0, line.x1) == (1.5, 1.5, AT, AT + timedelta(minutes=3))
    figure = frames.by_group(
        series(WHOLE, point(group="a", **FIRST), point(group="b", cliff=1, **THIRD)), "scenario", "hazard"
    )
    (line,) = shapes_of(figure, "line")
    assert (line.x0, line.x1, line.y0, line.y1) == (1.5, 1.5, 0.5, 1.5), "in the row of the scenario"
    assert [each.text for each in figure.layout.annotations] == ["cliff"]
    assert not shapes_of(frames.over_time(series(WHOLE, (0, FIRST)), "hazard"), "line")


def test_the_chosen_cell_is_outlined():
    found = series(WHOLE, (0, FIRST), (2, THIRD))
    outlines = shapes_of(frames.over_time(found, "hazard", (2, AT + timedelta(minutes=1))), "rect")
    assert {(each.x0, each.x1, each.y0, each.y1) for each in outlines} == {
        (AT + timedelta(minutes=1), AT + timedelta(minutes=2), 1.5, 2.5)
    }
    assert not shapes_of(frames.over_time(found, "hazard", (2, AT + timedelta(minutes=9))), "rect"), (
        "moved out of sight"
    )
    found = series(WHOLE, point(group="a", **FIRST), point(group="b", **THIRD))
    outlines = shapes_of(frames.by_group(found, "model", "hazard", (1, "b")), "rect")
    assert {(each.x0, each.x1, each.y0, each.y1) for each in outlines} == {(0.5, 1.5, 0.5, 1.5)}


@law
@given(truncation_series(), st.sampled_from(["hazard", "counts"]), st.sampled_from(["scenario", "k"]))
def test_any_truncation(model, colour, by):
    found = over_the_wire(model, shapes.TruncationSeries)
    for figure in (frames.over_time(found, colour, (1, AT)), frames.by_group(found, by, colour, (1, "a"))):
        for row in figure.data[0].z or ():
            numbers(row)
        figure.to_json()
