"""From drafts to HTML: what the draft proposed, token by token. Pure; no Streamlit, no network."""

from html import escape

from dashboard import shapes
from dashboard.frames.base import count, ratio, utc
from dashboard.words import NO_DATA

#: Of one reply; a page of ten longer ones would be slow to draw.
MOST_TOKENS = 400

STYLE = """<style>
.sw-tokens { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.75; font-size: .95rem; }
.sw-tokens span { border-radius: .2rem; }
.sw-rejected { text-decoration: line-through #D55E00 .14em; background: rgba(213,94,0,.22); padding: 0 .1rem; }
.sw-discarded { opacity: .5; text-decoration: line-through; }
.sw-instead { font-weight: 700; background: rgba(0,114,178,.22); padding: 0 .1rem; }
.sw-bonus { border-bottom: .16em solid #009E73; }
.sw-not_drafted { opacity: .6; border-bottom: .1em dotted; }
.sw-key span { margin-right: .15rem; } .sw-key { line-height: 2; }
.sw-request { overflow-wrap: anywhere; line-height: 1.5; } .sw-request b { font-size: 1.15rem; }
.sw-small { opacity: .7; font-size: .85rem; }
</style>"""

KEY = (
    '<div class="sw-key sw-small"><span>accepted</span> · <span class="sw-rejected">rejected draft token</span>'
    ' <span class="sw-instead">the target\'s own</span> · <span class="sw-discarded">discarded behind it</span>'
    ' · <span class="sw-bonus">bonus of the target</span> · <span class="sw-not_drafted">not drafted</span></div>'
)


def tokens(draft: shapes.Draft) -> str:
    """The reply as HTML, with what was proposed in its place."""
    positions = [each for step in draft.steps for each in step]
    parts = [_position(each) for each in positions[:MOST_TOKENS]]
    if more := len(positions) - MOST_TOKENS:
        parts.append(f'<span class="sw-small"> … {count(more, "more token")}</span>' if more > 0 else "")
    return f'<div class="sw-tokens">{"".join(parts)}</div>'


def _position(each: shapes.DraftPosition) -> str:
    drafted, emitted = _text(each.draft, each.draft_id), _text(each.target, each.target_id)
    if each.mark == "rejected":
        same = " The text is the target's own, by another id." if each.draft is not None and drafted == emitted else ""
        return _span("rejected", _seen(drafted), f"rejected draft token, id {each.draft_id}.{same}") + _span(
            "instead", _seen(emitted) if not emitted.strip() else emitted, f"the target's own, id {each.target_id}"
        )
    if each.mark == "discarded":
        return _span("discarded", _seen(drafted), f"discarded draft token, id {each.draft_id}")
    kind = each.mark.replace("_", " ")
    return _span(each.mark, emitted, f"{kind}, id {each.target_id}")


def _span(mark: str, text: str, told: str) -> str:
    return f'<span class="sw-{mark}" title="{escape(told)}">{escape(text)}</span>'


def _text(text: str | None, number: int | None) -> str:
    if text is not None:
        return text
    # Ids alone run into each other without a space.
    return " [not seen]" if number == -1 else f" [{number}]"


def _seen(text: str) -> str:
    """White space made visible: a struck-through line break would be nothing at all."""
    return text.replace("\n", "⏎") if text.strip(" ") else "␣" * len(text)


def heading(draft: shapes.Draft) -> str:
    """The request in one line of HTML: p first."""
    p = NO_DATA if draft.p is None else ratio(draft.p)
    share = f"{draft.accepted_tokens:,} of {count(draft.draft_tokens, 'draft token')} accepted"
    share = share if draft.draft_tokens else "nothing drafted"
    end = f"reply of {count(draft.output_tokens, 'token')}, ended by {escape(draft.finish_reason)}"
    at = f"{utc(draft.at):%H:%M:%S} UTC"
    return (
        f'<div class="sw-request"><b>p {p}</b> · {share} · {end}<br>'
        f'<span class="sw-small">{at} · {escape(draft.request_id)}</span></div>'
    )
