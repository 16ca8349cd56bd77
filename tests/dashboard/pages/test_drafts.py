"""Drafts, in Streamlit's own test harness."""

from support.apptest import page_of, said


def test_drafts(api):
    at = page_of("drafts").run()
    assert not at.exception
    text = said(at)
    assert "What the draft model proposed for the last 10 requests" in text
    assert "Of older requests the page Requests shows the verify steps" in text
    assert ("GET", "drafts", {"limit": "10"}, None) in api.seen
    assert "<b>p 0.647</b> · 11 of 17 draft tokens accepted · reply of 16 tokens, ended by stop" in text
    assert "p no data</b> · nothing drafted" in text
    assert "The engine could not see the draft ids." in text
    assert " higher</span>" in text
    assert [text.value for text in at.text][:2] == [
        "Your May bill is higher.50 euros, which\n 5 more.<|eot|>",
        "Your May bill is 43.50 euros, which is 5 more.<|eot|>",
    ]
    assert not at.error


def test_names_that_are_without_effect_are_kept_and_not_asked_for(api):
    page = page_of("drafts")
    page.query_params["scenario"] = "code"
    at = page.run()
    assert [name for _, name, _, _ in api.seen] == ["alignment", "drafts"]
    (box,) = at.selectbox
    assert (box.value, box.disabled) == ("code", True)


def test_no_drafts(api):
    api.answers["drafts"] = (409, {"error": {"message": "recent_drafts: no drafts are kept"}})
    text = said(page_of("drafts").run())
    assert "No drafts are kept." in text
    assert "recent_drafts: 50" in text
    api.answers["drafts"] = {"drafts": []}
    assert "No drafts yet." in said(page_of("drafts").run())
    api.answers["drafts"] = (500, {"error": {"message": "it broke"}})
    assert "The sidecar gave no figures." in said(page_of("drafts").run())


def test_characters_of_several_tokens(api, sample):
    at = sample.position
    step = [at("accepted", r"\xe4\xbd", r"\xe4\xbd"), at("rejected", "x", r"\xa0")]
    api.answers["drafts"] = {"drafts": [sample.draft(step, draft_text="x", final_text="你")]}
    text = said(page_of("drafts").run())
    assert ">◌</span>" in text
    assert ">你</span>" in text
    assert "◌: the token holds a part of a character, and the next one of the reply the rest." in text
