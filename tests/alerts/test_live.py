"""The whole way of an alert, of real parts: requests, sidecar, Prometheus, Alertmanager, a webhook; and without them.

What takes minutes takes seconds here: `for` and `keep_firing_for` of the shipped rules are divided. Times are printed
with -s.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from support.model import Model, ask, model
from support.receiver import Receiver, receiver
from support.sidecar import Sidecar
from support.stack import Alertmanager, Prometheus, alertmanager, missing, prometheus, wait_for

ROOT = Path(__file__).parents[2]
NAME = "SpecwatchAcceptanceLow"
FAST = 30


def seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[text[-1]]


def faster_rules(folder: Path) -> Path:
    """The shipped Prometheus rules, with their times divided."""
    rules = yaml.safe_load((ROOT / "grafana" / "rules.yml").read_text())
    for group in rules["groups"]:
        group.pop("interval", None)
        for rule in group["rules"]:
            for key in ("for", "keep_firing_for"):
                if key in rule:
                    rule[key] = f"{max(1, round(seconds(rule[key]) / FAST))}s"
    file = folder / "rules.yml"
    file.write_text(yaml.safe_dump(rules))
    return file


def own_alerts(folder: Path, hook: str, alertmanager_url: str | None = None) -> Path:
    """A file for the sidecar, with the shipped rule and its times divided."""
    receivers: list[dict[str, Any]] = [{"name": "hook", "type": "webhook", "url": f"{hook}/own"}]
    routes: list[dict[str, Any]] = []
    if alertmanager_url is not None:
        receivers.append({"name": "am", "type": "alertmanager", "url": alertmanager_url})
        routes.append({"match": {"alertname": NAME}, "receiver": "am", "continue": True})
        routes.append({"match": {"alertname": NAME}, "receiver": "hook"})
    values = {
        "interval": "1s",
        "rules": [{"alert": NAME, "for": "1s", "keep_firing_for": "4s"}],
        "receivers": receivers,
        "route": {"receiver": "hook", "group_wait": "1s", "group_interval": "1s", "routes": routes},
    }
    file = folder / "alerts.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def beside(folder: Path, served: Model, **settings: Any) -> Sidecar:
    engine: Any = SimpleNamespace(url=served.url, events=folder / "events")
    return Sidecar(folder, engine, counters_every_s=0, **settings)


@dataclass
class Stack:
    model: Model
    sidecar: Sidecar
    hook: Receiver
    prometheus: Prometheus
    alertmanager: Alertmanager

    def told(self, path: str, status: str, name: str = NAME) -> list[Any]:
        """Alerts of that name and status that the webhook was sent at `path`."""
        return [
            alert
            for request in list(self.hook.requests)
            if request.path == path
            for alert in request.json()["alerts"]
            if alert["labels"]["alertname"] == name and alert["status"] == status
        ]

    def until(self, what: str, reached: Callable[[], Any], within: float = 30) -> float:
        began = time.monotonic()
        wait_for(reached, bool, within)
        took = time.monotonic() - began
        print(f"{what}: {took:.1f} s")
        return took


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    if reason := missing("prometheus", "prometheus-alertmanager"):
        pytest.skip(reason)
    with (
        receiver() as hook,
        model() as served,
        alertmanager(tmp_path / "am", {"hook": f"{hook.url}/alertmanager"}) as am,
    ):
        sidecar = beside(tmp_path, served, alerts=str(own_alerts(tmp_path, hook.url)))
        try:
            with prometheus(
                tmp_path / "prometheus",
                {"specwatch": [sidecar.admin]},
                rules=[faster_rules(tmp_path)],
                alertmanagers=[am],
            ) as prom:
                yield Stack(served, sidecar, hook, prom, am)
        finally:
            sidecar.stop()


def test_a_bad_draft_is_told_by_both_ways_recovery_too_and_a_silence_is_kept(stack: Stack) -> None:
    ask(stack.sidecar.proxy, 100)
    stack.prometheus.wait_for("specwatch_window_requests", lambda found: bool(found) and found[0][1] >= 100)
    time.sleep(3)
    assert NAME not in stack.prometheus.firing()
    assert not stack.told("/alertmanager", "firing")
    assert not stack.told("/own", "firing")

    stack.model.p = 0.4
    ask(stack.sidecar.proxy, 100)
    stack.until("Prometheus fires", lambda: NAME in stack.prometheus.firing())
    stack.until("Alertmanager tells the webhook", lambda: stack.told("/alertmanager", "firing"))
    stack.until("the sidecar tells the webhook by itself", lambda: stack.told("/own", "firing"))
    for path in ("/alertmanager", "/own"):
        (alert,) = stack.told(path, "firing")
        assert alert["labels"]["severity"] == "critical"
        assert "0.400" in alert["annotations"]["description"]
        assert alert["annotations"]["runbook"] == "RUNBOOK.md#specwatchacceptancelow"
    (active,) = (each for each in stack.sidecar.api("alerts")["alerts"] if each["name"] == NAME)
    assert (active["status"], active["value"]) == ("firing", pytest.approx(0.4))
    assert stack.prometheus.value(f'specwatch_alerts_firing{{alert="{NAME}"}}') == 1

    stack.model.p = 0.8
    ask(stack.sidecar.proxy, 100)
    stack.until("Alertmanager tells that it is over", lambda: stack.told("/alertmanager", "resolved"))
    stack.until("the sidecar tells that it is over", lambda: stack.told("/own", "resolved"))
    for path in ("/alertmanager", "/own"):
        assert len(stack.told(path, "firing")) == len(stack.told(path, "resolved")) == 1

    silence = stack.alertmanager.silence(alertname=NAME)
    stack.model.p = 0.4
    ask(stack.sidecar.proxy, 100)
    stack.until("silenced", lambda: stack.alertmanager.states().get(NAME) == "suppressed")
    stack.until("the sidecar's own", lambda: len(stack.told("/own", "firing")) == 2)
    time.sleep(3)
    assert len(stack.told("/alertmanager", "firing")) == 1
    stack.alertmanager.expire(silence)
    stack.until("the silence is over", lambda: len(stack.told("/alertmanager", "firing")) == 2)
