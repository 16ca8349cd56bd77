"""Scenarios: which kind of request is served badly."""

import streamlit as st

from dashboard.filters import Filters

USES = ("time", "names")


def page(chosen: Filters) -> None:
    st.caption("Scenarios")
