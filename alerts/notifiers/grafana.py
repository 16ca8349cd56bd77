"""Annotations in Grafana: a region from an alert's start to its end, found again by its tags and its start.

Nothing is remembered here: what is there already is looked up each time, so that neither a try that timed out nor a
restart leaves two.
"""

import json
from typing import Any

from ..config import Grafana
from ..message import Notification, short
from ..model import Alert
from .error import NotifyError
from .http import Http

_PATH = "/api/annotations"


class GrafanaNotifier:
    def __init__(self, config: Grafana) -> None:
        self._http = Http(config.url, config.timeout_s, config.headers, config.token)

    async def send(self, notification: Notification) -> None:
        """What may yet arrive ends it; of what is refused, the first is told once all were tried."""
        first: NotifyError | None = None
        for alert in notification.alerts:
            try:
                await self._mark(alert)
            except NotifyError as error:
                if error.recoverable:
                    raise
                first = first or error
        if first is not None:
            raise first

    async def close(self) -> None:
        await self._http.close()

    async def _mark(self, alert: Alert) -> None:
        start = _ms(alert.starts_at)
        end = None if alert.ends_at is None else max(_ms(alert.ends_at), start)
        there = await self._find(alert.fingerprint, start)
        if there is None:
            region = {} if end is None else {"timeEnd": end}
            body = {"time": start, **region, "tags": _tags(alert), "text": _text(alert)}
            await self._http.send("POST", _PATH, body=json.dumps(body).encode())
        elif end is not None:
            await self._http.send("PATCH", f"{_PATH}/{there}", body=json.dumps({"timeEnd": end}).encode())

    async def _find(self, fingerprint: str, start: int) -> int | None:
        """Id of the annotation of that alert's start."""
        # One second more on both sides, for servers that round.
        query = [("from", str(start - 1000)), ("to", str(start + 1000)), ("type", "annotation"), ("limit", "100")]
        found = await self._http.ask("GET", _PATH, query=[*query, ("tags", "specwatch"), ("tags", fingerprint)])
        if not isinstance(found, list):
            raise self._http.invalid("answered no list of annotations")
        ids = [each["id"] for each in found if _is_of(each, start)]
        return min(ids) if ids else None


def _is_of(annotation: Any, start: int) -> bool:
    if not isinstance(annotation, dict):
        return False
    number, time = annotation.get("id"), annotation.get("time")
    return type(number) is int and type(time) is int and abs(time - start) <= 1000


def _tags(alert: Alert) -> list[str]:
    return ["specwatch", alert.name, alert.severity.value, alert.fingerprint]


def _text(alert: Alert) -> str:
    texts = short(alert.annotations)
    return "\n".join(texts[name] for name in ("summary", "description") if texts.get(name)) or alert.name


def _ms(at: float) -> int:
    return round(at * 1000)
