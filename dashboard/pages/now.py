"""Now: is speculation on, does it pay, and since when."""

import streamlit as st

from dashboard import shapes
from dashboard.client import Client, Problem
from dashboard.connection import client
from dashboard.filters import Filters
from dashboard.frames import now as frames
from dashboard.frames import now_plots as plots
from dashboard.frames.base import plain, utc
from dashboard.frames.plots import with_trend
from dashboard.frames.state import alert_text, footer, slices_off
from dashboard.parts import (
    DATA_SECONDS,
    STATE_SECONDS,
    answers,
    chart,
    health,
    state,
    tile,
    tiles,
    time_chart,
    unless_refused,
)
from dashboard.states import database_note, misaligned, missing, no_speculation, unusable
from dashboard.switch import switch
from dashboard.words import LATENCY_GOAL_MS, P_MIN, SIMILARITY_MIN, SLO_MIN, define

USES = ("time", "names")
RUNBOOK_SECONDS = 600
SIGNS = {"critical": ":material/emergency_home:", "warning": ":material/warning:", "info": ":material/info:"}


def page(chosen: Filters) -> None:
    _state()
    switch()
    _figures(chosen)


@st.fragment(run_every=STATE_SECONDS)
def _state() -> None:
    with answers() as ask:
        state(ask.fallback())


@st.cache_resource(ttl=RUNBOOK_SECONDS, show_spinner=False)
def _runbook(url: str) -> dict[str, str]:
    """What to do about each alert, which changes with the version of the sidecar at `url` alone."""
    return client().runbook().alerts


def _alerts(ask: Client, alerts: shapes.Alerts) -> None:
    firing = [alert for alert in alerts.alerts if alert.status == "firing"]
    if not firing:
        return
    try:
        runbook = _runbook(ask.url)
    except Problem:
        # Alerts are shown without it too.
        runbook = {}
    for alert in firing:
        # By what it is and not by its label, which tells its value: an opened one stays open when that changes.
        with st.expander(
            f"**{plain(alert.name)}** ({alert.severity}): {plain(alert_text(alert))}",
            icon=SIGNS[alert.severity],
            key=f"alert_{alert.name}_{sorted(alert.labels.items())}",
        ):
            st.caption(f"Since {utc(alert.starts_at):%Y-%m-%d %H:%M:%S} UTC")
            st.markdown(plain(alert.annotations.get("description", "")))
            link = alert.annotations.get("runbook", "")
            if link.startswith(("https://", "http://")):
                st.link_button("Runbook", link, icon=":material/menu_book:")
            elif alert.name in runbook:
                st.markdown(runbook[alert.name])


@st.fragment(run_every=DATA_SECONDS)
def _figures(chosen: Filters) -> None:
    with answers() as ask:
        query, step = chosen.query, chosen.step
        pairs = {name: value for name, value in query.items() if name != "model"}
        later_acceptance = ask.later(ask.acceptance, **query, step=step)
        later_latency = ask.later(ask.latency, **query, step=step)
        later_traffic = ask.later(ask.traffic, **query, step=step)
        later_scenarios = ask.later(ask.acceptance, **query, by="scenario")
        later_alerts = ask.later(ask.alerts)
        later_fallback = ask.later(ask.fallback)
        later_similarity = ask.later(ask.similarity, **pairs, step=step)
        try:
            summary = ask.summary(**query)
        except Problem:
            # What is wrong with the figures may be what fires, and alerts need no database.
            _alerts(ask, later_alerts.result())
            raise
        acceptance, latency, traffic = later_acceptance.result(), later_latency.result(), later_traffic.result()
        scenarios, similarity = later_scenarios.result(), unless_refused(later_similarity)
        fallback, alerts = later_fallback.result(), later_alerts.result()
        database_note(summary)
        misaligned(summary.alignment)
        if summary.traffic.requests:
            well = frames.healthy(summary, narrowed=chosen.named)
            health(frames.problems(summary, scenarios), well, known=summary.last_100.p is not None)
        _alerts(ask, alerts)
        if unusable(summary, chosen):
            return
        speculated = bool(summary.acceptance.requests)
        if not speculated:
            no_speculation(summary, chosen)
        trend = with_trend
        with st.container(key="tiles first"):
            wide, *narrow = st.columns([2, 1, 1])
        with wide:
            share = trend(frames.slo_tile(summary), traffic, lambda each: each.p95_latency_under_800ms_ratio, SLO_MIN)
            tile(share, key="slo")
        off, similar = slices_off(summary.fallback), frames.similarity_tile(summary.similarity)
        p = frames.p_tile(summary.last_100, narrowed=chosen.named, off=off)
        length = frames.length_tile(summary.acceptance)
        for column, each in zip(
            narrow,
            (
                trend(p, acceptance, lambda each: each.p, P_MIN),
                trend(length, acceptance, lambda each: each.mean_acceptance_length, 1.0),
            ),
            strict=True,
        ):
            with column:
                tile(each)
        tiles(
            [
                trend(frames.ratio_tile(summary.latency), latency, lambda each: each.ratio, 1.0),
                frames.alignment_tile(summary.alignment),
                similar
                if isinstance(similarity, str)
                else trend(similar, frames.of_drafts(similarity), lambda each: each.mean, SIMILARITY_MIN),
                trend(frames.coverage_tile(summary.coverage), traffic, lambda each: each.coverage, 1.0),
            ]
        )
        tiles(
            [
                trend(
                    frames.latency_tile("speculative", summary.latency.speculative),
                    latency,
                    lambda each: each.speculative.p95_ms,
                    LATENCY_GOAL_MS,
                ),
                trend(
                    frames.latency_tile("autoregressive", summary.latency.autoregressive),
                    latency,
                    lambda each: each.autoregressive.p95_ms,
                    LATENCY_GOAL_MS,
                ),
                *(
                    trend(each, traffic, value, 0.0)
                    for each, value in zip(
                        frames.traffic_tiles(summary.traffic),
                        (lambda each: each.requests_per_s, lambda each: each.completion_tokens_per_s),
                        strict=True,
                    )
                ),
            ]
        )
        held = utc(summary.since), utc(summary.until)
        left, right = st.columns(2)
        with left:
            time_chart(
                "Acceptance rate p over time (UTC), ▲ switches",
                plots.p_over_time(acceptance, held, fallback.history),
                helped=define("acceptance rate p", "interval of p"),
                key="p",
            )
        with right:
            time_chart(
                "Latency p95 over time (UTC)",
                plots.latency_over_time(latency, held),
                helped=define("latency", "speculative", "autoregressive"),
                key="latency",
            )
        left, right = st.columns(2)
        with left:
            st.markdown("**Acceptance rate p by scenario, worst first**", help=define("acceptance rate p"))
            if scenarios.points:
                st.dataframe(frames.scenario_table(scenarios, off), hide_index=True, width="stretch")
            else:
                st.caption("No scenario has speculated in this time range.")
        with right:
            chart("Requests by outcome", plots.outcomes(summary.traffic), helped=define("outcome"), key="outcomes")
        if speculated and summary.coverage.missing:
            st.markdown("**Requests without acceptance figures**", help=define("coverage"))
            missing(summary.coverage)
        st.caption(footer(summary))
