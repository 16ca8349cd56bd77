"""Drafts: what the draft model proposed for the last requests, token by token."""

from collections import Counter

import streamlit as st

from dashboard import shapes
from dashboard.client import Kind, Problem
from dashboard.filters import Filters
from dashboard.frames import drafts as html
from dashboard.frames.base import plain
from dashboard.parts import DATA_SECONDS, answers
from dashboard.states import misaligned
from dashboard.words import define

USES = ()
SHOWN = 10


@st.fragment(run_every=DATA_SECONDS)
def page(chosen: Filters) -> None:
    with answers() as ask:
        misaligned(ask.alignment())
        try:
            found = ask.drafts(SHOWN).drafts
        except Problem as problem:
            if problem.kind is not Kind.REFUSED:
                raise
            _none()
            return
        _draw(found)


def _draw(found: list[shapes.Draft]) -> None:
    st.markdown(
        f"What the draft model proposed for the last {SHOWN} requests, and what the target model made of it.",
        help=define("rejected", "discarded", "bonus", "not drafted"),
    )
    st.caption("Of older requests the page Requests shows the verify steps, without the tokens.")
    if not found:
        st.info(
            "**No drafts yet.** Requests are shown once they have finished, from the moment the engine's plugin "
            "tells its events.",
            icon=":material/hourglass_empty:",
        )
        return
    st.html(html.STYLE + html.KEY)
    seen: Counter[str] = Counter()
    for draft in found:
        # By the request and not by its place: what the reader has opened stays open when newer ones come.
        one(draft, key=f"{draft.request_id}_{seen[draft.request_id]}")
        seen[draft.request_id] += 1


def one(draft: shapes.Draft, key: str) -> None:
    """One request; the look of its tokens, `STYLE`, is on the page already."""
    with st.container(border=True, key=f"draft_{key}"):
        st.html(html.heading(draft))
        if draft.steps:
            shown = html.tokens(draft)
            st.html(shown)
            if said := html.marks(shown):
                st.caption(said)
        if draft.reason:
            st.caption(plain(f"{draft.reason[:1].upper()}{draft.reason[1:]}."))
        if draft.draft_text is not None and draft.draft_text != draft.final_text:
            with st.expander("Draft text beside final text", key=f"texts_{key}"):
                left, right = st.columns(2)
                left.markdown("**Draft text**", help="The draft's own choice at every position of the reply.")
                left.text(draft.draft_text)
                right.markdown("**Final text**")
                right.text(draft.final_text or "")


def _none() -> None:
    st.info("**No drafts are kept.** Texts are private, so that is how it is by default.", icon=":material/lock:")
    st.markdown(
        "`recent_drafts` says how many requests the sidecar keeps in memory, and `engine_events` where the engine's "
        "plugin tells what it drafted. Set both and start it again:"
    )
    st.code("recent_drafts: 50\nengine_events: /run/specwatch/events.sock", language="yaml")
