"""What this package ships, pushed as a whole into the stand-in of each release."""

import pytest
from specwatch_grafana.connection import Grafana, target
from specwatch_grafana.push import Options, Report, push
from specwatch_grafana.shipped import FOLDER, Shipped
from support.grafana_server import ADMIN, RELEASES, GrafanaServer, serving


def pushed(server: GrafanaServer, options: Options, datasource: str = "specwatch-prom") -> Report:
    grafana = Grafana(target(server.url, ADMIN))
    try:
        report = push(grafana, Shipped(datasource=datasource), options)
    finally:
        grafana.close()
    assert [step.detail for step in report.failures] == []
    return report


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("receiver", [None, "on-call"])
def test_all_of_it_is_taken_and_the_second_push_changes_nothing(release: str, receiver: str | None) -> None:
    options = Options(prometheus_url="http://prometheus:9090", alerts=True, receiver=receiver)
    with serving(RELEASES[release]) as server:
        pushed(server, options)
        assert len(server.dashboards) == len(list((Shipped().root / "dashboards").glob("*.json")))
        rules = [rule for group in server.groups.values() for rule in group["rules"]]
        assert rules
        written = len(server.writes)
        second = pushed(server, options)
        assert (second.changed, len(server.writes)) == ([], written)
        assert not [step for step in second.steps if step.detail.startswith("Grafana stores otherwise")]


def test_another_data_source_is_meant_throughout() -> None:
    with serving(RELEASES["13"]) as server:
        pushed(server, Options(prometheus_url="http://prometheus:9090", alerts=True), "own_prom")
        assert list(server.datasources) == ["own_prom"]
        sources = {
            query["datasourceUid"]
            for group in server.groups.values()
            for rule in group["rules"]
            for query in rule["data"]
        }
        assert sources == {"own_prom", "__expr__"}
        assert "specwatch-prom" not in str(server.dashboards)


def test_uids_of_rules_are_ours_and_links_lead_to_what_is_shipped() -> None:
    shipped = Shipped()
    boards = {dashboard.uid: dashboard.model for dashboard in shipped.dashboards()}
    for group in shipped.rule_groups():
        for rule in group["rules"]:
            assert rule["uid"].startswith(FOLDER)
            annotations = rule["annotations"]
            if "__dashboardUid__" in annotations:
                panels = {str(panel["id"]) for panel in boards[annotations["__dashboardUid__"]]["panels"]}
                assert annotations["__panelId__"] in panels
