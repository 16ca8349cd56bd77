"""The recorder inside the server: requests of a fallback ask the server's own engine not to speculate."""

import asyncio
import json
import sqlite3
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from support.chain import free_ports
from support.proxy import body_of, post
from support.server import Engine, exchange, serving
from support.steered_engine import TOKEN, SteeredEngine
from support.upstream import chat_stream

from sidecar.middleware import Specwatch, _settings

STREAM = b'{"model":"m","stream":true,"messages":[]}'
XARGS = {"speculative": False}


def steered() -> Engine:
    """A server with the plugin's control route."""
    engine = Engine()
    state = SteeredEngine().state()

    async def states(request: Request) -> dict[str, object]:
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        return {"engines": [state]}

    engine.app.add_api_route("/specwatch/v1/engine", states)
    engine.app.add_middleware(Specwatch)
    return engine


async def switched(admin: int) -> None:
    """Once the plugin is known, to autoregressive."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin}/api/v1", trust_env=False) as client:
        for _ in range(200):
            if (await client.get("/fallback")).json()["can_fall_back"]:
                break
            await asyncio.sleep(0.02)
        assert (await client.put("/fallback", json={"mode": "autoregressive"})).status_code == 200


async def test_a_fallback_changes_requests_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (admin,) = free_ports(1)
    monkeypatch.setenv("SPECWATCH_DATABASE_URL", f"sqlite:///{tmp_path}/specwatch.db")
    monkeypatch.setenv("SPECWATCH_ADMIN", f"127.0.0.1:{admin}")
    monkeypatch.setenv("SPECWATCH_ENGINE_TOKEN", TOKEN)
    monkeypatch.setenv("SPECWATCH_HOLD_BYTES", "100000")
    assert _settings().baseline_share == 0  # a request is changed only where somebody asked for it
    monkeypatch.setenv("SPECWATCH_BASELINE_SHARE", "0.1")
    assert _settings().baseline_share == 0.1
    monkeypatch.delenv("SPECWATCH_BASELINE_SHARE")
    engine = steered()
    refused = json.dumps({"model": "invalid", "stream": True}).encode()
    long = json.dumps({"model": "m", "stream": True, "messages": ["x" * 300_000]}).encode()
    async with serving(engine.app) as port:
        assert b"x-specwatch-arm: speculative\r\n" in await exchange(port, post(STREAM))
        await switched(admin)
        answer = await exchange(port, post(STREAM, extra=b"Accept-Encoding: gzip\r\n"))
        assert b"x-specwatch-arm: autoregressive\r\n" in answer
        assert body_of(answer) == b"".join(chat_stream(usage=False))
        assert b"x-specwatch-arm: speculative\r\n" in await exchange(port, post(refused))
        assert b"x-specwatch-arm: speculative\r\n" in await exchange(port, post(long))
    assert [body.get("vllm_xargs") for body in engine.bodies] == [None, XARGS, XARGS, None, None]
    assert engine.headers[1]["accept-encoding"] == "gzip"
    with sqlite3.connect(tmp_path / "specwatch.db") as connection:
        found = connection.execute("select arm, upstream, bytes_in from requests order by id").fetchall()
    assert found == [
        ("speculative", "speculative", len(STREAM)),
        ("autoregressive", "speculative", len(STREAM)),
        ("speculative", "speculative", len(refused)),
        ("speculative", "speculative", len(long)),
    ]
