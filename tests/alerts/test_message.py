import json

from hypothesis import given
from hypothesis import strategies as st
from support.alerts import T0, alert, notification

from alerts.message import (
    MOST_ALERTS,
    MOST_CHARACTERS,
    MOST_LINES,
    common,
    in_order,
    rfc3339,
    text,
    title,
    webhook_body,
    webhook_bytes,
)
from alerts.model import Alert, Status

RESOLVED = Status.RESOLVED
ALERTS = st.builds(
    alert,
    st.sampled_from("AB"),
    st.sampled_from([Status.FIRING, RESOLVED]),
    severity=st.sampled_from(["critical", "warning", "info"]),
    annotations=st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3),
    starts_at=st.floats(T0, T0 + 50),
    scenario=st.text(max_size=5),
)


def test_a_webhooks_body_is_alertmanagers() -> None:
    first = alert(scenario="a", severity="critical")
    second = alert(status=RESOLVED, scenario="b", severity="critical")
    body = webhook_body(notification(second, first))
    assert body == {
        "version": "4",
        "groupKey": '{}:{alertname="Slow"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "hook",
        "groupLabels": {"alertname": "Slow"},
        "commonLabels": {"alertname": "Slow", "severity": "critical", "instance": "box"},
        "commonAnnotations": {
            "summary": "Slow it is",
            "description": "0.512 is low",
            "runbook": "RUNBOOK.md#slow",
        },
        "externalURL": "",
        "alerts": [
            {
                "status": "firing",
                "labels": dict(first.labels),
                "annotations": dict(first.annotations),
                "startsAt": "2023-11-14T22:13:20.000Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "",
                "fingerprint": first.fingerprint,
            },
            {
                "status": "resolved",
                "labels": dict(second.labels),
                "annotations": dict(second.annotations),
                "startsAt": "2023-11-14T22:13:20.000Z",
                "endsAt": "2023-11-14T22:14:20.000Z",
                "generatorURL": "",
                "fingerprint": second.fingerprint,
            },
        ],
    }
    assert json.loads(webhook_bytes(notification(second, first))) == body
    assert webhook_body(notification(second))["status"] == "resolved"


def test_a_body_and_a_text_are_bounded_and_say_what_is_left_out() -> None:
    many = notification(*(alert(scenario=str(n), annotations={"summary": "x" * 5_000}) for n in range(1_000)))
    body = webhook_body(many)
    assert (len(body["alerts"]), body["truncatedAlerts"]) == (MOST_ALERTS, 1_000 - MOST_ALERTS)
    assert {len(each["annotations"]["summary"]) for each in body["alerts"]} == {MOST_CHARACTERS}
    assert text(many).endswith(f"\n\nand {1_000 - MOST_LINES} more")
    assert len(text(many)) < 30_000
    assert len(title(notification(*(alert(f"A{n}") for n in range(50))))) < 100


def test_a_title_and_a_text_tell_what_since_when_and_what_to_do() -> None:
    both = notification(alert(scenario="billing"), alert("Late", RESOLVED, severity="critical"))
    assert title(both) == "[FIRING:1] Slow, Late (warning)"
    assert text(both) == (
        "firing: Slow (warning) since 2023-11-14T22:13:20.000Z\n"
        "instance=box, scenario=billing\nSlow it is\n0.512 is low\nRUNBOOK.md#slow\n\n"
        "resolved: Late (critical) from 2023-11-14T22:13:20.000Z to 2023-11-14T22:14:20.000Z\n"
        "instance=box\nLate it is\n0.512 is low\nRUNBOOK.md#slow"
    )
    assert title(notification(alert(status=RESOLVED))) == "[RESOLVED] Slow (warning)"
    five = notification(*(alert(name) for name in "ABCDE"))
    assert title(five) == "[FIRING:5] A, B, C and 2 more (warning)"


def test_text_that_a_client_named_stays_on_its_line() -> None:
    one = alert(scenario="a\n\nresolved: Everything\x1b[2J" + "x" * 5_000)
    lines = text(notification(one)).split("\n")
    assert len(lines) == 5
    assert "\x1b" not in text(notification(one))
    assert len(lines[1]) < 1_100


def test_the_worst_and_the_oldest_come_first() -> None:
    alerts = [
        alert("Over", RESOLVED, severity="critical"),
        alert("Info", severity="info"),
        alert("Young", starts_at=T0 + 9),
        alert("Old"),
        alert("Worst", severity="critical", starts_at=T0 + 99),
    ]
    assert [each.name for each in in_order(alerts)] == ["Worst", "Old", "Young", "Info", "Over"]


@given(st.lists(ALERTS, min_size=1, max_size=6))
def test_any_alerts_make_a_body_a_title_and_a_text(alerts: list[Alert]) -> None:
    one = notification(*alerts)
    body = json.loads(webhook_bytes(one))
    assert [each["fingerprint"] for each in body["alerts"]] == [each.fingerprint for each in one.alerts]
    for name in ("Labels", "Annotations"):
        for pair in body[f"common{name}"].items():
            assert all(pair in each[name.lower()].items() for each in body["alerts"])
    assert "\n" not in title(one)
    assert text(one)


def test_common_pairs_are_those_all_have() -> None:
    assert common([{"a": "1", "b": "2"}, {"b": "2", "a": "3"}]) == {"b": "2"}
    assert common([{"a": "1"}]) == {"a": "1"}


def test_times_are_utc_to_the_millisecond() -> None:
    assert rfc3339(T0 + 0.125) == "2023-11-14T22:13:20.125Z"
