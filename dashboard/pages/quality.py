"""Quality: whether replies and drafts mean the same."""

import streamlit as st

from dashboard.filters import Filters

USES = ("time", "names")


def page(chosen: Filters) -> None:
    st.caption("Quality")
