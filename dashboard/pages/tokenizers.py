"""Tokenizers: whether draft model and target model know tokens by the same ids."""

import streamlit as st

from dashboard.filters import Filters

USES = ("time", "names")


def page(chosen: Filters) -> None:
    st.caption("Tokenizers")
