"""The alerts of rules.yml as Grafana's own rules: for file provisioning, and as the HTTP API takes them.

Each condition is a query, and an expression joins them, so that a figure that is fine and one that is not known differ:
with no data a rule keeps its state. The queries need no recording rules. Who is notified is left to the notification
policies of that Grafana, by the label severity; one of them overwritten would be all of them.
"""

import json
from string import ascii_uppercase
from typing import Any

from .recording import inline
from .rules import ALERTS, OUTSIDE, Alert, dump, templated
from .shipped import DATASOURCE, FOLDER

TITLE = "Specwatch"
GROUP = "specwatch"
#: Seconds; a multiple of 10, by which Grafana looks at rules, and a divisor of every `for`.
INTERVAL_S = 30

_HEAD = """\
# The alerts of ../../rules.yml as Grafana's own rules; made by grafana/generate.py, so change them there. Use these or
# Prometheus's, or the same alert is told twice. Contact points and notification policies are yours: match on severity.
# Without data, or where Prometheus cannot be asked, a rule keeps its state; SpecwatchSidecarDown tells of it. One that
# is pending then goes on, and fires at the end of its `for`. And where one series vanishes and others of the rule stay,
# that one is resolved after two looks, whatever is set here.
"""


def files() -> dict[str, str]:
    """Path below this folder -> text."""
    return {
        "provisioning/alerting/specwatch.yaml": _HEAD + dump({"apiVersion": 1, "groups": [_file_group()]}),
        "provisioning/rule-groups.json": json.dumps(groups(), indent=2, ensure_ascii=False) + "\n",
    }


def groups() -> list[dict[str, Any]]:
    """As `PUT /api/v1/provisioning/folder/{uid}/rule-groups/{group}` takes them."""
    return [{"title": GROUP, "folderUid": FOLDER, "interval": INTERVAL_S, "rules": [_api(each) for each in _all()]}]


def _all() -> tuple[Alert, ...]:
    return (*ALERTS, *OUTSIDE)


def _file_group() -> dict[str, Any]:
    rules = [{**_rule(each), "keepFiringFor": each.meta.keep_firing_for} for each in _all()]
    return {"orgId": 1, "name": GROUP, "folder": TITLE, "interval": f"{INTERVAL_S}s", "rules": rules}


def _api(alert: Alert) -> dict[str, Any]:
    place = {"orgID": 1, "folderUID": FOLDER, "ruleGroup": GROUP}
    return {**_rule(alert), **place, "keep_firing_for": alert.meta.keep_firing_for}


def _rule(alert: Alert) -> dict[str, Any]:
    """What file and API spell alike."""
    outside = alert.name == "SpecwatchSidecarDown"
    queries = [
        {
            "refId": letter,
            "relativeTimeRange": {"from": 600, "to": 0},
            "datasourceUid": DATASOURCE,
            "model": {"refId": letter, "editorMode": "code", "expr": expr, "instant": True, "range": False},
        }
        for letter, expr in queried(alert).items()
    ]
    holds = {
        "refId": "HOLDS",
        "relativeTimeRange": {"from": 0, "to": 0},
        "datasourceUid": "__expr__",
        "model": {"refId": "HOLDS", "type": "math", "expression": expression(alert)},
    }
    return {
        "uid": f"{FOLDER}-{alert.name.removeprefix(TITLE).lower()}",
        "title": alert.name,
        "condition": "HOLDS",
        "data": [*queries, holds],
        "noDataState": "Alerting" if outside else "KeepLast",
        "execErrState": "Error" if outside else "KeepLast",
        "for": alert.meta.for_,
        "annotations": templated(alert, "$values.A.Value"),
        "labels": {"severity": alert.meta.severity, **alert.meta.labels},
        "isPaused": False,
    }


def queried(alert: Alert) -> dict[str, str]:
    """refId -> PromQL of each condition's value, where the guards have one too."""
    values = (condition.value for condition in alert.conditions)
    return {
        letter: "\nand ".join(map(inline, (value, *alert.guards)))
        for letter, value in zip(ascii_uppercase, values, strict=False)
    }


def expression(alert: Alert) -> str:
    """For a math expression; a threshold knows only `<` and `>` in older Grafanas."""
    parts = zip(ascii_uppercase, alert.conditions, strict=False)
    return " && ".join(f"${letter} {condition.op} {condition.limit:g}" for letter, condition in parts)
