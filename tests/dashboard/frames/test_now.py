"""Payload to what is shown: named cases, and the law that nothing raises and nothing shows NaN."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.payloads import STEPS, law, no_nan, numbers, over_the_wire, texts

from dashboard import shapes
from dashboard.frames import now as frames
from dashboard.frames import now_plots as plots
from dashboard.frames.plots import with_trend
from dashboard.frames.state import footer, missing_table, state_line
from dashboard.words import NO_DATA
from sidecar.api import models

AT = datetime(2026, 11, 29, 18, 0, tzinfo=UTC)
ANSWERED = {"exact": True, "resolution_s": None, "since": AT, "until": AT}


def acceptance(p, requests=100, **more):
    known = {"verify_steps": 10, "draft_tokens": 40, "accepted_tokens": 20, "mean_acceptance_length": 3.0}
    figures = known if p is not None else dict.fromkeys(known, 0) | {"mean_acceptance_length": None}
    figures |= dict.fromkeys(("p_low", "p_high", "p_per_token", "num_speculative_tokens"))
    return figures | {"requests": requests, "p": p} | more


def figures(p, requests=100):
    return shapes.AcceptanceFigures(**acceptance(p, requests))


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
    none = msgspec.convert(
        {name.name: None for name in msgspec.structs.fields(shapes.LatencyFigures)} | {"requests": 0},
        shapes.LatencyFigures,
    )
    latency = shapes.Latency(
        speculative=none,
        autoregressive=none,
        baseline=None,
        ratio=ratio,
        ratio_concurrency=None,
        ratio_reason=reason,
        by_concurrency=[],
        baseline_share=None,
    )
    tile = frames.ratio_tile(latency)
    assert (tile.value, tile.note) == (value, note)


def points(*rows):
    return [
        shapes.AcceptancePoint(**acceptance(p), at=None if minute is None else AT + timedelta(minutes=minute), group=g)
        for p, minute, g in rows
    ]


def test_scenarios_worst_first_and_unknown_last():
    rows = points((0.9, None, "code"), (None, None, "empty"), (0.4, None, "chat"), (0.0, None, "none taken"))
    table = frames.scenario_table(
        shapes.AcceptanceSeries(**ANSWERED, window_s=1, step_s=None, by="scenario", points=rows)
    )
    assert list(table["scenario"]) == ["none taken", "chat", "code", "empty"]
    assert list(table["p"]) == ["0.000", "0.400", "0.900", NO_DATA]
    assert list(table["against 0.65"]) == ["below", "below", "ok", NO_DATA]


def test_p_of_a_scenario_that_fell_back_is_not_ok():
    rows = points((0.9, None, "code"), (0.7, None, "chat"))
    series = shapes.AcceptanceSeries(**ANSWERED, window_s=1, step_s=None, by="scenario", points=rows)
    table = frames.scenario_table(series, ["scenario=chat"])
    assert list(table["against 0.65"]) == ["fell back", "ok"]
    note = frames.p_tile(figures(0.9), off=["scenario=chat"]).note
    assert note.startswith("Hardly any of scenario=chat, which fell back. ")


def test_a_silent_step_is_a_gap():
    rows = points((0.9, 5, None), (0.7, 0, None), (None, 1, None), (0.8, 2, None))
    series = shapes.AcceptanceSeries(**ANSWERED, window_s=600, step_s=60, by=None, points=rows)
    line = plots.p_over_time(series, None).data[0]
    assert line.y == (0.7, None, 0.8, None, None, 0.9)
    assert line.connectgaps is False
    assert line.text[3] == NO_DATA


def test_a_trend_has_the_whole_time_range():
    span = {"exact": True, "resolution_s": None, "since": AT, "until": AT + timedelta(minutes=6)}
    rows = points((0.7, 1, None), (0.9, 3, None))
    series = shapes.AcceptanceSeries(**span, window_s=360, step_s=60, by=None, points=rows)
    tile = with_trend(frames.p_tile(figures(0.9)), series, lambda each: each.p, None)
    assert tile.trend == [None, 0.7, None, 0.9, None, None]


def test_the_pooled_rest_is_no_scenario():
    rows = points((0.1, None, "other"), (0.2, None, "unknown"), (0.6, None, "chat"), (0.9, None, "code"))
    series = shapes.AcceptanceSeries(**ANSWERED, window_s=1, step_s=None, by="scenario", points=rows)
    assert frames.worst_scenario(series).group == "chat"


# The law, on any payload that the API can give.

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TIMES = st.datetimes(timezones=st.just(UTC))


VERSIONS = models.Versions(specwatch="1", fingerprint=None, model=None, draft_model=None, num_speculative_tokens=None)


FALLBACKS = st.builds(models.FallbackState, evidence=st.none(), slices=st.just([]))


@law
@given(st.builds(models.Summary, instance=st.just("sidecar"), versions=st.just(VERSIONS), fallback=FALLBACKS))
def test_any_summary(model):
    summary = over_the_wire(model, shapes.Summary)
    no_nan(
        *texts([frames.slo_tile(summary), frames.p_tile(summary.last_100), frames.length_tile(summary.acceptance)]),
        *texts([frames.latency_tile("speculative", summary.latency.speculative)]),
        *texts([*frames.traffic_tiles(summary.traffic), frames.coverage_tile(summary.coverage)]),
        state_line(summary.fallback, AT).since,
        footer(summary),
    )
    frames.ratio_tile(summary.latency)
    missing_table(summary.coverage)
    plots.outcomes(summary.traffic).to_json()


@law
@given(st.builds(models.AcceptanceSeries, step_s=STEPS), st.builds(models.LatencySeries, step_s=STEPS))
def test_any_series(acceptance_model, latency_model):
    acceptance_series = over_the_wire(acceptance_model, shapes.AcceptanceSeries)
    figure = plots.p_over_time(acceptance_series, None)
    numbers(figure.data[0].y)
    figure.to_json()
    assert not frames.scenario_table(acceptance_series).isna().to_numpy().any()
    figure = plots.latency_over_time(over_the_wire(latency_model, shapes.LatencySeries), None)
    for trace in figure.data:
        numbers(trace.y)
    figure.to_json()
