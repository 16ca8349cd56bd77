"""The page Latency, in Streamlit's own test harness and in a browser."""

import pytest
from support.apptest import charts, page_of, said, values
from support.html_tables import cells, table_of


@pytest.fixture
def page(api):
    return page_of("latency")


def test_the_page_shows_both_sides(page, api):
    at = page.run()
    assert not at.exception
    assert values(at) == {
        "p95_latency_under_800ms_ratio": "93.3 %",
        "latency_under_800ms_ratio": "98.1 %",
        "Latency ratio p95": "0.646",
    }
    assert all(metric.help for metric in at.metric)
    rows = cells(table_of(at, "Quantiles with and without speculation"))
    assert rows[0] == ["of ok requests", "speculative", "autoregressive (true_ar)"]
    assert rows[3] == ["Latency p95", "612 ms", "948 ms"]
    loads = cells(table_of(at, "Latency by concurrency"))
    assert [row[:2] for row in loads[1:]] == [["1", "0.581 faster"], ["2-4", "0.645 faster"], ["5-8", "no data"]]
    assert loads[3][-1] == "too few to compare: 12 of 50 autoregressive requests"
    assert "Speculation is faster at every concurrency that can be compared (1, 2-4)." in said(at)
    assert "an engine that never speculates" in said(at)
    assert "Quantiles come from sketches" not in said(at)
    assert len(charts(at)) == 3
    asked = [(name, query) for _, name, query, _ in api.seen]
    assert ("latency/distribution", {"window": "1h"}) in asked
    assert ("latency", {"window": "1h", "by": "concurrency"}) in asked


def test_too_few_requests_for_a_ratio_over_time(page):
    assert (
        "every step needs 50 ok requests of both sides, and in this time range there are 336 speculative and 19 "
        "autoregressive ones" in said(page.run())
    )


def test_the_ratio_over_time_is_asked_for_by_steps_that_hold_enough(page, api, sample):
    def answer(query):
        found = sample.latency(query.get("by"))
        for point in found["points"]:
            point["autoregressive"] = sample.latencies(6, 930.0)
        if query.get("step") == "15m":
            found |= {"step_s": 900, "points": [point | {"ratio": 0.7} for point in found["points"][::15]]}
        return 200, found

    api.answers["latency"] = answer
    at = page.run()
    assert not at.exception
    assert "by steps of 15 min" in said(at)
    assert ("latency", {"window": "1h", "step": "15m"}) in [(name, query) for _, name, query, _ in api.seen]
    assert len(charts(at)) == 4


def test_the_measure_comes_from_the_url(page):
    page.query_params["timing"] = "TTFT"
    at = page.run()
    assert "TTFT: how it is spread" in said(at)
    assert "TTFT: p50, p95 and p99 over time (UTC)" in said(at)


def test_sketches_are_told(page, api, sample):
    api.answers["summary"] = sample.summary(exact=False, resolution_s=60)
    assert "Quantiles come from sketches" in said(page.run())


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        (0, 57, "No ok request was served with speculation in the last 1 hour"),
        (398, 0, "`fallback_upstream`"),
        (0, 0, "No ok request in the last 1 hour."),
    ],
)
def test_a_side_without_figures(page, api, sample, ours, theirs, told):
    latency = sample.summary()["latency"]
    latency |= {
        "speculative": sample.latencies(ours, 612.0 if ours else None),
        "autoregressive": sample.latencies(theirs, 948.0 if theirs else None),
        "ratio": None,
        "ratio_reason": f"too few to compare: {theirs} of 50 baseline requests",
        "baseline": "true_ar" if theirs else None,
    }
    api.answers["summary"] = sample.summary(latency=latency)
    at = page.run()
    assert not at.exception
    assert told in said(at)
    assert values(at)["Latency ratio p95"] == "no data"
    assert f"Too few to compare: {theirs} of 50 baseline requests" in said(at)
    assert len(charts(at)) == (0 if ours == theirs == 0 else 3)


def test_no_requests(page, api, sample):
    summary = sample.summary(last_100=sample.figures(0, None))
    summary["traffic"] |= {"requests": 0, "ok": 0}
    api.answers["summary"] = summary
    at = page.run()
    assert "No data yet." in said(at)
    assert not at.metric


def test_no_database(page, api):
    api.answers["latency/distribution"] = (503, {"error": {"message": "database unavailable"}})
    at = page.run()
    assert "No figures: the database is unavailable." in said(at)
    assert not at.metric
