"""Scenarios, in Streamlit's own test harness."""

import pytest
from support.apptest import page_of, said
from support.html_tables import cells, links, table_of


@pytest.fixture
def scenarios(api):
    return page_of("scenarios")


def multiples(at):
    return [each.proto.body for each in at.get("html") if "sw-multiples" in each.proto.body]


def asked(api, name):
    return [query for _, each, query, _ in api.seen if each == name]


def test_scenarios(scenarios, api, sample):
    own = {"slice": "scenario=code", "state": "probing", "since": "2026-11-29T18:00:00Z", "reason": "p 0.4"}
    slices = [own | {"trigger": "probes", "evidence": {}, "until": None}]
    state = sample.summary()["fallback"] | {"slices": slices}
    api.answers["summary"] = sample.summary(fallback=state)
    at = scenarios.run()
    assert not at.exception
    table = table_of(at, "Figures by scenario")
    heads, *rows = cells(table)
    assert [row[0] for row in rows] == ["code", "▼ worst: translate", "summarise", "chat", "untested"], "one fell back"
    first = dict(zip([head.replace("\u00a0", " ") for head in heads], rows[1], strict=True))
    assert first == {
        "scenario": "▼ worst: translate",
        "requests": "55",
        "p (≥ 0.65)": "✗ 0.550",
        "mean acceptance length": "3.20",
        "truncation rate (≤ 35 %)": "✗ 82.2 %",
        "first-position share (≤ 15 %)": "✗ 42.6 %",
        "worst position": "1 (35.0 %)",
        "p95 speculative": "600 ms",
        "p95 baseline": "930 ms",
        "ratio": "0.645",
        "within 800 ms": "97.0 %",
        "similarity (≥ 0.82)": "✗ 0.780",
        "coverage": "95.0 %",
        "speculation": "on",
    }
    assert [row[-1] for row in rows] == ["probing", "on", "on", "on", "on"]
    assert rows[4][1:4] == ["8", "no data", "no data"]
    assert links(table)[1] == "truncation?scenario=translate&window=1h"
    assert table.count("<abbr title=") == len(heads), "each figure is defined on hover"
    assert "Below 0.65 next, by how far" in "".join(each.help or "" for each in at.markdown)
    (charts,) = multiples(at)
    assert [name.split("<")[0] for name in charts.split("<h4")[1:]] == [
        f' title="{name}">{name}' for name in ("code", "translate", "summarise", "chat", "untested")
    ]
    assert "✗ fell back" in charts
    assert {"window": "1h", "by": "scenario", "step": "1m"} in asked(api, "acceptance")


@pytest.mark.parametrize(
    ("word", "by"), [("temperature", "temperature"), ("prompt length", "prompt_length"), ("k", "k")]
)
def test_other_slices_in_their_own_order(scenarios, api, sample, word, by):
    names = ("0", "0-0.3", "unset")

    def split(payload):
        points = [point | {"group": name} for point, name in zip(payload["points"], names, strict=False)]
        return payload | {"by": by, "points": points}

    api.answers |= {
        "traffic": split(sample.board.traffic("scenario")),
        "acceptance": split(sample.acceptance("scenario")),
        "truncation": split(sample.truncation("scenario")),
        "latency": split(sample.latency("scenario")),
    }
    scenarios.query_params["slices"] = word
    at = scenarios.run()
    assert not at.exception
    assert {query["by"] for query in asked(api, "latency")} == {by}
    assert not asked(api, "similarity"), "which scenarios alone have"
    table = table_of(at, "Figures by " + {"prompt_length": "prompt length, tokens"}.get(by, by))
    assert [row[0] for row in cells(table)[1:]] == ["0", "0-0.3", "▼ worst: unset"]
    assert not multiples(at)


def test_a_refused_question_says_why_in_its_place(scenarios, api):
    words = "temperature of one scenario is only in the rows, and these are too many: window=6h would do"
    api.answers["latency"] = lambda query: (400, {"error": {"message": words}})
    scenarios.query_params["slices"] = "temperature"
    at = scenarios.run()
    assert not at.exception
    (said_there,) = at.info
    assert "window=6h would do" in said_there.value.replace("\\", "")
    assert at.button_group, "the choice is still there"
    assert not [each for each in at.get("html") if "sw-table" in each.proto.body]


def test_a_link_holds_the_time_range_that_is_held(scenarios):
    scenarios.query_params["since"] = "2026-11-29T17:30:00Z"
    scenarios.query_params["until"] = "2026-11-29T18:30:00Z"
    at = scenarios.run()
    assert links(table_of(at, "Figures by scenario"))[0] == (
        "truncation?scenario=translate&since=2026-11-29T17%3A30%3A00Z&until=2026-11-29T18%3A30%3A00Z"
    )


def test_similarity_is_not_asked_of_one_model(scenarios, api):
    scenarios.query_params["model"] = "demo-target"
    at = scenarios.run()
    assert not at.exception
    assert not asked(api, "similarity"), "which knows no model"
    assert {row[11] for row in cells(table_of(at, "Figures by scenario"))[1:]} == {"no data"}


def test_texts_of_others_stay_text(scenarios, api, sample):
    bad = "*x* <b>y</b>"
    series = sample.acceptance("scenario")
    series["points"][3] |= {"group": bad}
    api.answers["acceptance"] = series | {"step_s": None}
    at = scenarios.run()
    assert not at.exception
    assert cells(table_of(at, "Figures by scenario"))[1][0] == f"▼ worst: {bad}"
    assert not any("<b>" in each.proto.body for each in at.get("html"))


def nothing(api, sample, **changes):
    summary = sample.summary() | {"acceptance": sample.figures(0, None), "last_100": sample.figures(0, None)}
    summary["traffic"] |= changes
    api.answers["summary"] = summary


def test_no_requests(scenarios, api, sample):
    nothing(api, sample, requests=0, ok=0, outcomes={})
    at = scenarios.run()
    assert not at.exception
    assert "No data yet." in said(at)
    assert not asked(api, "latency")


def test_no_speculation_but_latencies(scenarios, api, sample):
    nothing(api, sample)
    for name in ("acceptance", "truncation"):
        api.answers[name] = getattr(sample, name)("scenario") | {"points": []}
    at = scenarios.run()
    assert not at.exception
    assert "No speculation seen." in said(at)
    rows = cells(table_of(at, "Figures by scenario"))[1:]
    assert [row[0] for row in rows] == ["chat", "code", "summarise", "translate", "untested"], "the largest first"
    assert {row[2] for row in rows} == {"no data"}
    assert rows[0][7] == "600 ms"
    assert not multiples(at)


@pytest.mark.parametrize("status", [503, 401])
def test_no_answer(scenarios, api, status):
    api.answers["truncation"] = (status, {"error": {"message": "no"}})
    at = scenarios.run()
    assert not at.exception
    assert len(at.error) == 1


def test_refused_similarities_leave_the_rest(scenarios, api):
    """Scenarios of pairs are only in rows, of which a long time range has too many."""
    api.answers["similarity"] = (422, {"error": {"message": "window: ask for window=600m"}})
    at = scenarios.run()
    assert not at.exception
    rows = cells(table_of(at, "Figures by scenario"))
    assert [row[0] for row in rows[1:]][-1] == "untested"
    column = [head.replace("\u00a0", " ") for head in rows[0]].index("similarity (≥ 0.82)")
    assert {row[column] for row in rows[1:]} == {"no data"}
