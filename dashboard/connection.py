"""Which sidecar is asked, for every page."""

import os

import streamlit as st

from dashboard.client import DEFAULT_API, Client


@st.cache_resource(show_spinner=False)
def _connect(url: str, token: str | None, reading: str | None) -> Client:
    return Client(url, token or reading, reads_only=token is None and reading is not None)


def client() -> Client:
    tokens = [os.environ.get(f"SPECWATCH_ADMIN_{name}") or None for name in ("TOKEN", "READ_TOKEN")]
    return _connect(os.environ.get("SPECWATCH_API") or DEFAULT_API, *tokens)
