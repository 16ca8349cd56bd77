"""Latency: whether speculation is faster, and for whom."""

from datetime import datetime

import streamlit as st

from dashboard import shapes
from dashboard.client import Client
from dashboard.filters import STEPS, Filters
from dashboard.frames import latency as frames
from dashboard.frames import latency_plots as plots
from dashboard.frames.base import span, utc
from dashboard.frames.now import slo_tile
from dashboard.frames.plots import with_trend
from dashboard.frames.table import STYLE
from dashboard.parts import DATA_SECONDS, answers, chart, tiles, time_chart
from dashboard.states import database_note, unusable
from dashboard.words import SLO_MIN, define

USES = ("time", "names")


@st.fragment(run_every=DATA_SECONDS)
def page(chosen: Filters) -> None:
    with answers() as ask:
        query, step = chosen.query, chosen.step
        later_series = ask.later(ask.latency, **query, step=step)
        later_traffic = ask.later(ask.traffic, **query, step=step)
        later_loads = ask.later(ask.latency, **query, by="concurrency")
        later_spread = ask.later(ask.latency_distribution, **query)
        summary = ask.summary(**query)
        series, traffic = later_series.result(), later_traffic.result()
        loads, spread = later_loads.result(), later_spread.result()
        st.html(STYLE)
        database_note(summary)
        if unusable(summary, chosen):
            return
        ratios = _ratios(ask, series, chosen)
        share = with_trend(slo_tile(summary), traffic, lambda each: each.p95_latency_under_800ms_ratio, SLO_MIN)
        single = with_trend(frames.share_tile(summary), traffic, lambda each: each.latency_under_800ms_ratio, SLO_MIN)
        pays = with_trend(frames.ratio_tile(summary.latency), ratios or series, lambda each: each.ratio, 1.0)
        tiles([share, single, pays])
        _missing(summary, chosen)
        if not (summary.latency.speculative.requests or summary.latency.autoregressive.requests):
            return
        measure = _measure()
        held = utc(summary.since), utc(summary.until)
        word = frames.MEASURES[measure]
        term = "latency" if measure == "latency" else word
        left, right = st.columns([2, 3])
        with left:
            st.markdown("**Quantiles of ok requests**", help=define("p50, p95, p99", "latency", "TTFT", "TPOT"))
            st.html(frames.quantile_table(summary.latency))
        with right:
            chart(
                f"{word}: how it is spread",
                plots.distribution(spread, measure),
                helped=define("spread of latencies", term),
                key=f"spread_{measure}",
            )
        time_chart(
            f"{word}: p50, p95 and p99 over time (UTC)",
            plots.over_time(series, measure, held),
            helped=define("p50, p95, p99", term, "speculative", "autoregressive"),
            key=measure,
        )
        st.caption("Solid: p95. Dotted below it: p50. Dashed above it: p99.")
        left, right = st.columns(2)
        with left:
            _ratio(ratios, series, held)
        with right:
            chart(
                "Latency p95 by concurrency",
                plots.by_concurrency(loads),
                helped=define("concurrency", "latency ratio"),
                key="by_concurrency",
            )
            if told := frames.batch_line(loads):
                st.caption(f"{told} Above the bars: the ratio.")
        st.markdown("**By concurrency**", help=define("concurrency", "latency ratio"))
        st.html(frames.concurrency_table(loads, summary.latency))
        for told in (frames.baseline_line(summary.latency), frames.sketches_line(summary)):
            if told:
                st.caption(told)


def _ratios(ask: Client, series: shapes.LatencySeries, chosen: Filters) -> shapes.LatencySeries | None:
    """By steps that are long enough for a ratio; None where the time range does not hold them."""
    step = frames.ratio_step(series, list(STEPS))
    if step is None:
        return None
    return series if step <= (series.step_s or 0) else ask.latency(**chosen.query, step=STEPS[step])


def _ratio(ratios: shapes.LatencySeries | None, series: shapes.LatencySeries, held: tuple[datetime, datetime]) -> None:
    title, helped = "Latency ratio p95 over time (UTC)", define("latency ratio", "baseline")
    if ratios is None:
        st.markdown(f"**{title}**", help=helped)
        st.info(frames.too_few_line(series), icon=":material/query_stats:")
        return
    time_chart(title, plots.ratio_over_time(ratios, held), helped=helped, key="ratio")
    st.caption(
        f"Below 1, speculation is faster. Whatever the concurrency, by steps of {span(ratios.step_s or 0)}; a gap "
        f"where a side has fewer than {frames.ENOUGH} ok requests."
    )


def _missing(summary: shapes.Summary, chosen: Filters) -> None:
    """Say so when a side has no figures."""
    latency = summary.latency
    if not latency.speculative.requests and not latency.autoregressive.requests:
        st.warning(f"**No ok request in {chosen.words}.** Latencies are of ok requests alone.")
    elif not latency.speculative.requests:
        st.warning(
            f"**No ok request was served with speculation in {chosen.words}.**", icon=":material/visibility_off:"
        )
    elif not latency.autoregressive.requests:
        st.info(
            f"**Nothing to compare with: no ok request was served without speculation in {chosen.words}.** "
            "`baseline_share` sends a share of the requests to be served so (2 % unless it is set). It needs a "
            "`fallback_upstream`, or an engine with the Specwatch plugin.",
            icon=":material/balance:",
        )


def _measure() -> frames.Measure:
    picked = st.segmented_control(
        "Time",
        list(frames.MEASURES),
        default="latency",
        key="timing",
        bind="query-params",
        format_func=lambda name: frames.MEASURES[name],
        required=True,
        help=define("latency", "TTFT", "TPOT"),
    )
    return picked or "latency"
