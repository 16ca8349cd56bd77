"""Scenarios: which kind of request is served badly."""

import streamlit as st

from dashboard import shapes
from dashboard.client import Client, Kind, Problem
from dashboard.filters import Filters
from dashboard.frames import scenarios as frames
from dashboard.frames.base import plain
from dashboard.frames.multiples import MOST, multiples, steps_of
from dashboard.frames.multiples import STYLE as MULTIPLES
from dashboard.frames.plots import grid
from dashboard.frames.scenarios import TITLES, By
from dashboard.frames.state import slices_off
from dashboard.frames.table import STYLE
from dashboard.parts import DATA_SECONDS, answers, unless_refused
from dashboard.states import database_note, no_speculation, unusable
from dashboard.words import P_MIN, define

USES = ("time", "names")


@st.fragment(run_every=DATA_SECONDS)
def page(chosen: Filters) -> None:
    st.segmented_control(
        "By",
        list(TITLES),
        default="scenario",
        key="slices",
        bind="query-params",
        required=True,
        format_func=lambda name: name.replace("_", " "),
        help=define("slice", "k"),
    )
    by: By = st.session_state["slices"] or "scenario"
    with answers() as ask:
        summary = ask.summary(**chosen.query)
        database_note(summary)
        if unusable(summary, chosen):
            return
        if not summary.acceptance.requests:
            no_speculation(summary, chosen)
        try:
            _draw(ask, chosen, by, summary)
        except Problem as problem:
            if problem.kind is not Kind.REFUSED:
                raise
            st.info(plain(str(problem)), icon=":material/date_range:")


def _draw(ask: Client, chosen: Filters, by: By, summary: shapes.Summary) -> None:
    query = chosen.query
    traffic = ask.later(ask.traffic, **query, by=by)
    acceptance = ask.later(ask.acceptance, **query, by=by)
    truncation = ask.later(ask.truncation, **query, by=by)
    latency = ask.later(ask.latency, **query, by=by)
    of_steps = ask.later(ask.acceptance, **query, by=by, step=chosen.step) if by == "scenario" else None
    # Similarities know scenarios alone.
    similarity = (
        unless_refused(ask.later(ask.similarity, **query, by=by)) if by == "scenario" and chosen.model is None else None
    )
    pairs = None if isinstance(similarity, str) else similarity
    found = frames.slices(traffic.result(), acceptance.result(), truncation.result(), latency.result(), pairs)
    off: list[str] = []
    if by == "scenario":
        off = slices_off(summary.fallback)
        found = frames.worst_first(found, [name.removeprefix("scenario=") for name in off])
    st.markdown(
        f"**Figures by {TITLES[by]}{', worst first' if by == 'scenario' else ', the worst marked'}**",
        help=define("worst first", "slice"),
    )
    held = {name: value for name, value in chosen.time.items() if name != "window"}
    st.html(STYLE + frames.slice_table(found, by, summary.fallback, held or chosen.time))
    if of_steps is None:
        return
    st.caption("A scenario leads to the positions at which its drafts are truncated.")
    series = of_steps.result()
    times = grid(series)
    charts = [(each.name, steps_of(series, each.name, times)) for each in found if each.acceptance is not None][:MOST]
    if charts:
        st.markdown(
            f"**p and requests over time by scenario{', worst first' if len(charts) > 1 else ''}**",
            help=define("acceptance rate p", "worst first"),
        )
        st.html(MULTIPLES + multiples(charts, off))
        st.caption(
            f"Line: acceptance rate p, dashed: {P_MIN}. Bars: requests that speculated, on one scale in all charts. "
            f"Times are UTC.{f' The {MOST} worst are shown.' if len(found) > MOST else ''}"
        )
