"""Events: what happened and when, and p above it."""

from collections import Counter

import streamlit as st

from dashboard import shapes
from dashboard.filters import WIDEST, Filters
from dashboard.frames import events as frames
from dashboard.frames import facts
from dashboard.frames.base import iso, plain, utc
from dashboard.parts import DATA_SECONDS, answers, kept_cursors, link, time_chart, turn
from dashboard.words import define

USES = ("time",)
EVERY = "All kinds"
#: Events on the time line, and in the list at a time.
MOST_MARKS, LISTED = 200, 25
PAGES = "events_pages"


@st.fragment(run_every=DATA_SECONDS)
def page(chosen: Filters) -> None:
    with answers() as ask:
        later_acceptance = ask.later(ask.acceptance, **chosen.time, step=chosen.step)
        later_alerts = ask.later(ask.alerts)
        every = ask.events(**chosen.time, limit=str(MOST_MARKS))
        acceptance = later_acceptance.result()
        held = utc(acceptance.since), utc(acceptance.until)
        ends = {"since": iso(held[0] - frames.BEFORE), "until": iso(held[1])}
        alarms = ask.events(window=WIDEST, **ends, kind="alert", limit=str(MOST_MARKS))
        bars = frames.fired(alarms.events, later_alerts.result().alerts, held)
        if every.events or bars:
            time_chart(
                "Acceptance rate p, and what happened (UTC)",
                frames.time_line(every.events, bars, acceptance, held),
                helped=define("acceptance rate p", "event"),
                key="events",
            )
            cut = f" The newest {MOST_MARKS} events are shown." if every.next_cursor is not None else ""
            st.caption(frames.KEY + cut)
        kind = _kind()
        if not every.events:
            _none(chosen)
            return
        cursors = kept_cursors(PAGES, (chosen, kind))
        listed = ask.events(**chosen.time, kind=kind, limit=str(LISTED), cursor=cursors[-1] if cursors else None)
        if not listed.events:
            st.info(f"**No event of this kind in {chosen.words}.** {_appears(kind)}", icon=":material/event_available:")
        with st.container(gap="xsmall"):
            _list(listed.events)
        turn("events", cursors, listed.next_cursor)


def _kind() -> str | None:
    kinds = {EVERY: None} | {lane.title: kind for kind, lane in frames.LANES.items()}
    st.selectbox("Kind", list(kinds), key="kind", bind="query-params", width=220)
    return kinds[st.session_state["kind"]]


def _appears(kind: str | None) -> str:
    told = [lane.told for name, lane in frames.LANES.items() if kind in (None, name)]
    return f"Here stands when {'; when '.join(told)}."


def _none(chosen: Filters) -> None:
    st.info(f"**No events in {chosen.words}.** {_appears(None)}", icon=":material/event_available:")


def _list(events: list[shapes.Event]) -> None:
    seen: Counter[str] = Counter()
    for event in events:
        name = f"event_{event.at.timestamp()}_{event.instance}_{event.kind}_{event.subject}_{event.what}"
        seen[name] += 1
        # By what it is and not by its place: what the reader has opened stays open when newer ones come.
        with st.expander(
            frames.heading(event), icon=f":material/{frames.sign(event).icon}:", key=f"{name}_{seen[name]}"
        ):
            _one(event)


def _one(event: shapes.Event) -> None:
    if event.evidence:
        st.html(facts.html({"": frames.evidence(event.evidence)}))
    else:
        st.caption("No figures are kept with this event.")
    st.caption(plain(f"Told by instance {event.instance}, {utc(event.at):%Y-%m-%d %H:%M:%S} UTC"))
    around, names = frames.around(event), frames.slice_of(event)
    with st.container(horizontal=True):
        if (run := frames.run_of(event)) is not None:
            link("What the run found", "lab", {"run": run})
        link("Requests around it", "requests", around | names)
        link(f"Truncation{' of its slice' if names else ''} around it", "truncation", around | names)
