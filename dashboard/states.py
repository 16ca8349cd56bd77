"""When there is nothing to show, or not all of it: what it is, and what to do."""

import json
import shlex

import streamlit as st

from dashboard import shapes
from dashboard.client import Kind, Problem
from dashboard.connection import client
from dashboard.filters import Filters
from dashboard.frames.base import count, plain, ratio
from dashboard.frames.state import misaligned_line, missing_table

RETRY_SECONDS = 5


def problem(found: Problem) -> None:
    url = client().url
    if found.kind is Kind.UNREACHABLE:
        st.error(f"**The sidecar cannot be reached.** {plain(str(found))}", icon=":material/cloud_off:")
        st.markdown("Start it before your OpenAI-compatible server, or point the dashboard to where it runs:")
        st.code(
            f"specwatch sidecar --upstream URL\nspecwatch dashboard --api {url}   # the sidecar's --admin address",
            language="shell",
        )
    elif found.kind in (Kind.TIMEOUT, Kind.BROKEN):
        st.error(f"**The sidecar gave no whole answer.** {plain(str(found))}", icon=":material/cloud_off:")
        st.markdown(
            "It is asked again by itself. If that goes on, choose a shorter time range, and look at the sidecar's log "
            "and at the load of its database."
        )
    elif found.kind is Kind.BUSY:
        st.error(f"**The sidecar is asked too often.** {plain(str(found))}", icon=":material/speed:")
        st.markdown(
            "It is asked again by itself. Close pages of this dashboard that nobody looks at, or raise "
            "`admin_per_second` of the sidecar, which bounds what one address may ask."
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
    if summary.last_100.requests or chosen.named or chosen.since:
        st.info(
            f"**No requests in {chosen.words}.** Choose a longer time range"
            f"{', or take the filters off' if chosen.named else ''}.",
            icon=":material/hourglass_empty:",
        )
    else:
        st.info(
            f"**No data yet.** The sidecar runs, but saw no request in {chosen.words}. "
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
    if chosen.named:
        st.warning(
            f"**No speculation seen in {chosen.words}.** Choose a longer time range, or take the filters off.",
            icon=":material/visibility_off:",
        )
        return
    st.warning(
        f"**No speculation seen.** None of the {summary.traffic.requests:,} requests of {chosen.words} "
        "came with acceptance figures. Check that the engine runs with `--speculative-config`, and that the "
        "Specwatch plugin is loaded or the replies carry acceptance figures (vLLM before 0.32 tells none by itself).",
        icon=":material/visibility_off:",
    )
    for engine in summary.coverage.engines:
        if engine.p is not None:
            st.info(
                f"The engine's own counters know no requests. Of all that upstream {plain(engine.upstream)} served of "
                f"late, p is {ratio(engine.p)} over {count(engine.draft_tokens or 0, 'draft token')}.",
                icon=":material/functions:",
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
