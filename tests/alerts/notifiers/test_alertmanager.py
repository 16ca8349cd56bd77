import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from support import stack
from support.alerts import T0, alert, notification
from support.receiver import Receiver, receiver

from alerts.config import Alertmanager
from alerts.message import Notification
from alerts.model import Alert, Status
from alerts.notifiers.alertmanager import ENDS_AFTER_S, AlertmanagerNotifier


def config(url: str) -> Alertmanager:
    return Alertmanager.model_validate({"name": "am", "url": url})


async def send(url: str, *notifications: Notification) -> None:
    notifier = AlertmanagerNotifier(config(url))
    for each in notifications:
        await notifier.send(each)
    await notifier.close()


async def test_every_alert_is_sent_with_an_end_that_comes_when_nobody_sends_it_again() -> None:
    many = [alert(scenario=str(n)) for n in range(100)]
    over = alert("B", Status.RESOLVED)
    with receiver() as am:
        await send(f"{am.url}/prefix/", notification(*many, over, at=T0 + 70))
    (request,) = am.requests
    assert (request.method, request.path) == ("POST", "/prefix/api/v2/alerts")
    *firing, last = request.json()
    assert len(firing) == 100
    assert ENDS_AFTER_S == 240
    assert {each["endsAt"] for each in firing} == {"2023-11-14T22:18:30.000Z"}
    assert last == {
        "labels": dict(over.labels),
        "annotations": dict(over.annotations),
        "startsAt": "2023-11-14T22:13:20.000Z",
        "endsAt": "2023-11-14T22:14:20.000Z",
    }


async def test_after_the_clock_was_set_back_no_start_and_no_end_lies_ahead() -> None:
    over = alert("B", Status.RESOLVED, starts_at=T0 + 86_400)
    with receiver() as am:
        await send(am.url, notification(alert("A", starts_at=T0 + 86_400), over, at=T0))
    (request,) = am.requests
    now, later = "2023-11-14T22:13:20.000Z", "2023-11-14T22:17:20.000Z"
    assert [(each["startsAt"], each["endsAt"]) for each in request.json()] == [(now, later), (now, now)]


@pytest.fixture
def real(tmp_path: Path) -> Iterator[tuple[stack.Alertmanager, Receiver]]:
    with receiver() as hook, stack.alertmanager(tmp_path, {"hook": hook.url}) as am:
        yield am, hook


async def test_a_real_alertmanager_takes_tells_and_ends_an_alert(real: tuple[stack.Alertmanager, Receiver]) -> None:
    am, hook = real
    began = time.time() - 30
    firing = alert(starts_at=began, scenario="billing", action="retrain")
    await send(am.url, notification(firing, at=began + 30), notification(firing, at=began + 31))
    (known,) = am.alerts()
    assert known["labels"] == dict(firing.labels)
    assert known["annotations"] == dict(firing.annotations)
    assert abs(datetime.fromisoformat(known["startsAt"]).timestamp() - began) < 0.002
    assert abs(datetime.fromisoformat(known["endsAt"]).timestamp() - (began + 31 + ENDS_AFTER_S)) < 0.002
    (told,) = hook.wait(1)
    assert told.json()["status"] == "firing"
    await send(am.url, notification(replace(firing, status=Status.RESOLVED, ends_at=time.time())))
    assert hook.wait(2)[1].json()["alerts"][0]["status"] == "resolved"
    assert am.alerts() == []
    assert len(hook.requests) == 2, "the same alert twice is one"


async def test_a_real_alertmanager_ends_what_is_not_sent_again(real: tuple[stack.Alertmanager, Receiver]) -> None:
    am, hook = real
    # As if the sidecar had sent it for the last time almost four minutes ago.
    now = time.time()
    await send(am.url, notification(alert(starts_at=now - 600), at=now - ENDS_AFTER_S + 3))
    assert hook.wait(1)[0].json()["status"] == "firing"
    assert hook.wait(2)[1].json()["status"] == "resolved"


async def test_a_silence_of_a_real_alertmanager_holds(real: tuple[stack.Alertmanager, Receiver]) -> None:
    am, hook = real
    am.silence(alertname="Quiet")
    now = time.time()
    await send(am.url, notification(alert("Quiet", starts_at=now), alert("Loud", starts_at=now), at=now))
    (told,) = hook.wait(1)
    assert told.json()["commonLabels"]["alertname"] == "Loud"
    assert am.states() == {"Quiet": "suppressed", "Loud": "active"}


@pytest.mark.parametrize("value", ['with "quotes"', "ümläut 日本", "line\nbreak", "", "x" * 5_000])
async def test_a_real_alertmanager_takes_any_label(real: tuple[stack.Alertmanager, Receiver], value: str) -> None:
    am, _ = real
    one: Alert = alert(starts_at=time.time(), scenario=value, annotations={"summary": value})
    await send(am.url, notification(one, at=time.time()))
    (known,) = am.alerts()
    assert known["labels"].get("scenario", "") == value
