"""Tokenizers: one verdict of two grounds, moved tokens, and what to set where nothing is known."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.html_tables import cells
from support.payloads import law, no_nan, over_the_wire, texts
from support.tokenizer_report import report

from dashboard import shapes
from dashboard.frames import tokenizer_files as files
from dashboard.frames import tokenizers as frames
from dashboard.words import NO_DATA
from sidecar.api import models
from sidecar.probes.alignment import Alignment
from sidecar.probes.drafts import UNSEEN

MOVED = [("<|eot|>", 4, 5, 100), (None, 7, 8, 1)]


def alignment(sample, *moved, static=None, **changes):
    whole = sample.whole_alignment(*moved) | changes
    return msgspec.convert(whole | {"static": whole["static"] | (static or {})}, shapes.Alignment)


@pytest.mark.parametrize(
    ("live", "by_files", "verdict", "headline", "meaning"),
    [
        ("aligned", "aligned", "aligned", "Aligned: files and live traffic say so", "other reasons"),
        ("unknown", "aligned", "aligned", "Aligned: the files say so", "other reasons"),
        ("aligned", "unknown", "aligned", "Aligned: live traffic says so, and the files do not tell", "other reasons"),
        ("unknown", "unknown", "unknown", "Cannot tell", "what it takes"),
        ("misaligned", "misaligned", "misaligned", "Misaligned", "Where such a token comes next"),
        ("misaligned", "aligned", "misaligned", "Misaligned", "The files agree, so it is the draft's weights"),
        ("misaligned", "unknown", "misaligned", "Misaligned", "Where such a token comes next"),
        ("aligned", "misaligned", "misaligned", "Misaligned", "no right guess was seen to be lost so far"),
        ("unknown", "misaligned", "misaligned", "Misaligned", "no right guess was seen to be lost so far"),
    ],
)
def test_one_verdict_of_two_grounds(sample, live, by_files, verdict, headline, meaning):
    found = frames.judged(alignment(sample, state=live, static={"verdict": by_files}))
    assert found.verdict == verdict
    assert found.headline.startswith(headline)
    assert meaning in found.meaning
    assert ("specwatch swap" in found.meaning) == (verdict == "misaligned")
    assert [ground for _, ground, _ in found.grounds] == [by_files, live]


def test_the_grounds_say_why(sample):
    reasons = {"verdict": "unknown", "severity": None, "sentences": ["/m: holds no tokenizer.json"]}
    found = frames.judged(alignment(sample, reason="the tokenizers are being read", static=reasons))
    assert [why for *_, why in found.grounds] == ["/m: holds no tokenizer.json.", "The tokenizers are being read."]
    found = frames.judged(alignment(sample, static={"severity": "warning", "sentences": ["One."]}))
    assert found.grounds[0][2] == "Severity warning: costs some acceptance at most."


@pytest.mark.parametrize(
    ("reason", "words", "yaml"),
    [
        (models.NO_ALIGNMENT.reason, "engine's plugin tells its drafts", "engine_events:"),
        (Alignment().state()[1], "with the first request that ends", ""),
        ("the engine does not name its models: set target_tokenizer, draft_tokenizer", "files of both", "target_tok"),
        ("/m: no such folder here; name it in target_tokenizer or draft_tokenizer", "files of both", "target_tok"),
        ("/m: holds no tokenizer.json, only tokenizer.model, which Specwatch does not read", "files of", "target_tok"),
        ("the engine does not speculate", "--speculative-config", ""),
        ("12 draft positions were looked at, 1000 are needed", "some more requests", ""),
        (UNSEEN, "the check of the files is all there is", ""),
        ("the tokenizers are being read", "some seconds", ""),
        ("the files are being compared", "some seconds", ""),
        ("anything else", "", ""),
    ],
)
def test_what_to_do_where_nothing_is_known(reason, words, yaml):
    found = frames.remedy(reason)
    assert words in found.words
    assert found.yaml.startswith(yaml)
    assert bool(found.yaml) == bool(yaml)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<|eot|>", "'<|eot|>'"),
        (" a", "'␣a'"),
        ("\n\t\r", "'⏎⇥␍'"),
        ("\x00\u200b", r"'\x00\u200b'"),
        ("北京", "'北京'"),
        ("", "''"),
        (None, "text not known"),
    ],
)
def test_the_text_of_a_token_is_visible(text, shown):
    assert frames.visible(text) == shown


def test_moved_tokens(sample):
    found = alignment(sample, *MOVED)
    found.moved[0].draft_text = "<b>"
    found.moved[0].kind = "neighbour"
    table = frames.moved_table(found.moved)
    rows = cells(table)
    assert rows[1] == [
        "'<|eot|>', in the draft '<b>'",
        "4",
        "5 (+1)",
        "100",
        "90.0 %",
        *["2026-11-29 18:30:00"] * 2,
        "the draft's weights do: they were trained on ids moved by one",
    ]
    assert rows[2][0] == "text not known"
    assert "<b>" not in table


def test_tiles(sample):
    found = alignment(sample, *MOVED, static={"share_at_moved": 0.0123, "unknown_ids": 2})
    assert [(tile.label, tile.value) for tile in frames.tiles(found)] == [
        ("Same text, other id", "101"),
        ("Moved tokens", "2"),
        ("Lost at moved tokens", "1.2 %"),
        ("Unknown ids", "2"),
    ]
    none = msgspec.convert(models.NO_ALIGNMENT.model_dump(mode="json"), shapes.Alignment)
    assert [tile.value for tile in frames.tiles(none)] == [NO_DATA] * 4
    assert "Of 6,000 rejections at 30,000 draft positions in 473 requests." in frames.tiles(found)[0].note


def test_the_command_is_safe_to_paste(sample):
    found = alignment(sample, target_model="/models/my target", draft_model=None)
    assert frames.check_command(found) == "specwatch tokenizers '/models/my target' DRAFT"
    assert frames.models_line(found).startswith(
        "Target model: /models/my target · draft model: not known · counted since"
    )


def test_the_report_of_the_files(sample):
    static = alignment(sample, static={"report": report()}).static
    found = files.report_of(static)
    assert files.findings(static, found)[0][0] == "high: right guesses are rejected"
    assert [row[-1] for row in cells(files.counts_table(found))] == ["by another id", "0", "✗ 1"]
    assert dict(cells(files.facts_table(found))[1:]) == {
        "The draft can propose of the target's tokens": "99.99 %",
        "The same of the tokens of the probe texts": NO_DATA,
        "Probe texts that both split alike": "4 of 5",
        "Ids moved by": "+1 (1 token)",
        "First id that stands for another token": "4",
        "vocab_size": "2,048 in the target, not known in the draft",
        "Ids without a token": "0 in the target, 1 in the draft",
    }
    assert cells(files.other_ids_table(found))[1] == ["'<|eot|>'", "4", "5 (+1)", "special"]


def test_a_report_of_another_version_is_left_out(sample):
    static = alignment(sample, static={"report": report() | {"texts": "many"}, "sentences": ["One."]}).static
    assert files.report_of(static) is None
    assert files.findings(static, None) == [("", "One.")]


# The law, on any payload that the API can give.

WORDS = st.none() | st.sampled_from(["chat", "<b>", "", "\n"])
REPORTS = st.none() | st.dictionaries(st.just("texts"), st.integers()) | st.just(report())
MOVED_TOKENS = st.builds(models.MovedToken, target_text=WORDS, draft_text=WORDS)
STATIC = st.builds(models.StaticCheck, report=REPORTS, sentences=st.lists(st.just("one"), max_size=2))


@law
@given(
    st.builds(
        models.Alignment,
        reason=WORDS.filter(bool),
        moved=st.lists(MOVED_TOKENS, max_size=4),
        static=STATIC,
        target_model=WORDS,
        draft_model=WORDS,
    )
)
def test_any_alignment(model):
    found = over_the_wire(model, shapes.Alignment)
    verdict = frames.judged(found)
    no_nan(*texts(frames.tiles(found)), verdict.headline, verdict.meaning, *(why for *_, why in verdict.grounds))
    no_nan(frames.check_command(found), frames.models_line(found))
    no_nan(*(text for row in cells(frames.moved_table(found.moved)) for text in row))
    told = files.report_of(found.static)
    assert (told is None) == (found.static.report is None or "findings" not in found.static.report)
    files.findings(found.static, told)
