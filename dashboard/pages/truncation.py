"""Truncation: at which position of the draft the target model says no, when, and in which scenario."""

import streamlit as st

from dashboard import shapes
from dashboard.filters import Filters
from dashboard.frames import truncation as frames
from dashboard.parts import DATA_SECONDS, answers, chart, tiles
from dashboard.states import database_note, no_speculation, unusable
from dashboard.words import define

USES = ("time", "names")
COLOURS: dict[frames.Colour, str] = {"hazard": "Hazard (rejected / reached)", "rejected": "Counts (rejected)"}


@st.fragment(run_every=DATA_SECONDS)
def page(chosen: Filters) -> None:
    with answers() as ask:
        later = ask.later(ask.truncation, **chosen.query, step=chosen.step)
        other = ask.later(ask.truncation, **chosen.query, by="scenario")
        summary = ask.summary(**chosen.query)
        over_time, scenarios = later.result(), other.result()
        database_note(summary)
        if unusable(summary, chosen):
            return
        if not over_time.total.verify_steps:
            no_speculation(summary, chosen)
            return
        _draw(over_time, scenarios)


def _draw(over_time: shapes.TruncationSeries, scenarios: shapes.TruncationSeries) -> None:
    tiles(frames.truncation_tiles(over_time))
    if not over_time.positions:
        st.info("Positions are not known: the engine reported verify steps without the place of the rejections.")
        return
    colour = _colour()
    chart(
        "First rejection by position and time (UTC)",
        frames.truncation_over_time(over_time, colour),
        helped=define("truncation rate", "hazard", "fully accepted steps"),
        key=f"truncation_over_time_{colour}",
    )
    st.caption("Grey cells: nothing drafted. Below: share of the verify steps with every draft token accepted.")
    if scenarios.points:
        chart(
            "First rejection by scenario and position",
            frames.truncation_by_scenario(scenarios, colour),
            helped=define("hazard", "fully accepted steps"),
            key=f"truncation_by_scenario_{colour}",
        )
        st.caption("Grey cells: nothing drafted. Right: share of the scenario's verify steps fully accepted.")


def _colour() -> frames.Colour:
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
