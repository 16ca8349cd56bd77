"""Now: is speculation on, does it pay, and since when."""

import streamlit as st

from dashboard import charts, frames
from dashboard.client import Kind, Problem
from dashboard.parts import (
    DATA_SECONDS,
    STATE_SECONDS,
    Filters,
    chart,
    client,
    database_note,
    misaligned,
    missing,
    no_speculation,
    problem,
    state,
    tile,
    tiles,
    unusable,
)
from dashboard.switch import switch
from dashboard.words import define


def page(chosen: Filters) -> None:
    _state()
    switch()
    _figures(chosen)


@st.fragment(run_every=STATE_SECONDS)
def _state() -> None:
    try:
        state(client().fallback())
    except Problem:
        # The whole page says why, and waits.
        st.rerun()


@st.fragment(run_every=DATA_SECONDS)
def _figures(chosen: Filters) -> None:
    ask, window, scenario = client(), chosen.window, chosen.scenario
    try:
        summary = ask.summary(window)
        if scenario:
            narrow_to = ask.acceptance(window, scenario=scenario), ask.latency(window, scenario=scenario)
            summary = frames.of_scenario(summary, *narrow_to)
        acceptance = ask.acceptance(window, step=chosen.step, scenario=scenario)
        latency = ask.latency(window, step=chosen.step, scenario=scenario)
        scenarios = ask.acceptance(window, by="scenario", scenario=scenario)
    except Problem as found:
        if found.kind is Kind.UNREACHABLE:
            st.rerun()
        problem(found)
        return
    database_note(summary)
    misaligned(summary.alignment)
    if unusable(summary, chosen):
        return
    speculated = bool(summary.acceptance.requests)
    if not speculated:
        no_speculation(summary, chosen)

    shown = frames.everywhere if scenario else lambda tile: tile
    wide, *narrow = st.columns([2, 1, 1])
    with wide:
        tile(shown(frames.slo_tile(summary)), key="slo")
    for column, each in zip(
        narrow, (frames.p_tile(summary.last_100, scenario), frames.length_tile(summary.acceptance)), strict=True
    ):
        with column:
            tile(each)
    tiles(
        [
            frames.latency_tile("speculative", summary.latency.speculative),
            frames.latency_tile("autoregressive", summary.latency.autoregressive),
            frames.ratio_tile(summary.latency),
        ]
    )
    tiles([shown(t) for t in (*frames.traffic_tiles(summary.traffic), frames.coverage_tile(summary.coverage))])

    begin = frames.window_start(summary)
    span = None if begin is None else (begin, frames.utc(summary.generated_at))
    left, right = st.columns(2)
    with left:
        chart(
            "Acceptance rate p over time (UTC)",
            charts.p_over_time(acceptance, span),
            helped=define("acceptance rate p"),
            key="p_over_time",
        )
    with right:
        chart(
            "Latency p95 over time (UTC)",
            charts.latency_over_time(latency, span),
            helped=define("latency", "speculative", "autoregressive"),
            key="latency_over_time",
        )
    left, right = st.columns(2)
    with left:
        st.markdown("**Acceptance rate p by scenario, worst first**", help=define("acceptance rate p"))
        if scenarios.points:
            st.dataframe(frames.scenario_table(scenarios), hide_index=True, width="stretch")
        else:
            st.caption("No scenario has speculated in this time range.")
    with right:
        chart(
            "Requests by outcome" + (", all scenarios" if scenario else ""),
            charts.outcomes(summary.traffic),
            helped=define("outcome"),
            key="outcomes",
        )
    st.markdown(
        "**Latency, time to first token (TTFT), time per output token (TPOT)**",
        help=define("latency", "TTFT", "TPOT"),
    )
    st.table(frames.latency_table(summary.latency))
    if speculated and summary.coverage.missing:
        st.markdown("**Requests without acceptance figures**", help=define("coverage"))
        missing(summary.coverage)
    st.caption(frames.footer(summary))
