"""What narrows the figures: time range, scenario, model. All of it lives in the URL, so that a link can be shared."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import streamlit as st

from dashboard.client import Problem
from dashboard.connection import client
from dashboard.frames.base import NO_NAMES, iso, plain, utc

#: Time range -> step of its charts.
WINDOWS = {"15m": "1m", "1h": "1m", "6h": "5m", "24h": "15m", "7d": "2h"}
WINDOW_WORDS = {
    "15m": "15 minutes",
    "1h": "1 hour",
    "6h": "6 hours",
    "24h": "24 hours",
    "7d": "7 days",
}
WINDOW_MINUTES = {"15m": 15, "1h": 60, "6h": 360, "24h": 1440, "7d": 10080}
#: Steps of the charts of a held time range, s, and how many a chart has at most.
STEPS = {60: "1m", 300: "5m", 900: "15m", 3600: "1h", 7200: "2h", 21600: "6h", 86400: "1d"}
MOST_STEPS = 100
#: A window that holds every time range that can be asked for.
WIDEST = "366d"
PROPOSED = "hold_proposed"
#: The session's name for the time range that is held, as the address has it.
HELD = "held"
ALL = "All scenarios"
ALL_MODELS = "All models"


@dataclass(frozen=True, slots=True)
class Filters:
    """What narrows the figures: a time range that moves with the clock, or one that is held, and names."""

    window: str
    scenario: str | None = None
    model: str | None = None
    #: Both or none.
    since: datetime | None = None
    until: datetime | None = None

    @property
    def step(self) -> str:
        if self.since is None or self.until is None:
            return WINDOWS[self.window]
        length = (self.until - self.since).total_seconds()
        return next((word for seconds, word in STEPS.items() if length / seconds <= MOST_STEPS), "7d")

    @property
    def time(self) -> dict[str, str]:
        """As the API takes it."""
        if self.since is None or self.until is None:
            return {"window": self.window}
        ends = (("since", self.since), ("until", self.until))
        return {"window": WIDEST} | {name: iso(at.replace(microsecond=0)) for name, at in ends}

    @property
    def query(self) -> dict[str, str]:
        """Time and names, as the API takes them."""
        names = {"scenario": self.scenario, "model": self.model}
        return self.time | {name: value for name, value in names.items() if value is not None}

    @property
    def named(self) -> bool:
        return self.scenario is not None or self.model is not None

    @property
    def time_words(self) -> str:
        if self.since is None or self.until is None:
            return f"the last {WINDOW_WORDS[self.window]}"
        return f"{self.since:%Y-%m-%d %H:%M} to {self.until:%Y-%m-%d %H:%M} UTC"

    @property
    def words(self) -> str:
        """In Markdown."""
        scenario = f" in scenario {plain(self.scenario)}" if self.scenario else ""
        model = f" of model {plain(self.model)}" if self.model else ""
        return self.time_words + scenario + model


def filters(uses: Sequence[str] = ("time", "names")) -> Filters:
    """The bar of filters. Those that a page makes no use of are shown without effect, as other pages keep them."""
    since, until = _held()
    timed, named = "time" in uses, "names" in uses
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.segmented_control(
            "Time range",
            list(WINDOWS),
            default="1h",
            key="window",
            bind="query-params",
            required=True,
            disabled=not timed or since is not None,
        )
        window = st.session_state["window"] or "1h"
        _hold(Filters(window, since=since, until=until), disabled=not timed)
        chosen = Filters(window, since=since, until=until)
        scenario = _named("Scenario", "scenario", ALL, chosen, disabled=not named)
        model = _named("Model", "model", ALL_MODELS, chosen, disabled=not named)
    return Filters(window, scenario, model, since, until)


def _named(label: str, name: str, every: str, chosen: Filters, *, disabled: bool) -> str | None:
    asked = st.session_state.get(name) or st.query_params.get(name)
    seen = [] if disabled else _seen(name, chosen)
    names = sorted({*seen, *([asked] if asked and asked != every else [])})
    if name == "model" and len(names) < 2 and asked in (None, every):
        return None
    st.selectbox(label, [every, *names], key=name, bind="query-params", width=220, disabled=disabled)
    picked = st.session_state[name]
    return None if picked in (None, every) else str(picked)


def _seen(name: str, chosen: Filters) -> list[str]:
    try:
        points = client().traffic(**chosen.time, by=name).points
    except Problem:
        return []
    return [point.group for point in points if point.group and point.group not in NO_NAMES]


def _held() -> tuple[datetime | None, datetime | None]:
    """A time range of the URL that does not move."""
    words = [st.query_params.get(name) for name in ("since", "until")]
    if words == [None, None]:
        # Another page of the same visit: Streamlit takes out of the address what belongs to no widget.
        kept: list[str] | None = st.session_state.get(HELD)
        if kept is None:
            return None, None
        words = [*kept]
        st.query_params.update(dict(zip(("since", "until"), kept, strict=True)))
    st.session_state.pop(HELD, None)
    try:
        since, until = (utc(datetime.fromisoformat(word or "")) for word in words)
    except (ValueError, OverflowError):
        since = until = datetime.now(UTC)
    if since < until and until - since <= timedelta(days=366):
        st.session_state[HELD] = words
        return since, until
    st.warning(
        "`since` and `until` of the address are no time range: write both as 2026-01-31T02:10:00Z, the earlier first, "
        "at most 366 days apart. The time range is the one chosen below."
    )
    return None, None


def _proposed(chosen: Filters) -> tuple[datetime, datetime]:
    """What stands in the fields: the range that is held, or one that moves with the clock until someone types there."""
    if chosen.since is not None and chosen.until is not None:
        return chosen.since, chosen.until
    window, *kept = st.session_state.get(PROPOSED) or (None,)
    fields = dict(zip(("since", "until"), kept, strict=False))
    typed = [st.session_state.get(_field(name, at), at.replace(tzinfo=None)) for name, at in fields.items()]
    if window == chosen.window and typed != [at.replace(tzinfo=None) for at in kept]:
        return kept[0], kept[1]
    until = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    since = until - timedelta(minutes=WINDOW_MINUTES[chosen.window])
    st.session_state[PROPOSED] = (chosen.window, since, until)
    return since, until


def _field(name: str, at: datetime) -> str:
    """Another field for another proposal, as one keeps what it was first given."""
    return f"hold_{name}_{at.isoformat()}"


def hold(since: datetime, until: datetime) -> None:
    """Shows that time range from now on, here and on other pages."""
    asked = {"since": iso(since.replace(microsecond=0)), "until": iso(until.replace(microsecond=0))}
    if st.session_state.get(HELD) != [*asked.values()]:
        st.query_params.update(asked)
        st.rerun()


def _hold(chosen: Filters, *, disabled: bool) -> None:
    """Chooses a time range that does not move, for a link that shows the same tomorrow."""
    since, until = _proposed(chosen)
    label = "Hold" if chosen.since is None else f"Held: {since:%m-%d %H:%M} to {until:%m-%d %H:%M} UTC"
    with st.popover(label, icon=":material/push_pin:", disabled=disabled):
        st.caption("A time range that does not move with the clock, so that a link to it shows the same tomorrow. UTC.")
        # Names without a zone: the widget knows none.
        first = st.datetime_input("From", since.replace(tzinfo=None), key=_field("since", since), step=60)
        last = st.datetime_input("To", until.replace(tzinfo=None), key=_field("until", until), step=60)
        if st.button("Hold this time range", key="hold", type="primary"):
            if first is None or last is None or first >= last:
                st.error("*From* must be before *To*.")
            else:
                hold(first, last)
        if chosen.since is not None and st.button("Move with the clock again", key="hold_end"):
            st.session_state.pop(HELD, None)
            for name in ("since", "until"):
                st.query_params.pop(name, None)
            st.rerun()
