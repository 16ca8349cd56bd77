"""Runs of the lab in words: the list, how one stands, and how to go on with it."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import lab_runs
from support.board import NOW
from support.html_tables import cells, links
from support.payloads import law, no_nan, over_the_wire

from dashboard import shapes
from dashboard.frames import lab as frames
from dashboard.frames import lab_plots, lab_tables
from dashboard.frames.lab_summary import read
from sidecar.api.lab import LabRun


def run(name="qualify-2", **changes):
    return msgspec.convert(lab_runs.whole(name) | changes, shapes.LabRun)


def test_the_list():
    runs = [msgspec.convert(each, shapes.LabRunShort) for each in lab_runs.LIST]
    html = frames.runs_table(runs, "soak-2", NOW, "soak")
    head, *rows = cells(html)
    assert head == ["run", "verdict", "began (UTC)", "took", "k", "instance"]
    assert rows[0] == ["soak of draft_generalist", "▶ under way", "2026-11-29 18:18", "12 min so far", "4", "sidecar-1"]
    assert [row[1] for row in rows[1:]] == [
        "◐ qualified in part",
        "✓ recommended",
        "✗ drift",
        "✗ rejected",
        "■ interrupted",
        "✗ failed",
    ]
    assert rows[-1][0] == "self-draft of demo-target"
    assert [row[3] for row in rows[1:3]] == ["30 min", "1 h"]
    assert links(html)[1] == "lab?command=soak&run=qualify-2"
    assert html.count('class="sw-opened"') == 1
    assert cells(frames.runs_table([], None, NOW, None)) == [head]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"draft_model": "/a/b/"}, "qualify of b"),
        ({"draft_model": "org/name"}, "qualify of name"),
        ({"draft_model": "/"}, "qualify of /"),
        ({"draft_model": None}, "qualify of demo-target"),
        ({"draft_model": None, "model": None}, "qualify"),
    ],
)
def test_what_a_run_is_of(changes, words):
    assert frames.subject(run(**changes)) == words


LATER = NOW + timedelta(minutes=5)


@pytest.mark.parametrize(
    ("made", "meaning", "words", "reason", "others"),
    [
        (
            run(),
            "part",
            "◐ qualified in part",
            "The scenario fault_report is not certified: p is 0.29, below 0.65.",
            ["p of all is 0.71."],
        ),
        (run(verdict="stable", reasons=["p held"]), "good", "✓ stable", "p held.", []),
        (run(verdict="made", reasons=[]), "good", "✓ made", "", []),
        (run(verdict="no gain", reasons=[" "]), "part", "◐ no gain", "", []),
        (run(verdict="rejected", reasons=["No."]), "bad", "✗ rejected", "No.", []),
        (run(verdict="cannot tell", reasons=["Why?"]), "unknown", "? cannot tell", "Why?", []),
        (run(verdict="of another version", reasons=[]), "unknown", "? of another version", "", []),
        (
            run("soak-3", updated_at=NOW.isoformat(), verdict="cannot tell"),
            "running",
            "▶ under way",
            "For 17 min now; last heard of 5 min ago.",
            [],
        ),
        (
            run("soak-3", updated_at=(LATER - timedelta(minutes=16)).isoformat(), reasons=["So far p holds."]),
            "unknown",
            "? under way, or ended without a word",
            "For 17 min now; last heard of 16 min ago. So far p holds.",
            [],
        ),
        (
            run("qualify-0"),
            "unknown",
            "■ interrupted",
            "After 9 min. What was measured by then is kept in its folder.",
            [],
        ),
        (run("self-draft-0"), "bad", "✗ failed", "There is no room on the disk.", []),
        (
            run(
                state="failed", verdict="cannot tell", reasons=["the engine's cap is 9", "--k: none is left", "k is 4"]
            ),
            "bad",
            "✗ failed",
            "The engine's cap is 9.",
            ["--k: none is left.", "k is 4."],
        ),
        (run("self-draft-0", reasons=[]), "bad", "✗ failed", "Its folder has the log.", []),
        (run(verdict=None, reasons=[]), "unknown", "■ done", "", []),
    ],
)
def test_how_a_run_stands(made, meaning, words, reason, others):
    found = frames.headline(made, LATER)
    assert (found.meaning, found.words, found.reason, found.reasons) == (meaning, words, reason, others)


def test_a_run_without_a_title_is_called_by_what_it_is_of():
    assert frames.headline(run("qualify-0"), NOW).title == "qualify of draft_generalist"
    assert frames.headline(run(), NOW).title == "Qualify draft_generalist"


@pytest.mark.parametrize(
    ("made", "command"),
    [
        (run(), None),
        (run("qualify-0"), "specwatch qualify --resume /srv/runs/qualify-0"),
        (run("qualify-0", folder="/a b/c"), "specwatch qualify --resume '/a b/c'"),
        (run("qualify-0", folder=""), None),
        (run(state="failed", verdict=None), "specwatch qualify --resume /srv/runs/qualify-2"),
        (run("self-draft-0"), None),
        (run("soak-3", updated_at=NOW.isoformat()), None),
        (run("soak-3", updated_at=(NOW - timedelta(hours=1)).isoformat()), "specwatch soak --resume /srv/runs/soak-3"),
    ],
)
def test_how_to_go_on(made, command):
    found = frames.resume(made, LATER)
    assert (None if found is None else found.command) == command
    if made.state == "running" and found is not None:
        assert found.words.startswith("If its process is gone: go on from what was measured")


def test_facts_of_a_run():
    assert frames.facts_line(run(), NOW) == (
        "Target model demo-target · draft model draft_generalist · k 4 · began 2026-11-29 17:45:00 UTC · took 30 min · "
        "instance sidecar-1 · Specwatch 0.1.0 · run qualify-2"
    )
    unknown = {"model": None, "draft_model": None, "num_speculative_tokens": None, "instance": "", "version": ""}
    assert frames.facts_line(run(**unknown), NOW) == "began 2026-11-29 17:45:00 UTC · took 30 min · run qualify-2"
    found = read(run().summary)
    assert [(each.name, each.value) for each in frames.files(run(), found)] == [
        ("folder", "/srv/runs/qualify-2"),
        ("report", "/srv/runs/qualify-2/report.html"),
        ("certificate", "/srv/runs/qualify-2/certificate.json"),
    ]
    elsewhere = read({"files": {"draft": "/models/d"}})
    assert [each.value for each in frames.files(run(folder=""), elsewhere)] == ["/models/d"]
    told = frames.what_was_run(
        run(options={"k": [1, 2], "greedy": True, "plain": None, "rate": 1.5, "limits": {"p": 1}})
    )
    assert {title: [(each.name, each.value) for each in facts] for title, facts in told.items()} == {
        "Options": [("k", "1, 2"), ("greedy", "yes"), ("rate", "1.5"), ("limits", "p 1")],
        "Engine, models and device": [("vllm", "0.32.0"), ("target", "/models/demo-target"), ("k", "4")],
    }
    assert frames.what_was_run(run(options=None, fingerprint=None)) == {}
    assert frames.around(run(), NOW) == {"since": "2026-11-29T17:45:00Z", "until": "2026-11-29T18:15:00Z"}
    assert frames.around(run("soak-3"), NOW)["until"] == "2026-11-29T18:30:00Z"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=12,
)
PARTS = st.sampled_from(["title", "verdict", "reasons", "gates", "tables", "plots", "files"])
OBJECTS = st.none() | st.dictionaries(st.text(max_size=9), VALUES, max_size=5)
RUNS = st.builds(
    LabRun, summary=st.none() | st.dictionaries(PARTS, VALUES, max_size=5), options=OBJECTS, fingerprint=OBJECTS
)


@law
@given(RUNS)
def test_any_run(model):
    made = over_the_wire(model, shapes.LabRun)
    found = read(made.summary)
    shown = frames.headline(made, NOW)
    no_nan(shown.words, shown.reason if "None" not in str(made.reasons) else "")
    frames.runs_table([made], made.id, NOW, None)
    frames.facts_line(made, NOW)
    frames.resume(made, NOW)
    frames.option(made)
    frames.files(made, found)
    frames.unread(found)
    frames.around(made, NOW)
    frames.what_was_run(made)
    lab_tables.gates_table(found.gates)
    lab_tables.tables(found)
    lab_tables.compared(found, found)
    for plot in found.plots:
        lab_plots.figure(plot).to_json()
