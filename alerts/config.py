"""The alerts' file: rules, receivers, routes. `load` is the way in; README has an example."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, StrictBool

from .definitions import DEFAULTS, OWN_LABELS, Rule, RuleEntry, rules_of, shipped
from .document import ConfigError, read
from .fields import Duration, Strict, nearest, validate
from .model import Severity
from .readings import KINDS
from .receivers import (
    Alertmanager,
    AnyReceiver,
    Apprise,
    BranchEntry,
    Command,
    Grafana,
    Receiver,
    Route,
    RouteEntry,
    Webhook,
)

__all__ = [
    "Alertmanager",
    "AnyReceiver",
    "Apprise",
    "Command",
    "Config",
    "ConfigError",
    "Grafana",
    "Receiver",
    "Route",
    "Rule",
    "Webhook",
    "load",
]


@dataclass(frozen=True, slots=True)
class Config:
    #: How often rules are looked at, s.
    interval_s: float
    #: Those that are enabled; no two have the same name.
    rules: tuple[Rule, ...]
    receivers: tuple[AnyReceiver, ...]
    #: Every receiver it names is among these.
    route: Route


class _Document(Strict):
    interval_s: Duration = Field(default=15.0, alias="interval", ge=1.0, le=3600.0)
    defaults: StrictBool = True
    rules: tuple[RuleEntry, ...] = ()
    receivers: tuple[AnyReceiver, ...] = ()
    route: RouteEntry = RouteEntry()


def load(path: Path | None, *, receivers: bool = True) -> Config:
    """The rules shipped, as the file at `path` changes them, and its own. Raises ConfigError: one line an error.

    None: the shipped rules, and nobody is notified. Without `receivers` the file's are not looked at, nor its routes.
    """
    if path is None:
        return _config(_Document(), DEFAULTS.name)
    raw = read(path)
    if isinstance(raw, dict) and not receivers:
        raw = {key: value for key, value in raw.items() if key not in ("receivers", "route")}
    return _config(validate(_Document, {} if raw is None else raw, str(path), path.parent), str(path))


def _config(document: _Document, name: str) -> Config:
    rules, errors = rules_of(document.rules, shipped() if document.defaults else {})
    errors += _receiver_faults(document)
    errors += _route_faults(document, {*shipped(), *(rule.alert for rule in document.rules)}, rules)
    if errors:
        raise ConfigError("\n".join(f"{name}: {error}" for error in errors))
    return Config(document.interval_s, rules, document.receivers, document.route.resolved())


def _receiver_faults(document: _Document) -> Iterator[str]:
    seen: dict[str, int] = {}
    for place, receiver in enumerate(document.receivers):
        if receiver.name in seen:
            yield f"receivers[{place}].name: receivers[{seen[receiver.name]}] has it as well; take another"
        seen.setdefault(receiver.name, place)


def _route_faults(document: _Document, alerts: set[str], rules: tuple[Rule, ...]) -> Iterator[str]:
    names = [receiver.name for receiver in document.receivers]
    labels = [*OWN_LABELS, *KINDS[1:], *dict.fromkeys(name for rule in rules for name in rule.labels)]
    values: dict[str, list[str]] = {"severity": [*Severity], "alertname": sorted(alerts)}
    places: list[tuple[str, RouteEntry | BranchEntry]] = [("route", document.route)]
    places += [(f"route.routes[{place}]", branch) for place, branch in enumerate(document.route.routes)]
    for path, entry in places:
        if entry.receiver and entry.receiver not in names:
            yield f"{path}.receiver: there is no receiver of this name{nearest(entry.receiver, names)}"
        for label in entry.group_by or ():
            if label not in labels:
                yield f"{path}.group_by: no rule has the label {label[:60]}{nearest(label, labels)}"
        for label, wanted in entry.match.items() if isinstance(entry, BranchEntry) else ():
            if label not in labels:
                yield f"{path}.match.{label}: no rule has this label{nearest(label, labels)}"
            for value in wanted:
                if label in values and value not in values[label]:
                    yield f"{path}.match.{label}: none is called {value[:60]}{nearest(value, values[label])}"
