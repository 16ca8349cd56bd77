"""The alerts' file: rules, receivers, routes. `load` is the way in; README has an example."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from .document import ConfigError, read
from .fields import SomeTime, Strict, validate
from .receivers import Alertmanager, AnyReceiver, Apprise, Command, Grafana, Receiver, Route, RouteEntry, Webhook

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
    "Webhook",
    "load",
]


@dataclass(frozen=True, slots=True)
class Config:
    interval_s: float
    receivers: tuple[AnyReceiver, ...]
    #: Every receiver it names is among these.
    route: Route


class _Document(Strict):
    interval_s: SomeTime = Field(default=15.0, alias="interval")
    receivers: tuple[AnyReceiver, ...] = ()
    route: RouteEntry = RouteEntry()


def load(path: Path | None) -> Config:
    """The rules shipped and those of the file at `path`. Raises ConfigError: one line an error."""
    document = _Document() if path is None else validate(_Document, read(path), str(path), path.parent)
    return Config(document.interval_s, document.receivers, document.route.resolved())
