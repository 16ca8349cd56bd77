"""Rules are looked at here, again and again: readings go in; rows, figures and notifications come out."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from alerts.config import Config
from alerts.dispatch import RESOLVED_KEPT_S, Told
from alerts.message import Why, in_order, line
from alerts.model import Alert, Event, Happening, Readings, Severity, Status
from alerts.notifiers.error import Reason
from alerts.service import SENT, Alerts

from .faults import where
from .metrics import AlertCounts
from .store.queries import DatabaseUnavailable, Reader
from .store.rows import clean
from .store.writer import Writer

_log = logging.getLogger(__name__)

_TICK_S = 1.0
#: Labels that every alert has.
_OF_ALL = ("alertname", "severity", "instance")


class Alerting:
    """One per process, for use in the event loop. Nothing here raises.

    `readings(now, monotonic)` gives those of the moment.
    """

    def __init__(
        self,
        config: Config,
        instance: str,
        writer: Writer,
        reader: Reader,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        readings: Callable[[float, float], Readings],
    ) -> None:
        self._config = config
        # As the database will have it: labels are what alerts are known by after a restart.
        self._instance = clean(instance)
        self._writer = writer
        self._reader = reader
        self._readings = readings
        self._alerts = Alerts(config, instance=self._instance, spawn=spawn, told=self._told)
        self._restored = False
        self._complaints: set[str] = set()

    async def run(self) -> None:
        """Look at the rules each `interval`, the first time after one, and send what is due. Ends when cancelled."""
        names = [receiver.name for receiver in self._config.receivers]
        _log.info("%d alert rules; receivers: %s", len(self._config.rules), ", ".join(names) or "none")
        interval = self._config.interval_s
        look_at = time.monotonic() + interval
        while True:
            await asyncio.sleep(_TICK_S)
            # By then the database also holds what happened here while it was away.
            if not self._restored and self._writer.healthy:
                await self.restore()
            now, monotonic = time.time(), time.monotonic()
            if monotonic >= look_at:
                look_at = max(look_at + interval, monotonic)
                self.look(now, monotonic)
            self.tick(now)

    def look(self, now: float, monotonic: float) -> None:
        # Without readings every rule is told to have no data.
        readings: Readings = {}
        with self._watched("the readings of the alert rules cannot be had"):
            found = self._readings(now, monotonic)
            # Clients choose some names; as labels they are as the database will have them.
            readings = {(kind, clean(name)): of for (kind, name), of in found.items()}
        with self._watched("the alert rules cannot be looked at"):
            self._alerts.look(readings, now)

    def tick(self, now: float) -> None:
        with self._watched("notifications cannot be sent"):
            self._alerts.tick(now)

    @contextmanager
    def _watched(self, complaint: str) -> Iterator[None]:
        """Keeps what is raised from going further; it is told once, until all is well again."""
        try:
            yield
        except Exception as error:
            if complaint not in self._complaints:
                self._complaints.add(complaint)
                _log.error("%s\n%s", complaint, where(error))
        else:
            self._complaints.discard(complaint)

    async def close(self) -> None:
        """End what is being sent. Takes some 3 s at most."""
        try:
            await self._alerts.close()
        except Exception as error:
            _log.error("notifications did not end cleanly\n%s", where(error))

    # ---- what happens

    def _told(self, event: Event) -> None:
        self._writer.put_alert(event)
        alert = event.alert
        match event.what:
            case Happening.FIRING:
                level = logging.INFO if alert.severity is Severity.INFO else logging.WARNING
                _log.log(level, "alert fires: %s", _words(alert))
            case Happening.RESOLVED:
                _log.info("alert is over: %s%s", _words(alert), event.detail and f" ({event.detail})")
            case Happening.FAILED:
                _log.warning("receiver %s cannot be told: %s", event.receiver, event.detail)

    def state(self) -> dict[str, Any]:
        """`Alerts` of the API, but for the history."""
        known, active = self._alerts.health(), self._alerts.alerts()
        firing = [alert for alert in active if alert.status is Status.FIRING]
        pending = [alert for alert in active if alert.status is Status.PENDING]
        counts = Counter(alert.name for alert in firing)
        return {
            "alerts": [_active(alert) for alert in (*in_order(firing), *in_order(pending))],
            "rules": [
                {
                    "alert": rule.alert,
                    "by": rule.by,
                    "expr": str(rule.expr),
                    "for_s": rule.for_s,
                    "severity": rule.severity.value,
                    "has_data": known.get(rule.alert),
                    "firing": counts[rule.alert],
                }
                for rule in self._config.rules
            ],
        }

    def counts(self) -> AlertCounts:
        firing = Counter(alert.name for alert in self._alerts.alerts() if alert.status is Status.FIRING)
        return AlertCounts(
            firing={(rule.alert, rule.severity.value): firing[rule.alert] for rule in self._config.rules},
            has_data=self._alerts.health(),
            notifications={
                (receiver.name, outcome): self._alerts.sent[receiver.name, outcome]
                for receiver in self._config.receivers
                for outcome in (SENT, *Reason)
            },
        )

    @property
    def unsent(self) -> int:
        """Tries to notify somebody that failed, since the start."""
        return sum(count for (_, outcome), count in self._alerts.sent.items() if outcome != SENT)

    # ---- what was before

    async def restore(self) -> None:
        """What fires, and who knows it, holds over a restart, also where the database comes later."""
        with self._watched("alerts of before the start cannot be known"):
            since = time.time() - RESOLVED_KEPT_S
            try:
                rows = await asyncio.to_thread(self._reader.last_alerts, self._instance, since)
            except DatabaseUnavailable:
                return
            self._restored = True
            self._alerts.restore(*_known(rows), time.time())


def _known(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Alert], dict[tuple[str, str], Told]]:
    """Alerts that fire or were resolved, and what each receiver was told last of each, by its fingerprint."""
    found: list[Alert] = []
    notified: dict[tuple[str, str], Told] = {}
    for row in rows:
        at, starts_at = row["at"].timestamp(), row["starts_at"].timestamp()
        if row["event"] == Happening.NOTIFIED:
            notified[row["fingerprint"], row["receiver"]] = Told(at, starts_at, row["detail"] == Why.RESOLVED)
            continue
        ends_at = at if row["event"] == Happening.RESOLVED else None
        status = Status.FIRING if ends_at is None else Status.RESOLVED
        found.append(Alert(row["labels"], row["annotations"], status, starts_at, ends_at, row["value"]))
    return found, notified


def _words(alert: Alert) -> str:
    labels = [f"{name}={value}" for name, value in alert.labels.items() if name not in _OF_ALL]
    return line(f"{', '.join([alert.name, *labels])} ({alert.severity}): {alert.annotations.get('summary', '')}")


def _active(alert: Alert) -> dict[str, Any]:
    return {
        "name": alert.name,
        "severity": alert.severity.value,
        "status": alert.status.value,
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "starts_at": datetime.fromtimestamp(alert.starts_at, UTC),
        "value": alert.value,
        "stale": alert.stale,
    }
