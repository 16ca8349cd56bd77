"""The requests that filters select, as a file."""

from datetime import UTC, datetime
from typing import NamedTuple

import streamlit as st

from dashboard import shapes
from dashboard.client import Client
from dashboard.frames import export as frames
from dashboard.frames.base import count, iso

KEPT = "export_kept"
#: Rows of an answer, and answers at most: some may be short.
ASKED, MOST_ANSWERS = 500, 100


class Made(NamedTuple):
    query: dict[str, str]
    at: datetime
    rows: int
    #: Whether there are more.
    cut: bool
    csv: bytes
    parquet: bytes


def offer(ask: Client, query: dict[str, str]) -> None:
    """A file is made only when asked for, and of these filters."""
    with st.expander("Export what the filters select", icon=":material/download:", key="export"):
        st.caption(
            f"The newest {frames.MOST_ROWS:,} requests at most; `specwatch db export --table requests --out FILE` has "
            "all. Prompts and replies are in neither. In the CSV a text that a spreadsheet would run as a formula has "
            "an apostrophe before it."
        )
        if st.button("Prepare CSV and Parquet", key="export_make"):
            st.session_state[KEPT] = _make(ask, query)
        made: Made | None = st.session_state.get(KEPT)
        if made is None or made.query != query:
            return
        told = f"{count(made.rows, 'request')}, as of {made.at:%Y-%m-%d %H:%M:%S} UTC."
        if made.cut:
            st.warning(f"{told} **There are more**: these are the newest. `specwatch db export` has all.")
        else:
            st.caption(told)
        name = f"specwatch-requests-{made.at:%Y%m%dT%H%M%SZ}"
        with st.container(horizontal=True):
            for kind, data, mime in (
                ("csv", made.csv, "text/csv"),
                ("parquet", made.parquet, "application/vnd.apache.parquet"),
            ):
                st.download_button(
                    f"Download {kind.upper() if kind == 'csv' else 'Parquet'} ({len(data) / 1024:,.0f} KiB)",
                    data,
                    file_name=f"{name}.{kind}",
                    mime=mime,
                    key=f"export_{kind}",
                    on_click="ignore",
                )


def _make(ask: Client, query: dict[str, str]) -> Made:
    at = datetime.now(UTC)
    rows: list[shapes.RequestRow] = []
    cursor: str | None = None
    bar = st.progress(0.0, "Asking for requests")
    # What arrives meanwhile is newer than the first cursor, and moves nothing.
    for _ in range(MOST_ANSWERS):
        limit = min(ASKED, frames.MOST_ROWS - len(rows))
        found = ask.requests(**{"until": iso(at)} | query, limit=str(limit), cursor=cursor)
        rows += found.requests
        cursor = found.next_cursor
        bar.progress(len(rows) / frames.MOST_ROWS, f"{count(len(rows), 'request')} so far")
        if cursor is None or len(rows) >= frames.MOST_ROWS:
            break
    table = frames.table(rows)
    made = Made(query, at, len(rows), cursor is not None, frames.to_csv(table), frames.to_parquet(table))
    bar.empty()
    return made
