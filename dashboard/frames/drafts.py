"""From drafts to HTML: what the draft proposed, token by token. Pure; no Streamlit, no network."""

import itertools
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from dashboard import shapes
from dashboard.frames.base import count, ratio, utc
from dashboard.frames.characters import MOST_PARTS, Piece, escaped, join
from dashboard.words import NO_DATA

#: Of one reply; a page of ten longer ones would be slow to draw.
MOST_TOKENS = 400
#: Stands for a part of a character.
PART = "◌"

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


class _Shown(NamedTuple):
    """Tokens that stand as one: one, or the parts of a character that are marked alike."""

    mark: str
    words: str
    ids: tuple[int | None, ...]
    text: str
    #: Whether it ends within a character that another token completes.
    open: bool = False
    more: str = ""


def tokens(draft: shapes.Draft) -> str:
    """The reply as HTML, with what was proposed in its place."""
    positions = [each for step in draft.steps for each in step]
    shown: list[_Shown] = []
    for each in _shown(positions[:MOST_TOKENS], whole=_tellable(draft)):
        last = shown[-1] if shown else None
        if last is not None and last.open and last.mark == each.mark:
            shown[-1] = each._replace(ids=last.ids + each.ids, text=last.text + each.text)
        else:
            shown.append(each)
    parts = [_span(each) for each in shown]
    if more := len(positions) - MOST_TOKENS:
        parts.append(f'<span class="sw-small"> … {count(more, "more token")}</span>' if more > 0 else "")
    return f'<div class="sw-tokens">{"".join(parts)}</div>'


def marks(shown: str) -> str:
    """What is meant by marks within `tokens`, in Markdown; empty where there is none."""
    said = []
    if PART in shown:
        said.append(f"{PART}: the token holds a part of a character, and the next one of the reply the rest.")
    if escaped(shown):
        said.append("`\\x…`: bytes of a part of a character that no token completes, or so written by the model.")
    return " ".join(said)


def _tellable(draft: shapes.Draft) -> bool:
    """Whether what looks like bytes is bytes: the whole text, which is told as it is, holds no such thing."""
    return draft.final_text is not None and not any(map(escaped, (draft.final_text, draft.draft_text or "")))


def _shown(positions: Sequence[shapes.DraftPosition], *, whole: bool) -> Iterator[_Shown]:
    kept = [at for at, each in enumerate(positions) if each.mark != "discarded"]
    joined = join if whole else _apart
    emitted = dict(zip(kept, joined([positions[at].target for at in kept]), strict=True))
    drafted: dict[int, Piece] = {}
    for number, at in enumerate(kept):
        if positions[at].mark == "rejected":
            behind = itertools.takewhile(lambda i: positions[i].mark == "discarded", range(at + 1, len(positions)))
            branch = [at, *behind]
            before = [positions[i].target for i in kept[max(0, number - MOST_PARTS) : number]]
            pieces = joined([*before, *(positions[i].draft for i in branch)])
            drafted |= zip(branch, pieces[len(before) :], strict=True)
    for at, each in enumerate(positions):
        yield from _position(each, emitted.get(at, Piece("")), drafted.get(at, Piece(each.draft or "")))


def _apart(texts: Sequence[str | None]) -> list[Piece]:
    return [Piece(text or "") for text in texts]


def _position(each: shapes.DraftPosition, emitted: Piece, drafted: Piece) -> Iterator[_Shown]:
    put = emitted.text if each.target is not None else _unknown(each.target_id)
    proposed = drafted.text if each.draft is not None else _unknown(each.draft_id)
    if each.mark == "rejected":
        same = each.draft is not None and each.draft == each.target
        more = "." + (" The text is the target's own, by another id." if same else "")
        yield _Shown("rejected", "rejected draft token", (each.draft_id,), _seen(proposed), drafted.open, more)
        text = put if put.strip() else _seen(put)
        yield _Shown("instead", "the target's own", (each.target_id,), text, emitted.open)
    elif each.mark == "discarded":
        yield _Shown("discarded", "discarded draft token", (each.draft_id,), _seen(proposed), drafted.open)
    else:
        yield _Shown(each.mark, each.mark.replace("_", " "), (each.target_id,), put, emitted.open)


def _span(each: _Shown) -> str:
    ids = ", ".join(map(str, each.ids))
    told = f"{each.words}, {'id' if len(each.ids) == 1 else 'parts of a character, ids'} {ids}{each.more}"
    text = each.text + (PART if each.open else "")
    return f'<span class="sw-{each.mark}" title="{escape(told)}">{escape(text)}</span>'


def _unknown(number: int | None) -> str:
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
