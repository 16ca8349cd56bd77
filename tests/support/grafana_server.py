"""A stand-in for Grafana's legacy HTTP API on loopback, with state: folders, data sources, dashboards, alert rules.

Written from Grafana's documentation of that API (dashboard, folder, data source, alerting provisioning, health) and
from what its issues and pull requests tell where releases differ, each named below. Bodies are held against the
schemas that Grafana Labs publishes (tests/grafana/schemas), which is stricter than Grafana: that takes unknown keys.
It is no Grafana: what passes here has been spelt right, not been drawn or evaluated.
"""

import base64
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .grafana_bodies import Refusal, check, check_group, checked, checked_uid, spelt

ADMIN, EDITOR, VIEWER, USER = "glsa_admin-secret", "glsa_editor-secret", "glsa_viewer-secret", ("admin", "user:secret")

#: Org roles and what they may, of grafana.com/docs, "RBAC role definitions": data sources and provisioned alert rules
#: are for Admins.
_EDITOR = {"folders:read", "folders:create", "dashboards:read", "dashboards:create"}
_MAY = {
    "Viewer": {"folders:read", "dashboards:read"},
    "Editor": _EDITOR,
    "Admin": _EDITOR
    | {"datasources:read", "datasources:create", "alert.provisioning:read", "alert.provisioning:write"},
}


@dataclass(frozen=True)
class Release:
    version: str
    #: A folder whose uid is taken: 412 "changed by someone else" before grafana#76863, 409 by the documentation.
    uid_taken: int = 409
    #: keep_firing_for came with 12.0 (helm-charts#3706); unknown fields are dropped.
    keep_firing_for: bool = True
    #: A rule whose receiver does not exist: 500 before grafana#110006 (August 2025), 400 since.
    unknown_receiver: int = 400
    #: Whether what is stored comes back with more in it than was sent. Not documented for any release; push must
    #: bear it, so the newest release here does it. The same holds for the object around the list of versions.
    fills_in: bool = False


RELEASES = {
    "10.4": Release("10.4.19", uid_taken=412, keep_firing_for=False, unknown_receiver=500),
    "11.6": Release("11.6.4", keep_firing_for=False, unknown_receiver=500),
    "13": Release("13.2.3", fills_in=True),
}


@dataclass
class Fault:
    """What is answered in place of the truth, to requests whose method and path match."""

    method: str
    path: str
    status: int = 200
    body: bytes | dict[str, Any] = b""
    headers: dict[str, str] = field(default_factory=dict)
    #: Set: the answer waits for it.
    until: threading.Event | None = None
    #: How many requests it meets; after that the truth is told again.
    times: int = 1_000_000


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


class GrafanaServer:
    def __init__(self, release: Release, *, root: str = "") -> None:
        self.release = release
        #: The sub-path it is served from.
        self.root = root
        self.url = ""
        self.roles = {f"Bearer {ADMIN}": "Admin", f"Bearer {EDITOR}": "Editor", f"Bearer {VIEWER}": "Viewer"}
        self.roles["Basic " + base64.b64encode(":".join(USER).encode()).decode()] = "Admin"
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.folders: dict[str, dict[str, Any]] = {}
        self.datasources: dict[str, dict[str, Any]] = {}
        #: By uid: model as stored, folder, versions (oldest first), whether a file provisions it.
        self.dashboards: dict[str, dict[str, Any]] = {}
        #: By folder and title.
        self.groups: dict[tuple[str, str], dict[str, Any]] = {}
        self.contact_points = [{"uid": "p1", "name": "on-call", "type": "email", "settings": {"addresses": "a@b.c"}}]
        self._ids = iter(range(1, 1_000_000))
        self._lock = threading.Lock()

    @property
    def writes(self) -> list[Request]:
        return [request for request in self.requests if request.method != "GET"]

    def answer(self, request: Request) -> tuple[int, Any]:
        with self._lock:
            try:
                return self._route(request)
            except Refusal as refusal:
                return refusal.status, refusal.body

    def _route(self, request: Request) -> tuple[int, Any]:
        if request.path == "/api/health":
            return 200, {"commit": "0a1b2c3", "database": "ok", "version": self.release.version}
        role = self.roles.get(request.headers.get("authorization", ""))
        if role is None:
            raise Refusal(401, "Unauthorized", messageId="api-key.invalid")
        for method, pattern, action, handler in self._routes():
            if request.method == method and (match := re.fullmatch(pattern, request.path)):
                if action not in _MAY[role]:
                    raise Refusal(
                        403,
                        f"You'll need additional permissions to perform this action. Permissions needed: {action}",
                        title="Access denied",
                    )
                return handler(request, *map(unquote, match.groups()))
        raise Refusal(404, "Not found")

    def _routes(self) -> Iterator[tuple[str, str, str, Callable[..., tuple[int, Any]]]]:
        group = "/api/v1/provisioning/folder/([^/]+)/rule-groups/([^/]+)"
        yield "GET", "/api/folders/([^/]+)", "folders:read", self._get_folder
        yield "POST", "/api/folders", "folders:create", self._post_folder
        yield "GET", "/api/datasources/uid/([^/]+)", "datasources:read", self._get_datasource
        yield "POST", "/api/datasources", "datasources:create", self._post_datasource
        yield "GET", "/api/dashboards/uid/([^/]+)", "dashboards:read", self._get_dashboard
        yield "GET", "/api/dashboards/uid/([^/]+)/versions", "dashboards:read", self._get_versions
        yield "POST", "/api/dashboards/db", "dashboards:create", self._post_dashboard
        yield "GET", group, "alert.provisioning:read", self._get_group
        yield "PUT", group, "alert.provisioning:write", self._put_group
        yield "GET", "/api/v1/provisioning/contact-points", "alert.provisioning:read", self._get_contact_points

    def _get_folder(self, _: Request, uid: str) -> tuple[int, Any]:
        if uid not in self.folders:
            raise Refusal(404, "folder not found", status="not-found")
        return 200, self.folders[uid]

    def _post_folder(self, request: Request) -> tuple[int, Any]:
        body = checked(request.body, {"title": str}, {"uid": str, "parentUid": str})
        uid = checked_uid(body.get("uid", f"generated{next(self._ids)}"))
        if not body["title"]:
            raise Refusal(400, "folder title cannot be empty")
        if uid in self.folders:
            taken = self.release.uid_taken
            raise Refusal(taken, "the folder has been changed by someone else" if taken == 412 else "already exists")
        self.folders[uid] = {"id": next(self._ids), "uid": uid, "title": body["title"], "version": 1}
        return 200, self.folders[uid]

    def _get_datasource(self, _: Request, uid: str) -> tuple[int, Any]:
        if uid not in self.datasources:
            raise Refusal(404, "Data source not found")
        return 200, self.datasources[uid]

    def _post_datasource(self, request: Request) -> tuple[int, Any]:
        body = checked(
            request.body, {"name": str, "type": str, "access": str}, {"uid": str, "url": str, "jsonData": dict}
        )
        uid = checked_uid(body.get("uid", f"generated{next(self._ids)}"))
        if any(one["name"] == body["name"] for one in self.datasources.values()):
            raise Refusal(409, "data source with the same name already exists")
        if uid in self.datasources:
            raise Refusal(409, "data source with the same uid already exists")
        self.datasources[uid] = {**body, "id": next(self._ids), "orgId": 1, "uid": uid, "readOnly": False, "version": 1}
        return 200, {"datasource": self.datasources[uid], "message": "Datasource added", "name": body["name"]}

    def _get_dashboard(self, _: Request, uid: str) -> tuple[int, Any]:
        if uid not in self.dashboards:
            raise Refusal(404, "Dashboard not found", status="not-found")
        stored = self.dashboards[uid]
        meta = {
            "type": "db",
            "folderUid": stored["folder"],
            "version": stored["versions"][-1]["version"],
            "provisioned": stored["provisioned"],
            "provisionedExternalId": f"{uid}.json" if stored["provisioned"] else "",
        }
        return 200, {"dashboard": stored["model"], "meta": meta}

    def _get_versions(self, request: Request, uid: str) -> tuple[int, Any]:
        if uid not in self.dashboards:
            raise Refusal(404, "Dashboard not found")
        newest = self.dashboards[uid]["versions"][::-1][: int(request.query.get("limit", ["1000"])[0])]
        return 200, {"continueToken": "", "versions": newest} if self.release.fills_in else newest

    def _post_dashboard(self, request: Request) -> tuple[int, Any]:
        body = checked(
            request.body, {"dashboard": dict}, {"folderUid": str, "folderId": int, "overwrite": bool, "message": str}
        )
        model, message = body["dashboard"], body.get("message", "")
        check("dashboard", "Dashboard", model)
        uid = checked_uid(model.get("uid") or f"generated{next(self._ids)}")
        stored = self.dashboards.get(uid)
        folder = body.get("folderUid", "")
        if not model.get("title"):
            raise Refusal(400, "Dashboard title cannot be empty", status="empty-name")
        if len(message) > 500:
            raise Refusal(400, "message too long, max 500 characters")
        if folder and folder not in self.folders:
            raise Refusal(400, "folder not found")
        if model.get("id") is not None and (stored is None or stored["model"]["id"] != model["id"]):
            raise Refusal(404, "Dashboard not found", status="not-found")
        if stored is not None and stored["provisioned"]:
            raise Refusal(400, "Cannot save provisioned dashboard")
        if stored is not None and not body.get("overwrite") and model.get("version") != stored["model"]["version"]:
            raise Refusal(412, "The dashboard has been changed by someone else", status="version-mismatch")
        self.store_dashboard({**model, "uid": uid}, folder, message)
        version = self.dashboards[uid]["model"]["version"]
        return 200, {"id": self.dashboards[uid]["model"]["id"], "uid": uid, "status": "success", "version": version}

    def store_dashboard(self, model: dict[str, Any], folder: str, message: str, *, provisioned: bool = False) -> None:
        """As a save by anybody does; also for tests, in place of somebody at Grafana's pages."""
        stored = self.dashboards.setdefault(model["uid"], {"versions": []})
        number = len(stored["versions"]) + 1
        kept = json.loads(json.dumps(model))
        if self.release.fills_in:
            kept.setdefault("liveNow", False)
            kept.setdefault("weekStart", "")
            for panel in kept.get("panels") or ():
                panel.setdefault("pluginVersion", self.release.version)
        identity = stored["model"]["id"] if "model" in stored else next(self._ids)
        stored.update(model={**kept, "id": identity, "version": number}, folder=folder, provisioned=provisioned)
        stored["versions"].append({"id": next(self._ids), "uid": model["uid"], "version": number, "message": message})

    def _get_group(self, _: Request, folder: str, title: str) -> tuple[int, Any]:
        if (folder, title) not in self.groups:
            raise Refusal(404, "rule group not found")
        return 200, self.groups[folder, title]

    def _put_group(self, request: Request, folder: str, title: str) -> tuple[int, Any]:
        check_group(request.body)
        if folder not in self.folders:
            raise Refusal(400, "bad request data")  # so in grafana#69512
        group: dict[str, Any] = request.body
        if group["interval"] <= 0 or group["interval"] % 10:
            # Said so of 15 s by a Grafana that did not start for it.
            interval = (
                f"interval ({group['interval']}s) should be non-zero and divided exactly by scheduler interval: 10"
            )
            raise Refusal(400, f"invalid alert rule: {interval}")
        elsewhere = [rule for place, one in self.groups.items() if place != (folder, title) for rule in one["rules"]]
        names, uids = [rule["title"] for rule in group["rules"]], [rule.get("uid") for rule in group["rules"]]
        same_folder = {rule["title"] for rule in elsewhere if rule["folderUID"] == folder}
        if len(set(names)) < len(names) or same_folder & set(names):
            raise Refusal(400, "rule title under the same organisation and folder should be unique")
        if len(set(uids)) < len(uids) or {rule["uid"] for rule in elsewhere} & set(uids):
            raise Refusal(400, "invalid alert rule: uid is taken")
        for rule in group["rules"]:
            self._check_rule(rule)
        wanted = "" if "x-disable-provenance" in request.headers else "api"
        for rule in self.groups.get((folder, title), {"rules": []})["rules"]:
            if rule.get("provenance", "") not in ("", "api"):
                raise Refusal(
                    500, f"cannot change provenance from '{rule['provenance']}' to '{wanted}'"
                )  # grafana#74558
        self.store_group(folder, title, group, provenance=wanted)
        return 200, {**group, "folderUid": folder, "title": title}

    def _check_rule(self, rule: dict[str, Any]) -> None:
        if rule["condition"] not in (query["refId"] for query in rule["data"]):
            raise Refusal(400, f"invalid alert rule: condition {rule['condition']} does not exist")
        if {query["datasourceUid"] for query in rule["data"]} - {*self.datasources, "__expr__", "-100"}:
            raise Refusal(400, "invalid alert rule: data source not found")
        receiver = (rule.get("notification_settings") or {}).get("receiver")
        if receiver is not None and receiver not in (point["name"] for point in self.contact_points):
            raise Refusal(self.release.unknown_receiver, f"receiver {receiver} does not exist")

    def store_group(self, folder: str, title: str, group: dict[str, Any], *, provenance: str = "") -> None:
        """As Grafana keeps it: durations in Prometheus's spelling, queries with what it fills in."""
        rules = [self._kept(rule) for rule in json.loads(json.dumps(group["rules"]))]
        for rule in rules:
            rule.update(folderUID=folder, ruleGroup=title, orgID=1, id=next(self._ids), updated="2026-11-30T00:00:00Z")
            rule.setdefault("uid", f"generated{next(self._ids)}")
            if provenance:
                rule["provenance"] = provenance
        self.groups[folder, title] = {
            "title": title,
            "folderUid": folder,
            "interval": group["interval"],
            "rules": rules,
        }

    def _kept(self, rule: dict[str, Any]) -> dict[str, Any]:
        rule["for"] = spelt(rule["for"])
        if self.release.keep_firing_for:
            rule["keep_firing_for"] = spelt(rule.get("keep_firing_for", "0s"))
        else:
            rule.pop("keep_firing_for", None)
        for empty in ("annotations", "labels"):
            if not rule.get(empty):
                rule.pop(empty, None)
        rule.setdefault("isPaused", False)
        rule.setdefault("notification_settings", None)
        rule["record"] = None
        for query in rule["data"]:
            query.setdefault("queryType", "")
            query.setdefault("relativeTimeRange", {"from": 0, "to": 0})
            query["model"] = {"intervalMs": 1000, "maxDataPoints": 43200, **query["model"], "refId": query["refId"]}
        return rule

    def _get_contact_points(self, request: Request) -> tuple[int, Any]:
        name = request.query.get("name")
        return 200, [point for point in self.contact_points if name is None or point["name"] == name[0]]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    grafana: GrafanaServer

    def _handle(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        root = self.grafana.root
        if not parts.path.startswith(f"{root}/"):
            return self._send(404, b"<!DOCTYPE html><p>404 page not found", {"Content-Type": "text/html"})
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = raw
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, parts.path[len(root) :], parse_qs(parts.query), headers, body)
        self.grafana.requests.append(request)
        for fault in self.grafana.faults:
            if fault.times > 0 and request.method == fault.method and re.fullmatch(fault.path, request.path):
                fault.times -= 1
                if fault.until is not None:
                    fault.until.wait(30)
                return self._send(fault.status, fault.body, fault.headers)
        status, answer = self.grafana.answer(request)
        return self._send(status, answer, {})

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _handle

    def _send(self, status: int, body: Any, headers: dict[str, str]) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(raw))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(release: Release, *, root: str = "", tls: ssl.SSLContext | None = None) -> Iterator[GrafanaServer]:
    grafana = GrafanaServer(release, root=root)
    handler = type("Handler", (_Handler,), {"grafana": grafana})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    grafana.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}{root}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield grafana
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
