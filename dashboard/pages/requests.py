"""Requests: single requests, and their verify steps."""

import streamlit as st

from dashboard.filters import Filters

USES = ("time", "names")


def page(chosen: Filters) -> None:
    st.caption("Requests")
