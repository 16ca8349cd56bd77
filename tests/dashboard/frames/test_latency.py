"""Latency: both sides, what they can be compared by, and why not."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.html_tables import cells
from support.payloads import STEPS, law, no_nan, numbers, over_the_wire, texts

from dashboard import shapes
from dashboard.frames import latency as frames
from dashboard.frames import latency_plots as plots
from dashboard.words import NO_DATA
from sidecar.api import models

AT = datetime(2026, 11, 29, 18, 0, tzinfo=UTC)


def figures(requests=100, p95=600.0):
    return {f"{measure}{name}_ms": p95 for measure in ("", "ttft_", "tpot_") for name in frames.QUANTILES} | {
        "requests": requests,
        "under_800ms_ratio": None if p95 is None else 0.97,
    }


def point(group, ratio, ours=100, theirs=100, minute=None):
    return {
        "at": None if minute is None else AT + timedelta(minutes=minute),
        "group": group,
        "speculative": figures(ours),
        "autoregressive": figures(theirs),
        "ratio": ratio,
    }


def series(*points, hours=1.0, step=None):
    whole = {"exact": True, "resolution_s": None, "since": AT, "until": AT + timedelta(hours=hours), "window_s": 3600}
    whole |= {"step_s": step, "by": None, "baseline": "true_ar", "points": list(points)}
    return msgspec.convert(whole, shapes.LatencySeries)


def latency(sample, **changes):
    return msgspec.convert(sample.summary()["latency"] | changes, shapes.Latency)


@pytest.mark.parametrize(
    ("baseline", "words"),
    [
        ("true_ar", "an engine that never speculates. The ratio tells what speculation gains."),
        ("spec_disabled", "without drafts. They share their steps"),
        (None, ""),
    ],
)
def test_the_baseline_is_named(sample, baseline, words):
    given_latency = latency(sample, baseline=baseline)
    line = frames.baseline_line(given_latency)
    assert words in line
    assert bool(line) == (baseline is not None)
    assert f"autoregressive ({baseline})" in frames.quantile_table(given_latency) or baseline is None
    assert frames.ratio_tile(given_latency).note.endswith(f"Baseline: {baseline}.") == (baseline is not None)


def test_quantiles_of_both_sides(sample):
    rows = cells(frames.quantile_table(latency(sample, autoregressive=sample.latencies(0, None))))
    assert rows[0] == ["of ok requests", "speculative", "autoregressive (true_ar)"]
    assert rows[1] == ["ok requests", "398", "0"]
    assert rows[3] == ["Latency p95", "612 ms", NO_DATA]
    assert [row[0] for row in rows[2:]] == [
        *(f"{measure} {name}" for measure in ("Latency", "TTFT", "TPOT") for name in ("p50", "p95", "p99")),
        "at most 800 ms",
    ]
    assert rows[-1][1:] == ["97.0 %", NO_DATA]


@pytest.mark.parametrize(
    ("ratios", "told"),
    [
        ({}, ""),
        ({"1": None}, ""),
        ({"1": 0.6, "2-4": 0.8}, "faster at every concurrency that can be compared (1, 2-4)"),
        ({"1": 1.0, "2-4": 1.2}, "faster at none of the concurrencies that can be compared (1, 2-4)"),
        (
            {"1": 0.6, "9-16": 1.2, "5-8": None, ">64": 1.3, "2-4": 0.9},
            "up to a concurrency of 2-4, and not from 9-16 on",
        ),
        ({"1": 1.2, "2-4": 0.8}, "Speculation is not faster at a concurrency of 1."),
    ],
)
def test_a_full_batch_is_told(ratios, told):
    line = frames.batch_line(series(*(point(name, ratio) for name, ratio in ratios.items())))
    assert told in line
    assert bool(line) == bool(told)


def test_concurrencies_in_order_and_why_there_is_no_ratio(sample):
    points = [point(">64", None, 70, 3), point("unknown", None, 3, 4), point("2-4", 1.0004), point("1", 0.5)]
    comparison = {"concurrency": ">64", "speculative": 70, "baseline": 3, "speculative_p95_ms": None}
    comparison |= {"baseline_p95_ms": None, "ratio": None, "reason": "the baseline's p95 is 0 ms"}
    table = frames.concurrency_table(series(*points), latency(sample, by_concurrency=[comparison]))
    rows = cells(table)
    assert [row[0] for row in rows[1:]] == ["1", "2-4", ">64", "unknown"]
    assert [row[1] for row in rows[1:]] == ["0.500 faster", "✗ 1.0004 slower", NO_DATA, NO_DATA]
    assert [row[-1] for row in rows[1:]] == [
        "",
        "",
        "the baseline's p95 is 0 ms",
        "too few to compare: 3 of 50 speculative requests, 4 of 50 autoregressive requests",
    ]
    assert cells(frames.concurrency_table(series(point("1", 0.5)), latency(sample)))[0][-1] == "autoregressive requests"


@pytest.mark.parametrize(
    ("theirs", "hours", "step"),
    [
        (0, 1, None),
        (60, 1, None),  # needs 75 minutes
        (300, 1, 900),  # 75 in a quarter of an hour
        (299, 1, None),
        (5000, 1, 60),
        (100, 24, None),
        (450, 24, 21600),
    ],
)
def test_the_steps_of_ratios_are_as_long_as_it_takes(theirs, hours, step):
    points = [point(None, None, 10**6, theirs // 2, 0), point(None, None, 10**6, theirs - theirs // 2, 1)]
    assert frames.ratio_step(series(*points, hours=hours, step=60), [60, 300, 900, 3600, 21600, 86400]) == step


def test_a_ratio_of_few_requests_is_a_gap():
    points = [point(None, 0.8, minute=0), point(None, None, 100, 49, minute=1), point(None, 1.2, minute=2)]
    figure = plots.ratio_over_time(series(*points, point(None, 1.1, minute=5), step=60), None)
    (line,) = figure.data
    assert line.y == (0.8, None, 1.2, None, None, 1.1)
    assert not line.connectgaps
    assert line.text[0].startswith("ratio 0.800 (faster): p95 600 ms of 100 speculative")
    assert line.text[1] == "too few to compare: 49 of 50 autoregressive requests"
    assert [shape.y0 for shape in figure.layout.shapes] == [1]
    assert figure.layout.yaxis.range[0] < 0.8
    assert figure.layout.yaxis.range[1] > 1.2


@pytest.mark.parametrize(("measure", "limits"), [("latency", 1), ("ttft", 0), ("tpot", 0)])
def test_quantiles_over_time(measure, limits):
    points = [point(None, None, minute=0), point(None, None, minute=2)]
    points[0]["speculative"][f"{measure}_p99_ms" if measure != "latency" else "p99_ms"] = 900.0
    figure = plots.over_time(series(*points, step=60), measure, None)
    by_name = {(trace.name, trace.line.dash): trace.y for trace in figure.data}
    assert len(by_name) == 6
    assert by_name["speculative", "dash"] == (900.0, None, 600.0)
    assert by_name["autoregressive", "solid"] == (600.0, None, 600.0)
    assert len(figure.layout.shapes) == limits
    assert sum(bool(trace.showlegend) for trace in figure.data) == 2


def spread(ours, theirs=None, measure="latency"):
    def side(values):
        return {"requests": 3} | {f"{name}_ms": values if name == measure else None for name in frames.MEASURES}

    whole = {"exact": True, "resolution_s": None, "since": AT, "until": AT, "window_s": 1, "baseline": None}
    shares = [0.5, 0.99, 1.0]
    whole |= {"shares": shares, "speculative": side(ours), "autoregressive": side(theirs)}
    return msgspec.convert(whole, shapes.LatencyDistribution)


def test_the_spread_of_both_sides():
    figure = plots.distribution(spread([100.0, 200.0, 250.0], [300.0, 400.0, 500.0]), "latency")
    ours, theirs, goal = figure.data
    assert (ours.x, ours.y) == ((100.0, 200.0, 250.0), (0.5, 0.99, 1.0))
    assert theirs.x == (300.0, 400.0, 500.0)
    assert goal.x == (800, 800)
    assert ours.text[1] == "speculative: 0.99 of the requests within 200 ms"
    assert figure.layout.xaxis.type == "linear"
    assert len(plots.distribution(spread([1.0, 2.0, 3.0], measure="tpot"), "tpot").data) == 1
    assert [trace.name for trace in plots.distribution(spread([1.0, 2.0, 3.0]), "ttft").data] == []


@pytest.mark.parametrize(
    ("values", "kind"),
    [([100.0, 120.0, 9000.0], "log"), ([100.0, 120.0, 1200.0], "linear"), ([0.0, 120.0, 9000.0], "linear")],
)
def test_a_long_tail_has_a_logarithmic_axis(values, kind):
    figure = plots.distribution(spread(values), "latency")
    assert figure.layout.xaxis.type == kind
    if kind == "log":
        assert list(figure.layout.xaxis.ticktext)[:4] == ["100 ms", "200 ms", "500 ms", "1000 ms"]


def test_no_tick_of_a_logarithmic_axis_is_zero():
    figure = plots.distribution(spread([0.02, 0.04, 5.0]), "latency")
    assert list(figure.layout.xaxis.ticktext)[:4] == ["0.01 ms", "0.02 ms", "0.05 ms", "0.1 ms"]


def test_bars_by_concurrency():
    figure = plots.by_concurrency(series(point("2-4", 1.1), point("1", 0.5), point("5-8", None, 100, 3)))
    ours, theirs = figure.data
    assert ours.x == theirs.x == ("1", "2-4", "5-8")
    assert [(note.x, note.text) for note in figure.layout.annotations] == [(0, "0.50"), (1, "1.10")]
    assert theirs.text[2] == "autoregressive p95 600 ms, 3 ok requests"


def test_sketches_are_told():
    assert "0.11 %" in frames.sketches_line(msgspec.structs.replace(series(), exact=False))
    assert frames.sketches_line(series()) == ""


def test_the_share_within_800_ms(sample):
    summary = msgspec.convert(sample.summary(), shapes.Summary)
    assert frames.share_tile(summary).value == "98.1 %"
    summary.slo.latency_under_800ms_ratio = None
    assert frames.share_tile(summary).value == NO_DATA


# The law, on any payload that the API can give.

LOADS = st.none() | st.sampled_from(["1", "2-4", ">64", "unknown", "<b>", ""])
REASONS = st.none() | st.just("too few")
COMPARISONS = st.builds(models.LatencyComparison, reason=REASONS, concurrency=LOADS.filter(bool))


@law
@given(st.builds(models.LatencySeries, step_s=STEPS), st.sampled_from(list(frames.MEASURES)))
def test_any_series(model, measure):
    found = over_the_wire(model, shapes.LatencySeries)
    shown = [plots.over_time(found, measure, None), plots.ratio_over_time(found, None), plots.by_concurrency(found)]
    for figure in shown:
        for trace in figure.data:
            numbers(trace.y)
        figure.to_json()
    frames.ratio_step(found, [60, 3600])
    no_nan(frames.batch_line(found), frames.too_few_line(found), frames.sketches_line(found))


@law
@given(st.builds(models.LatencyDistribution), st.sampled_from(list(frames.MEASURES)))
def test_any_distribution(model, measure):
    figure = plots.distribution(over_the_wire(model, shapes.LatencyDistribution), measure)
    for trace in figure.data:
        numbers(trace.x)
    figure.to_json()


@law
@given(
    st.builds(models.Latency, ratio_reason=REASONS, ratio_concurrency=LOADS, by_concurrency=st.lists(COMPARISONS)),
    st.builds(models.LatencySeries, points=st.lists(st.builds(models.LatencyPoint, group=LOADS))),
)
def test_any_latency(model, series_model):
    found = over_the_wire(model, shapes.Latency)
    no_nan(*texts([frames.ratio_tile(found)]), frames.baseline_line(found))
    for table in (
        frames.quantile_table(found),
        frames.concurrency_table(over_the_wire(series_model, shapes.LatencySeries), found),
    ):
        rows = cells(table)
        assert {len(row) for row in rows} == {len(rows[0])}
        for row in rows[1:]:
            no_nan(*row)
