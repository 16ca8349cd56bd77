"""Events: sentences, evidence in words, and the time line with p above it."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import board
from support.payloads import law, numbers, over_the_wire

from dashboard import shapes
from dashboard.frames import events as frames
from dashboard.words import NO_DATA
from sidecar.api import models

HELD = board.NOW - timedelta(hours=1), board.NOW


def event(minutes=3, kind="switch", subject="", what="autoregressive", words="Fell back", **changes):
    return msgspec.convert(board.event(minutes, kind, subject, what, words, **changes), shapes.Event)


def acceptance(sample):
    return msgspec.convert(sample.acceptance(), shapes.AcceptanceSeries)


def test_there_is_a_lane_for_every_kind():
    assert set(frames.LANES) == set(models.Event.model_fields["kind"].annotation.__args__)


@pytest.mark.parametrize(
    ("kind", "what", "severity", "word", "symbol"),
    [
        ("switch", "autoregressive", None, "autoregressive", "square"),
        ("switch", "ineffective", None, "ineffective", "square"),
        ("switch", "speculative", None, "speculative", "triangle-right"),
        ("switch", "probing", None, "probing", "triangle-right"),
        ("alert", "firing", "critical", "critical", "x"),
        ("alert", "firing", "warning", "warning", "triangle-up"),
        ("alert", "firing", "info", "info", "triangle-up"),
        ("alert", "resolved", "critical", "resolved", "circle-open"),
        ("engine", "changed", None, "engine", "star"),
        ("version", "4", None, "version", "diamond"),
        ("alignment", "same_text", None, "moved", "diamond"),
        ("lab", "qualified in part", None, "qualified in part", "hexagon"),
    ],
)
def test_sign_and_word(kind, what, severity, word, symbol):
    made = event(kind=kind, what=what, severity=severity, words="Why *not*")
    assert (frames.sign(made).word, frames.sign(made).symbol) == (word, symbol)
    heading = frames.heading(made)
    assert heading.startswith("11-29 **18:27:00** · :")
    assert heading.endswith(f"[**{word}**] · Why \\*not\\*")


@pytest.mark.parametrize(
    ("made", "query"),
    [
        (event(subject="scenario=translate"), {"scenario": "translate"}),
        (event(subject="model=a=b"), {"model": "a=b"}),
        (event(subject="temperature=0-0.5"), {}),
        (event(subject=""), {}),
        (event(kind="version", subject="scenario=translate"), {}),
        (event(kind="alert", evidence={"labels": {"scenario": "code", "instance": "a"}}), {"scenario": "code"}),
        (event(kind="alert", evidence={"labels": "?"}), {}),
        (event(kind="alert"), {}),
    ],
)
def test_the_slice_of_an_event(made, query):
    assert frames.slice_of(made) == query


def test_the_run_of_an_event():
    run = event(kind="lab", evidence={"run": "qualify-1"})
    assert frames.run_of(run) == "qualify-1"
    others = (event(kind="lab"), event(kind="lab", evidence={"run": 5}), event(evidence={"run": "x"}))
    assert [frames.run_of(each) for each in others] == [None] * 3
    colours = [frames.sign(event(kind="lab", what=what)).colour for what in ("stable", "drift", "cannot tell")]
    assert len(set(colours)) == 3


def test_the_time_around_an_event():
    assert frames.around(event()) == {"since": "2026-11-29T18:22:00Z", "until": "2026-11-29T18:32:00Z"}


def test_evidence_in_words():
    told = frames.evidence(
        {
            "p": 0.412,
            "low": None,
            "k": 4,
            "draft_tokens": 8000,
            "dwell_s": 90.0,
            "dry_run": True,
            "labels": {"scenario": "translate"},
            "marks": [1, 2.5],
            "waited_s": 3,
            "starts_at": "2026-11-29T17:57:00Z",
            "mean_acceptance_length": 2.6491,
        }
    )
    assert [(fact.name, fact.value) for fact in told] == [
        ("acceptance rate p", "0.412"),
        ("95 % interval of p, from", NO_DATA),
        ("most draft tokens of a step (k)", "4"),
        ("draft tokens", "8,000"),
        ("autoregressive for at least", "1 min 30 s"),
        ("only recorded (fallback_dry_run)", "yes"),
        ("labels: scenario", "translate"),
        ("marks", "1, 2.5"),
        ("waited", "3 s"),
        ("held since", "2026-11-29 17:57:00 UTC"),
        ("mean acceptance length", "2.649"),
    ]


def test_the_lanes_lie_below_p_over_the_same_time(sample):
    events = [
        event(3, "alert", "A", "firing", "Fires", severity="warning"),
        event(20, words="Fell <b>back</b>, {x} " + "and why " * 20),
        event(58, "version", "k", "4", "k is 4"),
        event(90, words="before the time range"),
    ]
    figure = frames.time_line(events, frames.fired(events, [], HELD), acceptance(sample), HELD)
    lines, p, _, fires, *lanes = figure.data
    assert fires.x == (board.NOW - timedelta(minutes=3), board.NOW, None)
    assert set(fires.y) == {"alerts"}
    assert {(axis.range[0], axis.range[1]) for axis in (figure.layout.xaxis, figure.layout.xaxis2)} == {HELD}
    assert p.yaxis == "y"
    assert {lane.yaxis for lane in lanes} == {"y2"}
    assert [(lane.name, len(lane.x)) for lane in lanes] == [
        ("switches", 1),
        ("engine", 0),
        ("versions", 1),
        ("alerts", 1),
        ("alignment", 0),
        ("lab", 0),
    ]
    assert lines.x == (board.NOW - timedelta(minutes=3),) * 2 + (None,) + (board.NOW - timedelta(minutes=20),) * 2 + (
        None,
    )
    assert any(shape.y0 == 0.65 for shape in figure.layout.shapes)
    hover = lanes[0].text[0]
    assert "&lt;b&gt;" in hover
    assert "<b>" not in hover
    assert "{" not in hover
    assert all(len(line) < 90 for line in hover.split("<br>"))
    assert None in p.y, "minutes without requests are a gap"


def alarm(minutes, what, name="A", scenario="x", since=None, **changes):
    evidence = {"labels": {"alertname": name, "instance": "sidecar-1", "scenario": scenario}}
    if since is not None:
        evidence["starts_at"] = board.ago(minutes=since)
    return event(minutes, "alert", name, what, **{"severity": "warning", "evidence": evidence} | changes)


def active(since, name="A", scenario="x", status="firing"):
    (made,) = board.alerts(name)["alerts"]
    labels = {"alertname": name, "instance": "sidecar-1", "scenario": scenario}
    return msgspec.convert(
        made | {"labels": labels, "starts_at": board.ago(minutes=since), "status": status}, shapes.ActiveAlert
    )


@pytest.mark.parametrize(
    ("events", "now", "bars"),
    [
        ([alarm(50, "firing"), alarm(30, "resolved", since=52)], [], [(50, 30)]),
        ([alarm(30, "resolved", since=52), alarm(50, "firing")], [], [(50, 30)]),
        ([alarm(50, "firing")], [], [(50, 0)]),
        ([alarm(50, "firing")], [active(55)], [(50, 0)]),
        ([alarm(30, "resolved", since=300)], [], [(60, 30)]),
        ([alarm(30, "resolved", since=40)], [], [(40, 30)]),
        ([alarm(30, "resolved", evidence={"starts_at": "?"})], [], [(60, 30)]),
        ([alarm(30, "resolved", evidence=None)], [], [(60, 30)]),
        ([], [active(300)], [(60, 0)]),
        ([], [active(300, status="pending")], []),
        ([alarm(50, "firing"), alarm(40, "resolved"), alarm(30, "firing")], [active(31)], [(50, 40), (30, 0)]),
        ([alarm(50, "firing"), alarm(40, "firing"), alarm(30, "resolved")], [], [(50, 30)]),
        ([alarm(50, "firing", scenario="y"), alarm(30, "resolved", since=300)], [], [(60, 30), (50, 0)]),
        ([alarm(50, "firing", name="B"), alarm(30, "resolved", since=300)], [], [(60, 30), (50, 0)]),
        ([alarm(50, "firing", instance="b"), alarm(30, "resolved", since=300)], [], [(60, 30), (50, 0)]),
        ([alarm(90, "firing"), alarm(80, "resolved")], [], []),
        ([alarm(90, "firing")], [], [(60, 0)]),
        ([alarm(90, "firing"), alarm(-20, "resolved")], [], [(60, 0)]),
        ([alarm(90, "firing"), alarm(30, "resolved")], [], [(60, 30)]),
        ([alarm(90, "firing"), alarm(80, "resolved"), alarm(50, "firing")], [active(50)], [(50, 0)]),
        ([event(50)], [], []),
    ],
)
def test_how_long_an_alert_fired(events, now, bars):
    found = frames.fired(events, now, HELD)
    assert [tuple((board.NOW - at).total_seconds() / 60 for at in each[:2]) for each in found] == bars


def test_what_informs_is_no_alarm(sample):
    events = [alarm(50, "firing", severity="info"), alarm(30, "firing", name="B", severity="critical")]
    figure = frames.time_line(events, frames.fired(events, [], HELD), acceptance(sample), HELD)
    _, _, informs, alarms, *_ = figure.data
    assert [len(trace.x) for trace in (informs, alarms)] == [3, 3]
    assert informs.line.color != alarms.line.color


def test_a_time_line_of_nothing(sample):
    series = msgspec.convert(sample.acceptance() | {"points": []}, shapes.AcceptanceSeries)
    figure = frames.time_line([], [], series, HELD)
    assert [len(trace.x) for trace in figure.data] == [0] * 10
    figure.to_json()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=12,
)
NAMES = st.sampled_from(["p", "dwell_s", "starts_at", "labels", "k", "share"]) | st.text(max_size=9)
EVENTS = st.builds(models.Event, evidence=st.none() | st.dictionaries(NAMES, VALUES, max_size=5))


@law
@given(st.builds(models.EventPage, events=st.lists(EVENTS, max_size=4)), st.builds(models.AcceptanceSeries))
def test_any_events(model, series):
    page = over_the_wire(model, shapes.EventPage)
    bars = frames.fired(page.events, [], HELD)
    figure = frames.time_line(page.events, bars, over_the_wire(series, shapes.AcceptanceSeries), HELD)
    numbers(figure.data[1].y)
    figure.to_json()
    for each in page.events:
        frames.heading(each)
        frames.slice_of(each)
        told = frames.evidence(each.evidence or {})
        assert len(told) <= frames.MOST_LINES_TOLD
        for fact in told:
            assert fact.value not in ("None", "nan")
