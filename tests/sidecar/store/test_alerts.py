"""Events of alerts come back as they were, in their order, and tell a sidecar that starts again what is unfinished."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from support.records import NOW

from alerts.model import Alert, Event, Happening, Severity, Status, fingerprint
from sidecar.api.models import AlertEvent
from sidecar.store.queries import MAX_ALERTS, Reader
from sidecar.store.rows import MAX_TEXT, TABLE_COLUMNS
from sidecar.store.writer import Writer

FIRING, RESOLVED, NOTIFIED, FAILED = Happening


def alert(name: str = "Slow", instance: str = "here", *, starts_at: float = NOW, **labels: str) -> Alert:
    named = {"alertname": name, "severity": "warning", "instance": instance, **labels}
    return Alert(named, {"summary": f"{name} it is"}, Status.FIRING, starts_at, value=0.5)


def event(what: Happening, at: float, of: Alert | None = None, receiver: str = "", **more: str) -> Event:
    return Event(NOW + at, what, of or alert(), receiver, **more)


def write(database_url: str, *events: Event) -> Writer:
    writer = Writer(database_url)
    for each in events:
        writer.put_alert(each)
    writer.start()
    writer.close(10)
    assert writer.queue_length == 0
    return writer


def unfinished(database_url: str, instance: str = "here", since: float = NOW) -> list[tuple[Any, ...]]:
    reader = Reader(database_url)
    rows = reader.last_alerts(instance, since)
    reader.close()
    return [(row["alert"], row["event"], row["receiver"], row["at"].timestamp() - NOW) for row in rows]


def test_an_event_comes_back_as_it_was(database_url: str) -> None:
    labels = {"scenario": "写代码 \0", "team": "ml"}
    bare = dataclasses.replace(alert(**labels), value=None, annotations={"description": "x" * 3 * MAX_TEXT})
    failed = event(FAILED, 1, bare, "chat", reason="timeout", detail="no answer in 10 s")
    writer = write(database_url, event(FIRING, 0.25), failed, event(FIRING, 0.25))
    assert (writer.written, writer.dropped, writer.refused) == (0, 0, 0)
    reader = Reader(database_url)
    newest, oldest = (AlertEvent(**row).model_dump() for row in reader.alerts())
    reader.close()
    assert oldest == {
        "at": datetime.fromtimestamp(NOW + 0.25, UTC),
        "instance": "here",
        "alert": "Slow",
        "fingerprint": alert().fingerprint,
        "severity": Severity.WARNING,
        "labels": {"alertname": "Slow", "severity": "warning", "instance": "here"},
        "annotations": {"summary": "Slow it is"},
        "event": "firing",
        "receiver": "",
        "starts_at": datetime.fromtimestamp(NOW, UTC),
        "value": 0.5,
        "detail": "",
    }
    assert newest["labels"]["scenario"] == "写代码 \ufffd"
    assert newest["annotations"] == bare.annotations
    assert (newest["receiver"], newest["value"], newest["detail"]) == ("chat", None, "timeout: no answer in 10 s")
    assert tuple(AlertEvent.model_fields) == TABLE_COLUMNS["alerts"]


def test_the_newest_come_first_and_are_bounded(database_url: str) -> None:
    events = [event(NOTIFIED, number % 7, receiver=f"r{number}") for number in range(MAX_ALERTS + 20)]
    write(database_url, *events)
    reader = Reader(database_url)
    rows = reader.alerts()
    assert len(rows) == MAX_ALERTS
    assert [row["at"] for row in rows] == sorted((row["at"] for row in rows), reverse=True)
    assert len(reader.alerts(3)) == 3
    reader.close()


def test_those_of_a_full_queue_are_counted(database_url: str) -> None:
    assert write(database_url, *(event(FIRING, number) for number in range(10_005))).dropped == 5


@pytest.mark.parametrize(
    ("events", "left"),
    [
        pytest.param([], [], id="none"),
        pytest.param([event(FIRING, 0)], [("Slow", "firing", "", 0)], id="firing"),
        pytest.param([event(FIRING, -9), event(RESOLVED, -5)], [], id="resolved long ago"),
        pytest.param([event(FIRING, -9), event(RESOLVED, 5)], [("Slow", "resolved", "", 5)], id="resolved just now"),
        pytest.param(
            [event(FIRING, -9), event(RESOLVED, -8), event(FIRING, -7)],
            [("Slow", "firing", "", -7)],
            id="fires again",
        ),
        pytest.param(
            [
                event(FIRING, 0),
                event(NOTIFIED, 1, receiver="chat"),
                event(FAILED, 2, receiver="hook"),
                event(NOTIFIED, 3, receiver="chat"),
                event(NOTIFIED, 3, receiver="hook"),
            ],
            [("Slow", "firing", "", 0), ("Slow", "notified", "chat", 3), ("Slow", "notified", "hook", 3)],
            id="who was told last",
        ),
        pytest.param(
            [event(FIRING, -9), event(NOTIFIED, -8, receiver="chat"), event(RESOLVED, 5)],
            [("Slow", "notified", "chat", -8), ("Slow", "resolved", "", 5)],
            id="its end was not told",
        ),
        pytest.param(
            [
                event(NOTIFIED, -9, receiver="retrain"),
                event(NOTIFIED, -8, alert("Other"), "retrain"),
                event(NOTIFIED, -7, receiver="chat"),
            ],
            [("Other", "notified", "retrain", -8), ("Slow", "notified", "chat", -7)],
            id="what each receiver was told last",
        ),
        pytest.param(
            [event(FIRING, 0, alert(scenario="a")), event(FIRING, 0, alert("Other")), event(RESOLVED, 1, alert())],
            [("Slow", "firing", "", 0), ("Other", "firing", "", 0), ("Slow", "resolved", "", 1)],
            id="each by its labels",
        ),
        pytest.param(
            [event(FIRING, 0, alert(instance="there")), event(NOTIFIED, 1, alert(instance="there"), "chat")],
            [],
            id="of another instance",
        ),
        pytest.param(
            # The clock was set back: what was written last holds.
            [event(FIRING, 50), event(RESOLVED, 40)],
            [("Slow", "resolved", "", 40)],
            id="clock set back",
        ),
    ],
)
def test_what_is_unfinished(database_url: str, events: list[Event], left: list[tuple[Any, ...]]) -> None:
    write(database_url, *events)
    assert unfinished(database_url) == left


def test_labels_give_the_fingerprint_again(database_url: str) -> None:
    of = alert(scenario="写代码 🙂", team="x" * 2 * MAX_TEXT)
    write(database_url, event(FIRING, 0, of))
    reader = Reader(database_url)
    (row,) = reader.last_alerts("here", NOW)
    reader.close()
    assert fingerprint(row["labels"]) == row["fingerprint"] == of.fingerprint
