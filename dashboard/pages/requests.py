"""Requests: which there were, one of them with its verify steps, and all of them as a file."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import streamlit as st

from dashboard import shapes
from dashboard.client import Client
from dashboard.filters import WINDOW_MINUTES, Filters
from dashboard.frames import requests as frames
from dashboard.frames.base import count, iso
from dashboard.pages import export, request
from dashboard.parts import answers
from dashboard.words import NO_DATA, define

USES = ("time", "names")
LISTED = 50
#: Answers without a row that are asked for in a row; each looks at so many rows as the sidecar does for one.
MOST_LOOKS = 5
KEPT, PICKED = "requests_kept", "requests_picked"


@dataclass(slots=True)
class Kept:
    """What is on the table, which stays as it is until the reader asks for more."""

    asked: tuple[Filters, tuple[tuple[str, str], ...]]
    #: What the rows are asked for by, with a time range that does not move.
    query: dict[str, str]
    at: datetime
    #: Of the pages between the newest and the shown one.
    cursors: list[str] = field(default_factory=list)
    rows: list[shapes.RequestRow] = field(default_factory=list)
    following: str | None = None
    looks: int = 0
    loaded: bool = False


@st.fragment
def page(chosen: Filters) -> None:
    """Without a timer, so that no row moves under the reader's hands."""
    named = _named()
    with answers() as ask:
        kept = st.session_state.get(KEPT)
        if kept is None or kept.asked != (chosen, tuple(named.items())):
            kept = st.session_state[KEPT] = _begin(chosen, named)
            st.session_state.pop(PICKED, None)
        opened: str = st.session_state["request"] or ""
        picked = st.session_state.get(PICKED)
        picked = picked if picked is not None and picked.request_id == opened else None
        # What a link leads to stands first; what was chosen from the table below that, which stays where it is.
        if opened and picked is None:
            request.opened(ask, opened, chosen.until)
        _list(ask, chosen, kept)
        if picked is not None:
            request.draw(ask, picked)
        export.offer(ask, kept.query)


def _named() -> dict[str, str]:
    """The filters of this page, as the API takes them. They live in the URL under the names that they have there."""
    every = "All"
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.selectbox(
            "Outcome",
            [every, *frames.OUTCOMES],
            key="outcome",
            bind="query-params",
            width=120,
            help=define("outcome"),
        )
        st.selectbox("Arm", [every, *frames.ARMS], key="arm", bind="query-params", width=140, help=define("arm"))
        st.number_input(
            "Truncated at",
            min_value=1,
            max_value=64,
            value=None,
            key="truncated_at",
            bind="query-params",
            placeholder="any",
            width=130,
            help="A verify step had its first rejection at this position. " + define("rejected"),
        )
        st.number_input(
            "Slower than (ms)",
            min_value=0.0,
            value=None,
            key="latency_over_ms",
            bind="query-params",
            placeholder="any",
            format="%g",
            width=140,
            help=define("latency"),
        )
        st.number_input(
            "p below",
            min_value=0.0,
            max_value=1.0,
            step=0.05,
            value=None,
            key="p_below",
            bind="query-params",
            placeholder="any",
            format="%g",
            width=100,
            help=define("acceptance rate p"),
        )
        st.number_input(
            "k",
            min_value=0,
            max_value=1000,
            value=None,
            key="k",
            bind="query-params",
            placeholder="any",
            width=80,
            help=define("k"),
        )
        st.text_input("Reply id", key="reply_id", bind="query-params", width=145, help=define("reply id"))
        st.text_input("Open request id", key="request", bind="query-params", width=145, help=define("request id"))
    names = ("outcome", "arm", "truncated_at", "latency_over_ms", "p_below", "k", "reply_id")
    values = {name: st.session_state[name] for name in names}
    texts = {name: f"{value:.15g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    return {name: texts[name].strip() for name in names if values[name] not in (None, "", every)}


def _begin(chosen: Filters, named: dict[str, str]) -> Kept:
    now = datetime.now(UTC)
    names = {name: value for name, value in chosen.query.items() if name != "window"}
    if chosen.since is None:
        names["since"] = iso(now - timedelta(minutes=WINDOW_MINUTES[chosen.window]))
    return Kept((chosen, tuple(named.items())), names | named, now)


def _load(ask: Client, kept: Kept) -> None:
    """The page that the last cursor tells, and the next one as long as there is no row on it."""
    cursor = kept.cursors[-1] if kept.cursors else None
    for look in range(1, MOST_LOOKS + 1):
        found = ask.requests(**kept.query, limit=str(LISTED), cursor=cursor)
        kept.rows, kept.following, kept.looks = found.requests, found.next_cursor, look
        cursor = found.next_cursor
        if found.requests or cursor is None:
            break
    kept.loaded = True


def _list(ask: Client, chosen: Filters, kept: Kept) -> None:
    if not kept.loaded:
        _load(ask, kept)
    place = f"requests_{hash((kept.asked, tuple(kept.cursors)))}"
    if kept.rows:
        st.dataframe(
            frames.table(kept.rows),
            hide_index=True,
            width="stretch",
            height=min(38 + 35 * len(kept.rows), 388),
            placeholder=NO_DATA,
            column_config=_columns(),
            key=place,
            on_select=lambda: _pick(place, kept),
            selection_mode=["single-row", "single-cell"],
        )
        st.caption(_told(kept))
    else:
        _none(chosen, kept)
    with st.container(horizontal=True):
        st.button("Look for newer ones", key="requests_reload", icon=":material/refresh:", on_click=_reload)
        if kept.cursors or kept.following is not None:
            st.button("Newer", key="requests_newer", disabled=not kept.cursors, on_click=_turn, args=(kept, None))
            st.button(
                "Older",
                key="requests_older",
                disabled=kept.following is None,
                on_click=_turn,
                args=(kept, kept.following),
            )


def _columns() -> dict[str, Any]:
    def number(form: str, *terms: str) -> Any:
        return st.column_config.NumberColumn(format=form, help=define(*terms))

    return {
        "started (UTC)": st.column_config.TextColumn(pinned=True),
        "arm": st.column_config.TextColumn(help=define("arm")),
        "outcome": st.column_config.TextColumn(help=define("outcome"), width=115),
        "p": number("%.3f", "acceptance rate p"),
        "accepted/drafted": st.column_config.TextColumn(help=define("draft tokens")),
        "steps": number("%d", "verify step"),
        "TTFT": number("%.0f ms", "TTFT"),
        "latency": number("%.0f ms", "latency"),
        "TPOT": number("%.1f ms", "TPOT"),
        "concurrency": number("%d", "concurrency"),
        "request id": st.column_config.TextColumn(help=define("request id")),
    }


def _told(kept: Kept) -> str:
    told = (
        f"{count(len(kept.rows), 'request')}, newest first, as of {kept.at:%H:%M:%S} UTC. Choose one to see it below."
    )
    if kept.following is not None and len(kept.rows) < LISTED:
        told += (
            f" The sidecar looks at {frames.LOOKED_AT:,} requests at a time, and stopped there: *Older* looks further."
        )
    return told


def _none(chosen: Filters, kept: Kept) -> None:
    if kept.following is not None:
        looked = f"{kept.looks * frames.LOOKED_AT:,}"
        st.info(
            f"**None so far.** Up to {looked} requests were looked at. There are older ones: *Older* looks further.",
            icon=":material/hourglass_empty:",
        )
    elif kept.cursors:
        st.info("**No older ones.**", icon=":material/hourglass_empty:")
    elif dict(kept.asked[1]) or chosen.named:
        st.info(
            f"**No such request in {chosen.words}.** Take filters off, or choose a longer time range. Filters by "
            "position, p, k or reply id find only requests whose figures, or reply, tell them.",
            icon=":material/hourglass_empty:",
        )
    else:
        st.info(
            f"**No requests in {chosen.words}.** A request stands here within a second of its end, if it went through "
            "the proxy, at the sidecar's `--listen` address.",
            icon=":material/hourglass_empty:",
        )


def _pick(place: str, kept: Kept) -> None:
    """Open the request that was chosen; none where the choice was taken back."""
    chosen = st.session_state[place].selection
    places = [*chosen.rows, *(row for row, _ in chosen.cells)]
    picked = kept.rows[places[0]] if places else None
    st.session_state[PICKED] = picked
    st.session_state["request"] = picked.request_id if picked is not None else ""


def _turn(kept: Kept, following: str | None) -> None:
    if following is None:
        kept.cursors.pop()
    else:
        kept.cursors.append(following)
    kept.loaded = False


def _reload() -> None:
    st.session_state.pop(KEPT, None)
