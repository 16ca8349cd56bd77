"""alertmanager.yml: by amtool, by where each alert goes, and by a real Alertmanager that holds back what follows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from specwatch_grafana import generate
from support.stack import Alertmanager, alertmanager, missing, run

FILE = generate.ROOM / "alertmanager.yml"
CONFIG = yaml.safe_load(FILE.read_text())
ALERTS = {
    rule["alert"]: rule["labels"]
    for group in yaml.safe_load((generate.ROOM / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}

needs_amtool = pytest.mark.skipif(missing("amtool") is not None, reason=str(missing("amtool")))


@needs_amtool
def test_amtool_has_nothing_to_say() -> None:
    code, words = run("amtool", "check-config", FILE)
    assert code == 0, words


@needs_amtool
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("receiver: on-call", "receiver: oncall"),
        ("matchers:", "matcher:"),
        ('severity="info"', "severity info"),
        ("group_wait: 30s", "group_wait: 30"),
        ("- name: team", "- name: on-call"),
    ],
)
def test_and_notices_what_is_wrong(old: str, new: str, tmp_path: Path) -> None:
    assert old in FILE.read_text()
    (tmp_path / "am.yml").write_text(FILE.read_text().replace(old, new))
    assert run("amtool", "check-config", tmp_path / "am.yml")[0] != 0


def goes_to(labels: dict[str, str]) -> list[str]:
    pairs = [f"{name}={value}" for name, value in labels.items()]
    code, words = run("amtool", "config", "routes", "test", f"--config.file={FILE}", *pairs)
    assert code == 0, words
    return words.splitlines()[0].split(",")


@needs_amtool
@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_goes_where_its_severity_says(alert: str) -> None:
    labels = ALERTS[alert]
    expected = {"critical": "on-call", "warning": "team", "info": "nobody"}[labels["severity"]]
    before = ["training"] if labels.get("action") == "retrain" else []
    assert goes_to({"alertname": alert, "instance": "s1", **labels}) == [*before, expected]


def test_every_alert_that_is_held_back_or_holds_back_is_one() -> None:
    for rule in CONFIG["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            names = matcher.split('"')[1]
            assert names == "Specwatch.+" or set(names.split("|")) <= set(ALERTS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    inhibit: list[Any] = CONFIG["inhibit_rules"]
    with alertmanager(tmp_path_factory.mktemp("am"), {}, inhibit_rules=inhibit) as started:
        yield started


@pytest.mark.parametrize(
    ("source", "target", "same", "held_back"),
    [
        ("SpecwatchSidecarDown", "SpecwatchAcceptanceLow", True, True),
        ("SpecwatchSidecarDown", "SpecwatchAcceptanceLow", False, False),
        ("SpecwatchUpstreamDown", "SpecwatchErrors", True, True),
        ("SpecwatchErrors", "SpecwatchAcceptanceLow", True, False),
        ("SpecwatchAcceptanceLow", "SpecwatchAcceptanceLowInScenario", True, True),
        ("SpecwatchSimilarityCritical", "SpecwatchSimilarityLow", True, True),
        ("SpecwatchLatencyBudgetFastBurn", "SpecwatchLatencyBudgetTicket", True, True),
        ("SpecwatchLatencyBudgetSlowBurn", "SpecwatchLatencyBudgetTicket", True, True),
        ("SpecwatchSidecarDown", "SomebodyElses", True, False),
    ],
)
def test_what_follows_from_another_is_held_back(
    server: Alertmanager, source: str, target: str, same: bool, held_back: bool
) -> None:
    place = f"{source}-{target}-{same}"
    wanted = [
        {"alertname": source, "instance": place, "severity": "critical"},
        {"alertname": target, "instance": place if same else f"{place}-2", "severity": "critical"},
    ]
    httpx.post(f"{server.url}/api/v2/alerts", json=[{"labels": each} for each in wanted]).raise_for_status()

    def states() -> dict[str, str]:
        return {
            each["labels"]["alertname"]: each["status"]["state"]
            for each in server.alerts()
            if each["labels"]["instance"].startswith(place)
        }

    found = server.wait_for(lambda _: set(states()) == {source, target} and "unprocessed" not in states().values())
    assert found
    assert states() == {source: "active", target: "suppressed" if held_back else "active"}
