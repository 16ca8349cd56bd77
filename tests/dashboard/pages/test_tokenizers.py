"""The page Tokenizers, in Streamlit's own test harness and in a browser."""

import pytest
from support.apptest import page_of, said, values
from support.html_tables import cells, table_of
from support.tokenizer_report import MOVED

from sidecar.api import models


@pytest.fixture
def page(api):
    return page_of("tokenizers")


def test_aligned(page, api):
    page.query_params["scenario"] = "chat"
    at = page.run()
    assert not at.exception
    assert [box.value.partition(".")[0] for box in at.success] == ["**Aligned: files and live traffic say so"]
    assert "By live traffic: **✓ aligned**. Told by the engine's events." in said(at)
    assert "Target model: demo-target · draft model: demo-draft · counted since 2026-11-29 13:30:00 UTC" in said(at)
    assert "specwatch tokenizers demo-target demo-draft" in said(at)
    assert values(at) == {
        "Same text, other id": "0",
        "Moved tokens": "0",
        "Lost at moved tokens": "0.0 %",
        "Unknown ids": "0",
    }
    assert all(metric.help for metric in at.metric)
    assert "None was seen." in said(at)
    assert [query for _, name, query, _ in api.seen if name == "alignment"] == [{}], "neither time nor names narrow it"
    assert at.selectbox(key="scenario").disabled


def test_misaligned(page, api, sample):
    api.answers["alignment"] = sample.misaligned()
    at = page.run()
    assert not at.exception
    assert [box.value.partition(".")[0] for box in at.error] == [
        "**Misaligned: draft and target know tokens by different ids"
    ]
    assert "specwatch swap FOLDER" in said(at)
    assert "Severity high: right guesses are rejected." in said(at)
    moved = cells(table_of(at, "Tokens that have another id in the draft"))
    assert [row[:4] for row in moved[1:]] == [["'<|eot|>'", "4", "5 (+1)", "100"], ["'⏎'", "7", "8 (+1)", "12"]]
    assert MOVED.sentence in said(at)
    assert cells(table_of(at, "Tokens of both models"))[2][-1] == "✗ 1"
    assert cells(table_of(at, "Tokens that have another id in the draft, by the files"))[1][0] == "'<|eot|>'"
    assert values(at)["Lost at moved tokens"] == "1.2 %"


def test_no_engine_tells_its_drafts(page, api):
    api.answers["alignment"] = models.NO_ALIGNMENT.model_dump(mode="json")
    at = page.run()
    assert not at.exception
    assert [box.value.partition(".")[0] for box in at.warning] == [
        "**Cannot tell whether draft and target know the tokens by the same ids"
    ]
    assert [code.value.partition(":")[0] for code in at.code] == ["engine_events", "specwatch tokenizers TARGET DRAFT"]
    assert set(values(at).values()) == {"no data"}
    assert "None is known." in said(at)
    assert "Nothing, for the reason above." in said(at)


def test_files_that_cannot_be_read(page, api, sample):
    reason = "/models/t: no such folder here; name it in target_tokenizer or draft_tokenizer"
    found = sample.whole_alignment() | {"state": "unknown", "reason": reason, "same_text_other_id": 0}
    found["static"] |= {"verdict": "unknown", "severity": None, "sentences": [reason], "unknown_ids": None}
    api.answers["alignment"] = found
    at = page.run()
    assert at.code[0].value.startswith("target_tokenizer: /models/target")
    assert len(at.code) == 2, "one remedy for both"
    assert f"By the files of both tokenizers: **? cannot tell**. {reason}." in said(at)


def test_text_of_others_stays_text(page, api, sample):
    found = sample.misaligned()
    found["moved"][0] |= {"target_text": "<img src=x>", "draft_text": "<img src=x>"}
    found["static"] |= {"report": None, "sentences": ["'**x**' is `y`"]}
    api.answers["alignment"] = found
    at = page.run()
    assert "<img" not in table_of(at, "Tokens that have another id in the draft")
    assert any(r"'\*\*x\*\*' is \`y\`" in markdown.value for markdown in at.markdown)


def test_no_sidecar_answer(page, api):
    api.answers["alignment"] = (401, {"error": {"message": "missing bearer token"}})
    at = page.run()
    assert "SPECWATCH_ADMIN_TOKEN" in said(at)
    assert not at.metric
