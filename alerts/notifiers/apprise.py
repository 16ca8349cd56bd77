"""Chats, mail and phones through Apprise, which blocks: in a thread."""

import asyncio
import re
import threading

import apprise

from ..config import Apprise
from ..message import Notification, text, title
from ..model import Severity, Status
from .error import NotifyError, Reason
from .quiet import quiet
from .thread import in_thread

#: Threads that may be waiting for a service, those given up too.
_MOST_THREADS = 4
#: Nothing of its own on disk, no threads of its own, no redirects: what it is sent may hold a token.
_ASSET = apprise.AppriseAsset(async_mode=False, http_redirects=False, service_timeout=0)
_TYPES = {Severity.CRITICAL: "failure", Severity.WARNING: "warning", Severity.INFO: "info"}


class AppriseNotifier:
    def __init__(self, config: Apprise) -> None:
        """Loads Apprise's service, which takes a moment: for the start of a process."""
        self._timeout_s = config.timeout_s
        self._free = threading.BoundedSemaphore(_MOST_THREADS)
        self._apprise = apprise.Apprise()
        with quiet():
            service = apprise.Apprise.instantiate(config.url.get_secret_value(), asset=_ASSET)
        if service is None:
            raise ValueError(f"receiver {config.name}: is no address Apprise knows")
        if "overflow=" not in config.url.get_secret_value():
            # By itself Apprise sends what a service refuses as too long. The worst alerts come first.
            service.overflow_mode = apprise.OverflowMode.TRUNCATE
        self._apprise.add(service)
        #: As `Slack`: of the address nothing is shown, as every part of it may be a secret.
        self._service = str(service.service_name or "Apprise")

    async def send(self, notification: Notification) -> None:
        if not self._free.acquire(blocking=False):
            raise NotifyError(Reason.TIMEOUT, f"{self._service} has not answered yet to what was sent before")
        kind = "success" if notification.status is Status.RESOLVED else _TYPES[notification.alerts[0].severity]
        try:
            async with asyncio.timeout(self._timeout_s):
                warnings = await in_thread(lambda: self._notify(notification, kind), "alerts-apprise")
        except TimeoutError:
            raise NotifyError(Reason.TIMEOUT, f"{self._service} did not answer within {self._timeout_s:g} s") from None
        if warnings is not None:
            raise self._error(warnings)

    async def close(self) -> None:
        """Threads that wait end with the process."""

    def _notify(self, notification: Notification, kind: str) -> list[str] | None:
        """None where it has arrived, else what Apprise warned of."""
        head, body = title(notification), text(notification)
        try:
            with quiet() as warnings:
                plain = apprise.NotifyFormat.TEXT
                arrived = self._apprise.notify(body, title=head, notify_type=kind, body_format=plain)
                return None if arrived else warnings
        finally:
            self._free.release()

    def _error(self, warnings: list[str]) -> NotifyError:
        # Nothing but a status is taken from what Apprise says.
        codes = [int(found[1]) for line in warnings if (found := re.search(r"\berror=(\d{3})\b", line))]
        if not codes:
            return NotifyError(Reason.UNREACHABLE, f"{self._service} did not take it, or cannot be reached")
        said = f"{self._service} answered {codes[-1]}"
        if codes[-1] == 429:
            return NotifyError(Reason.THROTTLED, said)
        if codes[-1] >= 500:
            return NotifyError(Reason.SERVER_ERROR, said)
        return NotifyError(Reason.REJECTED, said, recoverable=False)
