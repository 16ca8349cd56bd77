"""The operator's switch: auto, speculative, autoregressive, with a reason and a confirmation."""

import streamlit as st

from dashboard import shapes
from dashboard.client import Problem
from dashboard.connection import client
from dashboard.frames.base import plain
from dashboard.frames.state import transitions

CAPTIONS: dict[str, str] = {
    "auto": (
        "New requests are served with speculative decoding, but for what falls back by itself while its figures are "
        "bad, and the share that latencies are compared with."
    ),
    "speculative": "Every new request is served with speculative decoding, whatever the figures say.",
    "autoregressive": "Every new request is served by plain decoding, whatever the figures say.",
}
ASKED, DONE = "switch_asked", "switch_done"


@st.fragment
def switch() -> None:
    """Refreshed only by its own use, so that a half-typed reason is never lost to a timer."""
    with st.expander("Switch decoding, and earlier switches", icon=":material/swap_horiz:"):
        try:
            now = client().fallback()
        except Problem as found:
            st.error(plain(str(found)))
            return
        if client().reads_only:
            st.info("This dashboard only reads: to switch, start it with the control token in `SPECWATCH_ADMIN_TOKEN`.")
        elif now.can_fall_back:
            _form(now)
        else:
            st.info(
                "Nothing can be switched: no autoregressive upstream is configured, and no engine with the plugin is "
                "known. `fallback_upstream` adds the one, `engine_token` or `engine_events` the other."
            )
        if now.history:
            st.markdown("**Earlier switches**")
            st.dataframe(transitions(now.history[:20]), hide_index=True, width="stretch")
        else:
            st.caption("No earlier switches are recorded.")


def _form(now: shapes.Fallback) -> None:
    mode = st.segmented_control(
        "Mode",
        shapes.MODES,
        default=now.mode,
        key="switch_mode",
        required=True,
        help="Takes effect at the next request.",
    )
    chosen: shapes.Mode = mode or now.mode
    st.caption(CAPTIONS[chosen])
    reason = st.text_input(
        "Reason", key="switch_reason", placeholder="Shown to everyone, and kept in the history", max_chars=200
    )
    if st.session_state.get(ASKED) != chosen:
        st.button(
            f"Switch to {chosen}",
            key="switch_ask",
            disabled=chosen == now.mode,
            on_click=st.session_state.__setitem__,
            args=(ASKED, chosen),
        )
        if chosen == now.mode:
            st.caption(f"The mode is {now.mode} already.")
        return
    st.warning(f"Switch from **{now.mode}** to **{chosen}**? {CAPTIONS[chosen]}")
    with st.container(horizontal=True):
        sure = st.button(f"Yes, switch to {chosen}", key="switch_yes", type="primary")
        st.button("Cancel", key="switch_no", on_click=st.session_state.pop, args=(ASKED, None))
    if sure:
        try:
            client().set_fallback(chosen, reason.strip() or "switched on the dashboard, no reason given")
        except Problem as found:
            st.error(f"**Not switched.** {plain(str(found))}")
            return
        st.session_state.pop(ASKED, None)
        st.toast(f"Mode is now {chosen}.")
        st.rerun()
