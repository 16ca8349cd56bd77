"""`specwatch alerts check` and `specwatch alerts test`: whether an alerts' file is sound, and unit tests of its rules.

A file of tests, as promtool has them for Prometheus:

    config: alerts.yaml              # relative to this file; left out: the shipped rules
    tests:
    - name: a bad draft model
      interval: 15s                  # of the looks; the first one is at 0
      by: {scenario: billing}        # the group that the readings are of; left out: all traffic
      readings:                      # a value a look, none behind the last one
        acceptance_rate: 0.8x4 0.6-0.1x3 _x2
        window_requests: 100x10
      only: [BillingSlow]            # left out: all alerts are looked at
      expect:                        # all that are pending or firing then
      - {at: 2m, alerts: [{alert: BillingSlow, status: firing, labels: {team: ml}, value: 0.3}]}

`0.8x4` is 0.8 four times, `0.6-0.1x3` is 0.6 and three more, each less by 0.1, `_` is no data.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .config import Config, load
from .definitions import shipped
from .document import ConfigError, read
from .fields import Duration, Name, SomeTime, Strict, Text, nearest, validate
from .model import Alert
from .readings import KINDS, READINGS
from .rules import Evaluator

#: Looks of one test, values of one series.
_MOST_LOOKS = 20_000
_NUMBER = r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?"
_ITEM = re.compile(
    rf"(?:(?P<none>_)|(?P<first>{_NUMBER})(?:(?P<sign>[+-])(?P<step>{_NUMBER}))?)(?:x(?P<times>[0-9]{{1,6}}))?"
)


@dataclass(frozen=True, slots=True)
class Failure:
    test: str
    at_s: float
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.test}: at {self.at_s:g} s expected {self.expected}; got {self.got}"


def check(path: Path | None) -> list[str]:
    """What a sound file does, in lines to print. Raises ConfigError."""
    config = load(path)
    changed = sum(rule.alert in shipped() and rule != shipped()[rule.alert] for rule in config.rules)
    own = sum(rule.alert not in shipped() for rule in config.rules)
    told = _told(config)
    counts = f"{own} of your own, {changed} of the shipped ones changed"
    lines = [f"rules: {len(config.rules)} ({counts}); receivers: {len(config.receivers)}"]
    lines += [
        f"{receiver.name}: {_list(told.get(receiver.name, [])) or 'nothing, as no route leads there'}"
        for receiver in config.receivers
    ]
    if quiet := told.get(""):
        lines.append(f"nobody is told of {_list(quiet)}")
    return lines


def run_tests(path: Path) -> list[Failure]:
    """Those that failed. Raises ConfigError."""
    raw = read(path)
    document = validate(_Document, raw, str(path), path.parent)
    # Who is told is of no concern here, and secrets need not be.
    config = load(None if document.config is None else path.parent / document.config, receivers=False)
    if errors := [
        error for place, test in enumerate(document.tests) for error in _faults(test, f"tests[{place}]", config)
    ]:
        raise ConfigError("\n".join(f"{path}: {error}" for error in errors))
    return [failure for test in document.tests for failure in _run(test, config)]


def _series(value: object) -> tuple[float | None, ...]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError("must be values, as 0.8x10 0.5 _")
    values: list[float | None] = []
    for word in value.split():
        match = _ITEM.fullmatch(word)
        if match is None or (match["sign"] and match["times"] is None):
            raise ValueError(f"{word[:40]!r} is no value: write 0.8, 0.8x10, 0.8+0.1x10 or _")
        times = int(match["times"] or 1)
        if match["none"]:
            values += [None] * min(times, _MOST_LOOKS + 1)
        else:
            first, step = float(match["first"]), float(f"{match['sign'] or '+'}1") * float(match["step"] or 0)
            places = range(min(times + (match["sign"] is not None), _MOST_LOOKS + 1))
            values += [first + place * step for place in places]
        if len(values) > _MOST_LOOKS:
            raise ValueError(f"is longer than {_MOST_LOOKS} values")
    return tuple(values)


class _Expected(Strict):
    alert: Name
    status: Literal["pending", "firing"] = "firing"
    labels: dict[Name, Text] = Field(default_factory=dict)
    value: float | None = None

    def is_met_by(self, alert: Alert) -> bool:
        return (
            (alert.name, alert.status) == (self.alert, self.status)
            and self.labels.items() <= alert.labels.items()
            and (
                self.value is None or (alert.value is not None and math.isclose(alert.value, self.value, rel_tol=1e-9))
            )
        )

    def __str__(self) -> str:
        return _words(self.alert, self.status, self.labels, self.value)


class _Moment(Strict):
    at_s: Duration = Field(alias="at")
    alerts: tuple[_Expected, ...]


class _Test(Strict):
    name: Annotated[Text, Field(min_length=1)]
    interval_s: SomeTime = Field(default=15.0, alias="interval")
    by: Annotated[dict[str, Text], Field(max_length=1)] = Field(default_factory=dict)
    readings: dict[str, Annotated[tuple[float | None, ...], BeforeValidator(_series)]]
    only: tuple[Name, ...] | None = None
    expect: Annotated[tuple[_Moment, ...], Field(min_length=1)]

    @property
    def group(self) -> tuple[str, str]:
        return next(iter(self.by.items()), ("", ""))


class _Document(Strict):
    config: Annotated[Text, Field(min_length=1)] | None = None
    tests: Annotated[tuple[_Test, ...], Field(min_length=1)]


def _faults(test: _Test, path: str, config: Config) -> list[str]:
    errors = []
    kind, _ = test.group
    if kind not in KINDS:
        errors.append(f"{path}.by: there is no such kind of groups{nearest(kind, KINDS)}")
    for name in test.readings:
        if name not in READINGS:
            errors.append(f"{path}.readings: there is no reading {name[:60]}{nearest(name, READINGS)}")
        elif kind in KINDS and kind not in READINGS[name].kinds:
            errors.append(f"{path}.readings.{name}: is not known {f'by {kind}' if kind else 'of all traffic'}")
    names = [rule.alert for rule in config.rules]
    wanted = [(f"{path}.only", name) for name in test.only or ()]
    for place, moment in enumerate(test.expect):
        if moment.at_s / test.interval_s > _MOST_LOOKS:
            errors.append(f"{path}.expect[{place}].at: is more than {_MOST_LOOKS} looks away")
        wanted += [(f"{path}.expect[{place}].alerts", expected.alert) for expected in moment.alerts]
    errors += [f"{where}: there is no rule {name}{nearest(name, names)}" for where, name in wanted if name not in names]
    return errors


def _run(test: _Test, config: Config) -> list[Failure]:
    evaluator = Evaluator(config.rules, instance="test")
    failures = []
    look = 0
    for moment in sorted(test.expect, key=lambda moment: moment.at_s):
        while look * test.interval_s <= moment.at_s:
            found = {name: values[look] for name, values in test.readings.items() if look < len(values)}
            evaluator.evaluate({test.group: found}, look * test.interval_s)
            look += 1
        alerts = [alert for alert in evaluator.alerts() if test.only is None or alert.name in test.only]
        if not _same(moment.alerts, alerts):
            got = [_words(alert.name, alert.status, _group(alert, test), alert.value) for alert in alerts]
            expected = [str(expected) for expected in moment.alerts]
            failures.append(Failure(test.name, moment.at_s, _all(expected), _all(got)))
    return failures


def _same(expected: tuple[_Expected, ...], alerts: list[Alert]) -> bool:
    left = list(alerts)
    # The most exact first, so that a vaguer one does not take its alert.
    for one in sorted(expected, key=lambda one: (len(one.labels), one.value is not None), reverse=True):
        met = next((alert for alert in left if one.is_met_by(alert)), None)
        if met is None:
            return False
        left.remove(met)
    return not left


def _group(alert: Alert, test: _Test) -> Mapping[str, str]:
    return {name: value for name, value in alert.labels.items() if name in test.by}


def _words(alert: str, status: str, labels: Mapping[str, str], value: float | None) -> str:
    shown = ", ".join(f"{name}={label}" for name, label in labels.items())
    return f"{alert}{f'{{{shown}}}' if shown else ''} {status}" + (f" ({value:g})" if value is not None else "")


def _all(words: list[str]) -> str:
    return ", ".join(sorted(words)) or "no alert"


def _told(config: Config) -> dict[str, list[str]]:
    """By receiver, "" for nobody: the names of the rules, as far as labels tell that are the same for all groups."""
    told: dict[str, list[str]] = {}
    for rule in config.rules:
        routes = config.route.matching({**rule.labels, "alertname": rule.alert, "severity": rule.severity})
        for receiver in {route.receiver for route in routes if route.receiver} or {""}:
            told.setdefault(receiver, []).append(rule.alert)
    return told


def _list(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"
