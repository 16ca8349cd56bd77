"""The frame of every page: navigation, filters, and what to do without a sidecar."""

import streamlit as st

from dashboard import parts
from dashboard.client import Problem
from dashboard.pages import drafts, now, truncation


def main() -> None:
    st.set_page_config(page_title="Specwatch", page_icon=":material/monitoring:", layout="wide")
    st.html(parts.STYLE)
    chosen: list[parts.Filters] = []
    pages = st.navigation(
        [
            st.Page(
                lambda: now.page(chosen[0]),
                title="Now",
                icon=":material/speed:",
                url_path="now",
                default=True,
            ),
            st.Page(
                lambda: truncation.page(chosen[0]),
                title="Truncation",
                icon=":material/grid_on:",
                url_path="truncation",
            ),
            st.Page(
                lambda: drafts.page(chosen[0]),
                title="Drafts",
                icon=":material/edit_note:",
                url_path="drafts",
            ),
        ],
        position="top",
    )
    try:
        parts.client().fallback()
    except Problem as found:
        parts.wait(found)
        return
    chosen.append(parts.filters())
    pages.run()
