import asyncio
import threading
from urllib.parse import urlsplit

import pytest
from support.alerts import alert, notification
from support.receiver import Answer, Fault, Receiver, receiver

from alerts.config import Apprise
from alerts.message import text
from alerts.model import Status
from alerts.notifiers.apprise import AppriseNotifier
from alerts.notifiers.error import NotifyError, Reason


def notifier(hook: Receiver, query: str = "", **fields: object) -> AppriseNotifier:
    url = f"json://{urlsplit(hook.url).netloc}/hook{query}"
    return AppriseNotifier(Apprise.model_validate({"name": "chat", "url": url, **fields}))


KINDS = [
    ("critical", Status.FIRING, "failure"),
    ("warning", Status.FIRING, "warning"),
    ("info", Status.FIRING, "info"),
    ("critical", Status.RESOLVED, "success"),
]


@pytest.mark.parametrize(("severity", "status", "kind"), KINDS)
async def test_a_notification_is_a_title_a_text_and_a_kind(severity: str, status: Status, kind: str) -> None:
    one = notification(alert(status=status, severity=severity))
    with receiver() as hook:
        await notifier(hook).send(one)
    (body,) = hook.bodies()
    head = "[RESOLVED]" if status is Status.RESOLVED else "[FIRING:1]"
    assert (body["title"], body["message"], body["type"]) == (f"{head} Slow ({severity})", text(one), kind)


async def test_what_is_too_long_for_a_service_is_cut_unless_the_address_says_otherwise() -> None:
    many = notification(*(alert(scenario=str(n), annotations={"summary": "x" * 900}) for n in range(60)))
    for query, whole in (("", False), ("?overflow=upstream", True)):
        with receiver() as hook:
            chat = notifier(hook, query)
            next(iter(chat._apprise)).body_maxlen = 2_000
            await chat.send(many)
        (body,) = hook.bodies()
        assert (len(body["message"]) > 2_000) is whole


async def test_a_service_that_hangs_holds_neither_the_loop_nor_ever_more_threads() -> None:
    with receiver() as hook:
        hook.answer = Fault.HANG
        chat = notifier(hook, "?rto=30", timeout="100ms")
        before = threading.active_count()
        sends = [chat.send(notification(alert())) for _ in range(10)]
        errors = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(error) for error in errors} == {NotifyError}
        assert {error.reason for error in errors if isinstance(error, NotifyError)} == {Reason.TIMEOUT}
        assert len(hook.requests) <= 4
        # Ours, and those of the receiver.
        assert threading.active_count() - before <= 8
        assert "has not answered yet" in str(errors[-1])


async def test_a_service_that_hung_is_asked_again_once_it_answered() -> None:
    with receiver() as hook:
        hook.answer = Fault.HANG
        chat = notifier(hook, timeout="100ms")
        for _ in range(4):
            with pytest.raises(NotifyError):
                await chat.send(notification(alert()))
        hook.answer = Answer()
        hook.left.set()
        for _ in range(200):
            try:
                await chat.send(notification(alert()))
                break
            except NotifyError:
                await asyncio.sleep(0.05)
        else:
            pytest.fail("its threads are not free again")
