"""Truncation, in Streamlit's own test harness."""

import pytest
from support import board
from support.apptest import charts, page_of, said, values


@pytest.fixture
def truncation(api):
    return page_of("truncation")


def asked(api, name):
    return [query for _, each, query, _ in api.seen if each == name]


def behind(at):
    """The requests of the chosen cell, as HTML."""
    return "".join(html.proto.body for html in at.get("html"))


def test_truncation(truncation):
    at = truncation.run()
    assert not at.exception
    assert values(at) == {
        "Truncation rate": "42.7 %",
        "First-position share": "30.4 %",
        "Fully accepted steps": "57.3 %",
    }
    text = said(at)
    assert "#### Most truncations happen at position 1: 13.0 % of the steps that reach it; worst scenario:" in text
    assert "worst scenario: translate (35.0 %)." in text
    assert "No cliff but decay, in all" in text
    assert all(metric.help for metric in at.metric)
    over_time, by_scenario = charts(at)
    assert over_time["data"][0]["z"][4][0] is None, "position 5 was not drafted at first"
    assert over_time["layout"]["coloraxis"]["colorbar"]["tickformat"] == ".0%"
    assert by_scenario["layout"]["yaxis"]["ticktext"] == ["translate", "summarise", "chat", "code"]
    at.segmented_control(key="colour").set_value("counts").run()
    assert charts(at)[0]["layout"]["coloraxis"]["colorbar"]["tickformat"] == ",d"
    assert "Colour: verify steps truncated" in said(at)


def test_choices_of_the_address(truncation, api, sample):
    by_k = [sample.truncation_point(900, 0.8) | {"group": name} for name in ("3", "4")]
    api.answers["truncation"] = lambda query: (
        200,
        sample.truncation(query.get("by")) | ({"points": by_k} if query.get("by") == "k" else {}),
    )
    truncation.query_params["by"] = "k"
    truncation.query_params["colour"] = "counts"
    truncation.query_params["window"] = "6h"
    at = truncation.run()
    assert not at.exception
    assert {"window": "6h", "by": "k"} in asked(api, "truncation")
    assert charts(at)[1]["layout"]["yaxis"]["ticktext"] == ["k = 3", "k = 4"]
    assert "First rejection by k and position" in said(at)
    assert "Colour: verify steps truncated" in said(at)


def test_a_cliff(truncation, api, sample):
    def fallen(query):
        series = sample.truncation(query.get("by"))
        if query.get("by") == "scenario":
            series["points"][3] |= {"shape": "cliff", "cliff_at": 2}
        else:
            series["total"] |= {"shape": "cliff", "cliff_at": 3}
        return 200, series

    api.answers["truncation"] = fallen
    at = truncation.run()
    (warning,) = at.warning
    assert "in all, behind position 3; in scenario translate, behind position 2" in warning.value.replace("\\", "")
    lines = [[each for each in chart["layout"]["shapes"] if each["type"] == "line"] for chart in charts(at)]
    assert [[line["y0"] for line in chart] for chart in lines] == [[3.5], [-0.5]]


def test_requests_behind_a_cell(truncation, api):
    at = truncation.run()
    assert "choose a position, to see the requests" in said(at)
    assert not asked(api, "requests")
    at.selectbox(key="position").set_value("2").run()
    assert not at.exception
    whole = {"truncated_at": "2", "since": "2026-11-29T17:30:00Z", "until": "2026-11-29T18:30:00Z", "limit": "20"}
    assert asked(api, "requests") == [whole]
    assert "The newest 5 requests with a verify step truncated at position 2, 2026-11-29 17:30 to 18:30 UTC." in said(
        at
    )
    assert '<a href="requests?request=req-0&amp;since=' in behind(at)
    assert "requests?truncated_at=2&amp;since=2026-11-29T17%3A30%3A00Z&amp;until=" in behind(at)

    at.selectbox(key="step").set_value("2026-11-29T18:00:00Z").run()
    step = {"since": "2026-11-29T18:00:00Z", "until": "2026-11-29T18:01:00Z"}
    assert asked(api, "requests")[-1] == whole | step
    outlines = [each for each in charts(at)[0]["layout"]["shapes"] if each.get("line", {}).get("color") == "#FFFFFF"]
    assert [(each["x0"], each["y0"]) for each in outlines] == [("2026-11-29T18:00:00+00:00", 1.5)]

    at.selectbox(key="group").set_value("code").run()
    assert asked(api, "requests")[-1] == whole | step | {"scenario": "code"}
    at.segmented_control(key="by").set_value("model").run()
    assert asked(api, "requests")[-1] == whole | step, "another kind of group: that scenario is no model"


def test_a_chosen_cell_comes_from_the_address_and_stays(truncation, api):
    for name, value in {"position": "3", "step": "2026-11-29T12:00:00Z", "scenario": "chat"}.items():
        truncation.query_params[name] = value
    at = truncation.run()
    for _ in range(2):
        assert not at.exception
        query = asked(api, "requests")[-1]
        assert query["truncated_at"] == "3"
        assert query["since"] == "2026-11-29T12:00:00Z", "a step that the time range has left"
        assert query["scenario"] == "chat"
        at = at.run()


def test_what_is_chosen_outlasts_a_moment_without_answer(truncation, api, sample):
    chosen = {"position": "1", "step": "2026-11-29T18:00:00Z", "by": "k", "colour": "counts", "group": "4"}
    for name, value in chosen.items():
        truncation.query_params[name] = value
    at = truncation.run()
    well = api.answers["summary"]
    for answer in ((503, {"error": {"message": "no"}}), well):
        api.answers["summary"] = answer
        at.run()
        assert not at.exception
        assert dict(at.query_params) == chosen
    assert asked(api, "requests")[-1]["since"] == "2026-11-29T18:00:00Z"
    assert asked(api, "requests")[-1]["k"] == "4"
    assert len(charts(at)) == 2


def test_without_an_answer_there_is_nothing_to_choose(truncation, api):
    api.answers["summary"] = (503, {"error": {"message": "no"}})
    at = truncation.run()
    assert [box.label for box in at.selectbox] == ["Scenario"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("position", "eleven"), ("position", "²"), ("step", "yesterday"), ("by", "colour"), ("colour", "red")],
)
def test_what_an_address_cannot_mean_is_left_out(truncation, name, value):
    truncation.query_params[name] = value
    at = truncation.run()
    assert not at.exception
    assert len(charts(at)) == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, {"requests": [], "next_cursor": None}), "but no such request is kept"),
        ((200, {"requests": [], "next_cursor": "x"}), ">Look further on the page Requests</a>"),
        ((422, {"error": {"message": "truncated_at: unknown"}}), "The sidecar refused: 422"),
    ],
)  # fmt: skip
def test_no_requests_behind_a_cell(truncation, api, answer, words):
    api.answers["requests"] = answer
    truncation.query_params["position"] = "1"
    at = truncation.run()
    assert not at.exception
    assert words in said(at)
    assert len(charts(at)) == 2, "the rest of the page stays"


def test_a_refused_kind_of_group_says_why_in_its_place(truncation, api, sample):
    def refused(query):
        if query.get("by") == "model":
            return 400, {"error": {"message": "too many rows: window=6h would do"}}
        return 200, sample.truncation(query.get("by"))

    api.answers["truncation"] = refused
    truncation.query_params["by"] = "model"
    truncation.query_params["position"] = "1"
    truncation.query_params["group"] = "demo-target"
    at = truncation.run()
    assert not at.exception
    assert "window=6h would do" in said(at)
    assert len(charts(at)) == 1
    assert asked(api, "requests")[-1]["model"] == "demo-target"


def test_texts_of_others_stay_text(truncation, api, sample):
    bad = "*x* <b>y</b> $z$"
    series = sample.truncation("scenario")
    series["points"][3] |= {"group": bad, "shape": "cliff", "cliff_at": 1}
    api.answers["truncation"] = lambda query: (200, series if query.get("by") else sample.truncation())
    api.answers["requests"] = {"requests": [board.row(0, request_id=bad, scenario=bad)], "next_cursor": None}
    truncation.query_params["position"] = "1"
    truncation.query_params["group"] = bad
    at = truncation.run()
    assert not at.exception
    assert "<b>" not in behind(at)
    assert r"\*x\* \<b\>y" in at.markdown[0].value
    assert r"\*x\* \<b\>y" in at.warning[0].value
    assert any(r"\*x\* \<b\>y" in each.value for each in at.markdown[1:])


def test_positions_that_no_one_told(truncation, api, sample):
    point = sample.truncation_point(140, 1.0, drafted=0, positions=0)
    series = sample.truncation() | {"positions": 0, "total": point, "points": [], "first_position_share": None}
    api.answers["truncation"] = series
    at = truncation.run()
    assert not at.exception
    assert "Positions are not known" in said(at)
    assert values(at)["Truncation rate"] == "0.0 %"
    assert not charts(at)
