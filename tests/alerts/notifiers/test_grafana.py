import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.alerts import T0, alert, notification
from support.receiver import Answer, Receiver, Reply, Request, receiver

from alerts.config import Grafana
from alerts.message import Notification
from alerts.model import Alert, Status
from alerts.notifiers.error import NotifyError, Reason
from alerts.notifiers.grafana import GrafanaNotifier

START, END = int(T0 * 1000), int((T0 + 60) * 1000)


class Annotations:
    """What Grafana keeps of them, and how it finds, adds and changes them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        #: (method, status) of the next answers that are no success.
        self.faults: list[tuple[str, int]] = []

    def __call__(self, request: Request) -> Reply:
        if self.faults and self.faults[0][0] == request.method:
            return Answer(self.faults.pop(0)[1])
        parts = urlsplit(request.path)
        if request.method == "GET":
            query = parse_qs(parts.query)
            first, last = int(query["from"][0]), int(query["to"][0])
            found = [
                row
                for row in self.rows
                if row["time"] <= last and row["timeEnd"] >= first and set(query["tags"]) <= set(row["tags"])
            ]
            return self._answer(found[: int(query["limit"][0])])
        body = request.json()
        if request.method == "POST":
            assert parts.path == "/api/annotations"
            self.rows.append({"id": len(self.rows) + 1, "timeEnd": body["time"], **body})
            return self._answer({"message": "Annotation added", "id": len(self.rows)})
        assert request.method == "PATCH"
        self.rows[int(parts.path.removeprefix("/api/annotations/")) - 1] |= body
        return self._answer({"message": "Annotation patched"})

    @staticmethod
    def _answer(value: object) -> Answer:
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())


async def send(hook: Receiver, *notifications: Notification) -> None:
    notifier = GrafanaNotifier(Grafana.model_validate({"name": "marks", "url": hook.url, "token": "glsa_x"}))
    try:
        for each in notifications:
            await notifier.send(each)
    finally:
        await notifier.close()


def resolved(**labels: str) -> Alert:
    return alert(status=Status.RESOLVED, **labels)


async def test_an_alert_is_a_region_from_its_start_to_its_end() -> None:
    kept = Annotations()
    with receiver() as hook:
        hook.answer = kept
        await send(hook, notification(alert()))
        expected = {
            "id": 1,
            "time": START,
            "timeEnd": START,
            "tags": ["specwatch", "Slow", "warning", alert().fingerprint],
            "text": "Slow it is\n0.512 is low",
        }
        assert kept.rows == [expected]
        # Another process: nothing is remembered.
        await send(hook, notification(alert()), notification(resolved()))
        assert kept.rows == [{**expected, "timeEnd": END}]
    assert [request.method for request in hook.requests] == ["GET", "POST", "GET", "GET", "PATCH"]
    assert {request.headers["authorization"] for request in hook.requests} == {"Bearer glsa_x"}


async def test_each_time_an_alert_fires_is_a_region_of_its_own() -> None:
    kept = Annotations()
    later = alert(starts_at=T0 + 60.5)  # the region before overlaps with what is searched
    with receiver() as hook:
        hook.answer = kept
        await send(hook, notification(alert(), alert(scenario="b")), notification(resolved()), notification(later))
        await send(hook, notification(alert("Slow", Status.RESOLVED, starts_at=T0 + 60.5, ends_at=T0 + 700)))
    spans = [(row["time"] - START, row["timeEnd"] - START) for row in kept.rows]
    assert spans == [(0, 60_000), (0, 0), (60_500, 700_000)]


async def test_an_end_whose_start_is_not_there_is_a_whole_region() -> None:
    kept = Annotations()
    with receiver() as hook:
        hook.answer = kept
        await send(hook, notification(resolved()))
    assert [(row["time"], row["timeEnd"]) for row in kept.rows] == [(START, END)]


async def test_a_try_that_stopped_half_way_leaves_nothing_twice() -> None:
    kept = Annotations()
    two = notification(alert(), alert(scenario="b"))
    with receiver() as hook:
        hook.answer = kept
        kept.faults = [("POST", 200), ("POST", 503)]  # the first POST is lost, and nothing tells so
        with pytest.raises(NotifyError) as raised:
            await send(hook, two)
        assert raised.value.reason is Reason.SERVER_ERROR
        await send(hook, two)
        await send(hook, two)
    assert len(kept.rows) == 2


async def test_one_alert_that_is_refused_does_not_keep_the_others_back() -> None:
    kept = Annotations()
    kept.faults = [("POST", 400)]
    with receiver() as hook:
        hook.answer = kept
        with pytest.raises(NotifyError) as raised:
            await send(hook, notification(alert(), alert(scenario="b")))
    assert (raised.value.reason, raised.value.recoverable) == (Reason.REJECTED, False)
    assert len(kept.rows) == 1


ODD: list[object] = [{}, None, 1, "x", [1], [{}], [{"id": "1", "time": START}], [{"id": True, "time": START}]]


@pytest.mark.parametrize("found", ODD, ids=json.dumps)
async def test_lists_that_make_no_sense_are_no_annotations(found: object) -> None:
    with receiver() as hook:
        hook.answer = Answer(body=json.dumps(found).encode())
        if isinstance(found, list):
            await send(hook, notification(alert()))
            assert [request.method for request in hook.requests] == ["GET", "POST"]
        else:
            with pytest.raises(NotifyError, match="no list of annotations"):
                await send(hook, notification(alert()))
