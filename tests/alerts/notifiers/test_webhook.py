from support.alerts import alert, notification, webhook
from support.receiver import receiver

from alerts.message import webhook_body
from alerts.model import Status
from alerts.notifiers.webhook import WebhookNotifier


async def test_a_notification_is_one_post_of_alertmanagers_json() -> None:
    one = notification(alert(), alert("B", Status.RESOLVED))
    with receiver() as hook:
        notifier = WebhookNotifier(webhook(url=f"{hook.url}/hook?a=1"))
        await notifier.send(one)
        await notifier.close()
    (request,) = hook.requests
    assert (request.method, request.path) == ("POST", "/hook?a=1")
    assert request.headers["content-type"] == "application/json"
    assert request.json() == webhook_body(one)


async def test_a_header_of_ones_own_replaces_ours() -> None:
    with receiver() as hook:
        headers = {"Authorization": "Token abc", "Content-Type": "application/vnd.alerts+json"}
        notifier = WebhookNotifier(webhook(url=hook.url, headers=headers))
        await notifier.send(notification(alert()))
        await notifier.close()
    assert hook.requests[0].headers["authorization"] == "Token abc"
    assert hook.requests[0].headers["content-type"] == "application/vnd.alerts+json"
