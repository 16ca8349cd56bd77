"""Drafts as HTML: every token in its place, and none of its text taken for HTML."""

import html
import re

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dashboard import shapes
from dashboard.frames import drafts

MARKS = ("accepted", "rejected", "discarded", "bonus", "not_drafted")
texts = st.none() | st.text(max_size=6) | st.sampled_from(("<b>", "&amp;", "\n", "  ", '"', "你"))
ids = st.none() | st.just(-1) | st.integers(0, 200_000)
positions = st.builds(
    shapes.DraftPosition, mark=st.sampled_from(MARKS), draft_id=ids, draft=texts, target_id=ids, target=texts
)


def of(sample, *steps, **changes):
    return msgspec.convert(sample.draft(*steps, **changes), shapes.Draft)


def test_each_mark(sample):
    at = sample.position
    steps = [
        [at("accepted", " a", " a"), at("rejected", " b", " c"), at("discarded", " d", None)],
        [at("accepted", " e", " e"), at("bonus", None, " f")],
        [at("not_drafted", None, "\n")],
    ]
    found = re.findall(r'<span class="sw-(\w+)" title="([^"]*)">([^<]*)</span>', drafts.tokens(of(sample, *steps)))
    assert [(mark, text) for mark, _, text in found] == [
        ("accepted", " a"),
        ("rejected", " b"),
        ("instead", " c"),
        ("discarded", " d"),
        ("accepted", " e"),
        ("bonus", " f"),
        ("not_drafted", "\n"),
    ]
    assert found[1][1] == f"rejected draft token, id {1000 + ord(' ') + ord('b')}."
    assert found[6][1] == f"not drafted, id {1000 + ord(chr(10))}"


def test_the_targets_own_token_by_another_id_is_told(sample):
    step = [sample.position("rejected", "<|eot|>", "<|eot|>")]
    assert "id 1698. The text is the target&#x27;s own, by another id." in drafts.tokens(of(sample, step))


def test_what_has_no_look_is_made_visible(sample):
    at = sample.position
    shown = drafts.tokens(of(sample, [at("rejected", "\n\n", "  ")], [at("discarded", " ", None)]))
    assert [">⏎⏎<" in shown, ">␣␣<" in shown, ">␣<" in shown] == [True] * 3
    unknown = {"mark": "rejected", "draft_id": -1, "draft": None, "target_id": 7, "target": None}
    assert "[not seen]" in drafts.tokens(of(sample, [unknown]))
    assert "[7]" in drafts.tokens(of(sample, [unknown]))


def test_long_replies_are_cut(sample):
    step = [sample.position("accepted", "a", "a")] * (drafts.MOST_TOKENS + 1)
    assert drafts.tokens(of(sample, step)).count("<span") == drafts.MOST_TOKENS + 1
    assert "1 more token<" in drafts.tokens(of(sample, step))


def test_the_heading_of_a_request(sample):
    accepted = sample.position("accepted", "a", "a")
    made = of(sample, [accepted, sample.position("rejected", "b", "c")], request_id="<i>", finish_reason="<b>")
    assert "<b>p 0.500</b> · 1 of 2 draft tokens accepted · reply of 2 tokens, ended by &lt;b&gt;" in drafts.heading(
        made
    )
    assert "&lt;i&gt;" in drafts.heading(made)


@given(st.lists(st.lists(positions, max_size=5), max_size=5))
def test_no_text_is_taken_for_html(steps):
    draft = shapes.Draft(
        request_id="",
        at=msgspec.convert("2026-01-01T00:00:00Z", type=shapes.datetime),
        finish_reason="",
        output_tokens=0,
        draft_tokens=0,
        accepted_tokens=0,
        p=None,
        draft_text=None,
        final_text=None,
        reason=None,
        steps=steps,
    )
    made = drafts.tokens(draft)
    tags = re.findall(r"<[^>]*>", made)
    assert all(re.fullmatch(r'</?(div|span)( class="sw-[\w-]+")?( title="[^"<>]*")?>', tag) for tag in tags)
    for step in steps:
        for each in step:
            if each.mark == "accepted" and each.target is not None:
                assert f">{html.escape(each.target)}</span>" in made


def spans(html):
    return re.findall(r'<span class="sw-(\w+)" title="([^"]*)">([^<]*)</span>', html)


def test_a_character_of_several_tokens_stands_whole(sample):
    at = sample.position
    steps = [
        [at("accepted", r"\xe4\xbd", r"\xe4\xbd"), at("accepted", r"\xa0", r"\xa0"), at("bonus", None, "!")],
        [at("accepted", r"\xe4\xbd", r"\xe4\xbd"), at("rejected", r"\xa0", r"\xa5"), at("discarded", r"\xe4", None)],
    ]
    draft = of(sample, *steps, draft_text="你!你", final_text="你!佥")
    html = drafts.tokens(draft)
    ids = [1000 + sum(map(ord, text)) for text in (r"\xe4\xbd", r"\xa0")]
    assert spans(html) == [
        ("accepted", f"accepted, parts of a character, ids {ids[0]}, {ids[1]}", "你"),
        ("bonus", f"bonus, id {1000 + ord('!')}", "!"),
        ("accepted", f"accepted, id {ids[0]}", "◌"),
        ("rejected", f"rejected draft token, id {ids[1]}.", "你"),
        ("instead", f"the target&#x27;s own, id {1000 + sum(map(ord, r'xa5' + chr(92)))}", "佥"),
        ("discarded", f"discarded draft token, id {1000 + sum(map(ord, r'xe4' + chr(92)))}", r"\xe4"),
    ]
    said = drafts.marks(html)
    assert "◌: the token holds a part of a character" in said
    assert "bytes of a part of a character" in said
    assert drafts.marks(drafts.tokens(of(sample, [at("accepted", "a", "a")]))) == ""


def test_bytes_that_the_model_wrote_are_left_alone(sample):
    at = sample.position
    step = [at("accepted", r"\xe4", r"\xe4"), at("bonus", None, r"\xbd\xa0")]
    for whole in (r"b'\xe4\xbd\xa0'", None):
        html = drafts.tokens(of(sample, step, draft_text=whole, final_text=whole))
        assert [text for *_, text in spans(html)] == [r"\xe4", r"\xbd\xa0"]
