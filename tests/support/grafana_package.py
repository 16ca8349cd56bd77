"""A small package as ours, for tests of push and export: two dashboards, one data source, two rule groups."""

import json
from pathlib import Path
from typing import Any

import yaml


def dashboard(name: str, expr: str = "up") -> dict[str, Any]:
    """A classic dashboard with one panel, by the published schema."""
    datasource = {"type": "prometheus", "uid": "${datasource}"}
    current = {"selected": True, "text": "specwatch-prom", "value": "specwatch-prom"}
    return {
        "uid": f"specwatch-{name}",
        "title": name.capitalize(),
        "schemaVersion": 42,
        "editable": True,
        "tags": ["specwatch"],
        "annotations": {},
        "templating": {
            "list": [{"type": "datasource", "name": "datasource", "query": "prometheus", "current": current}]
        },
        "panels": [
            {
                "id": 1,
                "type": "timeseries",
                "title": "Acceptance rate",
                "gridPos": {"x": 0, "y": 0, "w": 12, "h": 8},
                "datasource": datasource,
                "targets": [{"refId": "A", "expr": expr, "datasource": datasource}],
            }
        ],
    }


def rule(name: str, expr: str = "up < 1", **more: Any) -> dict[str, Any]:
    """An alert rule as the HTTP API takes it."""
    threshold = {"type": "threshold", "expression": "A", "conditions": [{"evaluator": {"type": "gt", "params": [0]}}]}
    return {
        "uid": f"specwatch-{name.lower()}",
        "title": name,
        "orgID": 1,
        "folderUID": "specwatch",
        "ruleGroup": "specwatch",
        "condition": "B",
        "noDataState": "KeepLast",
        "execErrState": "KeepLast",
        "for": "90s",
        "keep_firing_for": "2m",
        "labels": {"severity": "critical"},
        "annotations": {"summary": "Few drafts are accepted."},
        "data": [
            {
                "refId": "A",
                "relativeTimeRange": {"from": 600, "to": 0},
                "datasourceUid": "specwatch-prom",
                "model": {"refId": "A", "expr": expr, "instant": True, "range": False},
            },
            {"refId": "B", "datasourceUid": "__expr__", "model": {"refId": "B", **threshold}},
        ],
        **more,
    }


def group(title: str, *rules: dict[str, Any], interval: int = 60) -> dict[str, Any]:
    named = [{**one, "ruleGroup": title} for one in rules]
    return {"title": title, "folderUid": "specwatch", "interval": interval, "rules": named}


def make(root: Path) -> Path:
    for one in (dashboard("overview"), dashboard("latency", "rate(x[$__rate_interval])")):
        write(root / "dashboards" / f"{one['uid']}.json", json.dumps(one, indent=2))
    source = {"name": "Specwatch", "uid": "specwatch-prom", "type": "prometheus", "access": "proxy", "orgId": 1}
    source |= {"url": "http://prometheus:9090", "editable": False, "jsonData": {"httpMethod": "POST"}}
    write(root / "provisioning/datasources/specwatch.yaml", yaml.safe_dump({"apiVersion": 1, "datasources": [source]}))
    provider = {"name": "specwatch", "type": "file", "options": {"path": "/etc/grafana/dashboards"}}
    write(root / "provisioning/dashboards/specwatch.yaml", yaml.safe_dump({"apiVersion": 1, "providers": [provider]}))
    groups = [group("acceptance", rule("AcceptanceLow"), rule("Slow")), group("state/other", rule("Down"), interval=30)]
    write(root / "provisioning/rule-groups.json", json.dumps(groups))
    write(root / "provisioning/alerting/rules.yaml", yaml.safe_dump({"apiVersion": 1, "groups": []}))
    write(root / "rules.yml", "groups: []\n")
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
