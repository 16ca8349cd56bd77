"""Position by time and by scenario."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from support.payloads import COUNTS, FINITE, STEPS, TIMES, law, no_nan, numbers, over_the_wire, texts

from dashboard import shapes
from dashboard.frames import truncation as frames
from dashboard.words import NO_DATA
from sidecar.api import models

AT = datetime(2026, 11, 29, 18, 0, tzinfo=UTC)


def truncation(rows, positions=2):
    built = [
        shapes.TruncationPoint(
            at=AT + timedelta(minutes=minute), group=group, verify_steps=steps, truncated_steps=cut,
            rejected_at=rejected, reached=reached,
            shape="decay", cliff_at=None,
            hazard=[None if not n or r is None else r / n for r, n in zip(rejected, reached, strict=True)],
        )
        for minute, group, steps, cut, rejected, reached in rows
    ]  # fmt: skip
    return shapes.TruncationSeries(
        exact=True,
        resolution_s=None,
        since=AT,
        until=AT,
        window_s=600,
        step_s=60,
        by=None,
        positions=positions,
        total=built[0],
        first_position_share=None,
        points=built,
    )


def test_never_drafted_is_blank_and_nothing_rejected_is_zero():
    series = truncation([(0, "a", 10, 2, [2, None], [10, None]), (2, "b", 10, 0, [0, 0], [10, 10])])
    heat, full = frames.truncation_over_time(series, "hazard").data
    assert [list(row) for row in heat.z] == [[0.2, None, 0.0], [None, None, 0.0]]
    assert heat.hoverongaps is False
    assert len(heat.x) == 4, "cells are given by their edges"
    assert "rejected 2 of 10 reached" in heat.text[0][0]
    assert full.y == (0.8, None, 1.0)
    heat, bars = frames.truncation_by_scenario(series, "rejected").data
    assert [list(row) for row in heat.z] == [[2, None], [0, 0]]
    assert bars.x == (0.8, 1.0)


def test_a_single_step_is_as_wide_as_a_step():
    heat = frames.truncation_over_time(truncation([(0, None, 10, 2, [2, 0], [10, 8])]), "hazard").data[0]
    assert heat.x == (AT, AT + timedelta(minutes=1))


def test_truncation_tiles():
    rate, first, full = frames.truncation_tiles(truncation([(0, None, 10, 4, [2, 2], [10, 8])]))
    assert (rate.value, rate.met, full.value) == ("40.0 %", False, "60.0 %")
    assert (first.value, first.note) == (NO_DATA, "No truncated step in this time range.")


@st.composite
def truncation_series(draw):
    positions = draw(st.integers(0, 6))

    def cells(values):
        return st.lists(st.none() | values, min_size=positions, max_size=positions)

    point = st.builds(
        models.TruncationPoint, at=st.none() | TIMES, rejected_at=cells(COUNTS), reached=cells(COUNTS),
        hazard=cells(FINITE), verify_steps=COUNTS, truncated_steps=COUNTS,
    )  # fmt: skip
    return draw(
        st.builds(
            models.TruncationSeries,
            positions=st.just(positions),
            total=point,
            points=st.lists(point, max_size=5),
            step_s=STEPS,
        )
    )


@law
@given(truncation_series(), st.sampled_from(["hazard", "rejected"]))
def test_any_truncation(model, colour):
    series = over_the_wire(model, shapes.TruncationSeries)
    no_nan(*texts(frames.truncation_tiles(series)))
    for figure in (frames.truncation_over_time(series, colour), frames.truncation_by_scenario(series, colour)):
        for row in figure.data[0].z or ():
            numbers(row)
        figure.to_json()
