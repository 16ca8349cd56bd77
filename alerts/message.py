"""What a notification says: Alertmanager's webhook body, a title and a text. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from .model import Alert, Severity, Status

#: Alerts in a webhook's body and in a text; the others are counted.
MOST_ALERTS, MOST_LINES = 64, 20
#: Characters of a label's or an annotation's value.
MOST_CHARACTERS = 1_000
#: How Alertmanager writes "not ended".
_NOT_ENDED = "0001-01-01T00:00:00Z"
_WORST_FIRST = {severity: place for place, severity in enumerate(Severity)}


class Why(StrEnum):
    """What makes a notification due."""

    #: The receiver knows nothing of this group, or only that all of it was over.
    FIRST = "first"
    NEW_ALERTS = "new alerts"
    RESOLVED = "resolved"
    #: Nothing changed for `repeat_interval`.
    REPEAT = "repeat"


@dataclass(frozen=True, slots=True)
class Notification:
    """All that one receiver is told of one group, at one time."""

    receiver: str
    #: The same for the same group in every process.
    group: str
    group_labels: Mapping[str, str]
    #: Firing before resolved, worst first; never empty.
    alerts: tuple[Alert, ...]
    why: Why
    #: Unix seconds.
    at: float

    @property
    def status(self) -> Status:
        return self.alerts[0].status

    @property
    def firing(self) -> tuple[Alert, ...]:
        return tuple(alert for alert in self.alerts if alert.status is Status.FIRING)

    @property
    def resolved(self) -> tuple[Alert, ...]:
        return tuple(alert for alert in self.alerts if alert.status is Status.RESOLVED)


def in_order(alerts: Iterable[Alert]) -> tuple[Alert, ...]:
    """Firing before resolved, worst first, then the oldest."""
    return tuple(
        sorted(
            alerts,
            key=lambda each: (
                each.status is Status.RESOLVED,
                _WORST_FIRST[each.severity],
                each.starts_at,
                each.name,
                each.fingerprint,
            ),
        )
    )


def webhook_body(notification: Notification) -> dict[str, Any]:
    """Alertmanager's webhook, version 4."""
    shown = notification.alerts[:MOST_ALERTS]
    return {
        "version": "4",
        "groupKey": notification.group,
        "truncatedAlerts": len(notification.alerts) - len(shown),
        "status": notification.status.value,
        "receiver": notification.receiver,
        "groupLabels": dict(notification.group_labels),
        "commonLabels": common(alert.labels for alert in notification.alerts),
        "commonAnnotations": common(short(alert.annotations) for alert in notification.alerts),
        "externalURL": "",
        "alerts": [
            {
                "status": alert.status.value,
                "labels": dict(alert.labels),
                "annotations": short(alert.annotations),
                "startsAt": rfc3339(alert.starts_at),
                "endsAt": _NOT_ENDED if alert.ends_at is None else rfc3339(alert.ends_at),
                "generatorURL": "",
                "fingerprint": alert.fingerprint,
            }
            for alert in shown
        ],
    }


def webhook_bytes(notification: Notification) -> bytes:
    """`webhook_body` as JSON."""
    return json.dumps(webhook_body(notification)).encode() + b"\n"


def title(notification: Notification) -> str:
    """As `[FIRING:2] SpecwatchErrors (critical)`; the number is that of the firing alerts."""
    count = len(notification.firing)
    head = f"FIRING:{count}" if count else "RESOLVED"
    names = list(dict.fromkeys(alert.name for alert in notification.alerts))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"[{head}] {', '.join(names[:3])}{more} ({notification.alerts[0].severity.value})"


def text(notification: Notification) -> str:
    """A paragraph for each alert, the first `MOST_LINES`."""
    shown = notification.alerts[:MOST_LINES]
    paragraphs = [sentence(alert) for alert in shown]
    if len(notification.alerts) > len(shown):
        paragraphs.append(f"and {len(notification.alerts) - len(shown)} more")
    return "\n\n".join(paragraphs)


def sentence(alert: Alert) -> str:
    """One alert for people: what, since when, and what its annotations say."""
    own = {name: value for name, value in alert.labels.items() if name not in ("alertname", "severity")}
    about = line(", ".join(f"{name}={value}" for name, value in own.items()))
    since = f"since {rfc3339(alert.starts_at)}"
    if alert.ends_at is not None:
        since = f"from {rfc3339(alert.starts_at)} to {rfc3339(alert.ends_at)}"
    lines = [f"{alert.status.value}: {alert.name} ({alert.severity.value}) {since}", about]
    annotations = short(alert.annotations)
    for name in ("summary", "description", "runbook"):
        lines += [line(part) for part in annotations.get(name, "").splitlines()]
    return "\n".join(part for part in lines if part)


def line(text: str) -> str:
    """One line of bounded length: clients name scenarios, and so labels."""
    shown = "".join(each if each.isprintable() else " " for each in text[: MOST_CHARACTERS + 1])
    return shown if len(shown) <= MOST_CHARACTERS else f"{shown[: MOST_CHARACTERS - 1]}…"


def short(annotations: Mapping[str, str]) -> dict[str, str]:
    """Values of at most `MOST_CHARACTERS`."""
    return {
        name: value if len(value) <= MOST_CHARACTERS else f"{value[: MOST_CHARACTERS - 1]}…"
        for name, value in annotations.items()
    }


def common(maps: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The pairs that all have."""
    first, *others = maps
    return {
        name: value for name, value in first.items() if all(name in each and each[name] == value for each in others)
    }


def rfc3339(at: float) -> str:
    """Unix seconds as UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
