"""Lab: what qualify, sweep, soak and self-draft found of drafts, of k and of hours under load."""

from datetime import UTC, datetime

import streamlit as st

from dashboard import shapes
from dashboard.client import Client, Kind, Problem
from dashboard.filters import Filters
from dashboard.frames import facts, lab_plots, lab_tables
from dashboard.frames import lab as frames
from dashboard.frames.base import count, plain
from dashboard.frames.lab_summary import Summary, read
from dashboard.frames.table import STYLE
from dashboard.parts import DATA_SECONDS, answers, chart, kept_cursors, link, turn
from dashboard.words import define

#: A run is of its own time, and names its scenarios itself.
USES: tuple[str, ...] = ()
EVERY = "All"
LISTED = 8
#: What of the list is shown, and the runs that were read last, which are read again when they were written anew.
PAGES, OPENED, OTHER = "lab_pages", "lab_opened", "lab_other"


@st.fragment(run_every=DATA_SECONDS)
def page(chosen: Filters) -> None:
    now = datetime.now(UTC)
    with answers() as ask:
        st.html(STYLE)
        command = _command()
        cursors = kept_cursors(PAGES, command)
        listed = ask.lab_runs(kind=command, limit=str(LISTED), cursor=cursors[-1] if cursors else None)
        asked = st.query_params.get("run") or None
        if not listed.runs and not cursors and asked is None:
            _none(command)
            return
        opened = asked or (listed.runs[0].id if listed.runs else None)
        st.html(frames.runs_table(listed.runs, opened, now, command))
        turn("lab", cursors, listed.next_cursor)
        if opened is not None:
            _opened(ask, opened, listed.runs, now)


def _command() -> str | None:
    st.segmented_control(
        "Command",
        [EVERY, *frames.KINDS],
        default=EVERY,
        key="command",
        bind="query-params",
        required=True,
        help="\n\n".join(f"**{kind}**: {told}" for kind, told in frames.KINDS.items()),
    )
    picked = st.session_state["command"]
    return None if picked in (None, EVERY) else str(picked)


def _none(command: str | None) -> None:
    what = "run of the lab" if command is None else f"run of {plain(command)}"
    st.info(f"**No {what} is recorded.** Runs appear here as they begin, and stay.", icon=":material/science:")
    told = "; ".join(f"`{kind}`: {words}" for kind, words in frames.KINDS.items() if command in (None, kind))
    st.markdown(
        f"A command each ({told}). `--settings FILE`, the sidecar's own, has it keep the run in this database, where "
        "neither `SPECWATCH_CONFIG` nor `SPECWATCH_DATABASE_URL` names it:"
    )
    lines = [line for line in frames.COMMANDS.splitlines() if command is None or f" {command} " in line]
    st.code("\n".join(lines or frames.COMMANDS.splitlines()), language="shell")


def _opened(ask: Client, run_id: str, listed: list[shapes.LabRunShort], now: datetime) -> None:
    try:
        run = _read(ask, run_id, listed, OPENED)
    except Problem as problem:
        if problem.kind is not Kind.MISSING:
            raise
        st.warning(
            f"**There is no run {plain(run_id)}.** It was never recorded here, or was deleted by its age "
            "(`retention_days`). Choose one of the list.",
            icon=":material/search_off:",
        )
        return
    found = read(run.summary)
    _verdict(run, now)
    _gates(found)
    for each in lab_tables.tables(found):
        _table(each)
    _plots(run, found)
    if words := frames.unread(found):
        st.caption(words)
    _files(run, found)
    _beside(ask, run, found, listed)
    _around(run, now)


def _read(ask: Client, run_id: str, listed: list[shapes.LabRunShort], key: str) -> shapes.LabRun:
    """A summary may be large, and what is done stays as it is, also where it is on no page that is shown."""
    kept: shapes.LabRun | None = st.session_state.get(key)
    written = next((each.updated_at for each in listed if each.id == run_id), None)
    if kept is None or kept.id != run_id or (kept.state != "done" if written is None else written != kept.updated_at):
        kept = st.session_state[key] = ask.lab_run(run_id)
    return kept


def _verdict(run: shapes.LabRun, now: datetime) -> None:
    found = frames.headline(run, now)
    st.markdown(f"#### {plain(found.title)}", help=define("verdict"))
    box, icon = {
        "good": (st.success, "check_circle"),
        "part": (st.warning, "rule"),
        "bad": (st.error, "cancel"),
        "unknown": (st.warning, "help"),
        "running": (st.info, "progress_activity"),
    }[found.meaning]
    box(f"**{plain(found.words)}.** {plain(found.reason)}", icon=f":material/{icon}:")
    if found.reasons:
        st.markdown("\n".join(f"- {plain(each)}" for each in found.reasons))
    st.caption(plain(frames.facts_line(run, now)))
    if (further := frames.resume(run, now)) is not None:
        st.markdown(further.words)
        st.code(further.command, language="shell")


def _gates(found: Summary) -> None:
    if found.gates:
        st.markdown("**Gates**", help=define("gate"))
        st.html(lab_tables.gates_table(found.gates))


def _table(drawn: lab_tables.Drawn) -> None:
    st.markdown(f"**{plain(drawn.title)}**")
    st.html(drawn.html)
    if drawn.more:
        st.caption(f"And {count(drawn.more, 'more row')}: the run's files have them all.")


def _plots(run: shapes.LabRun, found: Summary) -> None:
    for number, plot in enumerate(found.plots):
        title = f"{plain(plot.title)}{f' ({plain(plot.y_title)})' if plot.kind == 'heat' and plot.y_title else ''}"
        chart(title, lab_plots.figure(plot), helped=None, key=f"lab_{run.id}_{number}", alt=plot.title)


def _files(run: shapes.LabRun, found: Summary) -> None:
    if told := frames.files(run, found):
        st.markdown(f"**Files**{f', on the machine of {plain(run.instance)}' if run.instance else ''}")
        st.html(facts.html({"": told}))
    if groups := frames.what_was_run(run):
        with st.expander("What was run", key=f"lab_run_{run.id}"):
            st.html(facts.html(groups))


def _beside(ask: Client, run: shapes.LabRun, found: Summary, listed: list[shapes.LabRunShort]) -> None:
    """Another run of the same command, chosen from the list."""
    others = {each.id: each for each in listed if each.kind == run.kind and each.id != run.id}
    picked = st.query_params.get("beside")
    ids = [*others, *([picked] if picked and picked not in (*others, run.id) else [])]
    if not ids:
        return
    key = f"lab_beside_{run.id}"
    if picked in ids:
        # Not as `index`, with which a choice cannot be taken back.
        st.session_state.setdefault(key, picked)
    # In the address by its id, which a bound widget would put there as it is written on the page.
    chosen = st.selectbox(
        "Compare with",
        ids,
        index=None,
        key=key,
        placeholder=f"another {run.kind}",
        format_func=lambda each: frames.option(others[each]) if each in others else each,
        width=460,
        on_change=_choose,
        args=(key,),
    )
    if chosen is None:
        return
    try:
        other = _read(ask, chosen, listed, OTHER)
    except Problem as problem:
        if problem.kind is not Kind.MISSING:
            raise
        st.warning(f"**There is no run {plain(chosen)}.**", icon=":material/search_off:")
        return
    st.markdown(
        f"This run: **{plain(frames.standing(run))}**, {plain(frames.subject(run))}. The other: "
        f"**{plain(frames.standing(other))}**, {plain(frames.subject(other))}."
    )
    compared = lab_tables.compared(found, read(other.summary))
    for each in compared:
        _table(each)
    if not compared:
        st.caption("They have neither gates nor tables in common.")


def _choose(key: str) -> None:
    if (chosen := st.session_state[key]) is None:
        st.query_params.pop("beside", None)
    else:
        st.query_params["beside"] = chosen


def _around(run: shapes.LabRun, now: datetime) -> None:
    with st.container(horizontal=True):
        link("Events of its time", "events", frames.around(run, now))
