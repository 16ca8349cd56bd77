"""One request: all its figures, its verify steps, and what was said."""

from datetime import datetime, timedelta

import streamlit as st

from dashboard import shapes
from dashboard.client import Client, Kind, Problem
from dashboard.frames import drafts as tokens
from dashboard.frames import facts, steps
from dashboard.frames import requests as frames
from dashboard.frames.base import count, iso, plain, utc
from dashboard.pages import drafts
from dashboard.parts import chart, link, tiles
from dashboard.states import problem
from dashboard.words import define

#: Drafts that are asked for; the sidecar keeps `recent_drafts` of them.
KEPT_DRAFTS = 1000


def opened(ask: Client, request_id: str, until: datetime | None) -> None:
    """The newest request of this id, before `until`."""
    try:
        row = ask.request(request_id, until=None if until is None else iso(until))
    except Problem as found:
        if found.kind is not Kind.MISSING:
            raise
        st.warning(
            f"**No such request was found.** {plain(str(found))} *Hold* the time range that it lies in to look there.",
            icon=":material/search_off:",
        )
        return
    draw(ask, row)


def draw(ask: Client, row: shapes.RequestRow) -> None:
    with st.container(border=True, key="one_request"):
        st.markdown(f"#### Request {plain(row.request_id)}")
        with st.container(horizontal=True):
            st.caption(plain(f"{utc(row.started_at):%Y-%m-%d %H:%M:%S} UTC · {row.scenario} · {row.outcome}"))
            link("Link to this request", "requests", frames.held_by(row))
            st.button("Close", key="request_close", icon=":material/close:", on_click=_close)
        tiles(frames.tiles(row))
        _steps(row)
        with st.expander("All figures", key="request_facts"):
            st.html(facts.html(frames.facts(row)))
        _drafts(ask, row)
        _texts(ask, row)


def _close() -> None:
    st.session_state["request"] = ""


def _steps(row: shapes.RequestRow) -> None:
    st.markdown("**Verify steps**", help=define("verify step", "rejected", "discarded", "fully accepted steps"))
    if not _drawn(row) and row.acceptance_histogram:
        chart(
            "Verify steps by accepted draft tokens",
            steps.by_accepted(row.acceptance_histogram),
            helped=define("verify step", "mean acceptance length"),
            key="request_histogram",
        )
    if (table := steps.position_table(row)) is not None and len(table):
        st.markdown("**By position**", help=define("hazard", "reached"))
        st.dataframe(table, hide_index=True, width="content")


def _drawn(row: shapes.RequestRow) -> bool:
    """Draws the steps, or says why it cannot."""
    if row.steps is None:
        st.caption(plain(steps.unknown(row)))
        return False
    try:
        found = steps.decode(row.steps)
    except steps.Unreadable as error:
        st.warning(f"The verify steps of this row cannot be read: {plain(str(error))}.")
        return False
    st.html(steps.STYLE + steps.KEY)
    st.html(steps.drawn(found))
    more = (row.verify_steps or 0) - len(found)
    cut = f" The first {len(found):,} steps; {count(more, 'more step')} followed." if more > 0 else ""
    st.caption(f"One column a verify step, position 1 on top. {steps.summary(found)}.{cut}")
    with st.expander("Steps in words", key="request_steps"):
        st.dataframe(steps.step_table(found), hide_index=True, width="content")
    return True


def _drafts(ask: Client, row: shapes.RequestRow) -> None:
    """Its tokens, while they are kept."""
    if row.reply_id is None or not row.draft_tokens:
        return
    try:
        kept = ask.drafts(KEPT_DRAFTS).drafts
    except Problem as found:
        if found.kind is not Kind.REFUSED:
            raise
        st.caption("Which tokens these were is not kept: `recent_drafts` is not set.")
        return
    draft = next((each for each in kept if each.request_id == row.reply_id), None)
    if draft is None:
        st.caption(f"Which tokens these were is no longer kept: the sidecar has the last {len(kept):,} drafts.")
        return
    st.markdown("**Tokens**", help=define("rejected", "discarded", "bonus", "not drafted"))
    st.html(tokens.STYLE + tokens.KEY)
    drafts.one(draft, key="request")


def _texts(ask: Client, row: shapes.RequestRow) -> None:
    """Prompt and reply, only when asked for."""
    if ask.reads_only:
        st.caption("Stored texts are for the control token: start the dashboard with it in `SPECWATCH_ADMIN_TOKEN`.")
        return
    if not st.button("Show prompt and reply", key="request_texts", icon=":material/chat:"):
        return
    until = utc(row.started_at) + timedelta(microseconds=1)
    try:
        texts = ask.texts(row.request_id, until=iso(until)).texts
    except Problem as found:
        if found.kind in (Kind.REFUSED, Kind.MISSING):
            st.warning(f"**No texts.** {plain(str(found))}", icon=":material/lock:")
        else:
            problem(found)
        return
    if not texts:
        st.info(
            "**No texts are stored of this request**: `store_text` was off when it was served, or they are deleted by "
            "now. What is stored is redacted.",
            icon=":material/visibility_off:",
        )
    for text in texts:
        st.markdown(f"**{text.kind.capitalize()}**{' (cut)' if text.cut else ''}")
        st.code(text.text, language=None, wrap_lines=True)
