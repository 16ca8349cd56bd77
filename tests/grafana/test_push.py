"""specwatch grafana push against the stand-in: what is made, what is left alone, what is told."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specwatch_grafana.connection import Grafana, target
from specwatch_grafana.push import Options, Outcome, Report, push
from specwatch_grafana.shipped import Shipped
from support import grafana_package
from support.grafana_server import ADMIN, EDITOR, RELEASES, USER, VIEWER, GrafanaServer, serving

PROMETHEUS = "http://prometheus:9090"
ALERTS = Options(prometheus_url=PROMETHEUS, alerts=True)


@pytest.fixture(params=list(RELEASES))
def server(request: pytest.FixtureRequest) -> Iterator[GrafanaServer]:
    with serving(RELEASES[request.param]) as grafana:
        yield grafana


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return grafana_package.make(tmp_path / "package")


def pushed(
    server: GrafanaServer, root: Path, options: Options = ALERTS, *, token: str = ADMIN, **target_fields: Any
) -> Report:
    grafana = Grafana(target(server.url, token, **target_fields))
    datasource = target_fields.get("datasource", "specwatch-prom")
    try:
        return push(grafana, Shipped(root, datasource=datasource), options)
    finally:
        grafana.close()


def outcomes(report: Report) -> dict[str, str]:
    return {step.name: step.outcome.value for step in report.steps if step.kind != "server"}


def edit(root: Path, name: str, change: str, to: str) -> None:
    path = root / name
    text = path.read_text()
    assert change in text
    path.write_text(text.replace(change, to))


EVERYTHING = ["specwatch-prom", "specwatch", "specwatch-latency", "specwatch-overview", "acceptance", "state/other"]


def test_what_is_not_there_is_made_and_the_second_push_writes_nothing(server: GrafanaServer, root: Path) -> None:
    first = pushed(server, root)
    assert outcomes(first) == dict.fromkeys(EVERYTHING, "created")
    assert server.folders["specwatch"]["title"] == "Specwatch"
    assert server.datasources["specwatch-prom"]["url"] == PROMETHEUS
    assert {uid: one["folder"] for uid, one in server.dashboards.items()} == {
        "specwatch-latency": "specwatch",
        "specwatch-overview": "specwatch",
    }
    written = len(server.writes)
    second = pushed(server, root)
    assert not second.failures
    assert not second.changed
    assert outcomes(second) == {**dict.fromkeys(EVERYTHING, "unchanged"), "specwatch-prom": "left alone"}
    assert len(server.writes) == written


def test_only_what_changed_is_written(server: GrafanaServer, root: Path) -> None:
    pushed(server, root)
    written = len(server.writes)
    edit(root, "dashboards/specwatch-overview.json", "Acceptance rate", "Share accepted")
    edit(root, "provisioning/rule-groups.json", '"interval": 30', '"interval": 20')
    report = pushed(server, root)
    assert {step.name for step in report.changed} == {"specwatch-overview", "state/other"}
    assert [request.path.rsplit("/", 1)[1] for request in server.writes[written:]] == ["db", "state%2Fother"]
    assert server.dashboards["specwatch-overview"]["model"]["panels"][0]["title"] == "Share accepted"
    assert server.groups["specwatch", "state/other"]["interval"] == 20
    assert not pushed(server, root).changed


def test_a_panel_that_is_shipped_no_longer_goes(server: GrafanaServer, root: Path) -> None:
    pushed(server, root)
    path = root / "dashboards/specwatch-overview.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "panels": []}))
    assert {step.name for step in pushed(server, root).changed} == {"specwatch-overview"}
    assert server.dashboards["specwatch-overview"]["model"]["panels"] == []


def test_what_somebody_edited_or_moved_in_grafana_is_put_right(server: GrafanaServer, root: Path) -> None:
    pushed(server, root)
    mine = server.dashboards["specwatch-overview"]["model"]
    server.store_dashboard({**mine, "title": "Mine"}, "specwatch", "")
    server.dashboards["specwatch-latency"]["folder"] = ""
    report = pushed(server, root)
    assert {step.name: step.outcome for step in report.changed} == dict.fromkeys(
        ("specwatch-latency", "specwatch-overview"), Outcome.UPDATED
    )
    assert server.dashboards["specwatch-overview"]["model"]["title"] == "Overview"
    assert server.dashboards["specwatch-latency"]["folder"] == "specwatch"


def test_a_dry_run_writes_nothing_and_tells_what_would_be(server: GrafanaServer, root: Path) -> None:
    dry = Options(prometheus_url=PROMETHEUS, alerts=True, dry_run=True)
    assert outcomes(pushed(server, root, dry)) == dict.fromkeys(EVERYTHING, "would create")
    assert server.writes == []
    pushed(server, root)
    written = len(server.writes)
    edit(root, "dashboards/specwatch-overview.json", "Acceptance rate", "Share accepted")
    edit(root, "provisioning/rule-groups.json", "90s", "2m")
    report = pushed(server, root, dry)
    would = ("specwatch-overview", "acceptance", "state/other")
    assert {step.name: step.outcome.value for step in report.changed} == dict.fromkeys(would, "would update")
    assert len(server.writes) == written


def test_alert_rules_are_pushed_only_where_asked_for_and_may_be_edited_there(server: GrafanaServer, root: Path) -> None:
    assert "acceptance" not in outcomes(pushed(server, root, Options(prometheus_url=PROMETHEUS)))
    assert not any("provisioning" in request.path for request in server.requests)
    pushed(server, root)
    puts = [request for request in server.writes if request.method == "PUT"]
    assert len(puts) == 2
    assert all(request.headers["x-disable-provenance"] == "true" for request in puts)
    assert not any("provenance" in one for group in server.groups.values() for one in group["rules"])


def test_policies_and_contact_points_are_never_touched(server: GrafanaServer, root: Path) -> None:
    with_receiver = Options(prometheus_url=PROMETHEUS, alerts=True, receiver="on-call")
    pushed(server, root, with_receiver)
    assert not any("policies" in request.path for request in server.requests)
    assert not any("contact-points" in request.path for request in server.writes)
    assert not any(request.method == "DELETE" for request in server.requests)


def test_a_receiver_is_set_on_every_rule_and_kept(server: GrafanaServer, root: Path) -> None:
    with_receiver = Options(prometheus_url=PROMETHEUS, alerts=True, receiver="on-call")
    assert not pushed(server, root, with_receiver).failures
    for group in server.groups.values():
        assert [one["notification_settings"] for one in group["rules"]] == [{"receiver": "on-call"}] * len(
            group["rules"]
        )
    assert not pushed(server, root, with_receiver).changed
    server.contact_points.append({**server.contact_points[0], "uid": "p2", "name": "night-shift"})
    # Who is told of a rule is the operator's affair, who may have set it in Grafana.
    server.groups["specwatch", "acceptance"]["rules"][0]["notification_settings"] = {"receiver": "night-shift"}
    assert not pushed(server, root).changed
    changed = json.loads((root / "provisioning/rule-groups.json").read_text())
    changed[0]["rules"][0]["for"] = "5m"
    (root / "provisioning/rule-groups.json").write_text(json.dumps(changed))
    assert {step.name for step in pushed(server, root).changed} == {"acceptance"}
    first, second = server.groups["specwatch", "acceptance"]["rules"]
    assert (first["for"], first["notification_settings"]) == ("5m", {"receiver": "night-shift"})
    assert second["notification_settings"] == {"receiver": "on-call"}


def test_a_receiver_that_is_not_there_stops_before_anything_is_written(server: GrafanaServer, root: Path) -> None:
    report = pushed(server, root, Options(prometheus_url=PROMETHEUS, alerts=True, receiver="on-cal"))
    (failure,) = report.failures
    assert failure.detail == (
        f"{server.url}: looking for contact point on-cal: there is none; "
        "make it in Grafana, or name another by --receiver"
    )
    assert server.writes == []
    assert report.not_tried == EVERYTHING


def test_a_grafana_that_keeps_no_receivers_of_rules_is_told(server: GrafanaServer, root: Path) -> None:
    kept = server.store_group

    def forgetting(folder: str, title: str, group: dict[str, Any], *, provenance: str = "") -> None:
        rules = [{key: value for key, value in one.items() if key != "notification_settings"} for one in group["rules"]]
        kept(folder, title, {**group, "rules": rules}, provenance=provenance)

    server.store_group = forgetting  # type: ignore[method-assign]
    report = pushed(server, root, Options(prometheus_url=PROMETHEUS, alerts=True, receiver="on-call"))
    assert "it does not keep that on-call is notified" in report.failures[0].detail


def test_keep_firing_for_is_told_where_grafana_has_none(server: GrafanaServer, root: Path) -> None:
    wanted = "" if server.release.keep_firing_for else "this Grafana has no keep_firing_for"
    for _ in range(2):
        report = pushed(server, root)
        assert [step.detail for step in report.steps if step.kind == "alert rules"] == [wanted] * 2


def test_what_grafana_stores_otherwise_is_told(server: GrafanaServer, root: Path) -> None:
    kept = server.store_group
    server.store_group = lambda folder, title, group, provenance="": kept(  # type: ignore[method-assign]
        folder, title, {**group, "rules": [{**one, "noDataState": "OK"} for one in group["rules"]]}
    )
    details = [step.detail for step in pushed(server, root).steps if step.kind == "alert rules"]
    assert details == ["Grafana stores otherwise: noDataState"] * 2


def test_a_paused_rule_stays_paused(server: GrafanaServer, root: Path) -> None:
    pushed(server, root)
    server.groups["specwatch", "acceptance"]["rules"][1]["isPaused"] = True
    assert not pushed(server, root).changed
    edit(root, "provisioning/rule-groups.json", "90s", "2m")
    pushed(server, root)
    assert [one["isPaused"] for one in server.groups["specwatch", "acceptance"]["rules"]] == [False, True]


def test_rules_of_others_in_a_group_are_not_lost(server: GrafanaServer, root: Path) -> None:
    pushed(server, root)
    rules = server.groups["specwatch", "acceptance"]["rules"]
    rules.append({**rules[0], "uid": "mine", "title": "Mine"})
    written = len(server.writes)
    report = pushed(server, root)
    (failure,) = report.failures
    assert "rules of others in it would be gone (Mine); move them to another group in Grafana" in failure.detail
    assert len(server.writes) == written
    assert outcomes(report)["state/other"] == "unchanged"  # the next one is tried all the same


@pytest.mark.parametrize("provenance", ["file", "converted_prometheus"])
def test_rules_that_are_provisioned_there_are_left_alone(server: GrafanaServer, root: Path, provenance: str) -> None:
    pushed(server, root)
    for one in server.groups["specwatch", "acceptance"]["rules"]:
        one["provenance"] = provenance
    edit(root, "provisioning/rule-groups.json", "90s", "2m")
    (failure,) = pushed(server, root).failures
    assert f"they are provisioned there otherwise ({provenance}); change them where they come from" in failure.detail


def test_rules_that_another_client_pushed_become_editable(server: GrafanaServer, root: Path) -> None:
    pushed(server, root)
    for one in server.groups["specwatch", "acceptance"]["rules"]:
        one["provenance"] = "api"
    edit(root, "provisioning/rule-groups.json", "90s", "2m")
    assert not pushed(server, root).failures
    assert not any("provenance" in one for one in server.groups["specwatch", "acceptance"]["rules"])


def test_a_dashboard_from_a_file_of_that_server_is_told(server: GrafanaServer, root: Path) -> None:
    pushed(server, root)
    server.dashboards["specwatch-latency"]["provisioned"] = True
    assert not pushed(server, root).failures  # as it should be: nothing to save
    edit(root, "dashboards/specwatch-latency.json", "Acceptance rate", "Share accepted")
    edit(root, "dashboards/specwatch-overview.json", "Acceptance rate", "Share accepted")
    report = pushed(server, root)
    (failure,) = report.failures
    assert failure.detail == (
        f"{server.url}: saving dashboard specwatch-latency: it is provisioned from a file of that server; "
        "change the file it comes from, or set allowUiUpdates: true for it in Grafana's provisioning"
    )
    assert outcomes(report)["specwatch-overview"] == "updated"


def test_a_data_source_that_is_there_is_left_alone(server: GrafanaServer, root: Path) -> None:
    own = {"uid": "specwatch-prom", "name": "Mine", "type": "prometheus", "url": "http://mine:9090/", "jsonData": {}}
    server.datasources["specwatch-prom"] = dict(own)
    for url, said in ((None, ""), ("http://mine:9090", ""), (PROMETHEUS, "its URL is another than --prometheus-url")):
        report = pushed(server, root, Options(prometheus_url=url))
        (step,) = [step for step in report.steps if step.kind == "data source"]
        assert (step.outcome, step.detail) == (Outcome.LEFT_ALONE, said)
    assert server.datasources == {"specwatch-prom": own}


@pytest.mark.parametrize(
    ("there", "url", "said"),
    [
        ({}, None, "there is none; give --prometheus-url to have it made, or the uid of your Prometheus"),
        ({"specwatch-prom": {"type": "loki"}}, None, "it is there, but no Prometheus; give the uid of your Prometheus"),
        ({"x": {"name": "Specwatch"}}, PROMETHEUS, "already exists); if the name Specwatch is taken, give that one's"),
    ],
)
def test_without_a_data_source_nothing_is_written(
    server: GrafanaServer, root: Path, there: dict[str, Any], url: str | None, said: str
) -> None:
    server.datasources.update(there)
    report = pushed(server, root, Options(prometheus_url=url))
    assert said in report.failures[0].detail
    assert (server.folders, server.dashboards) == ({}, {})
    assert report.not_tried == ["specwatch", "specwatch-latency", "specwatch-overview"]


def test_an_editor_pushes_dashboards_though_data_sources_are_not_for_him_to_see(
    server: GrafanaServer, root: Path
) -> None:
    report = pushed(server, root, Options(), token=EDITOR)
    assert not report.failures
    assert outcomes(report)["specwatch-prom"] == "not checked"
    report = pushed(server, root, ALERTS, token=EDITOR)
    assert "looking for data source specwatch-prom: not allowed (HTTP 403: You'll need" in report.failures[0].detail


def test_a_viewer_may_not(server: GrafanaServer, root: Path) -> None:
    report = pushed(server, root, Options(), token=VIEWER)
    (failure,) = report.failures
    assert failure.detail.startswith(f"{server.url}: making folder specwatch: not allowed (HTTP 403: You'll need")
    assert "Permissions needed: folders:create); give the token's service account a role that may" in failure.detail


def test_names_of_the_users_choice(server: GrafanaServer, root: Path) -> None:
    server.datasources["own_prom"] = {"uid": "own_prom", "name": "Prometheus", "type": "prometheus", "url": PROMETHEUS}
    grafana = Grafana(target(server.url, ADMIN, org=7))
    options = Options(folder="teams-llm", alerts=True)
    assert not push(grafana, Shipped(root, datasource="own_prom"), options).failures
    assert not push(grafana, Shipped(root, datasource="own_prom"), options).changed
    grafana.close()
    assert server.folders["teams-llm"]["title"] == "teams-llm"
    variable = server.dashboards["specwatch-overview"]["model"]["templating"]["list"][0]
    assert variable["current"]["value"] == "own_prom"
    rule = server.groups["teams-llm", "acceptance"]["rules"][0]
    assert (rule["data"][0]["datasourceUid"], rule["data"][1]["datasourceUid"]) == ("own_prom", "__expr__")
    assert {request.headers.get("x-grafana-org-id") for request in server.requests} == {"7"}
    sent = [one for request in server.writes if request.method == "PUT" for one in request.body["rules"]]
    assert {(one["orgID"], one["folderUID"]) for one in sent} == {(7, "teams-llm")}


def test_a_folder_that_another_push_makes_meanwhile_is_no_failure(server: GrafanaServer, root: Path) -> None:
    routed = server.answer

    def racing(request: Any) -> tuple[int, Any]:
        if (request.method, request.path) == ("POST", "/api/folders"):
            server.folders["specwatch"] = {"uid": "specwatch", "title": "Specwatch"}
        return routed(request)

    server.answer = racing  # type: ignore[method-assign]
    assert not pushed(server, root).failures


def test_user_and_password_will_do(server: GrafanaServer, root: Path) -> None:
    assert not pushed(server, root, token=":".join(USER)).failures
    address = server.url.replace("://", f"://{USER[0]}:{USER[1].replace(':', '%3A')}@")
    grafana = Grafana(target(address, ""))
    assert not push(grafana, Shipped(root), ALERTS).failures
    grafana.close()
