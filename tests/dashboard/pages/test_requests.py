"""Requests, in Streamlit's own test harness."""

import io

import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from support import board
from support.apptest import charts, page_of, said, values

from dashboard.frames import export
from dashboard.pages import export as export_page


def asked(api, name="requests"):
    return [query for _, each, query, _ in api.seen if each == name]


def opened(request_id="req-0", **params):
    at = page_of("requests")
    for name, value in ({"request": request_id} | params).items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


def test_the_table(api):
    at = page_of("requests").run()
    assert not at.exception
    (frame,) = (each.value for each in at.dataframe)
    assert list(frame["request id"]) == ["req-0", "req-1", "req-2", "req-3", "req-4"]
    assert list(frame["outcome"])[1] == "client_abort"
    assert list(frame["latency"].isna()) == [False, True, False, False, False]
    (query,) = asked(api)
    assert query.keys() == {"since", "limit"}
    assert not charts(at)


def test_filters_come_from_the_url_and_go_to_the_api(api):
    filters = {
        "outcome": "client_abort",
        "arm": "probe",
        "truncated_at": "3",
        "latency_over_ms": "1234567.25",
        "p_below": "0.5",
        "k": "3",
        "reply_id": "chatcmpl-1",
    }
    at = page_of("requests")
    for name, value in ({"scenario": "code", "window": "6h"} | filters).items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    (query,) = asked(api)
    assert {name: query[name] for name in filters} == filters
    assert query["scenario"] == "code"
    at.number_input(key="p_below").set_value(0.25).run()
    assert asked(api)[-1]["p_below"] == "0.25"


def test_a_held_time_range(api):
    held = {"since": "2026-11-29T02:10:00Z", "until": "2026-11-29T02:40:00Z"}
    at = page_of("requests")
    at.query_params.update(held)
    at.run()
    assert asked(api)[0].items() >= held.items()


def test_rows_stay_until_the_reader_asks(api):
    at = page_of("requests").run()
    at.run()
    assert len(asked(api)) == 1
    at.button(key="requests_older").click().run()
    assert list(at.dataframe[0].value["request id"]) == ["req-5", "req-6", "req-7"]
    assert asked(api)[1]["cursor"] == "second"
    assert asked(api)[1]["since"] == asked(api)[0]["since"], "pages are of one time range"
    assert at.button(key="requests_older").disabled
    at.button(key="requests_newer").click().run()
    assert at.dataframe[0].value["request id"].iloc[0] == "req-0"
    at.button(key="requests_reload").click().run()
    assert len(asked(api)) == 4
    assert "cursor" not in asked(api)[-1]


def test_pages_without_rows(api):
    """The sidecar looks at so many rows for an answer: there may be more behind an empty one."""

    def page(query):
        number = int(query.get("cursor", "0"))
        return 200, {"requests": [board.row(7)] if number == 3 else [], "next_cursor": str(number + 1)}

    api.answers["requests"] = page
    at = page_of("requests").run()
    assert len(asked(api)) == 4
    assert list(at.dataframe[0].value["request id"]) == ["req-7"]
    assert "looks at 200,000 requests at a time" in said(at)
    at.button(key="requests_older").click().run()
    assert not at.dataframe
    assert "None so far." in said(at)
    assert "Up to 1,000,000 requests were looked at" in said(at)
    assert not at.button(key="requests_older").disabled
    at.button(key="requests_older").click().run()
    assert asked(api)[-1]["cursor"] == "13"


@pytest.mark.parametrize(
    ("params", "words"),
    [({}, "No requests in the last 1 hour."), ({"outcome": "timeout"}, "No such request in the last 1 hour.")],
)
def test_no_requests(api, params, words):
    api.answers["requests"] = {"requests": [], "next_cursor": None}
    at = page_of("requests")
    at.query_params.update(params)
    at.run()
    assert not at.exception
    assert words in said(at)
    assert not at.dataframe


def test_no_answer(api):
    api.answers["requests"] = (503, {"error": {"message": "database unavailable"}})
    assert "No figures: the database is unavailable." in said(page_of("requests").run())
    api.answers["requests"] = (422, {"error": {"message": "truncated_at: unknown parameter"}})
    assert "truncated_at: unknown parameter" in said(page_of("requests").run())


# One request


def test_one_request(api):
    at = opened()
    assert values(at) == {
        "Acceptance rate p": "0.600",
        "Mean acceptance length": "3.25",
        "Latency": "512 ms",
        "TTFT": "41.0 ms",
        "TPOT": "36.2 ms",
    }
    text = said(at)
    assert "4 steps: 2 with every draft token accepted, 2 truncated" in text
    assert 'title="step 2: 2 of 4 draft tokens accepted, the next rejected, 1 discarded behind it"' in text
    assert 'href="requests?request=req-0&amp;since=2026-11-29T18%3A22%3A01Z&amp;until=2026-11-29T18%3A27%3A01Z"' in text
    tables = [frame.value for frame in at.dataframe]
    positions = next(table for table in tables if "hazard" in table)
    assert list(positions["hazard"]) == ["25.0 %", "0.0 %", "33.3 %", "0.0 %"]
    assert not charts(at)
    at.button(key="request_close").click().run()
    assert not at.metric
    assert at.text_input(key="request").value == ""


def test_a_held_link_opens_the_request_of_that_time(api):
    opened(since="2026-11-29T18:22:01Z", until="2026-11-29T18:27:01Z")
    assert asked(api, "request") == [{"until": "2026-11-29T18:27:01Z"}]
    assert "/api/v1/requests/req-0" in api.paths


def test_no_such_request(api):
    api.answers["request"] = (404, {"error": {"message": "no request 'x' is recorded"}})
    at = opened("x")
    assert "No such request was found." in said(at)
    assert "no request 'x' is recorded" in said(at)
    assert not at.error
    assert len(at.dataframe) == 1, "the others are there all the same"


def test_a_request_without_steps_has_its_histogram(api):
    api.answers["request"] = board.row(steps=None, acceptance_source="response")
    at = opened()
    assert "which tells no single steps" in said(at)
    (chart,) = charts(at)
    assert chart["data"][0]["y"] == [1, 0, 1, 1, 1]


def test_a_request_without_figures(api):
    api.answers["request"] = board.row(**board.PLAIN)
    at = opened()
    assert values(at)["Acceptance rate p"] == "no data"
    assert "It was served without speculation (arm autoregressive)" in said(at)
    assert not charts(at)
    assert not asked(api, "drafts")


def test_steps_that_cannot_be_read(api):
    api.answers["request"] = board.row(steps="4x5")
    at = opened()
    assert "cannot be read: its 3 digits are no pairs" in said(at)
    assert len(charts(at)) == 1


def test_more_steps_than_are_kept(api):
    api.answers["request"] = board.row(steps="42" * 1024, verify_steps=1100)
    assert "The first 1,024 steps; 76 more steps followed." in said(opened())


def test_its_tokens_while_they_are_kept(api, sample):
    api.answers["drafts"] = {
        "drafts": [sample.draft([sample.position("rejected", " no", " yes")], request_id="chatcmpl-0aa61d09b")]
    }
    assert " no</span>" in said(opened())
    api.answers["drafts"] = {"drafts": []}
    assert "no longer kept: the sidecar has the last 0 drafts" in said(opened())
    api.answers["drafts"] = (409, {"error": {"message": "recent_drafts: no drafts are kept"}})
    text = said(opened())
    assert "`recent_drafts` is not set" in text


def test_texts_only_on_demand(api):
    api.answers["texts"] = {
        "texts": [{"kind": "prompt", "text": "**Hi**", "cut": False}, {"kind": "reply", "text": "<b>", "cut": True}]
    }
    at = opened()
    assert not asked(api, "texts")
    at.button(key="request_texts").click().run()
    assert asked(api, "texts") == [{"until": "2026-11-29T18:27:00.000001Z"}]
    assert [code.value for code in at.code] == ["**Hi**", "<b>"]
    assert "**Reply** (cut)" in said(at)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"texts": []}, "No texts are stored of this request"),
        ((403, {"error": {"message": "the token of admin_read_token only reads"}}), "only reads"),
        ((409, {"error": {"message": "store_text is off"}}), "store_text is off"),
        ((404, {"error": {"message": "no request 'req-0' is recorded"}}), "is recorded"),
        ((503, {"error": {"message": "database unavailable"}}), "the database is unavailable"),
    ],
)
def test_no_texts(api, answer, words):
    api.answers["texts"] = answer
    at = opened()
    at.button(key="request_texts").click().run()
    assert not at.exception
    assert words in said(at)
    assert values(at)["Latency"] == "512 ms"


def test_no_texts_with_the_token_that_only_reads(api, monkeypatch):
    monkeypatch.setenv("SPECWATCH_ADMIN_READ_TOKEN", "r")
    at = opened()
    assert "Stored texts are for the control token" in said(at)
    assert not [button for button in at.button if button.key == "request_texts"]


def test_texts_of_others_stay_text(api):
    api.answers["request"] = board.row(scenario="**a**", request_id="<i>[x](y)", model="<script>")
    at = opened("<i>[x](y)")
    assert any(r"\<i\>\[x\]\(y\)" in markdown.value for markdown in at.markdown)
    assert any(r"\*\*a\*\*" in caption.value for caption in at.caption)
    assert "<dd>&lt;script&gt;</dd>" in said(at)


# Files


def downloads(at):
    return {each.proto.label.split()[1]: each for each in at.get("download_button")}


def data_of(at, kind):
    return getattr(at.session_state["export_kept"], kind)


def test_a_file_of_what_the_filters_select(api):
    at = page_of("requests")
    at.query_params["outcome"] = "ok"
    at.run()
    assert not downloads(at)
    at.button(key="export_make").click().run()
    assert not at.exception
    assert set(downloads(at)) == {"CSV", "Parquet"}
    assert "8 requests, as of" in said(at)
    pages = asked(api)[1:]
    assert [query.get("cursor") for query in pages] == [None, "second"]
    assert all(query["outcome"] == "ok" and query["since"] == asked(api)[0]["since"] for query in pages)
    table = csv.read_csv(io.BytesIO(data_of(at, "csv")))
    assert table["request_id"].to_pylist() == [f"req-{number}" for number in range(8)]
    table = parquet.read_table(io.BytesIO(data_of(at, "parquet")))
    assert table.schema.field("started_at").type == pa.timestamp("us", "UTC")
    assert table["reached"].to_pylist()[0] == [4, 3, 3, 2]
    # Of other filters it says nothing.
    at.selectbox(key="outcome").set_value("timeout").run()
    assert not downloads(at)


def test_a_file_is_cut_and_says_so(api, monkeypatch):
    monkeypatch.setattr(export, "MOST_ROWS", 7)
    at = page_of("requests").run()
    at.button(key="export_make").click().run()
    # The scripted pages take no limit.
    assert [query["limit"] for query in asked(api)[1:]] == ["7", "2"]

    def endless(query):
        return 200, {"requests": [board.row(n) for n in range(int(query["limit"]))], "next_cursor": "more"}

    api.answers["requests"] = endless
    at = page_of("requests").run()
    at.button(key="export_make").click().run()
    assert "There are more" in said(at)
    assert "specwatch db export" in said(at)
    assert len(csv.read_csv(io.BytesIO(data_of(at, "csv")))) == 7


def test_a_file_of_answers_without_rows_comes_to_an_end(api, monkeypatch):
    monkeypatch.setattr(export_page, "MOST_ANSWERS", 3)
    api.answers["requests"] = {"requests": [], "next_cursor": "more"}
    at = page_of("requests").run()
    before = len(asked(api))
    at.button(key="export_make").click().run()
    assert len(asked(api)) - before == 3
    assert "There are more" in said(at)
