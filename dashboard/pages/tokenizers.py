"""Tokenizers: whether draft and target model know the tokens by the same ids."""

import streamlit as st

from dashboard import shapes
from dashboard.filters import Filters
from dashboard.frames import tokenizer_files as files
from dashboard.frames import tokenizers as frames
from dashboard.frames.base import count, plain
from dashboard.frames.table import STYLE
from dashboard.parts import DATA_SECONDS, answers, tiles
from dashboard.words import define

#: What is known is of the pair that is served, since it is.
USES: tuple[str, ...] = ()
_SIGNS = {"aligned": "✓ aligned", "misaligned": "✗ misaligned", "unknown": "? cannot tell"}


@st.fragment(run_every=DATA_SECONDS)
def page(chosen: Filters) -> None:
    with answers() as ask:
        alignment = ask.alignment()
        st.html(STYLE)
        _verdict(alignment)
        tiles(frames.tiles(alignment))
        _moved(alignment)
        _files(alignment.static)
        st.markdown("**Compare two models before they are served**", help=define("alignment"))
        st.code(frames.check_command(alignment), language="shell")
        st.caption(
            "Folders, or names in the local cache of the Hugging Face hub; `--mapped` where the engine maps one "
            "vocabulary to the other, `--json` for all of it. Exit code 0: aligned, 1: misaligned, 2: cannot tell."
        )


def _verdict(alignment: shapes.Alignment) -> None:
    found = frames.judged(alignment)
    box = {"aligned": st.success, "misaligned": st.error, "unknown": st.warning}[found.verdict]
    icon = {"aligned": "check_circle", "misaligned": "translate", "unknown": "help"}[found.verdict]
    box(f"**{found.headline}.** {found.meaning}", icon=f":material/{icon}:")
    for ground, verdict, why in found.grounds:
        st.markdown(f"{ground}: **{_SIGNS[verdict]}**. {plain(why)}", help=define("alignment"))
    st.caption(plain(frames.models_line(alignment)))
    reasons = [alignment.reason] if alignment.state == "unknown" else []
    reasons += alignment.static.sentences if alignment.static.verdict == "unknown" else []
    for words, yaml in dict.fromkeys(frames.remedy(reason) for reason in reasons):
        if words:
            st.markdown(words)
        if yaml:
            st.code(yaml, language="yaml")


def _moved(alignment: shapes.Alignment) -> None:
    st.markdown(
        "**Tokens that have another id in the draft, as seen in the traffic**", help=define("same text, other id")
    )
    if not alignment.moved:
        st.caption("None was seen." if alignment.state != "unknown" else "None is known.")
        return
    st.html(frames.moved_table(alignment.moved))
    if (more := alignment.moved_tokens - len(alignment.moved)) > 0:
        st.caption(f"And {count(more, 'more token')}.")


def _files(static: shapes.StaticCheck) -> None:
    st.markdown("**What the files of both tokenizers tell**", help=define("alignment", "coverage of the draft"))
    report = files.report_of(static)
    if static.verdict == "unknown" and report is None:
        st.caption("Nothing, for the reason above.")
        return
    for severity, sentence in files.findings(static, report):
        st.markdown(f"- {f'**{severity}.** ' if severity else ''}{plain(sentence)}")
    if report is None:
        return
    if not report.findings:
        st.caption("Nothing that differs.")
    st.html(files.counts_table(report))
    st.html(files.facts_table(report))
    if report.moved:
        shown = "" if len(report.moved) == report.moved_tokens else f", the first {len(report.moved):,}"
        with st.expander(f"{count(report.moved_tokens, 'token')} with another id by the files{shown}", key="other_ids"):
            st.html(files.other_ids_table(report))
