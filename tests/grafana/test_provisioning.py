"""Provisioning files name each other rightly, and undo nothing. C32."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from specwatch_grafana import generate
from support.panels import boards
from support.provisioning import faults

PROVISIONING = generate.ROOM / "provisioning"
BOARDS = boards()

RULE: dict[str, Any] = {
    "uid": "specwatch-x",
    "title": "SpecwatchX",
    "condition": "B",
    "for": "30s",
    "noDataState": "OK",
    "execErrState": "Error",
    "data": [
        {"refId": "A", "datasourceUid": "specwatch-prom", "model": {"refId": "A", "expr": "up"}},
        {"refId": "B", "datasourceUid": "__expr__", "model": {"refId": "B", "type": "threshold"}},
    ],
    "dashboardUid": "specwatch-overview",
    "panelId": 1,
}


def test_c32_the_files_that_are_shipped_have_no_faults() -> None:
    assert faults(PROVISIONING, BOARDS) == []


class Change(NamedTuple):
    file: str
    old: str
    new: str
    #: What is said of it.
    said: str


SOURCES, PROVIDERS, RULES = "datasources/specwatch.yaml", "dashboards/specwatch.yaml", "alerting/x.yaml"
CHANGES = {
    "delete and make anew": Change(
        SOURCES, "apiVersion: 1", "apiVersion: 1\ndeleteDatasources: [{name: x, orgId: 1}]", "deleteDatasources"
    ),
    "a placeholder of an import": Change(SOURCES, "uid: specwatch-prom", "uid: ${DS_PROMETHEUS}", "${DS_"),
    "another uid than the rules'": Change(SOURCES, "specwatch-prom", "specwatch-metrics", "no data source"),
    "no uid": Change(SOURCES, "uid: specwatch-prom", "isDefault: true", "'uid' is a required property"),
    "a misspelt key": Change(SOURCES, "timeInterval: 15s", "timeIntervall: 15s", "'timeIntervall' was unexpected"),
    "a version that Grafana does not read": Change(SOURCES, "apiVersion: 1", "apiVersion: 2", "1 was expected"),
    "a url without a scheme": Change(SOURCES, "http://", "", "does not match"),
    "a path inside the folder": Change(PROVIDERS, "path: /", "path: ", "does not match"),
    "another folder than the rules'": Change(PROVIDERS, "folder: Specwatch", "folder: Other", "is another than"),
    "a query of no data source": Change(
        RULES, "datasourceUid: specwatch-prom", "datasourceUid: prom", "no data source"
    ),
    "a dashboard that is not there": Change(RULES, "specwatch-overview", "specwatch-over", "no dashboard"),
    "a panel that is not there": Change(RULES, "panelId: 1", "panelId: 999", "no panel 999"),
    "a condition that is no query": Change(RULES, "condition: B", "condition: C", "condition C"),
    "a query of two names": Change(RULES, "model: {refId: A", "model: {refId: Z", "differ"),
    "notification policies": Change(
        RULES, "apiVersion: 1", "apiVersion: 1\npolicies: [{receiver: x}]", "overwrites every notification policy"
    ),
    "no state for errors": Change(RULES, "execErrState: Error", "isPaused: false", "'execErrState' is a required"),
    "a state that the API alone knows": Change(RULES, "noDataState: OK", "noDataState: Ok", "is not one of"),
    "a key of the API": Change(RULES, "for: 30s", "for: 30s, keep_firing_for: 1m", "'keep_firing_for' was unexpected"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_mutations_are_caught(name: str, tmp_path: Path) -> None:
    change = CHANGES[name]
    for kind in ("datasources", "dashboards"):
        shutil.copytree(PROVISIONING / kind, tmp_path / kind)
    group = {"orgId": 1, "name": "x", "folder": "Specwatch", "interval": "30s", "rules": [RULE]}
    (tmp_path / "alerting").mkdir()
    rules = yaml.safe_dump({"groups": [group]}, default_flow_style=True, width=9999, sort_keys=False)
    (tmp_path / RULES).write_text(f"apiVersion: 1\n{rules.strip()[1:-1]}\n")
    assert faults(tmp_path, BOARDS) == []
    text = (tmp_path / change.file).read_text()
    assert change.old in text
    (tmp_path / change.file).write_text(text.replace(change.old, change.new, 1))
    found = faults(tmp_path, BOARDS)
    assert any(change.said in fault for fault in found), found


def test_one_uid_twice_is_caught(tmp_path: Path) -> None:
    shutil.copytree(PROVISIONING / "datasources", tmp_path / "datasources")
    shutil.copy(tmp_path / SOURCES, tmp_path / "datasources" / "again.yaml")
    assert faults(tmp_path, BOARDS) == ["data source specwatch-prom: there twice"]
