"""Who is told what, and when. Sans-io: alerts and times go in, notifications that are due come out.

The terms are Alertmanager's. An alert goes to the groups of its routes. A group's first notification waits
`group_wait`, then the group is looked at each `group_interval`: it is told of when it holds alerts that its receiver
does not know of, when some that it knows are over, and again after `repeat_interval`. A group has one notification in
flight at most. What failed and may yet arrive is tried again, as long as there is something to say; what was refused
waits for the next change or repeat.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .config import Alertmanager, Command, Config, Receiver, Route
from .message import Notification, Why, in_order
from .model import Alert, Event, Happening, Status
from .notifiers.error import NotifyError

#: Notifications that one receiver is sent at a time; a command runs once at a time.
MOST_AT_ONCE = 4
#: Pauses between tries, s: the first, doubled up to the longest. A receiver that asks for more waits at most an hour.
FIRST_PAUSE_S, LONGEST_PAUSE_S, MOST_RETRY_AFTER_S = 1.0, 60.0, 3600.0
#: How long "resolved" is kept for a receiver that cannot be reached.
RESOLVED_KEPT_S = 86_400.0
#: Alertmanager groups by itself; it forgets what it is not told of again.
ALERTMANAGER_REPEAT_S = 60.0


class Told(NamedTuple):
    """The last that a receiver was told of an alert."""

    at: float
    #: Start of the alert that was told.
    starts_at: float
    #: That it is over.
    over: bool


#: Place of a route, values of `group_by`.
_Id = tuple[str, tuple[str | None, ...]]
Signature = tuple[frozenset[str], frozenset[str]]


@dataclass(slots=True)
class _Group:
    id: _Id
    #: For people, and the same in every process.
    key: str
    receiver: Receiver
    labels: Mapping[str, str]
    interval_s: float
    repeat_s: float
    #: When it is looked at next.
    next_at: float
    #: By fingerprint. A resolved one is here only while its receiver has yet to be told that it is over.
    alerts: dict[str, Alert] = field(default_factory=dict)
    #: Those that the receiver knows as firing.
    told: set[str] = field(default_factory=set)
    told_at: float = 0.0
    in_flight: Notification | None = None
    tries: int = 0
    #: What was refused, and when.
    refused: tuple[Signature, float] | None = None

    def signature(self) -> Signature:
        firing = frozenset(key for key, alert in self.alerts.items() if alert.status is Status.FIRING)
        return firing, frozenset(self.alerts) - firing

    def why(self, now: float) -> Why | None:
        """What makes a notification due; None where nothing does."""
        firing, resolved = self.signature()
        if self.refused and self.refused[0] == (firing, resolved) and now < self.refused[1] + self.repeat_s:
            return None
        if not firing <= self.told:
            return Why.NEW_ALERTS if self.told else Why.FIRST
        if resolved:
            return Why.RESOLVED
        return Why.REPEAT if firing and now >= self.told_at + self.repeat_s else None

    def forget(self, key: str) -> None:
        self.alerts.pop(key, None)
        self.told.discard(key)


class Dispatcher:
    """One per process. `now` is Unix time in seconds throughout."""

    def __init__(self, config: Config) -> None:
        self._root = config.route
        self._receivers = {receiver.name: receiver for receiver in config.receivers}
        #: By place of the route and values of `group_by`.
        self._groups: dict[_Id, _Group] = {}
        #: By key, while a notification of theirs is in flight.
        self._busy: dict[str, _Group] = {}
        self._places = {id(route): str(place) for place, route in enumerate(self._root.routes)}
        self._in_flight = dict.fromkeys(self._receivers, 0)
        #: Receivers that are sent nothing before a time: commands, and what asked for a pause.
        self._held: dict[str, float] = {}
        #: Receivers whose last notification failed.
        self._failing: set[str] = set()
        self._looked_at = float("-inf")

    def update(self, alerts: Iterable[Alert], now: float) -> None:
        """Take in how alerts are. One that is left out is as it was."""
        for alert in alerts:
            if alert.status is Status.PENDING:
                continue
            key = alert.fingerprint
            for group in self._groups_of(alert, now):
                self._put(group, key, alert)

    def restore(self, alerts: Iterable[Alert], notified: Mapping[tuple[str, str], Told], now: float) -> None:
        """Alerts of before a restart. `notified`: (fingerprint, receiver) -> what it was told of that alert last."""
        for alert in alerts:
            if alert.status is Status.PENDING:
                continue
            key = alert.fingerprint
            for group in self._groups_of(alert, now):
                told = notified.get((key, group.receiver.name))
                # What is told of ends takes an alert that began anew in between for the same.
                same = told is not None and (group.receiver.send_resolved or told.starts_at == alert.starts_at)
                if told is not None and same and not told.over:
                    group.told.add(key)
                    group.told_at = max(group.told_at, min(told.at, now))
                self._put(group, key, alert)
        for (_, name), told in notified.items():
            if isinstance(receiver := self._receivers.get(name), Command):
                self._held[name] = max(self._held.get(name, 0.0), min(told.at, now) + receiver.min_interval_s)

    def due(self, now: float) -> list[Notification]:
        """What is to be sent now. Each must come back to `done`, however it ends."""
        self._keep_up(now)
        ready: list[Notification] = []
        free = [group for group in self._groups.values() if group.in_flight is None and now >= group.next_at]
        for group in sorted(free, key=lambda each: each.next_at):
            for key, alert in list(group.alerts.items()):
                if alert.ends_at is not None and alert.ends_at < now - RESOLVED_KEPT_S:
                    group.forget(key)
            if not group.alerts:
                del self._groups[group.id]
                continue
            why = group.why(now)
            if why is None:
                group.next_at, group.tries = now + group.interval_s, 0
            elif self._may_send(group.receiver, now):
                ready.append(self._notification(group, why, now))
        return ready

    def done(self, notification: Notification, error: NotifyError | None, now: float) -> list[Event]:
        """The notification has arrived, or `error` tells why not. Gives what is to be recorded."""
        group = self._busy.pop(notification.group)
        group.in_flight = None
        self._in_flight[notification.receiver] -= 1
        events = self._failed(group, notification, error, now) if error else self._arrived(group, notification, now)
        for key, alert in list(group.alerts.items()):
            if alert.status is Status.RESOLVED and key not in group.told:
                group.forget(key)
        return events

    def _keep_up(self, now: float) -> None:
        """A clock that was set back must not make what waits wait for so much longer."""
        back, self._looked_at = self._looked_at - now, now
        if back <= 0:
            return
        for group in self._groups.values():
            group.next_at -= back
            group.told_at -= back
            if group.refused is not None:
                group.refused = group.refused[0], group.refused[1] - back
        self._held = {name: until - back for name, until in self._held.items()}

    def _notification(self, group: _Group, why: Why, now: float) -> Notification:
        receiver = group.receiver
        group.in_flight = Notification(
            receiver.name, group.key, group.labels, in_order(group.alerts.values()), why, now
        )
        self._in_flight[receiver.name] += 1
        self._busy[group.key] = group
        if isinstance(receiver, Command):
            self._held[receiver.name] = now + receiver.min_interval_s
        return group.in_flight

    def _may_send(self, receiver: Receiver, now: float) -> bool:
        at_once = 1 if isinstance(receiver, Command) else MOST_AT_ONCE
        return self._in_flight[receiver.name] < at_once and now >= self._held.get(receiver.name, now)

    def _put(self, group: _Group, key: str, alert: Alert) -> None:
        if alert.status is Status.FIRING:
            group.alerts[key] = alert
        elif not group.receiver.send_resolved:
            group.forget(key)
        elif key in group.told or (group.in_flight is not None and _holds(group.in_flight.firing, key)):
            group.alerts[key] = alert
        else:
            group.forget(key)

    def _arrived(self, group: _Group, notification: Notification, now: float) -> list[Event]:
        news: list[Alert] = []
        for alert in notification.alerts:
            key = alert.fingerprint
            if alert.status is Status.RESOLVED:
                news.append(alert)
                group.told.discard(key)
                if key in group.alerts and group.alerts[key].status is Status.RESOLVED:
                    del group.alerts[key]
            elif key not in group.told:
                news.append(alert)
                if key in group.alerts:
                    group.told.add(key)
        group.told_at, group.next_at, group.tries, group.refused = now, now + group.interval_s, 0, None
        self._failing.discard(notification.receiver)
        if notification.why is Why.REPEAT and not isinstance(group.receiver, Alertmanager):
            news = list(notification.alerts)
        return [
            Event(
                now,
                Happening.NOTIFIED,
                alert,
                notification.receiver,
                # By this a restart knows what the receiver believes.
                (Why.RESOLVED if alert.status is Status.RESOLVED else notification.why).value,
            )
            for alert in news
        ]

    def _failed(self, group: _Group, notification: Notification, error: NotifyError, now: float) -> list[Event]:
        if error.recoverable:
            group.next_at = now + min(FIRST_PAUSE_S * 2 ** min(group.tries, 16), LONGEST_PAUSE_S)
            group.tries += 1
            if error.retry_after_s is not None:
                self._held[notification.receiver] = now + min(error.retry_after_s, MOST_RETRY_AFTER_S)
        else:
            group.tries, group.next_at = 0, now + group.interval_s
            group.refused = (_signature(notification), now)
        if notification.receiver in self._failing:
            return []
        self._failing.add(notification.receiver)
        alert = notification.alerts[0]
        return [Event(now, Happening.FAILED, alert, notification.receiver, error.message, error.reason.value)]

    def _groups_of(self, alert: Alert, now: float) -> list[_Group]:
        return [self._group(route, alert, now) for route in self._root.matching(alert.labels) if route.receiver]

    def _group(self, route: Route, alert: Alert, now: float) -> _Group:
        receiver = self._receivers[route.receiver]
        grouped = not isinstance(receiver, Alertmanager)
        names = route.group_by if grouped else ()
        place = self._places.get(id(route), "")
        id_ = (place, tuple(alert.labels.get(name) for name in names))
        group = self._groups.get(id_)
        if group is None:
            labels = {name: value for name, value in zip(names, id_[1], strict=True) if value is not None}
            wait, interval, repeat = route.group_wait_s, route.group_interval_s, route.repeat_interval_s
            if not grouped:
                wait, interval, repeat = 0.0, 0.0, ALERTMANAGER_REPEAT_S
            key = f"{_path(place, route)}:{_braces(labels)}"
            group = self._groups[id_] = _Group(id_, key, receiver, labels, interval, repeat, now + wait)
        return group


def _path(place: str, route: Route) -> str:
    """As Alertmanager names its routes; no two have the same."""
    return (
        f"{{}}/{place}/{_braces({name: '|'.join(values) for name, values in route.match.items()})}" if place else "{}"
    )


def _signature(notification: Notification) -> Signature:
    return (
        frozenset(alert.fingerprint for alert in notification.firing),
        frozenset(alert.fingerprint for alert in notification.resolved),
    )


def _holds(alerts: Iterable[Alert], key: str) -> bool:
    return any(alert.fingerprint == key for alert in alerts)


def _braces(pairs: Mapping[str, str]) -> str:
    inner = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in sorted(pairs.items()))
    return f"{{{inner}}}"
