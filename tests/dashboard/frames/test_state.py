"""How things stand, in words."""

from datetime import UTC, datetime, timedelta

import pytest

from dashboard import shapes
from dashboard.frames import state as frames

AT = datetime(2026, 11, 29, 18, 0, tzinfo=UTC)


def state(**changes):
    known = {
        "mode": "auto",
        "state": "speculative",
        "since": AT,
        "reason": "p",
        "trigger": "probes",
        "evidence": None,
        "can_fall_back": True,
        "effective": True,
        "dry_run": False,
        "until": None,
        "slices": [],
        "fleet": None,
        "shared": None,
        "decided_by": "sidecar-1",
    }
    return shapes.FallbackState(**known | changes)


def test_state_in_words():
    line = frames.state_line(
        state(mode="autoregressive", state="autoregressive", reason=" "), AT + timedelta(minutes=92)
    )
    assert not line.speculating
    assert line.headline == "Speculative decoding is off: replies are autoregressive"
    assert line.mode == "mode autoregressive: held there by an operator"
    assert line.since == "since 2026-11-29 18:00:00 UTC, for 1 h 32 min"
    assert line.reason == "no reason given"


@pytest.mark.parametrize(
    ("states", "headline"),
    [
        ([], "Speculative decoding is on"),
        (["speculative"], "Speculative decoding is on"),
        (["probing"], "Speculative decoding is on, but not for scenario=code"),
        (["probing", "autoregressive"], "Speculative decoding is on, but not for 2 slices"),
    ],
)
def test_slices_with_a_decision_of_their_own(states, headline):
    slices = [shapes.SliceState(slice="scenario=code", state=each, since=AT, reason="p 0.5") for each in states]
    line = frames.state_line(state(slices=slices), AT)
    assert line.speculating
    assert line.headline == headline
    assert len(line.slices) == len(states)
    assert all(each.startswith("scenario=code is served with") for each in line.slices)
    assert all(each.endswith("since 18:00:00 UTC: p 0.5") for each in line.slices)


def test_a_slice_that_is_probed_tells_when_and_why_it_fell_back():
    found = shapes.SliceState(
        slice="scenario=code", state="probing", since=AT + timedelta(minutes=9), reason="the dwell"
    )
    history = [
        shapes.Transition(
            at=AT + timedelta(minutes=minute),
            instance="i",
            mode="auto",
            from_state=before,
            to_state=after,
            reason=reason,
            slice="scenario=code",
            trigger="acceptance",
            evidence=None,
        )
        for minute, before, after, reason in (
            (9, "autoregressive", "probing", "the dwell"),
            (1, "speculative", "autoregressive", "p 0.540 is below 0.65"),
            (-60, "speculative", "autoregressive", "an older one"),
        )
    ]
    line = frames.state_line(state(slices=[found]), AT, history)
    assert line.partly
    (told,) = line.slices
    assert told.startswith("scenario=code fell back at 18:01:00 UTC: p 0.540 is below 0.65. It is served without ")
    assert told.endswith("but for a few requests that are watched since 18:09:00 UTC: the dwell")


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ((), "no alert fires"),
        (("A",), "alert A (critical) fires"),
        (("A", "B"), "2 alerts fire, the worst A (critical)"),
    ],
)
def test_alerts_on_one_line(names, line):
    alerts = [
        shapes.FiringAlert(name=name, severity="critical", labels={}, summary="", since=AT, value=None)
        for name in names
    ]
    assert frames.alerts_line(alerts) == line


@pytest.mark.parametrize(
    ("labels", "value", "stale", "text"),
    [
        ({"alertname": "A", "instance": "i"}, 0.5512, False, "Too low: 0.551"),
        ({"scenario": "code"}, None, False, "Too low (scenario code)"),
        ({}, 1.0, True, "Too low: 1, no data since"),
    ],
)
def test_an_alert_in_words(labels, value, stale, text):
    alert = shapes.ActiveAlert(
        name="A",
        severity="warning",
        status="firing",
        labels=labels,
        annotations={"summary": "Too low"},
        starts_at=AT,
        value=value,
        stale=stale,
    )
    assert frames.alert_text(alert) == text
