"""The page Quality, in Streamlit's own test harness and in a browser."""

import pytest
from support.apptest import charts, page_of, said, values
from support.html_tables import cells, links, table_of


@pytest.fixture
def page(api):
    return page_of("quality")


def without_pairs(api, sample, reason=None):
    def answer(query):
        state = sample.board.similarity_state() | {"reason": reason}
        state["draft"] = state["replay"]
        return 200, sample.board.similarity(query) | {"points": [], "last_100": state}

    api.answers["similarity"] = answer


def test_the_page_shows_similarities_and_flags(page, api):
    at = page.run()
    assert not at.exception
    assert values(at) == {
        "Similarity, last 100 pairs": "0.950",
        "Similarity in this time range": "0.930",
        "Critical pairs in this time range": "2.4 %",
        "Replays equal to the letter": "no data",
        "Repetition": "2.0 %",
        "Garble": "0.0 %",
        "p near one": "0.0 %",
    }
    assert all(metric.help for metric in at.metric)
    scenarios = cells(table_of(at, "Similarity by scenario, worst first"))
    assert [row[:2] for row in scenarios[1:]] == [
        ["translate", "✗ 0.780 warning"],
        ["code", "0.930"],
        ["chat", "0.960"],
    ]
    pairs = table_of(at, "Pairs of lowest similarity")
    assert [row[0] for row in cells(pairs)[1:]][:2] == ["✗ 0.510 critical", "✗ 0.570 critical"]
    assert links(pairs)[0].startswith("requests?reply_id=chatcmpl-0aa61d09b&")
    assert cells(table_of(at, "Replies that look broken, newest first"))[1][1] == "Repetition"
    assert len(charts(at)) == 2


def test_similarities_know_scenarios_and_no_models(page, api):
    page.query_params["scenario"] = "chat"
    page.query_params["model"] = "demo-target"
    at = page.run()
    assert "these are of all models, not of demo-target alone" in said(at)
    asked = [query for _, name, query, _ in api.seen if name.startswith("similarity")]
    assert len(asked) == 5
    assert all(query["scenario"] == "chat" and "model" not in query for query in asked)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("similarity is none: nothing is compared", "similarity: sentence-transformers"),
        ("engine_events is not set, so that no engine tells its drafts", "engine_events: /run/specwatch/events.sock"),
    ],
)
def test_nothing_is_compared(page, api, sample, reason, code):
    without_pairs(api, sample, reason)
    at = page.run()
    assert not at.exception
    assert f"No texts are compared. {reason[0].upper()}{reason[1:]}." in said(at).replace("**", "")
    assert code in said(at)
    assert "Similarity, last 100 pairs" not in values(at)
    assert values(at)["Repetition"] == "2.0 %", "flags need no similarity"


def test_no_pair_yet(page, api, sample):
    without_pairs(api, sample)
    at = page.run()
    assert "No pair was compared in the last 1 hour." in said(at)
    assert "`similarity_share`" in said(at)


def test_old_pairs_and_none_in_the_time_range(page, api, sample):
    api.answers["similarity"] = lambda query: (200, sample.board.similarity(query) | {"points": []})
    at = page.run()
    assert values(at)["Similarity, last 100 pairs"] == "0.950"
    assert values(at)["Similarity in this time range"] == "no data"
    assert "No pair was compared in the last 1 hour." in said(at)
    assert not charts(at)


def test_pairs_that_tell_no_scenario(page, api, sample):
    def answer(query):
        found = sample.board.similarity(query)
        for point in found["points"]:
            point["group"] = "unknown" if "by" in query else None
        return 200, found

    api.answers["similarity"] = answer
    assert "No pair of this time range tells its scenario." in said(page.run())


def test_no_engine_tells_its_tokens(page, api, sample):
    none = {"requests": 0, "recent": [], "flags": []}
    api.answers["quality"] = sample.board.quality() | none
    at = page.run()
    assert "No reply was looked at." in said(at)
    assert "engine_events: /run/specwatch/events.sock" in said(at)
    assert "Repetition" not in values(at)


def test_texts_are_shown_on_demand(page, api):
    api.answers["requests"] = lambda query: (200, {"requests": [api.answers["request"]], "next_cursor": None})
    texts = [{"kind": "prompt", "text": "**Hello** <b>", "cut": False}, {"kind": "reply", "text": "Hi", "cut": True}]
    api.answers["texts"] = {"texts": texts}
    at = page.run()
    assert "texts" not in [name for _, name, *_ in api.seen], "nobody has asked for them"
    at.selectbox(key="pair_read").set_value("chatcmpl-2aa61d09b").run()
    at.button(key="pair_show").click().run()
    assert not at.exception
    (asked,) = [query for _, name, query, _ in api.seen if name == "requests"]
    assert asked == {
        "reply_id": "chatcmpl-2aa61d09b",
        "since": "2026-11-29T17:07:00Z",
        "until": "2026-11-29T18:08:00Z",
        "limit": "1",
    }
    assert "/api/v1/requests/req-0/texts" in api.paths
    assert [code.value for code in at.code][:2] == ["**Hello** <b>", "Hi"]
    assert "Reply of chatcmpl-2aa61d09b (its beginning)" in said(at).replace("**", "")
    # What is shown stays when the page is drawn anew, and is not asked for again.
    at.run()
    assert [code.value for code in at.code][:2] == ["**Hello** <b>", "Hi"]
    assert [name for _, name, *_ in api.seen].count("texts") == 1
    at.button(key="pair_hide").click().run()
    assert "Hi" not in [code.value for code in at.code]


@pytest.mark.parametrize(
    ("requests", "texts", "told"),
    [
        (None, {"texts": []}, "`retention_days`"),
        (1, {"texts": []}, "`store_text`"),
        (1, (403, {"error": {"message": "this needs the token of admin_token"}}), "`SPECWATCH_ADMIN_TOKEN`"),
        (1, (404, {"error": {"message": "no request"}}), "answered 404"),
        (1, (503, {"error": {"message": "database unavailable"}}), "cannot read its database"),
    ],
)
def test_texts_that_cannot_be_had(page, api, requests, texts, told):
    rows = [api.answers["request"]] if requests else []
    api.answers["requests"] = lambda query: (200, {"requests": rows, "next_cursor": None})
    api.answers["texts"] = texts
    page.run()
    page.button(key="pair_show").click().run()
    assert not page.exception
    assert "No texts of chatcmpl-0aa61d09b." in said(page)
    assert told in said(page)


def test_the_choice_outlives_newer_pairs(page, api, sample):
    page.run()
    page.selectbox(key="pair_read").set_value("chatcmpl-2aa61d09b").run()
    pairs = sample.board.pairs()
    del pairs["pairs"][2]
    api.answers["similarity/pairs"] = pairs
    page.run()
    assert page.selectbox(key="pair_read").value == "chatcmpl-2aa61d09b"


def test_a_dashboard_that_only_reads_shows_no_texts(page, monkeypatch):
    monkeypatch.setenv("SPECWATCH_ADMIN_READ_TOKEN", "read-it")
    at = page.run()
    assert "shown to the control token alone" in said(at)
    assert "pair_show" not in {button.key for button in at.button}


def test_text_of_others_stays_text(page, api, sample):
    pairs, quality = sample.board.pairs(), sample.board.quality()
    pairs["pairs"][0] |= {"scenario": "<img src=x>", "reply_id": "<b>"}
    quality["recent"][0] |= {"evidence": "<i>", "request_id": '"><script>'}
    api.answers |= {"similarity/pairs": pairs, "quality": quality}
    at = page.run()
    html = table_of(at, "Pairs of lowest similarity") + table_of(at, "Replies that look broken, newest first")
    assert not any(tag in html for tag in ("<img", "<b>", "<i>", "<script>"))


def test_no_database(page, api):
    api.answers["similarity/histogram"] = (503, {"error": {"message": "database unavailable"}})
    at = page.run()
    assert "No figures: the database is unavailable." in said(at)
    assert not at.metric


def test_refused_scenarios_leave_the_rest(api, sample):
    refused = (422, {"error": {"message": "window: ask for window=600m"}})
    api.answers["similarity"] = lambda query: refused if "by" in query else (200, sample.board.similarity(query))
    api.answers["similarity/pairs"] = refused
    at = page_of("quality").run()
    assert not at.exception
    assert "Of so many pairs neither scenarios nor single ones are told." in said(at)
    assert "Similarity in this time range" in values(at)
