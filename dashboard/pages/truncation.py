"""Truncation: at which position of the draft the target model says no, when, and in which scenario."""

import streamlit as st

from dashboard import charts, frames
from dashboard.client import Kind, Problem
from dashboard.parts import (
    DATA_SECONDS,
    Filters,
    chart,
    client,
    database_note,
    no_speculation,
    problem,
    tiles,
    unusable,
)
from dashboard.words import define

COLOURS: dict[charts.Colour, str] = {"hazard": "Hazard (rejected / reached)", "rejected": "Counts (rejected)"}


@st.fragment(run_every=DATA_SECONDS)
def page(chosen: Filters) -> None:
    ask, window, scenario = client(), chosen.window, chosen.scenario
    try:
        summary = ask.summary(window)
        over_time = ask.truncation(window, step=chosen.step, scenario=scenario)
        scenarios = ask.truncation(window, by="scenario", scenario=scenario)
    except Problem as found:
        if found.kind is Kind.UNREACHABLE:
            st.rerun()
        problem(found)
        return
    database_note(summary)
    if unusable(summary, chosen):
        return
    if not over_time.total.verify_steps:
        no_speculation(summary, chosen)
        return
    tiles(frames.truncation_tiles(over_time))
    if not over_time.positions:
        st.info("Positions are not known: the engine reported verify steps without the place of the rejections.")
        return
    colour = _colour()
    chart(
        "First rejection by position and time (UTC)",
        charts.truncation_over_time(over_time, colour),
        helped=define("truncation rate", "hazard", "fully accepted steps"),
        key=f"truncation_over_time_{colour}",
    )
    st.caption("Grey cells: nothing drafted. Below: share of the verify steps with every draft token accepted.")
    if scenarios.points:
        chart(
            "First rejection by scenario and position",
            charts.truncation_by_scenario(scenarios, colour),
            helped=define("hazard", "fully accepted steps"),
            key=f"truncation_by_scenario_{colour}",
        )
        st.caption("Grey cells: nothing drafted. Right: share of the scenario's verify steps fully accepted.")


def _colour() -> charts.Colour:
    picked = st.segmented_control(
        "Colour",
        list(COLOURS),
        default="hazard",
        key="colour",
        format_func=lambda name: COLOURS[name],
        required=True,
        help=define("hazard", "reached"),
    )
    return picked or "hazard"
