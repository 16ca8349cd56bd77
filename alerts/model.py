"""Alert, Event: the nouns that rules, dispatch, notifiers and the sidecar share. Frozen, no I/O, no clock."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

#: Readings of one moment: (kind of group, its value) -> {reading: number, None where it is not known}. All traffic is
#: ("", ""), another group as ("scenario", "billing"). A reading that is not there is not known either.
Readings = Mapping[tuple[str, str], Mapping[str, float | None]]


class Severity(StrEnum):
    """critical: somebody must look now; warning: today; info: shown, and sent only where a route asks for it."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Status(StrEnum):
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule that holds, or held, for one group. Times are Unix seconds."""

    #: alertname, severity, instance, the group's (as scenario=billing) and those of the rule: what it is told apart by.
    labels: Mapping[str, str]
    #: Texts, with their placeholders filled in.
    annotations: Mapping[str, str]
    status: Status
    #: When the rule began to hold.
    starts_at: float
    #: When it was found not to hold any more; None unless resolved.
    ends_at: float | None = None
    #: The first reading of the expression, as it was when the rule last held.
    value: float | None = None
    #: No data came with the last look; the alert is as it was before.
    stale: bool = False

    @property
    def name(self) -> str:
        return self.labels["alertname"]

    @property
    def severity(self) -> Severity:
        return Severity(self.labels["severity"])

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.labels)


def fingerprint(labels: Mapping[str, str]) -> str:
    """16 hex digits, the same for the same labels in any order and any process."""
    return _digest(tuple(labels.items()))


@lru_cache(maxsize=4096)  # of the alerts there are, for each look at them
def _digest(labels: tuple[tuple[str, str], ...]) -> str:
    text = "\x00".join(f"{name}\x01{value}" for name, value in sorted(labels))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Happening(StrEnum):
    """What an event tells. notified and failed are of one receiver."""

    FIRING = "firing"
    RESOLVED = "resolved"
    NOTIFIED = "notified"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Event:
    """A row of the table `alerts`."""

    at: float
    what: Happening
    alert: Alert
    #: Empty unless notified or failed.
    receiver: str = ""
    #: Why it failed, without secrets; the reason of a notification.
    detail: str = ""
    #: For failed: one of a bounded set, as `timeout`.
    reason: str = field(default="")
