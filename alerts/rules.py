"""Which alerts there are. Sans-io: readings and the time go in, alerts and what happened to them come out.

A rule is looked at for each group, as Prometheus does it: inactive, pending while it holds, firing once it has held for
`for`, resolved once it has not held for `keep_firing_for`. No data is neither recovery nor alarm: a look that cannot
tell, or does not know the first reading of the expression, changes nothing, and the time without data counts neither
towards `for` nor towards `keep_firing_for`. Only after a day without data is an alert given up; if it was firing it is
told as resolved, with an annotation that says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .definitions import Rule, filled
from .model import Alert, Event, Happening, Readings, Status
from .readings import shown

#: How long an alert outlives its data, s.
GIVEN_UP_S = 86_400.0
#: Groups of one rule that are pending or firing; further ones wait until some of these have ended.
MOST_GROUPS = 500
#: Annotation of an alert that ended without its rule having been seen not to hold.
GIVEN_UP = "given_up"

_NO_DATA: Mapping[str, float | None] = {}


@dataclass(slots=True)
class _Active:
    """One rule that holds for one group, or held and is kept."""

    alert: Alert
    #: When the last look with data was.
    known_at: float
    #: Since when it has held, time without data taken out.
    held_since: float
    #: Since when it has not held, in the same way; None while it holds.
    not_held_since: float | None = None


class Evaluator:
    """Looks at rules. For use from one thread."""

    def __init__(self, rules: Iterable[Rule], *, instance: str) -> None:
        self._rules = tuple(rules)
        self._instance = instance
        self._active: dict[str, dict[str, _Active]] = {rule.alert: {} for rule in self._rules}
        self._health: dict[str, bool | None] = {rule.alert: None for rule in self._rules}

    def evaluate(self, readings: Readings, now: float) -> list[Event]:
        """What began to fire and what ended by this look; `now` is Unix time, s."""
        return [event for rule in self._rules for event in self._look_at(rule, readings, now)]

    def alerts(self) -> list[Alert]:
        """Those pending and firing."""
        return [active.alert for groups in self._active.values() for active in groups.values()]

    def health(self) -> dict[str, bool | None]:
        """By rule: whether the last look had data of any group; None before the first one."""
        return dict(self._health)

    def restore(self, alerts: Iterable[Alert], now: float) -> list[Event]:
        """Takes up alerts that were firing before a restart: they go on until their rule is seen not to hold. May come
        after the first looks. Gives the ends of those that no rule makes any more, as they are now."""
        ended = []
        rules = {rule.alert: rule for rule in self._rules}
        for alert in alerts:
            if alert.status is not Status.FIRING:
                continue
            rule = rules.get(alert.labels.get("alertname", ""))
            group = alert.labels.get(rule.by, "") if rule else ""
            if rule is None or alert.labels != self._labels(rule, group):
                ended.append(_ended(alert, now, "its rule is gone, or has other labels"))
            elif (one := self._active[rule.alert].get(group)) is None:
                self._active[rule.alert][group] = _Active(replace(alert, stale=True), now, alert.starts_at)
            else:
                one.alert = replace(one.alert, status=Status.FIRING, starts_at=alert.starts_at)
        return ended

    def _look_at(self, rule: Rule, readings: Readings, now: float) -> list[Event]:
        active = self._active[rule.alert]
        groups = {value: found for (kind, value), found in readings.items() if kind == rule.by}
        events = []
        data = False
        for group in [*groups, *(group for group in active if group not in groups)]:
            look = rule.expr.look(groups.get(group, _NO_DATA))
            # `unknown and false` is false, as when no request has come that a guard could count. Nobody has recovered.
            known = look.holds or (look.holds is False and look.value is not None)
            if not known:
                event = self._without_data(active, group, now)
            elif look.holds:
                event = self._holds(rule, active, group, look.value, now)
            else:
                event = self._does_not_hold(rule, active, group, now)
            data |= known
            if event:
                events.append(event)
        self._health[rule.alert] = data
        return events

    def _holds(
        self, rule: Rule, active: dict[str, _Active], group: str, value: float | None, now: float
    ) -> Event | None:
        one = active.get(group)
        if one is None:
            if len(active) >= MOST_GROUPS:
                return None
            alert = Alert(self._labels(rule, group), {}, Status.PENDING, starts_at=now)
            one = active[group] = _Active(alert, now, now)
        elif one.alert.stale:
            one.held_since += max(0.0, now - one.known_at)
        one.known_at = now
        one.not_held_since = None
        fires = one.alert.status is Status.PENDING and now - one.held_since >= rule.for_s
        status = Status.FIRING if fires else one.alert.status
        texts = {"value": shown(rule.expr.readings[0], value), **one.alert.labels}
        annotations = {name: filled(text, texts) for name, text in rule.annotations.items() if text}
        one.alert = replace(one.alert, annotations=annotations, status=status, value=value, stale=False)
        return Event(now, Happening.FIRING, one.alert) if fires else None

    def _does_not_hold(self, rule: Rule, active: dict[str, _Active], group: str, now: float) -> Event | None:
        one = active.get(group)
        if one is None:
            return None
        if one.alert.status is Status.PENDING:
            del active[group]
            return None
        if one.not_held_since is None:
            one.not_held_since = now
        elif one.alert.stale:
            one.not_held_since += max(0.0, now - one.known_at)
        one.known_at = now
        one.alert = replace(one.alert, stale=False)
        if now - one.not_held_since < rule.keep_firing_for_s:
            return None
        del active[group]
        return _ended(one.alert, now)

    def _without_data(self, active: dict[str, _Active], group: str, now: float) -> Event | None:
        one = active.get(group)
        if one is None:
            return None
        if now - one.known_at < GIVEN_UP_S:
            one.alert = replace(one.alert, stale=True)
            return None
        del active[group]
        return _ended(one.alert, now, "no data for a day") if one.alert.status is Status.FIRING else None

    def _labels(self, rule: Rule, group: str) -> dict[str, str]:
        of_group = {rule.by: group} if rule.by else {}
        own = {"alertname": rule.alert, "severity": str(rule.severity), "instance": self._instance}
        return {**rule.labels, **own, **of_group}


def _ended(alert: Alert, now: float, given_up: str = "") -> Event:
    annotations = {**alert.annotations, GIVEN_UP: given_up} if given_up else alert.annotations
    ended = replace(
        alert,
        annotations=annotations,
        status=Status.RESOLVED,
        # The clock may have been set back.
        ends_at=max(now, alert.starts_at),
        stale=bool(given_up),
    )
    return Event(now, Happening.RESOLVED, ended, detail=given_up)
