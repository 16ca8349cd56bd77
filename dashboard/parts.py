"""Pieces every page uses: connection, filters, tiles, and what to do when there is nothing to show."""

import json
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

import streamlit as st

from dashboard import shapes
from dashboard.client import DEFAULT_API, Client, Kind, Problem
from dashboard.frames import Tile, misaligned_line, missing_table, plain, state_line

#: Time range -> step of its charts.
WINDOWS = {"15m": "1m", "1h": "1m", "6h": "5m", "24h": "15m", "7d": "2h"}
WINDOW_WORDS = {
    "15m": "15 minutes",
    "1h": "1 hour",
    "6h": "6 hours",
    "24h": "24 hours",
    "7d": "7 days",
}
ALL = "All scenarios"
STATE_SECONDS, DATA_SECONDS, RETRY_SECONDS = 5, 10, 5

STYLE = """<style>
.block-container, .stMainBlockContainer { padding-top: 3.5rem; padding-bottom: 2rem; max-width: 1400px; }
.sw-state { border-left: .6rem solid; border-radius: .4rem; padding: .7rem 1rem;
  background: rgba(128,128,128,.10); line-height: 1.45; overflow-wrap: anywhere; }
.sw-on { border-color: #0072B2; } .sw-off { border-color: #D55E00; }
.sw-head { font-size: 1.7rem; font-weight: 700; line-height: 1.2; }
.sw-head span { display: inline-block; margin-right: .35rem; }
.st-key-slo [data-testid="stMetricValue"] { font-size: 3.6rem; line-height: 1.15; }
.st-key-slo [data-testid="stMetricLabel"] p { font-size: 1.05rem; font-weight: 600; }
[data-testid="stMetricLabel"] p { white-space: normal; overflow-wrap: anywhere; }
[data-testid="stMetricLabel"], [data-testid="stMetricLabel"] > div { overflow: visible; white-space: normal; }
@media (max-width: 640px) {
  .sw-head { font-size: 1.35rem; }
  .st-key-slo [data-testid="stMetricValue"] { font-size: 2.9rem; }
}
</style>"""


@dataclass(frozen=True, slots=True)
class Filters:
    window: str
    scenario: str | None

    @property
    def step(self) -> str:
        return WINDOWS[self.window]

    @property
    def words(self) -> str:
        where = f" in scenario {plain(self.scenario)}" if self.scenario else ""
        return f"the last {WINDOW_WORDS[self.window]}{where}"


@st.cache_resource(show_spinner=False)
def _connect(url: str, token: str | None, reading: str | None) -> Client:
    return Client(url, token or reading, reads_only=token is None and reading is not None)


def client() -> Client:
    tokens = [os.environ.get(f"SPECWATCH_ADMIN_{name}") or None for name in ("TOKEN", "READ_TOKEN")]
    return _connect(os.environ.get("SPECWATCH_API") or DEFAULT_API, *tokens)


def filters() -> Filters:
    """Time range and scenario. Both live in the URL, so that a link shows what its sender saw."""
    with st.container(horizontal=True, vertical_alignment="top"):
        st.segmented_control(
            "Time range", list(WINDOWS), default="1h", key="window", bind="query-params", required=True
        )
        window = st.session_state["window"] or "1h"
        asked = st.session_state.get("scenario") or st.query_params.get("scenario")
        names = sorted({*_scenarios(window), *([asked] if asked and asked != ALL else [])})
        st.selectbox("Scenario", [ALL, *names], key="scenario", bind="query-params", width=260)
    chosen = st.session_state["scenario"]
    return Filters(window=window, scenario=None if chosen in (None, ALL) else chosen)


def _scenarios(window: str) -> Iterable[str]:
    try:
        series = client().acceptance(window, by="scenario")
    except Problem:
        return []
    return [point.group for point in series.points if point.group]


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
        if tile.note:
            st.caption(plain(tile.note).replace(" %", "\u00a0%").replace(" ms", "\u00a0ms"))


def tiles(row: list[Tile]) -> None:
    for column, each in zip(st.columns(len(row)), row, strict=True):
        with column:
            tile(each)


def chart(title: str, figure: Any, *, helped: str, key: str) -> None:
    st.markdown(f"**{title}**", help=helped)
    st.plotly_chart(figure, key=key, config={"displayModeBar": False, "responsive": True})


def state(fallback: shapes.FallbackState) -> None:
    """The one line of state, in words first; the colour only repeats them."""
    line = state_line(fallback, datetime.now(UTC))
    sign, tone = ("▶", "sw-on") if line.speculating else ("■", "sw-off")
    st.html(
        f'<div class="sw-state {tone}" role="status"><div class="sw-head"><span>{sign}</span>'
        f"{escape(line.headline)}</div><div>{escape(line.mode)} · {escape(line.since)} · "
        f"why: {escape(line.reason)}</div></div>"
    )


# When there is nothing to show: what it is, and what to do.


def problem(found: Problem) -> None:
    url = client().url
    if found.kind in (Kind.UNREACHABLE, Kind.TIMEOUT):
        st.error(f"**The sidecar cannot be reached.** {plain(str(found))}", icon=":material/cloud_off:")
        st.markdown("Start it before your OpenAI-compatible server, or point the dashboard to where it runs:")
        st.code(
            f"specwatch sidecar --upstream URL\nspecwatch dashboard --api {url}   # the sidecar's --admin address",
            language="shell",
        )
    elif found.kind is Kind.UNAUTHORISED:
        st.error(f"**The sidecar wants its admin token.** {plain(str(found))}", icon=":material/lock:")
        st.markdown(
            "Set `SPECWATCH_ADMIN_TOKEN` to the token of the sidecar (`SPECWATCH_ADMIN_READ_TOKEN`: to the one that "
            "only reads) and start the dashboard again:"
        )
        st.code(f"SPECWATCH_ADMIN_TOKEN=… specwatch dashboard --api {url}", language="shell")
    elif found.kind is Kind.DATABASE:
        st.error(f"**No figures: the database is unavailable.** {plain(str(found))}", icon=":material/database:")
        st.markdown(
            "The proxy keeps serving. Check the sidecar's `database_url` and that the database runs; "
            "figures come back by themselves."
        )
    else:
        st.error(f"**The sidecar gave no figures.** {plain(str(found))}", icon=":material/error:")
        st.markdown(f"Check that `{url}` is the sidecar's admin address, and that both are of one version.")


@st.fragment(run_every=RETRY_SECONDS)
def wait(found: Problem) -> None:
    """Show the problem and look again by itself until there is an answer."""
    try:
        client().fallback()
    except Problem as still:
        problem(still)
        st.caption(f"This page tries again every {RETRY_SECONDS} s.")
    else:
        st.rerun()


def misaligned(alignment: shapes.AlignmentSummary) -> None:
    """Name the tokens that draft and target know by different ids, if there are any."""
    if alignment.state == "misaligned":
        st.error(misaligned_line(alignment), icon=":material/translate:")


def unusable(summary: shapes.Summary, chosen: Filters) -> bool:
    """Say so when the time range holds no request; True if it does not."""
    if summary.traffic.requests:
        return False
    if summary.last_100.requests:
        st.info(
            f"**No requests in the last {WINDOW_WORDS[chosen.window]}.** Choose a longer time range.",
            icon=":material/hourglass_empty:",
        )
    else:
        st.info(
            f"**No data yet.** The sidecar runs, but saw no request in the last {WINDOW_WORDS[chosen.window]}. "
            "Send one through the proxy, at the sidecar's `--listen` address (by default http://127.0.0.1:8000):",
            icon=":material/hourglass_empty:",
        )
        body = {"model": summary.versions.model or "MODEL", "prompt": "Hello", "max_tokens": 32}
        st.code(
            "curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\\n"
            f"  -d {shlex.quote(json.dumps(body))}",
            language="shell",
        )
    return True


def no_speculation(summary: shapes.Summary, chosen: Filters) -> None:
    if chosen.scenario:
        st.warning(
            f"**No speculation seen in {chosen.words}.** Choose a longer time range or another scenario.",
            icon=":material/visibility_off:",
        )
        return
    st.warning(
        f"**No speculation seen.** None of the {summary.traffic.requests:,} requests of {chosen.words} "
        "came with acceptance figures. Check that the engine runs with `--speculative-config`, and that the "
        "Specwatch plugin is loaded or the replies carry acceptance figures.",
        icon=":material/visibility_off:",
    )
    missing(summary.coverage)


def missing(coverage: shapes.Coverage) -> None:
    """Why requests came without acceptance figures."""
    if coverage.missing:
        st.dataframe(missing_table(coverage), hide_index=True, width="stretch")


def database_note(summary: shapes.Summary) -> None:
    lost = f" Rows dropped so far: {summary.records_dropped:,}." if summary.records_dropped else ""
    if summary.database == "unavailable":
        st.warning(
            f"**The database does not take rows at the moment**, so the newest requests may be missing "
            f"here. The proxy serves on.{lost}",
            icon=":material/database:",
        )
    elif lost:
        st.caption(f"The figures lack some requests.{lost}")
