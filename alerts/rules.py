"""Which alerts there are. Sans-io: readings and the time go in, alerts and what happened to them come out.

A rule is looked at for each group, as Prometheus does it: inactive, pending while it holds, firing once it has held for
`for`, resolved once it has not held for `keep_firing_for`. No data is neither recovery nor alarm: a look that cannot
tell, or does not know the first reading of the expression, changes nothing, and the time without data counts neither
towards `for` nor towards `keep_firing_for`. Nor has recovered what would hold if only there were more requests or pairs
(`alerts.readings.SAMPLE_SIZES`): it is too little data. Only after a day without data is an alert given up; if it was
firing it is told as resolved, with an annotation that says so.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from .definitions import Rule, filled
from .model import Alert, Event, Happening, Readings, Status
from .readings import SAMPLE_SIZES, shown

#: How long an alert outlives its data, s.
GIVEN_UP_S = 86_400.0
#: Groups of one rule that are pending or firing. A further one takes the place of the one longest without data, or
#: waits where all have data: clients name scenarios, and what they no longer send must not keep others from being seen.
MOST_GROUPS = 500
#: Annotation of an alert that ended without its rule having been seen not to hold.
GIVEN_UP = "given_up"

_NO_DATA: Mapping[str, float | None] = {}
#: More than any sample size that a rule asks for.
_PLENTY = 1e15


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
    #: The value that the annotations show.
    shown: str | None = None


class Evaluator:
    """Looks at rules. For use from one thread."""

    def __init__(self, rules: Iterable[Rule], *, instance: str) -> None:
        self._rules = tuple(rules)
        self._instance = instance
        self._active: dict[str, dict[str, _Active]] = {rule.alert: {} for rule in self._rules}
        self._health: dict[str, bool | None] = {rule.alert: None for rule in self._rules}
        self._looked_at = float("-inf")

    def evaluate(self, readings: Readings, now: float) -> list[Event]:
        """What began to fire and what ended by this look; `now` is Unix time, s."""
        self._keep_up(now)
        kinds: dict[str, dict[str, Mapping[str, float | None]]] = {}
        for (kind, value), found in readings.items():
            kinds.setdefault(kind, {})[value] = found
        return [event for rule in self._rules for event in self._look_at(rule, kinds.get(rule.by, {}), now)]

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

    def _keep_up(self, now: float) -> None:
        """A clock that was set back must not make what waits wait for so much longer."""
        back, self._looked_at = self._looked_at - now, now
        if back <= 0:
            return
        for one in (one for groups in self._active.values() for one in groups.values()):
            one.known_at -= back
            one.held_since -= back
            if one.not_held_since is not None:
                one.not_held_since -= back
            if one.alert.status is Status.PENDING:
                one.alert = replace(one.alert, starts_at=one.alert.starts_at - back)

    def _look_at(self, rule: Rule, groups: Mapping[str, Mapping[str, float | None]], now: float) -> list[Event]:
        active = self._active[rule.alert]
        events: list[Event | None] = []
        data = False
        for group in [*groups, *(group for group in active if group not in groups)]:
            readings = groups.get(group, _NO_DATA)
            look = rule.expr.look(readings)
            # `unknown and false` is false, as when no request has come that a guard could count. Nobody has recovered.
            known = look.holds or (look.holds is False and look.value is not None)
            data |= known
            if not known or (not look.holds and group in active and _too_few(rule, readings)):
                events.append(self._without_data(active, group, now))
            elif look.holds:
                if group not in active and len(active) >= MOST_GROUPS:
                    events.append(_make_room(active, groups, now))
                events.append(self._holds(rule, active, group, look.value, now))
            else:
                events.append(self._does_not_hold(rule, active, group, now))
        self._health[rule.alert] = data
        return [event for event in events if event is not None]

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
        before, told = one.alert, shown(rule.expr.readings[0], value)
        fires = before.status is Status.PENDING and now - one.held_since >= rule.for_s
        if not fires and not before.stale and told == one.shown and value == before.value:
            return None
        annotations = before.annotations
        if told != one.shown:
            one.shown, texts = told, {"value": told, **before.labels}
            annotations = {name: filled(text, texts) for name, text in rule.annotations.items() if text}
        status = Status.FIRING if fires else before.status
        one.alert = Alert(before.labels, annotations, status, before.starts_at, None, value)
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
        if one.alert.stale:
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
            if not one.alert.stale:
                one.alert = replace(one.alert, stale=True)
            return None
        del active[group]
        return _ended(one.alert, now, "no data for a day") if one.alert.status is Status.FIRING else None

    def _labels(self, rule: Rule, group: str) -> dict[str, str]:
        of_group = {rule.by: group} if rule.by else {}
        own = {"alertname": rule.alert, "severity": str(rule.severity), "instance": self._instance}
        return {**rule.labels, **own, **of_group}


def _too_few(rule: Rule, readings: Mapping[str, float | None]) -> bool:
    """Whether a rule that does not hold would, if only there were more requests or pairs."""
    # A rule that is about such a number itself ends by it.
    sizes = [name for name in rule.expr.readings[1:] if name in SAMPLE_SIZES]
    return bool(sizes) and rule.expr.look({**readings, **dict.fromkeys(sizes, _PLENTY)}).holds is True


def _make_room(active: dict[str, _Active], seen: Container[str], now: float) -> Event | None:
    """Gives up the group that has had no data for longest, if there is one that has none."""
    without = [group for group, one in active.items() if one.alert.stale and group not in seen]
    if not without:
        return None
    alert = active.pop(min(without, key=lambda group: active[group].known_at)).alert
    return _ended(alert, now, "no data, and others need its place") if alert.status is Status.FIRING else None


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
