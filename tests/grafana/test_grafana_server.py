"""The stand-in for Grafana refuses what Grafana's API and schemas do not have: a push that passes it is spelt right."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from support import grafana_package
from support.grafana_bodies import spelt
from support.grafana_server import ADMIN, EDITOR, RELEASES, VIEWER, GrafanaServer, serving

GROUPS = "/api/v1/provisioning/folder/specwatch/rule-groups/"
Body = dict[str, Any]


@pytest.fixture(params=list(RELEASES))
def server(request: pytest.FixtureRequest) -> Iterator[GrafanaServer]:
    with serving(RELEASES[request.param]) as grafana:
        grafana.folders["specwatch"] = {"uid": "specwatch", "title": "Specwatch"}
        grafana.datasources["specwatch-prom"] = {"uid": "specwatch-prom", "name": "P", "type": "prometheus"}
        yield grafana


def ask(server: GrafanaServer, method: str, path: str, body: Any = None, token: str = ADMIN) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.request(method, server.url + path, json=body, headers=headers, timeout=10)


def dashboard_body() -> Body:
    model = {**grafana_package.dashboard("overview"), "id": None}
    return {"dashboard": model, "folderUid": "specwatch", "overwrite": True, "message": "m"}


def group_body() -> Body:
    return grafana_package.group("acceptance", grafana_package.rule("AcceptanceLow"), grafana_package.rule("Slow"))


#: (name, change of a body that is right, part of the refusal)
DASHBOARDS: list[tuple[str, Callable[[Body], Any], str]] = [
    ("no dashboard", lambda b: b.pop("dashboard"), "dashboard"),
    ("a list", lambda b: b.update(dashboard=[]), "dashboard"),
    ("folder as a number", lambda b: b.update(folderUid=3), "folderUid"),
    ("misspelt key", lambda b: b.update(folderUID="specwatch"), "folderUID"),
    ("overwrite as text", lambda b: b.update(overwrite="yes"), "overwrite"),
    ("no such folder", lambda b: b.update(folderUid="nowhere"), "folder not found"),
    ("long message", lambda b: b.update(message="m" * 501), "message too long"),
    ("no title", lambda b: b["dashboard"].pop("title"), "title cannot be empty"),
    ("title as a number", lambda b: b["dashboard"].update(title=1), "title"),
    ("long uid", lambda b: b["dashboard"].update(uid="u" * 41), "uid too long"),
    ("uid with a blank", lambda b: b["dashboard"].update(uid="a b"), "illegal characters"),
    ("no schemaVersion", lambda b: b["dashboard"].pop("schemaVersion"), "schemaVersion"),
    ("v2 layout", lambda b: b["dashboard"].update(elements={}), "elements"),
    ("tags as text", lambda b: b["dashboard"].update(tags="specwatch"), "tags"),
    ("panel of no type", lambda b: b["dashboard"]["panels"][0].pop("type"), "panels"),
    ("position as text", lambda b: b["dashboard"]["panels"][0]["gridPos"].update(w="12"), "panels"),
]
RULES: list[tuple[str, Callable[[Body], Any], str]] = [
    ("no interval", lambda b: b.pop("interval"), "interval"),
    ("interval as text", lambda b: b.update(interval="1m"), "interval"),
    ("interval of 15 s", lambda b: b.update(interval=15), "divided exactly by scheduler interval"),
    ("interval of 0", lambda b: b.update(interval=0), "divided exactly by scheduler interval"),
    ("name as in files", lambda b: b.update(name="acceptance"), "name"),
    ("no rules", lambda b: b.pop("rules"), "rules"),
    ("orgId as in files", lambda b: b["rules"][0].update(orgId=1), "orgId"),
    ("no folder", lambda b: b["rules"][0].pop("folderUID"), "folderUID"),
    ("no group", lambda b: b["rules"][0].pop("ruleGroup"), "ruleGroup"),
    ("no title", lambda b: b["rules"][0].update(title=""), "title"),
    ("one title twice", lambda b: b["rules"][0].update(title="Slow"), "should be unique"),
    ("one uid twice", lambda b: b["rules"][0].update(uid="specwatch-slow"), "uid is taken"),
    ("long uid", lambda b: b["rules"][0].update(uid="u" * 41), "uid"),
    ("noDataState Ok", lambda b: b["rules"][0].update(noDataState="Ok"), "noDataState"),
    ("execErrState of the other", lambda b: b["rules"][0].update(execErrState="NoData"), "execErrState"),
    ("for as a number", lambda b: b["rules"][0].update({"for": 90}), "for"),
    ("for that is none", lambda b: b["rules"][0].update({"for": "soon"}), "not a valid duration string"),
    ("keepFiringFor as in files", lambda b: b["rules"][0].update(keepFiringFor="2m"), "keepFiringFor"),
    ("keep_firing_for as a number", lambda b: b["rules"][0].update(keep_firing_for=120), "keep_firing_for"),
    ("a label that is a number", lambda b: b["rules"][0]["labels"].update(level=1), "labels"),
    ("no condition of that name", lambda b: b["rules"][0].update(condition="C"), "condition C does not exist"),
    ("no such data source", lambda b: b["rules"][0]["data"][0].update(datasourceUid="x"), "data source not found"),
    ("no data source", lambda b: b["rules"][0]["data"][0].pop("datasourceUid"), "data"),
    ("model as text", lambda b: b["rules"][0]["data"][0].update(model="up"), "model"),
    ("time range as text", lambda b: b["rules"][0]["data"][0].update(relativeTimeRange="10m"), "relativeTimeRange"),
    ("no receiver", lambda b: b["rules"][0].update(notification_settings={"group_by": ["alertname"]}), "receiver"),
    ("no such receiver", lambda b: b["rules"][0].update(notification_settings={"receiver": "x"}), "x does not exist"),
    ("receiver misspelt", lambda b: b["rules"][0].update(notification_settings={"reciever": "on-call"}), "reciever"),
]


def test_what_is_right_is_taken(server: GrafanaServer) -> None:
    assert ask(server, "POST", "/api/dashboards/db", dashboard_body()).status_code == 200
    assert ask(server, "PUT", GROUPS + "acceptance", group_body()).status_code == 200


@pytest.mark.parametrize(("name", "change", "said"), DASHBOARDS, ids=[name for name, *_ in DASHBOARDS])
def test_a_wrong_dashboard_is_refused(
    server: GrafanaServer, name: str, change: Callable[[Body], Any], said: str
) -> None:
    body = dashboard_body()
    change(body)
    answer = ask(server, "POST", "/api/dashboards/db", body)
    assert (answer.status_code, said in answer.json()["message"]) == (400, True), answer.text
    assert server.dashboards == {}


@pytest.mark.parametrize(("name", "change", "said"), RULES, ids=[name for name, *_ in RULES])
def test_a_wrong_rule_group_is_refused(
    server: GrafanaServer, name: str, change: Callable[[Body], Any], said: str
) -> None:
    body = copy.deepcopy(group_body())
    change(body)
    answer = ask(server, "PUT", GROUPS + "acceptance", body)
    wanted = server.release.unknown_receiver if name == "no such receiver" else 400
    assert (answer.status_code, said in answer.json()["message"]) == (wanted, True), answer.text
    assert server.groups == {}


def test_a_rule_group_is_replaced_as_a_whole(server: GrafanaServer) -> None:
    ask(server, "PUT", GROUPS + "acceptance", group_body())
    body = group_body()
    del body["rules"][0]
    ask(server, "PUT", GROUPS + "acceptance", body)
    assert [rule["title"] for rule in ask(server, "GET", GROUPS + "acceptance").json()["rules"]] == ["Slow"]


def test_what_comes_back_is_spelt_as_grafana_does(server: GrafanaServer) -> None:
    ask(server, "PUT", GROUPS + "acceptance", group_body())
    rule = ask(server, "GET", GROUPS + "acceptance").json()["rules"][0]
    assert (rule["for"], rule.get("keep_firing_for")) == ("1m30s", "2m" if server.release.keep_firing_for else None)
    assert rule["data"][0]["model"]["maxDataPoints"] == 43200
    assert (rule["provenance"], rule["isPaused"]) == ("api", False)


def test_durations() -> None:
    spellings = {"90s": "1m30s", "24h": "1d", "0s": "0s", "25h": "25h", "1500ms": "1s500ms", "7d": "1w", "8d": "8d"}
    assert {duration: spelt(duration) for duration in spellings} == spellings


def test_taken_uids_and_names(server: GrafanaServer) -> None:
    folder = {"title": "Specwatch", "uid": "specwatch"}
    assert ask(server, "POST", "/api/folders", folder).status_code == server.release.uid_taken
    source = {"name": "P", "type": "prometheus", "access": "proxy", "uid": "other"}
    assert ask(server, "POST", "/api/datasources", source).status_code == 409
    assert ask(server, "POST", "/api/datasources", {**source, "name": "Q"}).status_code == 200
    assert ask(server, "POST", "/api/datasources", {**source, "name": "R"}).status_code == 409


def test_without_overwrite_a_version_decides(server: GrafanaServer) -> None:
    body = dashboard_body()
    ask(server, "POST", "/api/dashboards/db", body)
    body["overwrite"] = False
    answer = ask(server, "POST", "/api/dashboards/db", body)
    assert (answer.status_code, answer.json()["status"]) == (412, "version-mismatch")
    body["dashboard"]["version"] = 1
    assert ask(server, "POST", "/api/dashboards/db", body).json()["version"] == 2


@pytest.mark.parametrize(
    ("token", "method", "path", "status"),
    [
        ("", "GET", "/api/health", 200),
        ("", "GET", "/api/folders/specwatch", 401),
        ("glsa_other", "GET", "/api/folders/specwatch", 401),
        (VIEWER, "GET", "/api/folders/specwatch", 200),
        (VIEWER, "POST", "/api/folders", 403),
        (EDITOR, "GET", "/api/datasources/uid/specwatch-prom", 403),
        (EDITOR, "PUT", GROUPS + "acceptance", 403),
        (ADMIN, "GET", "/api/datasources/1", 404),
        (ADMIN, "PUT", "/api/v1/provisioning/policies", 404),
        (ADMIN, "GET", GROUPS + "acceptance", 404),
    ],
)
def test_who_may_what(server: GrafanaServer, token: str, method: str, path: str, status: int) -> None:
    assert ask(server, method, path, {} if method != "GET" else None, token).status_code == status
