"""Alertmanager's API v2: it is given every alert, and groups, silences and tells people by itself."""

import json

from ..config import Alertmanager
from ..message import Notification, rfc3339, short
from ..model import Alert
from .http import Http

#: An alert that is not sent again ends after so long, s: four times the time between two.
ENDS_AFTER_S = 240.0


class AlertmanagerNotifier:
    def __init__(self, config: Alertmanager) -> None:
        self._http = Http(config.url, config.timeout_s, config.headers, config.token)

    async def send(self, notification: Notification) -> None:
        body = [_entry(alert, notification.at) for alert in notification.alerts]
        await self._http.send("POST", "/api/v2/alerts", body=json.dumps(body).encode())

    async def close(self) -> None:
        await self._http.close()


def _entry(alert: Alert, now: float) -> dict[str, object]:
    # After the clock was set back, what has been may lie ahead; an end before its start is refused.
    ends_at = min(alert.ends_at, now) if alert.ends_at is not None else now + ENDS_AFTER_S
    return {
        "labels": dict(alert.labels),
        "annotations": short(alert.annotations),
        "startsAt": rfc3339(min(alert.starts_at, now)),
        "endsAt": rfc3339(ends_at),
    }
