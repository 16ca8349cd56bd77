"""Payload to what is shown: named cases, and the law that nothing raises and nothing shows NaN."""

import math
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dashboard import charts, frames, shapes
from dashboard.words import DEFINITIONS, NO_DATA
from sidecar.api import models

AT = datetime(2026, 11, 29, 18, 0, tzinfo=UTC)


def acceptance(p, requests=100, **more):
    known = {"verify_steps": 10, "draft_tokens": 40, "accepted_tokens": 20, "mean_acceptance_length": 3.0}
    figures = known if p is not None else dict.fromkeys(known, 0) | {"mean_acceptance_length": None}
    return figures | {"requests": requests, "p": p} | more


def figures(p, requests=100):
    return shapes.AcceptanceFigures(**acceptance(p, requests))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (frames.ratio(0.7225), "0.723"),
        (frames.ratio(0.64999, 0.65), "0.64999"),
        (frames.ratio(0.65, 0.65), "0.650"),
        (frames.percent(0.94996, 0.95), "94.996 %"),
        (frames.percent(0.0), "0.0 %"),
        (frames.percent(1.0), "100.0 %"),
        (frames.milliseconds(None), NO_DATA),
        (frames.milliseconds(0.0), "0.0 ms"),
        (frames.milliseconds(612.4), "612 ms"),
        (frames.milliseconds(12_340.0), "12.3 s"),
        (frames.count(1, "request"), "1 request"),
        (frames.count(1200, "request"), "1,200 requests"),
        (frames.span(0), "0 s"),
        (frames.span(-5), "0 s"),
        (frames.span(59), "59 s"),
        (frames.span(5520), "1 h 32 min"),
        (frames.span(90_000), "1 d 1 h"),
        (frames.plain("p < 0.65\n*really*"), r"p \< 0\.65 \*really\*"),
    ],
)
def test_texts(shown, expected):
    assert shown == expected


@pytest.mark.parametrize(
    ("p", "requests", "value", "met", "note"),
    [
        (0.65, 100, "0.650", True, "last 100 requests"),
        (0.6499, 100, "0.6499", False, "last 100 requests"),
        (0.9, 1, "0.900", True, "last 1 request that"),
        (None, 0, NO_DATA, None, "No request has speculated yet."),
        (0.0, 3, "0.000", False, "last 3 requests"),
    ],
)
def test_p_tile(p, requests, value, met, note):
    tile = frames.p_tile(figures(p, requests))
    assert (tile.value, tile.met) == (value, met)
    assert note in tile.note


@pytest.mark.parametrize(
    ("ratio", "reason", "value", "note"),
    [
        (0.5, None, "0.500", "Speculative is faster than autoregressive."),
        (1.0004, None, "1.0004", "Speculative is slower than autoregressive."),
        (1.0, None, "1.000", "Speculative is as fast as autoregressive."),
        (None, "12 of 50 autoregressive requests", NO_DATA, "12 of 50 autoregressive requests."),
        (None, None, NO_DATA, "The sidecar gave no reason."),
    ],
)
def test_latency_ratio(ratio, reason, value, note):
    none = shapes.LatencyFigures(
        requests=0, p50_ms=None, p95_ms=None, p99_ms=None, ttft_p50_ms=None, ttft_p95_ms=None, tpot_p50_ms=None
    )
    latency = shapes.Latency(speculative=none, autoregressive=none, ratio=ratio, ratio_reason=reason)
    tile = frames.ratio_tile(latency)
    assert (tile.value, tile.note) == (value, note)
    assert set(frames.latency_table(latency).loc["TTFT p95"]) == {NO_DATA}


def test_state_in_words():
    state = shapes.FallbackState(
        mode="autoregressive", state="autoregressive", since=AT, reason=" ", can_fall_back=True, slices=[]
    )
    line = frames.state_line(state, AT + timedelta(minutes=92))
    assert not line.speculating
    assert line.headline == "Speculative decoding is off: replies are autoregressive"
    assert line.mode == "mode autoregressive: held there by an operator"
    assert line.since == "since 2026-11-29 18:00:00 UTC, for 1 h 32 min"
    assert line.reason == "no reason given"
    slices = [shapes.SliceState(slice="scenario=code", state="probing")]
    state = shapes.FallbackState(
        mode="auto", state="speculative", since=AT, reason="p", can_fall_back=True, slices=slices
    )
    line = frames.state_line(state, AT)
    assert line.speculating
    assert line.headline == "Speculative decoding is on; by themselves: scenario=code (probing)"


def points(*rows):
    return [
        shapes.AcceptancePoint(**acceptance(p), at=None if minute is None else AT + timedelta(minutes=minute), group=g)
        for p, minute, g in rows
    ]


def test_scenarios_worst_first_and_unknown_last():
    rows = points((0.9, None, "code"), (None, None, "empty"), (0.4, None, "chat"), (0.0, None, "none taken"))
    table = frames.scenario_table(shapes.AcceptanceSeries(window_s=1, step_s=None, by="scenario", points=rows))
    assert list(table["scenario"]) == ["none taken", "chat", "code", "empty"]
    assert list(table["p"]) == ["0.000", "0.400", "0.900", NO_DATA]
    assert list(table["against 0.65"]) == ["below", "below", "ok", NO_DATA]


def test_a_silent_step_is_a_gap():
    rows = points((0.9, 5, None), (0.7, 0, None), (None, 1, None), (0.8, 2, None))
    series = shapes.AcceptanceSeries(window_s=600, step_s=60, by=None, points=rows)
    line = charts.p_over_time(series, None).data[0]
    assert line.y == (0.7, None, 0.8, None, None, 0.9)
    assert line.connectgaps is False
    assert line.text[3] == NO_DATA


def truncation(rows, positions=2):
    built = [
        shapes.TruncationPoint(
            at=AT + timedelta(minutes=minute), group=group, verify_steps=steps, truncated_steps=cut,
            rejected_at=rejected, reached=reached,
            hazard=[None if not n or r is None else r / n for r, n in zip(rejected, reached, strict=True)],
        )
        for minute, group, steps, cut, rejected, reached in rows
    ]  # fmt: skip
    return shapes.TruncationSeries(
        window_s=600, step_s=60, by=None, positions=positions, total=built[0], first_position_share=None, points=built
    )


def test_never_drafted_is_blank_and_nothing_rejected_is_zero():
    series = truncation([(0, "a", 10, 2, [2, None], [10, None]), (2, "b", 10, 0, [0, 0], [10, 10])])
    heat, full = charts.truncation_over_time(series, "hazard").data
    assert [list(row) for row in heat.z] == [[0.2, None, 0.0], [None, None, 0.0]]
    assert heat.hoverongaps is False
    assert len(heat.x) == 4, "cells are given by their edges"
    assert "rejected 2 of 10 reached" in heat.text[0][0]
    assert full.y == (0.8, None, 1.0)
    heat, bars = charts.truncation_by_scenario(series, "rejected").data
    assert [list(row) for row in heat.z] == [[2, None], [0, 0]]
    assert bars.x == (0.8, 1.0)


def test_a_single_step_is_as_wide_as_a_step():
    heat = charts.truncation_over_time(truncation([(0, None, 10, 2, [2, 0], [10, 8])]), "hazard").data[0]
    assert heat.x == (AT, AT + timedelta(minutes=1))


def test_truncation_tiles():
    rate, first, full = frames.truncation_tiles(truncation([(0, None, 10, 4, [2, 2], [10, 8])]))
    assert (rate.value, rate.met, full.value) == ("40.0 %", False, "60.0 %")
    assert (first.value, first.note) == (NO_DATA, "No truncated step in this time range.")


def test_a_word_is_defined_once():
    assert all(text.endswith(".") for text in DEFINITIONS.values())


# The law, on any payload that the API can give.

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TIMES = st.datetimes(timezones=st.just(UTC))


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


STEPS = st.none() | st.integers(1, 7 * 86_400)
COUNTS = st.integers(0, 10**12)

st.register_type_strategy(float, FINITE)
st.register_type_strategy(datetime, TIMES)
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))


VERSIONS = models.Versions(specwatch="1", fingerprint=None, model=None, draft_model=None, num_speculative_tokens=None)


def over_the_wire(model: BaseModel, shape):
    return msgspec.json.decode(model.model_dump_json(), type=shape)


def texts(tiles):
    return [text for tile in tiles for text in (tile.value, tile.note, tile.verdict or "")]


def no_nan(*shown):
    for text in shown:
        assert "nan" not in text.lower().split()
        assert "None" not in text


def numbers(values):
    for value in values:
        assert value is None or not math.isnan(value)


FALLBACKS = st.builds(models.FallbackState, evidence=st.none(), slices=st.just([]))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.builds(models.Summary, instance=st.just("sidecar"), versions=st.just(VERSIONS), fallback=FALLBACKS))
def test_any_summary(model):
    summary = over_the_wire(model, shapes.Summary)
    span = frames.window_start(summary)
    assert span is None or span.tzinfo is not None
    no_nan(
        *texts([frames.slo_tile(summary), frames.p_tile(summary.last_100), frames.length_tile(summary.acceptance)]),
        *texts([frames.latency_tile("speculative", summary.latency.speculative)]),
        *texts([*frames.traffic_tiles(summary.traffic), frames.coverage_tile(summary.coverage)]),
        *(text for column in frames.latency_table(summary.latency).to_numpy() for text in column),
        frames.state_line(summary.fallback, AT).since,
        frames.footer(summary),
    )
    frames.ratio_tile(summary.latency)
    frames.missing_table(summary.coverage)
    charts.outcomes(summary.traffic).to_json()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.builds(models.AcceptanceSeries, step_s=STEPS), st.builds(models.LatencySeries, step_s=STEPS))
def test_any_series(acceptance_model, latency_model):
    acceptance_series = over_the_wire(acceptance_model, shapes.AcceptanceSeries)
    figure = charts.p_over_time(acceptance_series, None)
    numbers(figure.data[0].y)
    figure.to_json()
    assert not frames.scenario_table(acceptance_series).isna().to_numpy().any()
    figure = charts.latency_over_time(over_the_wire(latency_model, shapes.LatencySeries), None)
    for trace in figure.data:
        numbers(trace.y)
    figure.to_json()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(truncation_series(), st.sampled_from(["hazard", "rejected"]))
def test_any_truncation(model, colour):
    series = over_the_wire(model, shapes.TruncationSeries)
    no_nan(*texts(frames.truncation_tiles(series)))
    for figure in (charts.truncation_over_time(series, colour), charts.truncation_by_scenario(series, colour)):
        for row in figure.data[0].z or ():
            numbers(row)
        figure.to_json()
