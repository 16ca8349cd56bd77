"""Alerts, notifications and configurations for the tests of what sends them."""

from typing import Any

from alerts.config import AnyReceiver, Config, Route, Rule, Webhook
from alerts.message import Notification, Why, in_order
from alerts.model import Alert, Status

#: A time, Unix s.
T0 = 1_700_000_000.0


def alert(
    name: str = "Slow",
    status: Status = Status.FIRING,
    *,
    severity: str = "warning",
    starts_at: float = T0,
    ends_at: float | None = None,
    annotations: dict[str, str] | None = None,
    **labels: str,
) -> Alert:
    """Resolved a minute after its start, unless told otherwise."""
    if status is Status.RESOLVED and ends_at is None:
        ends_at = starts_at + 60
    labels = {"alertname": name, "severity": severity, "instance": "box", **labels}
    texts = {"summary": f"{name} it is", "description": "0.512 is low", "runbook": "RUNBOOK.md#slow"}
    return Alert(labels, texts if annotations is None else annotations, status, starts_at, ends_at, 0.5)


def notification(*alerts: Alert, receiver: str = "hook", why: Why = Why.FIRST, at: float = T0 + 70) -> Notification:
    return Notification(receiver, '{}:{alertname="Slow"}', {"alertname": "Slow"}, in_order(alerts), why, at)


def config(*receivers: AnyReceiver, rules: tuple[Rule, ...] = (), **route: Any) -> Config:
    """The first receiver gets everything, unless `route` says otherwise."""
    route = {"receiver": receivers[0].name if receivers else "", **route}
    return Config(15.0, rules, receivers, Route(**route))


def webhook(name: str = "hook", url: str = "http://127.0.0.1:9/", **fields: Any) -> Webhook:
    return Webhook.model_validate({"name": name, "type": "webhook", "url": url, **fields})
