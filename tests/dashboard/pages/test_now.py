"""The first page, and every state with nothing to show, in Streamlit's own test harness."""

import gc
from datetime import UTC, datetime, timedelta

import pytest
from streamlit.testing.v1 import AppTest
from support.apptest import APP, charts, page_of, said, values


@pytest.fixture
def now(api):
    return AppTest.from_file(APP, default_timeout=60)


@pytest.fixture
def truncation(api):
    return page_of("truncation")


@pytest.fixture
def drafts(api):
    return page_of("drafts")


def empty(api, sample):
    summary = sample.summary()
    summary["traffic"] |= {"requests": 0, "ok": 0, "outcomes": {}, "requests_per_s": 0.0, "streaming": 0}
    summary |= {"acceptance": sample.figures(0, None), "last_100": sample.figures(0, None)}
    api.answers["summary"] = summary
    return summary


def test_now(now):
    at = now.run()
    assert not at.exception
    assert values(at) == {
        "p95_latency_under_800ms_ratio": "93.3 %",
        "Acceptance rate p, last 100 requests": "0.723",
        "Mean acceptance length": "3.86",
        "Latency p95, speculative": "612 ms",
        "Latency p95, autoregressive": "948 ms",
        "Latency ratio p95": "0.646",
        "Requests": "0.13 /s",
        "Completion tokens": "21.7 /s",
        "Coverage": "95.7 %",
        "Tokenizer alignment": "aligned",
        "Similarity, last 100 pairs": "0.950",
    }
    assert [m.delta for m in at.metric][:2] == ["✗ goal missed: at least 95 %", "✓ goal met: at least 0.65"]
    assert "Speculative decoding is on" in said(at)
    assert all(metric.help for metric in at.metric)
    tables = [frame.value for frame in at.dataframe]
    scenarios = next(table for table in tables if "scenario" in table)
    assert list(scenarios["scenario"]) == ["translate", "summarise", "chat", "code", "untested"]
    assert any("no acceptance block in the reply" in table.to_string() for table in tables)
    assert len(charts(at)) == 3


def test_range_and_scenario_come_from_the_url_and_go_to_the_api(now, api):
    now.query_params["window"] = "6h"
    now.query_params["scenario"] = "code"
    at = now.run()
    assert not at.exception
    asked = [(name, query) for _, name, query, _ in api.seen]
    assert ("summary", {"window": "6h", "scenario": "code"}) in asked
    assert ("latency", {"window": "6h", "step": "5m", "scenario": "code"}) in asked
    assert at.metric[1].label == "Acceptance rate p, last 100 requests of these"


def test_a_scenario_that_did_not_speculate(now, truncation, api, sample):
    api.answers["acceptance"] = sample.acceptance() | {"step_s": None, "points": []}
    api.answers["summary"] = sample.summary(acceptance=sample.figures(0, None), last_100=sample.figures(0, None))
    nothing = sample.truncation() | {"points": [], "positions": 0, "first_position_share": None}
    api.answers["truncation"] = nothing | {"total": sample.truncation_point(0, 1.0, drafted=0, positions=0)}
    for page in (now, truncation):
        page.query_params["scenario"] = "quiet"
        at = page.run()
        assert not at.exception
        assert "No speculation seen in the last 1 hour in scenario quiet." in said(at)


def test_what_is_wrong_is_told_first(now, api, sample):
    alerts = sample.board.alerts("SpecwatchAcceptanceLow")
    api.answers["alerts"] = alerts
    firing = {"name": "SpecwatchAcceptanceLow", "severity": "critical", "labels": {}, "summary": "", "value": 0.6}
    firing["since"] = alerts["alerts"][0]["starts_at"]
    api.answers["summary"] = sample.summary(last_100=sample.figures(100, 0.6), alerts=[firing])
    text = said(now.run())
    assert "Needs a look" in text
    assert "1 alert fires: SpecwatchAcceptanceLow." in text
    assert "Acceptance rate p is 0.600, below 0.65." in text
    assert "Scenario translate guesses worst: p is 0.550 over 100 requests, below 0.65." in text
    assert "**Means.** Less than 0.65 of the draft tokens are accepted." in text, "the runbook, with the alert"
    assert now.expander[0].label.startswith("Switch decoding")
    assert now.expander[1].label.replace("\\", "") == (
        "**SpecwatchAcceptanceLow** (critical): Too few draft tokens are accepted (scenario translate): 0.55"
    )


def test_health_in_a_sentence(now, api, sample):
    by_scenario = sample.acceptance("scenario")
    by_scenario["points"] = [point for point in by_scenario["points"] if point["group"] == "code"]
    api.answers["acceptance"] = lambda query: (200, by_scenario if "by" in query else sample.acceptance())
    slo = {"latency_under_800ms_ratio": 0.99, "p95_latency_under_800ms_ratio": 0.97}
    api.answers["summary"] = sample.summary(slo=slo)
    assert "✓ Healthy.</b> Acceptance rate p is 0.723, of 0.65 at least; no alert fires." in said(now.run())


@pytest.mark.parametrize(
    ("p", "scenario", "severity", "words"),
    [
        (0.7, None, "info", "✓ Healthy.</b> Acceptance rate p is 0.700, of 0.65 at least; 1 alert informs."),
        (None, None, None, "? Cannot tell.</b> No request has speculated yet; no alert fires."),
        (None, "code", None, "? Cannot tell.</b> No such request speculated in this time range; no alert fires."),
    ],
)  # fmt: skip
def test_health_claims_no_more_than_is_known(now, api, sample, p, scenario, severity, words):
    api.answers["acceptance"] = sample.acceptance() | {"points": []}
    alert = {"name": "SpecwatchTruncationsMany", "labels": {}, "summary": "", "value": 0.4, "severity": severity}
    alert["since"] = sample.board.alerts("x")["alerts"][0]["starts_at"]
    slo = {"latency_under_800ms_ratio": 0.99, "p95_latency_under_800ms_ratio": 0.97}
    figures = sample.figures(100 if p else 0, p)
    api.answers["summary"] = sample.summary(slo=slo, last_100=figures, alerts=[alert] if severity else [])
    if scenario:
        now.query_params["scenario"] = scenario
    assert words in said(now.run())


def test_alerts_are_told_without_the_database(now, api, sample):
    api.answers["summary"] = (503, {"error": {"message": "database unavailable"}})
    api.answers["alerts"] = sample.board.alerts("SpecwatchAcceptanceLow")
    at = now.run()
    assert "No figures: the database is unavailable." in said(at)
    assert "SpecwatchAcceptanceLow" in at.expander[1].label


def test_a_held_time_range(now, api):
    now.query_params["since"], now.query_params["until"] = "2026-11-29T02:10:00Z", "2026-11-29T03:00:00+00:00"
    at = now.run()
    assert not at.exception
    held = {"window": "366d", "since": "2026-11-29T02:10:00Z", "until": "2026-11-29T03:00:00Z"}
    asked = [(name, query) for _, name, query, _ in api.seen]
    assert ("summary", held) in asked
    assert ("traffic", held | {"step": "1m"}) in asked
    at.button(key="hold_end").click().run()
    assert ("summary", {"window": "1h"}) in [(name, query) for _, name, query, _ in api.seen]


def test_what_is_typed_into_hold_stays_when_the_minute_is_over(now, api, monkeypatch):
    class Clock(datetime):
        at = datetime(2026, 11, 29, 18, 0, 58, tzinfo=UTC)

        @classmethod
        def now(cls, tz=None):
            return cls.at

    def first():
        return f"hold_since_{now.session_state['hold_proposed'][1].isoformat()}"

    monkeypatch.setattr("dashboard.filters.datetime", Clock)
    key = first() if now.run() else ""
    Clock.at += timedelta(minutes=1)
    now.run()
    assert first() != key, "nothing was typed: it moves with the clock"
    now.session_state[first()] = datetime(2026, 11, 29, 17, 30)
    now.run()
    Clock.at += timedelta(minutes=5)
    now.run()
    assert now.session_state[first()] == datetime(2026, 11, 29, 17, 30)
    now.button(key="hold").click().run()
    assert now.query_params["since"] == "2026-11-29T17:30:00Z"


@pytest.mark.parametrize("year", [1, 1969, 9999])
def test_a_time_range_at_the_end_of_the_calendar(now, api, year):
    now.query_params["since"], now.query_params["until"] = f"{year:04}-12-30T00:00:00Z", f"{year:04}-12-31T23:59:59Z"
    assert not now.run().exception


def test_a_held_time_range_goes_with_its_reader_to_other_pages(now, api):
    """Streamlit takes out of the address what belongs to no widget, where another page is chosen."""
    now.query_params["since"], now.query_params["until"] = "2026-11-29T02:10:00Z", "2026-11-29T03:00:00Z"
    now.run()
    for name in ("since", "until"):
        del now.query_params[name]
    api.seen.clear()
    at = now.run()
    held = {"window": "366d", "since": "2026-11-29T02:10:00Z", "until": "2026-11-29T03:00:00Z"}
    assert ("summary", held) in [(name, query) for _, name, query, _ in api.seen]
    assert at.query_params["since"] == "2026-11-29T02:10:00Z"


def test_a_slice_that_fell_back_is_told_first(now, api, sample):
    slices = [
        {
            "slice": "scenario=translate",
            "state": "autoregressive",
            "since": sample.board.ago(minutes=4),
            "reason": "p 0.54 over 23 requests is below 0.65",
            "trigger": "acceptance",
            "evidence": {"p": 0.54},
            "until": None,
        }
    ]
    api.answers["fallback"] = sample.fallback(slices=slices)
    state = sample.fallback(slices=slices)
    del state["history"]
    api.answers["summary"] = sample.summary(fallback=state)
    text = said(now.run())
    assert "◧</span>Speculative decoding is on, but not for scenario=translate" in text
    assert "scenario=translate fell back by itself and is served without speculation." in text
    assert "Hardly any of scenario=translate, which fell back." in text


@pytest.mark.parametrize(
    ("since", "until"),
    [
        ("yesterday", "2026-11-29T03:00:00Z"),
        ("2026-11-29T03:00:00Z", "2026-11-29T02:00:00Z"),
        ("2020-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-11-29T03:00:00Z", ""),
        ("0001-01-01T00:00:00+14:00", "0001-01-02T00:00:00Z"),
    ],
)
def test_a_held_time_range_that_is_none_says_so(now, api, since, until):
    now.query_params["since"], now.query_params["until"] = since, until
    at = now.run()
    assert not at.exception
    assert "`since` and `until` of the address are no time range" in said(at)
    assert ("summary", {"window": "1h"}) in [(name, query) for _, name, query, _ in api.seen]


def test_not_reachable(now, api):
    now.query_params["window"], now.query_params["scenario"] = "6h", "code"
    api.close()
    at = now.run()
    assert "The sidecar cannot be reached." in said(at)
    assert api.url in said(at)
    assert "specwatch sidecar --upstream URL" in said(at)
    assert not at.metric
    assert at.selectbox(key="scenario").value == "code", "filters outlast an outage"
    assert at.segmented_control(key="window").value == "6h"


def test_one_answer_that_breaks_off_is_not_asked_for_in_a_loop(now, api):
    def break_off(_):
        raise ConnectionAbortedError

    api.answers["latency"] = break_off
    assert "The sidecar gave no whole answer." in said(now.run())
    assert [name for _, name, _, _ in api.seen].count("latency") == 1
    assert "Speculative decoding is on" in said(now)


def test_asked_too_often(now, drafts, api):
    api.answers["acceptance"] = api.answers["drafts"] = (429, {"error": {"message": "too many requests"}})
    for page in (now, drafts):
        text = said(page.run())
        assert "The sidecar is asked too often." in text
        assert "`admin_per_second`" in text
    assert "No drafts are kept" not in text


def test_unauthorised(now, api):
    api.answers["fallback"] = (401, {"error": {"message": "missing bearer token"}})
    assert "SPECWATCH_ADMIN_TOKEN" in said(now.run())


def test_no_database(now, truncation, api):
    api.answers["summary"] = (503, {"error": {"message": "database unavailable"}})
    for page in (now, truncation):
        at = page.run()
        assert "No figures: the database is unavailable." in said(at)
        assert not at.metric
    assert "Speculative decoding is on" in said(now), "the state needs no database"


def test_no_data_yet(now, truncation, api, sample):
    empty(api, sample)
    for page in (now, truncation):
        at = page.run()
        assert "No data yet." in said(at)
        assert "curl http://127.0.0.1:8000/v1/completions" in said(at)
        assert not at.metric


def test_nothing_in_this_time_range(now, api, sample):
    empty(api, sample)["last_100"] = sample.figures(100, 0.7)
    assert "No requests in the last 1 hour." in said(now.run())


def test_no_speculation(now, truncation, api, sample):
    none = sample.figures(0, None)
    api.answers["summary"] = sample.summary(
        acceptance=none,
        last_100=none,
        coverage={"requests": 0.0, "missing": {"no acceptance block": 455}, "engines": []},
    )
    nothing = sample.truncation() | {"points": [], "positions": 0, "first_position_share": None}
    nothing["total"] = sample.truncation_point(0, 1.0, drafted=0, positions=0)
    api.answers["truncation"] = nothing
    for page in (now, truncation):
        at = page.run()
        assert not at.exception
        assert "No speculation seen." in said(at)
        assert any("no acceptance block" in frame.value.to_string() for frame in at.dataframe)
    assert values(now)["Acceptance rate p, last 100 requests"] == "no data"
    assert values(now)["Latency p95, speculative"] == "612 ms"


def test_rows_dropped(now, api, sample):
    api.answers["summary"] = sample.summary(database="unavailable", records_dropped=12)
    assert "Rows dropped so far: 12." in said(now.run())


def test_another_service(now, api):
    api.answers["fallback"] = (200, b"<html>hello</html>")
    assert "answered in a shape this dashboard does not know" in said(now.run())


def test_text_of_others_stays_text(now, api, sample):
    api.answers["fallback"] = sample.fallback(reason="<img src=x onerror=alert(1)> **p**")
    assert "&lt;img src=x onerror=alert(1)&gt; **p**" in said(now.run())


def test_switch_needs_a_confirmation(now, api):
    at = now.run()
    assert at.button(key="switch_ask").disabled, "nothing to switch yet"
    at.segmented_control(key="switch_mode").set_value("autoregressive").run()
    at.text_input(key="switch_reason").set_value("incident 4711").run()
    at.button(key="switch_ask").click().run()
    assert api.put_bodies == []
    at.button(key="switch_yes").click().run()
    assert api.put_bodies == [{"mode": "autoregressive", "reason": "incident 4711"}]
    assert "Speculative decoding is off: replies are autoregressive" in said(at)
    assert "incident 4711" in said(at)


def test_switch_can_be_cancelled(now, api):
    at = now.run()
    at.segmented_control(key="switch_mode").set_value("speculative").run()
    at.button(key="switch_ask").click().run()
    at.button(key="switch_no").click().run()
    assert "switch_yes" not in {button.key for button in at.button}
    assert api.put_bodies == []


def test_a_refused_switch_says_why(now, api):
    api.put = lambda _: (409, {"error": {"message": "the autoregressive upstream is down"}})
    at = now.run()
    at.segmented_control(key="switch_mode").set_value("autoregressive").run()
    at.button(key="switch_ask").click().run()
    at.button(key="switch_yes").click().run()
    assert "Not switched." in said(at)
    assert "the autoregressive upstream is down" in said(at)


def test_a_dashboard_that_only_reads_says_what_it_takes_to_switch(now, api, monkeypatch):
    monkeypatch.setenv("SPECWATCH_ADMIN_READ_TOKEN", "read-it")
    at = now.run()
    assert "This dashboard only reads" in said(at)
    assert "SPECWATCH_ADMIN_TOKEN" in said(at)
    assert "switch_ask" not in {button.key for button in at.button}
    assert {seen[3] for seen in api.seen} == {"Bearer read-it"}
    monkeypatch.setenv("SPECWATCH_ADMIN_TOKEN", "order-it")
    api.put = lambda _: (403, {"error": {"message": "this needs the token of admin_token"}})
    at = now.run()
    at.segmented_control(key="switch_mode").set_value("autoregressive").run()
    at.button(key="switch_ask").click().run()
    at.button(key="switch_yes").click().run()
    assert "Not switched." in said(at)
    assert "this needs the token of admin_token" in said(at)


def test_nothing_to_switch_to(now, api, sample):
    api.answers["fallback"] = sample.fallback(can_fall_back=False)
    at = now.run()
    assert "`fallback_upstream`" in said(at).replace("\\", "")
    assert "switch_ask" not in {button.key for button in at.button}


def test_moved_tokens_are_named(now, drafts, api, sample):
    moved = sample.alignment(("<|eot|>", 4, 5, 100), (None, 7, 8, 1), more=2)
    api.answers["summary"] = sample.summary(alignment=moved)
    api.answers["alignment"] = sample.whole_alignment(("<|eot|>", 4, 5, 100), (None, 7, 8, 1)) | {"moved_tokens": 4}
    for page in (now, drafts):
        (banner,) = page.run().error
        assert banner.value.replace("\\", "") == (
            "**Draft and target know tokens by different ids.** '<|eot|>' is id 4 in the target and 5 in the draft, "
            "rejected 100 times; a token is id 7 in the target and 8 in the draft, rejected 1 time; 2 more tokens. "
            "Such guesses are right and lost: use a draft that was trained with the target's tokenizer."
        )


def test_c32_reruns_leave_no_objects_behind(now, api):
    # Containers, not memory or its blocks, which come and go by more than a leak of this size takes. What other threads
    # hold for a moment is in some looks only.
    def containers():
        for _ in range(20):
            now.run()
        api.begin()  # of the test's own server
        gc.collect()
        return len(gc.get_objects())

    looks = [containers() for _ in range(7)]
    assert not now.exception
    assert min(looks[-3:]) - min(looks[:3]) < 40, looks
