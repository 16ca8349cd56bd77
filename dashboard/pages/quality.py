"""Quality: whether drafts and replies mean the same, and whether replies look broken."""

from typing import NamedTuple

import streamlit as st

from dashboard import shapes
from dashboard.client import Kind, Problem
from dashboard.connection import client
from dashboard.filters import Filters
from dashboard.frames import quality as frames
from dashboard.frames import quality_plots as plots
from dashboard.frames.base import plain, utc
from dashboard.frames.now import of_drafts
from dashboard.frames.plots import with_trend
from dashboard.frames.table import STYLE
from dashboard.parts import DATA_SECONDS, answers, chart, tiles, time_chart, unless_refused
from dashboard.states import database_note
from dashboard.words import EVENTS_YAML, SIMILARITY_MIN, define

USES = ("time", "names")
LOWEST = 20
#: The group of pairs that tell no scenario.
UNKNOWN = "unknown"
#: Pages of `/requests` that are looked at for the request of a reply.
_MOST_PAGES = 3


@st.fragment(run_every=DATA_SECONDS)
def page(chosen: Filters) -> None:
    with answers() as ask:
        query = {name: value for name, value in chosen.query.items() if name != "model"}
        later_series = ask.later(ask.similarity, **query, step=chosen.step)
        later_whole = ask.later(ask.similarity, **query)
        later_scenarios = ask.later(ask.similarity, **query, by="scenario")
        later_spread = ask.later(ask.similarity_histogram, **query)
        later_pairs = ask.later(ask.similarity_pairs, **query, limit=str(LOWEST))
        quality, summary = ask.quality(), ask.summary(window="1m")
        series, whole, scenarios = later_series.result(), later_whole.result(), unless_refused(later_scenarios)
        spread, lowest = later_spread.result(), unless_refused(later_pairs)
        st.html(STYLE)
        database_note(summary)
        st.subheader("Do drafts and replies mean the same?", help=define("similarity"))
        state = series.last_100
        if state.reason:
            _off(state.reason)
        if not whole.points and not state.draft.pairs and not state.replay.pairs:
            if not state.reason:
                _none(chosen)
        else:
            _similarity(series, whole, scenarios, spread, chosen)
            if isinstance(lowest, str) or isinstance(scenarios, str):
                st.caption("Of so many pairs neither scenarios nor single ones are told. Choose a shorter time range.")
            if not isinstance(lowest, str):
                _pairs(lowest.pairs, chosen)
        st.subheader("Do replies look broken?", help=define("repetition", "garble", "p near one"))
        _quality(quality)


def _off(reason: str) -> None:
    st.warning(
        f"**No texts are compared.** {plain(reason[:1].upper() + reason[1:].rstrip('.'))}.", icon=":material/compare:"
    )
    words, code, language = frames.remedy(reason)
    if words:
        st.markdown(words)
    if code:
        st.code(code, language=language)


def _none(chosen: Filters) -> None:
    st.info(
        f"**No pair was compared in {chosen.words}.** A share of the requests that speculate is "
        "(`similarity_share`, 5 % unless it is set; at most `similarity_per_minute`). Choose a longer time range"
        f"{', or take the filters off' if chosen.named else ''}.",
        icon=":material/hourglass_empty:",
    )


def _similarity(
    series: shapes.SimilaritySeries,
    whole: shapes.SimilaritySeries,
    scenarios: shapes.SimilaritySeries | str,
    spread: shapes.SimilarityHistogram,
    chosen: Filters,
) -> None:
    state, drafts = series.last_100, of_drafts(series)
    mean, critical = frames.range_tiles(whole)
    tiles(
        [
            frames.state_tile(state),
            with_trend(mean, drafts, lambda each: each.mean, SIMILARITY_MIN),
            with_trend(critical, drafts, lambda each: each.critical / each.pairs if each.pairs else None, None),
            frames.replay_tile(state),
        ]
    )
    if chosen.model is not None:
        st.caption(f"Similarities know no model: these are of all models, not of {plain(chosen.model)} alone.")
    if not whole.points:
        _none(chosen)
        return
    left, right = st.columns(2)
    with left:
        time_chart(
            "Similarity over time (UTC)",
            plots.over_time(series, (utc(series.since), utc(series.until))),
            helped=define("similarity", "p10 of similarity"),
            key="similarity",
        )
    with right:
        chart(
            "Pairs by similarity",
            plots.histogram(spread),
            helped=define("similarity"),
            key="similarity_histogram",
        )
    st.markdown("**Similarity by scenario, worst first**", help=define("similarity"))
    if not isinstance(scenarios, str) and any(point.group not in (None, UNKNOWN) for point in scenarios.points):
        st.html(frames.scenario_table(scenarios))
    else:
        st.caption("No pair of this time range tells its scenario.")


def _pairs(pairs: list[shapes.SimilarityPair], chosen: Filters) -> None:
    st.markdown("**Pairs of lowest similarity**", help=define("similarity", "reply id"))
    if not pairs:
        st.caption(f"No pair has a score in {chosen.words}.")
        return
    st.html(frames.pairs_table(pairs))
    drafts = {pair.reply_id: pair for pair in pairs if pair.kind == "draft"}
    if drafts:
        _texts(drafts)


# Texts of others, read only when someone asks for them.


class _Said(NamedTuple):
    reply_id: str
    texts: list[shapes.StoredText]
    #: In Markdown: why there are none; empty where there are.
    why: str


def _texts(pairs: dict[str, shapes.SimilarityPair]) -> None:
    if client().reads_only:
        st.caption(
            "What was said is shown to the control token alone: start the dashboard with it in `SPECWATCH_ADMIN_TOKEN`."
        )
        return
    kept: dict[str, shapes.SimilarityPair] = st.session_state.setdefault("pairs_seen", {})
    if (picked := st.session_state.get("pair_read")) in kept and picked not in pairs:
        # A choice stays a choice when newer pairs have taken its place.
        pairs = {picked: kept[picked]} | pairs
    st.session_state["pairs_seen"] = pairs
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.selectbox(
            "Read what was said",
            list(pairs),
            key="pair_read",
            format_func=lambda reply_id: frames.pair_words(pairs[reply_id]),
            help="Prompt and reply, redacted, where the sidecar stores them (`store_text`). Draft texts are not.",
        )
        chosen = pairs[st.session_state["pair_read"]]
        st.button("Show texts", key="pair_show", on_click=lambda: st.session_state.update(pair_said=_read(chosen)))
        said: _Said | None = st.session_state.get("pair_said")
        if said is not None:
            st.button("Hide", key="pair_hide", on_click=st.session_state.pop, args=("pair_said", None))
    if said is None:
        return
    if said.why:
        st.info(f"**No texts of {plain(said.reply_id)}.** {said.why}", icon=":material/lock:")
    for text in said.texts:
        st.markdown(f"**{text.kind.title()}** of {plain(said.reply_id)}{' (its beginning)' if text.cut else ''}")
        st.code(text.text, language=None, wrap_lines=True, height=240 if len(text.text) > 800 else "content")


def _read(pair: shapes.SimilarityPair) -> _Said:
    try:
        row = _request(pair)
        if row is None:
            why = "Its request is not recorded: rows are deleted after the days of `retention_days`."
            return _Said(pair.reply_id, [], why)
        texts = client().texts(row.request_id).texts
    except Problem as found:
        why = plain(str(found))
        if found.kind in (Kind.REFUSED, Kind.UNAUTHORISED):
            why += (
                " Texts are shown to the control token alone: start the dashboard with it in `SPECWATCH_ADMIN_TOKEN`."
            )
        return _Said(pair.reply_id, [], why)
    none = "None are stored: set `store_text` to keep those of later requests, redacted; or they were deleted by age."
    return _Said(pair.reply_id, texts, "" if texts else none)


def _request(pair: shapes.SimilarityPair) -> shapes.RequestRow | None:
    cursor = None
    for _ in range(_MOST_PAGES):
        found = client().requests(reply_id=pair.reply_id, **frames.around(pair.at), limit="1", cursor=cursor)
        if found.requests:
            return found.requests[0]
        cursor = found.next_cursor
        if cursor is None:
            break
    return None


def _quality(quality: shapes.Quality) -> None:
    if not quality.requests:
        st.info(
            "**No reply was looked at.** Only an engine that tells its tokens lets it be seen. Set where its plugin "
            "tells them; where that is set, replies are looked at as they end.",
            icon=":material/visibility_off:",
        )
        st.code(EVENTS_YAML, language="yaml")
        return
    tiles(frames.flag_tiles(quality))
    st.caption("Of all traffic since the sidecar started, whatever the time range and the names above.")
    if quality.recent:
        st.markdown("**Replies that look broken, newest first**", help=define("repetition", "garble", "p near one"))
        st.html(frames.flagged_table(quality.recent))
    else:
        st.caption("No reply was flagged.")
