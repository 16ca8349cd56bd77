"""Events: what happened, and when."""

import streamlit as st

from dashboard.filters import Filters

USES = ("time", "names")


def page(chosen: Filters) -> None:
    st.caption("Events")
