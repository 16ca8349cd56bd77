"""Grafana's own rules: valid in both shapes, the same alerts as Prometheus's, and the same by their queries."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from specwatch_grafana import alerting, generate, rules
from specwatch_grafana.shipped import DATASOURCE
from support.grafana_bodies import Refusal, check_group
from support.panels import boards
from support.provisioning import faults
from support.rule_cases import CASES, HEALTHY, IDLE, STEP_S, Series, input_series
from support.stack import missing, run

ROOM = generate.ROOM
FILE = ROOM / "provisioning" / "alerting" / "specwatch.yaml"
ALERTS = {alert.name: alert for alert in (*rules.ALERTS, *rules.OUTSIDE)}
(GROUP,) = json.loads((ROOM / "provisioning" / "rule-groups.json").read_text())
(FILE_GROUP,) = yaml.safe_load(FILE.read_text())["groups"]

needs_promtool = pytest.mark.skipif(missing("promtool") is not None, reason=str(missing("promtool")))


def test_the_api_takes_the_group() -> None:
    check_group(GROUP)


@pytest.mark.parametrize(
    "change",
    [
        lambda rule: rule.update(orgId=1),
        lambda rule: rule.update(noDataState="KEEP"),
        lambda rule: rule.update(execErrState="NoData"),
        lambda rule: rule.update(keepFiringFor="1m"),
        lambda rule: rule.update(keep_firing_for=60),
        lambda rule: rule.update({"for": "1 m"}),
        lambda rule: rule.pop("condition"),
        lambda rule: rule.pop("folderUID"),
        lambda rule: rule["data"][0].pop("model"),
        lambda rule: rule["labels"].update(severity=1),
    ],
)
def test_and_not_one_that_is_wrong(change: Callable[[dict[str, Any]], object]) -> None:
    group = json.loads(json.dumps(GROUP))
    change(group["rules"][0])
    with pytest.raises(Refusal):
        check_group(group)


def test_the_file_has_no_faults() -> None:
    assert faults(ROOM / "provisioning", boards()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("datasourceUid: specwatch-prom", "datasourceUid: prometheus", "no data source prometheus"),
        ("condition: HOLDS", "condition: C", "condition C is none of"),
        ("noDataState: KeepLast", "noDataState: Keep", "is not one of"),
        ("execErrState: KeepLast", "executionErrorState: KeepLast", "executionErrorState"),
        ("keepFiringFor:", "keep_firing_for:", "keep_firing_for"),
        ("uid: specwatch-acceptancelow\n", "uid: specwatch acceptance\n", "does not match"),
        ("uid: specwatch-acceptancelow\n", "uid: specwatch-garble\n", "rule specwatch-garble: there twice"),
        ("folder: Specwatch", "folder: Alerts", "the folder Alerts is another"),
        ("severity: critical", "severity: $labels.severity", "should not be valid"),
        ("orgId: 1", "orgID: 1", "orgID"),
        ("for: 30s", "for: 30", "is not of type"),
        ("apiVersion: 1", "apiVersion: 1\npolicies: [{receiver: x}]", "overwrites every notification policy"),
    ],
)
def test_mutations_of_the_file_are_caught(old: str, new: str, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "provisioning"
    shutil.copytree(ROOM / "provisioning", folder)
    text = FILE.read_text()
    assert old in text
    (folder / "alerting" / FILE.name).write_text(text.replace(old, new))
    assert [fault for fault in faults(folder, boards()) if said in fault]


def test_file_and_api_have_the_same_rules() -> None:
    place = {"orgID": 1, "folderUID": "specwatch", "ruleGroup": "specwatch"}
    spelt = [{**rule, **place, "keep_firing_for": rule["keepFiringFor"]} for rule in FILE_GROUP["rules"]]
    for rule in spelt:
        del rule["keepFiringFor"]
    assert GROUP["rules"] == spelt
    assert FILE_GROUP["interval"] == f"{GROUP['interval']}s"


def test_each_alert_of_prometheus_is_one_of_grafana() -> None:
    theirs = {
        each["alert"]: each
        for group in yaml.safe_load((ROOM / "rules.yml").read_text())["groups"]
        for each in group["rules"]
        if "alert" in each
    }
    ours = {rule["title"]: rule for rule in GROUP["rules"]}
    assert list(ours) == list(theirs)
    for name, rule in ours.items():
        assert rule["labels"] == theirs[name]["labels"]
        assert rule["for"] == theirs[name].get("for", "0s")
        assert rule["keep_firing_for"] == theirs[name].get("keep_firing_for", "0s")
        assert {key: text.replace("$values.A.Value", "$value") for key, text in rule["annotations"].items()} == theirs[
            name
        ]["annotations"]


def test_no_data_and_errors_keep_the_state_but_where_they_are_what_is_told() -> None:
    states = {rule["title"]: (rule["noDataState"], rule["execErrState"]) for rule in GROUP["rules"]}
    assert states.pop("SpecwatchSidecarDown") == ("Alerting", "Error")
    assert set(states.values()) == {("KeepLast", "KeepLast")}


def test_uids_are_stable_and_whoever_is_notified_is_left_open() -> None:
    uids = [rule["uid"] for rule in GROUP["rules"]]
    assert len(set(uids)) == len(uids)
    for rule in GROUP["rules"]:
        assert rule["uid"] == f"specwatch-{rule['title'].removeprefix('Specwatch').lower()}"
        assert len(rule["uid"]) <= 40
        assert "notification_settings" not in rule
        # A group is looked at each 30 s, and Grafana's scheduler every 10 s.
        assert GROUP["interval"] % 10 == 0
        assert _seconds(rule["for"]) % GROUP["interval"] == 0
    assert not {"policies", "contactPoints", "deleteRules"} & set(yaml.safe_load(FILE.read_text()))


def test_labels_have_no_dollar_that_grafana_would_take_for_a_variable() -> None:
    # In a file they are expanded from the environment, which turns `{{ $labels.x }}` into `{{ .x }}`.
    assert "$" not in json.dumps([rule["labels"] for rule in GROUP["rules"]])
    for rule in GROUP["rules"]:
        assert not re.search(r"\$\{|\$\w+\}(?!\})", json.dumps(rule["annotations"]))


def test_queries_are_instant_pinned_to_the_data_source_and_need_no_recording_rules() -> None:
    for rule in GROUP["rules"]:
        *queries, holds = rule["data"]
        assert holds["refId"] == rule["condition"]
        assert holds["datasourceUid"] == "__expr__"
        used = re.findall(r"\$(\w+)", holds["model"]["expression"])
        assert used == [query["refId"] for query in queries]
        for query in queries:
            assert query["datasourceUid"] == DATASOURCE
            assert query["model"]["refId"] == query["refId"]
            assert (query["model"]["instant"], query["model"]["range"]) == (True, False)
            assert not re.search(r"\binstance\w*:", query["model"]["expr"])


@needs_promtool
@pytest.mark.parametrize("name", CASES)
def test_the_queries_say_what_the_rule_of_prometheus_says(name: str, tmp_path: Path) -> None:
    """On the series by which that is tested; and there is a value where all is well, so that the state is known."""
    case, alert = CASES[name], ALERTS[name]
    values = [f"({expr})" for expr in alerting.queried(alert).values()]
    holds = " and ".join(f"{v} {c.op} {c.limit:g}" for v, c in zip(values, alert.conditions, strict=True))
    has_data = " and ".join(values)

    def look(series: Series, *, expected: bool, known: bool | None = None) -> dict[str, Any]:
        checks = [(holds, expected)] + ([] if known is None else [(has_data, known)])
        return {
            "interval": f"{STEP_S}s",
            "input_series": input_series(series, case.minutes),
            "promql_expr_test": [
                {
                    "expr": f"count({expr})",
                    "eval_time": f"{case.minutes}m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if there else [],
                }
                for expr, there in checks
            ],
        }

    tests = [
        look({**HEALTHY, **case.bad}, expected=True, known=True),
        look(HEALTHY, expected=False, known=True),
        *(look({**HEALTHY, **near}, expected=False, known=True) for near in case.near),
        *(look({**HEALTHY, **few}, expected=False) for few in case.few),
        look(IDLE, expected=False),
    ]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": f"{STEP_S}s", "tests": tests}))
    code, words = run("promtool", "test", "rules", file)
    assert code == 0, words


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]
