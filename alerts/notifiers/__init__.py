"""One file for each type of receiver. `build` gives the notifier of a receiver."""

from typing import Protocol, assert_never

from ..config import Alertmanager, AnyReceiver, Apprise, Command, Grafana, Webhook
from ..message import Notification
from ..redact import Redactor


class Notifier(Protocol):
    async def send(self, notification: Notification) -> None:
        """Raises NotifyError."""

    async def close(self) -> None:
        """Ends what runs, and every connection."""


def build(receiver: AnyReceiver, redact: Redactor) -> Notifier:
    """`redact` is given what a command writes."""
    # Each brings its own libraries.
    if isinstance(receiver, Webhook):
        from .webhook import WebhookNotifier

        return WebhookNotifier(receiver)
    if isinstance(receiver, Alertmanager):
        from .alertmanager import AlertmanagerNotifier

        return AlertmanagerNotifier(receiver)
    if isinstance(receiver, Grafana):
        from .grafana import GrafanaNotifier

        return GrafanaNotifier(receiver)
    if isinstance(receiver, Apprise):
        from .apprise import AppriseNotifier

        return AppriseNotifier(receiver)
    if isinstance(receiver, Command):
        from .command import CommandNotifier

        return CommandNotifier(receiver, redact)
    assert_never(receiver)
