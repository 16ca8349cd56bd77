"""Rules, dispatch and notifiers as one: readings go in, people are told. For use in one event loop."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from pydantic import SecretStr

from .config import Config
from .dispatch import Dispatcher, Told
from .message import Notification
from .model import Alert, Event, Readings, Status
from .notifiers import build
from .notifiers.error import NotifyError, Reason
from .redact import Redactor, of_environment
from .rules import Evaluator

Spawn = Callable[[Coroutine[Any, Any, None], str], object]

#: The outcome of a notification that arrived; the others are `Reason`s.
SENT = "sent"
#: How long `close` takes, s, before connections are closed; a command that runs takes up to 2 s more.
_CLOSE_S = 1.0


class Alerts:
    """One per process. `now` is Unix time in seconds throughout."""

    def __init__(
        self,
        config: Config,
        *,
        instance: str,
        spawn: Spawn,
        told: Callable[[Event], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`spawn` runs a send as a task of the process; `told` is given every event, once. Loads what the receivers
        need, which may take a second."""
        self.config = config
        #: (receiver, outcome) -> notifications.
        self.sent: Counter[tuple[str, str]] = Counter()
        self._evaluator = Evaluator(config.rules, instance=instance)
        self._dispatcher = Dispatcher(config)
        secrets = [secret for receiver in config.receivers for secret in _secrets(receiver)]
        redact = Redactor([*secrets, *of_environment(os.environ)])
        self._notifiers = {receiver.name: build(receiver, redact) for receiver in config.receivers}
        self._spawn = spawn
        self._told = told
        self._clock = clock
        self._sending: set[asyncio.Task[Any]] = set()
        self._closed = False

    def look(self, readings: Readings, now: float) -> None:
        """Look at every rule; what follows from that is sent by `tick`."""
        events = self._evaluator.evaluate(readings, now)
        self._dispatcher.update([*(event.alert for event in events), *self._evaluator.alerts()], now)
        for event in events:
            self._told(event)

    def tick(self, now: float) -> None:
        """Send what is due; to be called each second."""
        if self._closed:
            return
        for notification in self._dispatcher.due(now):
            self._spawn(self._send(notification), f"notify {notification.receiver}")

    def restore(self, alerts: Iterable[Alert], notified: Mapping[tuple[str, str], Told], now: float) -> None:
        """Take up what was before a restart: alerts that fired, and those resolved in the last day.

        `notified`: (fingerprint, receiver) -> what it was told of that alert last. May come after the first looks.
        """
        before = list(alerts)
        ended = self._evaluator.restore(before, now)
        active = {alert.fingerprint for alert in self._evaluator.alerts()}
        known = [alert for alert in before if alert.status is Status.FIRING or alert.fingerprint not in active]
        self._dispatcher.restore(known, notified, now)
        self._dispatcher.update([*(event.alert for event in ended), *self._evaluator.alerts()], now)
        for event in ended:
            self._told(event)

    def alerts(self) -> list[Alert]:
        """Those pending and firing."""
        return self._evaluator.alerts()

    def health(self) -> dict[str, bool | None]:
        """By rule: whether its last look had data; None before the first."""
        return self._evaluator.health()

    async def close(self) -> None:
        """End what is being sent, commands too. What was due and is not sent is sent after a restart."""
        self._closed = True
        for task in self._sending:
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending, timeout=_CLOSE_S)
        closings = (notifier.close() for notifier in self._notifiers.values())
        await asyncio.gather(*closings, return_exceptions=True)

    async def _send(self, notification: Notification) -> None:
        if self._closed:
            return
        receiver = notification.receiver
        task = asyncio.current_task()
        assert task is not None
        self._sending.add(task)
        error: NotifyError | None = None
        try:
            await self._notifiers[receiver].send(notification)
        except NotifyError as failure:
            error = failure
        except Exception as fault:
            # Neither its words nor its trace: they may hold an address.
            error = NotifyError(Reason.INVALID, f"a fault of Specwatch: {type(fault).__name__}", recoverable=False)
        finally:
            self._sending.discard(task)
        self.sent[receiver, error.reason.value if error else SENT] += 1
        for event in self._dispatcher.done(notification, error, self._clock()):
            self._told(event)


def _secrets(receiver: Any) -> Iterable[str]:
    """Every secret in a receiver's configuration."""
    for _, value in receiver:
        values = value.values() if isinstance(value, dict) else [value]
        yield from (each.get_secret_value() for each in values if isinstance(each, SecretStr))
