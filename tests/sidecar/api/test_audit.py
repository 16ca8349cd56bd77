"""Rows of orders and refusals, from the socket to the table and to the API."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support.admin import Admin, serving
from support.records import NOW

from sidecar.api.audit import Asked, Audit, Trail
from sidecar.store.rows import AuditRow
from sidecar.store.writer import Writer

CONTROL, READ = "order-it-0123", "read-it-0123"
GUARDED = {"admin_token": CONTROL, "admin_read_token": READ}


def client(admin: Admin, token: str | None) -> httpx.AsyncClient:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=admin.url, headers=headers, trust_env=False)


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({"mode": "autoregressive", "reason": "drill"}, 200, "mode=autoregressive: drill"),
        ({"mode": "auto"}, 200, "mode=auto"),
        ({"mode": "off", "reason": "why"}, 422, "invalid_parameter: mode=off: why"),
        ({"mode": "auto", "password": "p"}, 422, "invalid_parameter: mode=auto"),
        ([], 422, "invalid_parameter"),
        (
            {"mode": "auto", "reason": f"my token is {CONTROL}, yours {READ}"},
            200,
            "mode=auto: my token is ***, yours ***",
        ),
        ({"mode": "auto", "reason": ["x"]}, 422, "invalid_parameter: mode=auto"),
        ({"mode": "auto", "reason": "break"}, 500, "internal_error: mode=auto: break"),
    ],
)
async def test_every_order(body: Any, status: int, detail: str, tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED) as admin, client(admin, CONTROL) as http:
        for _ in range(2):
            assert (await http.put("/api/v1/fallback?token=q", json=body)).status_code == status
        row = AuditRow(NOW, "test", "control", "127.0.0.1", "PUT", "/api/v1/fallback", status, detail)
        assert admin.rows == [row] * 2


async def test_orders_that_reach_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as admin, client(admin, None) as http:
        await http.put("/api/v1/fallback", content=b"mode=auto")
        await http.post("/api/v1/summary", json={"mode": "auto"})
        await http.put("/api/v1/nothing", json={"cap": None, "checkpoint": "/a"})
        await http.put("/healthz", json={})
        assert [(row.scope, row.status, row.detail) for row in admin.rows] == [
            ("open", 415, "unsupported_media_type"),
            ("open", 405, "method_not_allowed: mode=auto"),
            ("open", 404, "not_found: cap=None checkpoint=/a"),
        ]


async def test_refusals_are_told_once_a_minute(tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED) as admin:
        for token, path in ((None, "fallback"), ("wrong", "summary"), (READ, "audit"), (READ, "fallback")):
            async with client(admin, token) as http:
                for _ in range(4):
                    await http.get(f"/api/v1/{path}")
                    await http.put(f"/api/v1/{path}", json={"mode": "auto"})
        assert [(row.scope, row.method, row.path, row.status, row.detail) for row in admin.rows] == [
            ("none", "GET", "/api/v1/fallback", 401, "invalid_api_key"),
            # No order is hidden behind what was only asked for before it.
            ("none", "PUT", "/api/v1/fallback", 401, "invalid_api_key"),
            ("none", "PUT", "/api/v1/summary", 401, "invalid_api_key"),
            ("read", "GET", "/api/v1/audit", 403, "read_only_token"),
            ("read", "PUT", "/api/v1/audit", 403, "read_only_token"),
            ("read", "PUT", "/api/v1/fallback", 403, "read_only_token"),
        ]
    async with serving(tmp_path) as admin, client(admin, None) as http:
        for _ in range(3):
            await http.get("/metrics", headers={"host": "evil.example"})
            await http.get(f"/{CONTROL}")
        assert [(row.path, row.status, row.detail) for row in admin.rows] == [("/metrics", 421, "wrong_host")]


async def test_refusals_of_however_many_addresses_are_few_rows() -> None:
    rows: list[AuditRow] = []
    deps: Any = SimpleNamespace(
        admin_token=CONTROL, admin_read_token=None, now=lambda: NOW, instance="i", audit=rows.append
    )
    trail = Trail(deps)
    for number in range(20_000):
        trail.refusal(Asked("none", f"10.{number >> 8}.{number & 255}.1", "GET", "/"), 401, "invalid_api_key")
    trail.order(Asked("control", "10.0.0.1", "PUT", "/api/v1/fallback"), 200, "")
    assert 60 <= len(rows) <= 200
    assert rows[-1].scope == "control"


async def test_the_path_of_a_refusal_holds_no_token(tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED) as admin, client(admin, None) as http:
        await http.get(f"/api/{CONTROL}?x={READ}")
        assert [row.path for row in admin.rows] == ["/api/***"]


async def test_the_table_is_told_newest_first_to_the_control_token(tmp_path: Path) -> None:
    writer = Writer(f"sqlite:///{tmp_path}/specwatch.db")
    for number in range(5):
        writer.put_audit(
            AuditRow(NOW + number, "i", "control", "::1", "PUT", "/api/v1/fallback", 200, f"mode=auto: {number}")
        )
    writer.start()
    writer.close(20)
    async with serving(tmp_path, **GUARDED) as admin:
        async with client(admin, CONTROL) as http:
            answer = await http.get("/api/v1/audit?limit=2")
            found = Audit.model_validate_json(answer.content)
            assert [each.detail for each in found.entries] == ["mode=auto: 4", "mode=auto: 3"]
            assert (found.entries[0].at.timestamp(), found.entries[0].client) == (NOW + 4, "::1")
            assert len((await http.get("/api/v1/audit")).json()["entries"]) == 5
            for query in ("limit=0", "limit=1001", "since=1"):
                assert (await http.get(f"/api/v1/audit?{query}")).status_code == 422
        async with client(admin, READ) as http:
            assert (await http.get("/api/v1/audit")).status_code == 403
    async with serving(tmp_path) as admin, client(admin, None) as http:
        assert (await http.get("/api/v1/audit")).status_code == 200


async def test_without_a_database_orders_are_carried_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as admin, client(admin, None) as http:
        assert (await http.put("/api/v1/fallback", json={"mode": "auto"})).status_code == 200
        assert (await http.get("/api/v1/audit")).status_code == 503
