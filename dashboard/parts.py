"""Pieces of every page: figures, charts, and the state on one line."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from html import escape
from typing import Any, TypeVar
from urllib.parse import urlencode

import streamlit as st

from dashboard import shapes
from dashboard.client import Client, Kind, Problem
from dashboard.connection import client
from dashboard.filters import hold
from dashboard.frames.base import Tile, plain, utc
from dashboard.frames.spark import sparkline
from dashboard.frames.state import StateLine, alerts_line, state_line
from dashboard.states import problem

T = TypeVar("T")

STATE_SECONDS, DATA_SECONDS = 5, 10
#: The session's name for the time range that was chosen on a chart.
DRAGGED = "dragged"
#: Of Plotly.
CONFIG = {"displayModeBar": False, "responsive": True}

STYLE = """<style>
.block-container, .stMainBlockContainer { padding-top: 3.5rem; padding-bottom: 2rem; max-width: 1400px; }
.sw-state { border-left: .6rem solid; border-radius: .4rem; padding: .7rem 1rem;
  background: rgba(128,128,128,.10); line-height: 1.45; overflow-wrap: anywhere; }
.sw-head { font-size: 1.7rem; font-weight: 700; line-height: 1.2; }
.sw-head span { display: inline-block; margin-right: .35rem; }
.sw-strip { border-left: .35rem solid; padding: .1rem .7rem; overflow-wrap: anywhere; font-size: .95rem; }
/* What refreshes stays readable meanwhile. */
[data-stale="true"] { opacity: 1 !important; transition: none !important; }
.sw-on { border-color: #0072B2; } .sw-off { border-color: #D55E00; }
.sw-part { border-color: #E69F00; }
.sw-spark { display: block; width: 100%; height: 2.2rem; }
.sw-health { font-size: 1.05rem; overflow-wrap: anywhere; } .sw-health ul { margin: .2rem 0 0; }
.st-key-slo [data-testid="stMetricValue"] { font-size: 3.6rem; line-height: 1.15; }
.st-key-slo [data-testid="stMetricLabel"] p { font-size: 1.05rem; font-weight: 600; }
[data-testid="stMetricDelta"] div, [data-testid="stMetricDelta"] p { white-space: normal !important; }
[data-testid="stMetricLabel"] p { white-space: normal; overflow-wrap: anywhere; }
[data-testid="stMetricLabel"], [data-testid="stMetricLabel"] > div { overflow: visible; white-space: normal; }
/* Its cells hold texts of others, which a spreadsheet would run as formulas; the page Requests exports them guarded. */
[data-testid="stElementToolbarButton"]:has([aria-label^="Download as CSV"]) { display: none; }
/* A finger scrolls the page, where a drag would hold a range. */
@media (pointer: coarse) { [class*="st-key-over_time"] .nsewdrag { pointer-events: none !important; } }
.sw-link { text-decoration: underline; color: inherit; }
@media (max-width: 640px) {
  .sw-head { font-size: 1.35rem; }
  [class*="st-key-tiles"] [data-testid="stColumn"] { min-width: calc(50% - 1rem) !important; flex: 1 1 45% !important; }
  .st-key-tiles-first [data-testid="stColumn"]:first-child { min-width: 100% !important; }
  .st-key-slo [data-testid="stMetricValue"] { font-size: 2.9rem; }
}
</style>"""


@contextmanager
def answers() -> Iterator[Client]:
    """For what a page asks and draws: if there is no answer, the rest is left out and it says why."""
    if dragged := st.session_state.pop(DRAGGED, None):
        hold(*dragged)
    try:
        yield client()
    except Problem as found:
        if found.kind is Kind.UNREACHABLE:
            # The whole page says why, and waits.
            st.rerun()
        problem(found)


def unless_refused(later: Future[T]) -> T | str:
    """An answer that a page can do without, as the sidecar refuses some of them for long time ranges.

    Else why, in Markdown: the sidecar names a time range that would do.
    """
    try:
        return later.result()
    except Problem as found:
        if found.kind is not Kind.REFUSED:
            raise
        return plain(str(found))


def tile(tile: Tile, *, key: str | None = None) -> None:
    with st.container(border=True, height="stretch", key=key, gap=None):
        st.metric(
            tile.label,
            tile.value,
            delta=tile.verdict,
            delta_color="blue" if tile.met else "red",
            delta_arrow="off",
            help=tile.help,
        )
        if line := sparkline(tile.trend, f"{tile.label} over the time range", tile.limit):
            st.html(line)
        if tile.note:
            st.caption(plain(tile.note).replace(" %", "\u00a0%").replace(" ms", "\u00a0ms"))


def tiles(row: Sequence[Tile]) -> None:
    # The key tells the style sheet: on a phone two stand side by side.
    with st.container(key=f"tiles {row[0].label}"):
        for column, each in zip(st.columns(len(row)), row, strict=True):
            with column:
                tile(each)


def chart(title: str, figure: Any, *, helped: str | None, key: str, **options: Any) -> None:
    st.markdown(f"**{title}**", help=helped)
    st.plotly_chart(figure, key=key, config=CONFIG, **options)


def time_chart(title: str, figure: Any, *, helped: str | None, key: str) -> None:
    """A chart over time. A mouse's drag over it holds that stretch of time on every page, in whole minutes."""
    helped = f"{helped or ''}\n\nDrag over the chart with a mouse to hold a stretch of its time range."
    st.markdown(f"**{title}**", help=helped)
    # The key tells the style sheet.
    key = f"over_time_{key}"
    st.plotly_chart(figure, key=key, config=CONFIG, on_select=partial(_dragged, key), selection_mode="box")


def _dragged(key: str) -> None:
    """Streamlit runs the page again after this: of another chart, where newer data have come, it would know no drag."""
    if drawn := st.session_state[key]["selection"]["box"]:
        ends = sorted(utc(datetime.fromisoformat(each)).replace(second=0, microsecond=0) for each in drawn[0]["x"])
        st.session_state[DRAGGED] = ends[0], ends[-1] + timedelta(minutes=1)


def link(label: str, page: str, query: dict[str, str]) -> None:
    """To another page, with what it shows: `query` is what its address holds.

    By the address, as a page that Streamlit goes to by itself keeps its earlier choices against the address.
    """
    st.html(f'<a class="sw-link" href="{escape(page)}?{escape(urlencode(query))}">{escape(label)}</a>', width="content")


def kept_cursors(key: str, asked: object) -> list[str]:
    """Of the pages between the newest and the shown one, as the session keeps them; empty with other questions."""
    kept = st.session_state.get(key)
    if kept is None or kept[0] != asked:
        kept = st.session_state[key] = (asked, [])
    found: list[str] = kept[1]
    return found


def turn(name: str, kept: list[str], following: str | None) -> None:
    """Buttons between pages, `name` before their keys; `kept` are its cursors, `following` that of older rows."""
    if not kept and following is None:
        return
    with st.container(horizontal=True):
        st.button("Newer", key=f"{name}_newer", disabled=not kept, on_click=kept.__delitem__, args=(-1,))
        st.button("Older", key=f"{name}_older", disabled=following is None, on_click=kept.append, args=(following,))


def state(fallback: shapes.Fallback) -> None:
    """The one line of state, in words first; the colour only repeats them."""
    line = state_line(fallback, datetime.now(UTC), fallback.history)
    sign, tone = _sign(line)
    slices = "".join(f"<div>{escape(each)}</div>" for each in line.slices)
    st.html(
        f'<div class="sw-state {tone}" role="status"><div class="sw-head"><span>{sign}</span>'
        f"{escape(line.headline)}</div><div>{escape(line.mode)} · {escape(line.since)} · "
        f"why: {escape(line.reason)}</div>{slices}</div>"
    )


def health(problems: Sequence[str], healthy: str, *, known: bool) -> None:
    """The verdict in one sentence, and what speaks against health. There is none where p is not `known`."""
    if not problems:
        verdict = "✓ Healthy." if known else "? Cannot tell."
        st.html(f'<div class="sw-health" role="status"><b>{verdict}</b> {escape(healthy)}</div>')
        return
    told = "".join(f"<li>{escape(each)}</li>" for each in problems)
    st.html(f'<div class="sw-health" role="status"><b>✗ Needs a look.</b><ul>{told}</ul></div>')


def _sign(line: StateLine) -> tuple[str, str]:
    if not line.speculating:
        return "■", "sw-off"
    return ("◧", "sw-part") if line.partly else ("▶", "sw-on")


@st.fragment(run_every=STATE_SECONDS)
def strip() -> None:
    """State and alerts on one line, for the pages whose subject is another."""
    try:
        summary = client().summary(window="1m")
    except Problem:
        return
    line = state_line(summary.fallback, datetime.now(UTC))
    sign, tone = _sign(line)
    st.html(
        f'<div class="sw-strip {tone}" role="status">{sign} {escape(line.headline)} · '
        f"{escape(alerts_line(summary.alerts))}</div>"
    )
