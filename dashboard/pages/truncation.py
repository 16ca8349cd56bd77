"""Truncation: at which position of the draft the target model says no, when, and for whom."""

from functools import partial

import streamlit as st

from dashboard import shapes
from dashboard.client import Client, Kind, Problem
from dashboard.filters import Filters
from dashboard.frames import cells, positions
from dashboard.frames import truncation as frames
from dashboard.frames.base import plain, utc
from dashboard.frames.heat import Colour
from dashboard.frames.positions import By
from dashboard.frames.table import STYLE
from dashboard.parts import DATA_SECONDS, answers, chart, link, tiles, unless_refused
from dashboard.states import database_note, no_speculation, unusable
from dashboard.words import define

USES = ("time", "names")
COLOURS: tuple[Colour, ...] = ("hazard", "counts")
BY: tuple[By, ...] = ("scenario", "model", "k")
#: What is chosen on this page and stands in its address -> what it is where nothing is chosen.
CHOICES = {"colour": "hazard", "by": "scenario", "position": None, "step": None, "group": None}


@st.fragment(run_every=DATA_SECONDS)
def page(chosen: Filters) -> None:
    drawn = False
    with answers() as ask:
        drawn = _draw(ask, chosen)
    # What is not on the page leaves its address, and a cell that was chosen would be lost to a moment without answer.
    if not drawn and any(_asked(name) != default for name, default in CHOICES.items()):
        with st.container(horizontal=True):
            _kinds()
            _cell([], [], [])


def _asked(name: str) -> str | None:
    """A choice of the address, also before it has been drawn."""
    asked = st.session_state.get(name) or st.query_params.get(name) or CHOICES[name]
    return None if asked is None else str(asked)


def _draw(ask: Client, chosen: Filters) -> bool:
    """Whether all was drawn."""
    by = next((each for each in BY if each == _asked("by")), "scenario")
    later = ask.later(ask.truncation, **chosen.query, step=chosen.step)
    of_scenarios = ask.later(ask.truncation, **chosen.query, by="scenario")
    of_groups = of_scenarios if by == "scenario" else ask.later(ask.truncation, **chosen.query, by=by)
    summary = ask.summary(**chosen.query)
    over_time, scenarios = later.result(), of_scenarios.result()
    groups = unless_refused(of_groups)
    database_note(summary)
    if unusable(summary, chosen):
        return False
    if not over_time.total.verify_steps:
        no_speculation(summary, chosen)
        return False
    if words := frames.headline(over_time.total, scenarios.points):
        st.markdown(f"#### {words}", help=define("hazard", "reached"))
    tiles(frames.truncation_tiles(over_time))
    if not over_time.positions:
        st.info(
            "**Positions are not known:** the engine told of verify steps without the place of the rejections. "
            "Specwatch's plugin in the engine tells them.",
            icon=":material/visibility_off:",
        )
        return False
    _shape(over_time.total, scenarios.points)
    with st.container(horizontal=True):
        colour, by = _kinds()
    _maps(over_time, groups, colour, by)
    _behind(ask, chosen, over_time, groups, by)
    return True


def _shape(total: shapes.TruncationPoint, scenarios: list[shapes.TruncationPoint]) -> None:
    if words := frames.cliffs(total, scenarios, "scenario"):
        st.warning(words, icon=":material/trending_down:")
    else:
        st.caption(frames.shape_words(total), help=define("cliff", "decay"))


def _kinds() -> tuple[Colour, By]:
    st.segmented_control(
        "Colour",
        COLOURS,
        default="hazard",
        key="colour",
        bind="query-params",
        required=True,
        help=define("hazard", "rejected", "reached"),
    )
    st.segmented_control(
        "Second map by",
        BY,
        default="scenario",
        key="by",
        bind="query-params",
        required=True,
        on_change=_forget_group,
        help=define("k"),
    )
    return st.session_state["colour"], st.session_state["by"]


def _maps(over_time: shapes.TruncationSeries, groups: shapes.TruncationSeries | str, colour: Colour, by: By) -> None:
    position, at, group = _asked("position") or "", cells.step_of(_asked("step")), _asked("group")
    number = int(position) if position.isdecimal() else None
    _chart(
        "First rejection by position and time (UTC)",
        positions.over_time(over_time, colour, None if number is None or at is None else (number, at)),
        f"over_time_{colour}",
        "step",
    )
    shown = "hazard" if colour == "hazard" else "verify steps truncated"
    st.caption(
        f"Colour: {shown}; grey: never drafted. Below: share of the verify steps with every draft token accepted. "
        "A click on a cell shows its requests."
    )
    if isinstance(groups, str):
        st.info(groups, icon=":material/date_range:")
    elif groups.points:
        _chart(
            f"First rejection by {by} and position{', highest truncation rate first' if by != 'k' else ''}",
            positions.by_group(groups, by, colour, None if number is None or not group else (number, group)),
            f"by_{by}_{colour}",
            "group",
        )
        st.caption(f"Colour: {shown}; grey: never drafted. Right: share of the verify steps fully accepted.")


def _chart(title: str, figure: object, key: str, names: str) -> None:
    chart(
        title,
        figure,
        helped=define("truncation rate", "hazard", "fully accepted steps"),
        key=key,
        on_select=partial(_clicked, key, names),
        selection_mode="points",
        alt=title,
    )


def _clicked(key: str, names: str) -> None:
    """A cell was clicked: of the map whose columns (`step`) or rows (`group`) have these names."""
    points = st.session_state[key]["selection"]["points"]
    picked = points[0].get("customdata") if points else None
    if isinstance(picked, list) and len(picked) == 2:
        st.session_state["position"] = picked[0]
        st.session_state["step"] = picked[1] if names == "step" else None
        st.session_state["group"] = picked[1] if names == "group" else None


def _forget_group() -> None:
    st.session_state["group"] = None


def _cell(positions: list[str], steps: list[str], groups: list[str]) -> tuple[str | None, str | None, str | None]:
    """Chosen by click or here: position, step, group."""
    by = st.session_state["by"]
    return (
        _choice("Position", "position", positions),
        _choice("Step beginning at (UTC)", "step", steps),
        _choice("k" if by == "k" else by.capitalize(), "group", groups),
    )


def _behind(
    ask: Client,
    chosen: Filters,
    over_time: shapes.TruncationSeries,
    groups: shapes.TruncationSeries | str,
    by: By,
) -> None:
    """The requests of the chosen cell."""
    st.markdown(
        "**Requests behind a cell**", help="Click a cell above, or choose its position here; the others narrow it."
    )
    steps = [positions.step_name(utc(point.at)) for point in over_time.points if point.at is not None]
    ranked = [] if isinstance(groups, str) else positions.ranked(groups, by)
    with st.container(horizontal=True):
        position, step, group = _cell(
            [str(i + 1) for i in range(over_time.positions)],
            steps[::-1],
            [point.group for point in ranked if point.group],
        )
    if position is None or not position.isdecimal():
        st.caption("Click a cell of a map, or choose a position, to see the requests that were truncated there.")
        return
    named = None if group is None else (by, group)
    if words := cells.unasked(named):
        st.info(words)
        return
    at = cells.step_of(step)
    place = cells.place(over_time, int(position), at, named, (chosen.scenario, chosen.model))
    try:
        found = ask.requests(**place.query, limit=str(cells.SHOWN))
    except Problem as problem:
        if problem.kind is not Kind.REFUSED:
            raise
        st.info(plain(str(problem)))
        return
    counts: int | None = 0
    if named is None:
        counts = cells.counted(over_time, place.position, at, None)
    elif at is None and not isinstance(groups, str):
        counts = cells.counted(groups, place.position, None, group)
    # Of a step and a group together only requests are known.
    st.markdown(cells.said(place, found, counts))
    if found.requests:
        st.html(STYLE + cells.requests_table(place, found.requests))
    if found.requests or found.next_cursor is not None:
        label = "All of them on the page Requests" if found.requests else "Look further on the page Requests"
        link(label, "requests", {k: v for k, v in place.query.items() if v is not None})


def _choice(label: str, name: str, options: list[str]) -> str | None:
    """What is chosen stays, also where the time range has moved on."""
    asked = _asked(name)
    known = name != "step" or cells.step_of(asked) is not None
    if asked and asked not in options and known:
        options = [asked, *options]
    st.selectbox(label, options, index=None, key=name, bind="query-params", width=220, placeholder="any")
    picked = st.session_state[name]
    return None if picked is None else str(picked)
