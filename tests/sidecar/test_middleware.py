"""The recorder inside the server: nothing changes for app and client, and each request is one record."""

import asyncio
import json
import logging
import multiprocessing
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chain import free_ports
from support.proxy import body_of, post
from support.scripted_engine import ROWS, ScriptedEngine, whole
from support.server import Engine, exchange, serving
from support.upstream import chat_stream

from sidecar.middleware import App, Exchange, Message, Receive, Scope, Send, Specwatch, _RequestHead, _settings
from sidecar.record import Arm, Outcome, Record
from sidecar.tap.tap import Facts, Tap, TapContext

STREAM: dict[str, Any] = {"model": "m", "stream": True, "messages": []}
USAGE = STREAM | {"stream_options": {"include_usage": True}}


def ask(body: object, extra: bytes = b"") -> bytes:
    return post(json.dumps(body).encode(), extra=extra)


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings as an operator gives them; the database."""
    (admin,) = free_ports(1)
    monkeypatch.setenv("SPECWATCH_DATABASE_URL", f"sqlite:///{tmp_path}/specwatch.db")
    monkeypatch.setenv("SPECWATCH_ADMIN", f"127.0.0.1:{admin}")
    return tmp_path / "specwatch.db"


def rows(database: Path) -> list[dict[str, Any]]:
    with sqlite3.connect(database) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("select * from requests order by id")]


@asynccontextmanager
async def watched(engine: Engine, **config: Any) -> AsyncIterator[int]:
    engine.app.add_middleware(Specwatch)  # as vLLM does
    async with serving(engine.app, **config) as port:
        yield port


# ---- bytes

HEADS = b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
SOCKET = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    b"\x81\x82\0\0\0\0hi\x88\x80\0\0\0\0"
)
REQUESTS = {
    "stream": ask(STREAM),
    "stream with usage": ask(USAGE),
    "stream in chunks": b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
    b'Transfer-Encoding: chunked\r\n\r\n10\r\n{"model":"m","st\r\na\r\nream":true\r\n1\r\n}\r\n0\r\n\r\n',
    "HTTP/1.0": ask(STREAM).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "json": ask({"model": "m"}),
    "error": ask({"model": "nobody", "stream": True}),
    "refusal that quotes": ask({"model": "invalid", "stream": True}),
    "no JSON": post(b'{"model"'),
    "exception before the head": ask({"model": "broken", "stream": True}),
    "exception inside": ask({"model": "breaks", "stream": True}),
    "cut": ask({"model": "cut", "stream": True}),
    "GET": HEADS,
    "HEAD": HEADS.replace(b"GET", b"HEAD"),
    "another method": ask(STREAM).replace(b"POST", b"PUT"),
    "no such path": post(b"{}", b"/v2/completions"),
    "expect": ask(STREAM, b"Expect: 100-continue\r\n"),
    "websocket": SOCKET,
}


@pytest.mark.parametrize("add_usage", ["false", "true"])
async def test_bytes_are_those_of_the_server_alone(add_usage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECWATCH_ADD_USAGE", add_usage)
    monkeypatch.setenv("SPECWATCH_ADD_HEADERS", "false")
    async with serving(Engine().app) as alone, watched(Engine()) as port:
        for name, request in REQUESTS.items():
            expected = await exchange(alone, request)
            assert await exchange(port, request) == expected, name
            assert expected, name


async def test_only_the_two_fields_are_added() -> None:
    async with serving(Engine().app) as alone, watched(Engine()) as port:
        for name, request in REQUESTS.items():
            expected, got = await exchange(alone, request), await exchange(port, request)
            if b"x-specwatch-arm" in got:
                got, count = re.subn(rb"x-(specwatch-arm|request-id): [^\r]*\r\n", b"", got)
                assert count == 2, name
            assert got == expected, name
        assert b"x-specwatch-arm: speculative\r\n" in await exchange(port, ask(STREAM))
        assert b"x-specwatch-arm" not in await exchange(port, HEADS)


async def test_usage_is_asked_for_where_that_is_set(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECWATCH_ADD_USAGE", "true")
    engine = Engine()
    async with watched(engine) as port:
        answer = await exchange(port, ask(STREAM, b"Accept-Encoding: gzip\r\n"))
        assert b"".join(chat_stream(usage=False)) == body_of(answer)
        await exchange(port, ask({"model": "invalid", "stream": True}))
    changed, refused, again = engine.bodies
    assert changed["stream_options"] == refused["stream_options"] == {"include_usage": True}
    assert again == {"model": "invalid", "stream": True}
    assert "accept-encoding" not in engine.headers[0]
    assert int(engine.headers[0]["content-length"]) > len(json.dumps(STREAM))
    streamed, error = rows(configured)
    assert (streamed["outcome"], streamed["accepted_tokens"], streamed["draft_tokens"]) == ("ok", 6, 12)
    assert streamed["bytes_in"] == len(json.dumps(STREAM))
    assert (error["outcome"], error["status"]) == ("upstream_error", 400)


async def test_a_body_longer_than_hold_passes_unread(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for add_usage in ("false", "true"):
        monkeypatch.setenv("SPECWATCH_ADD_USAGE", add_usage)
        monkeypatch.setenv("SPECWATCH_HOLD_BYTES", "100000")
        engine = Engine()
        async with watched(engine) as port:
            body = USAGE | {"messages": ["x" * 300_000]}
            await exchange(port, ask(body))
        assert engine.bodies == [body]
    for row in rows(configured):
        assert (row["outcome"], row["accepted_tokens"], row["bytes_in"]) == ("ok", 6, len(json.dumps(body)))


# ---- records


async def test_each_end_is_one_record(configured: Path) -> None:
    async with watched(Engine()) as port:
        for body in (
            USAGE,
            {"model": "m"},
            STREAM,
            {"model": "cut", "stream": True},
            {"model": "nobody"},
            {"model": "broken"},
            {"model": "breaks", "stream": True},
        ):
            await exchange(port, ask(body, b"X-Scenario: billing\r\nX-Request-Id: mine\r\n"))
        await exchange(port, HEADS)
        await exchange(port, SOCKET)
    found = rows(configured)
    assert [(row["outcome"], row["status"]) for row in found] == [
        ("ok", 200),
        ("ok", 200),
        ("ok", 200),
        ("truncated", 200),
        ("upstream_error", 404),
        ("upstream_error", 500),
        ("upstream_error", 200),
    ]
    assert [row["accepted_tokens"] for row in found] == [6, 6, None, None, None, None, None]
    assert found[2]["acceptance_reason"].startswith("no usage was asked for: load the engine plugin")
    assert {row["scenario"] for row in found} == {"billing"}
    assert {(row["upstream"], row["arm"], row["request_id"]) for row in found} == {
        ("speculative", "speculative", "mine")
    }
    streamed = found[0]
    assert streamed["ttft_ms"] > 0
    assert streamed["latency_ms"] >= streamed["ttft_ms"]
    assert streamed["bytes_out"] == len(b"".join(chat_stream(usage=True)))


async def test_figures_come_from_the_engine_s_events(
    configured: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = configured.parent / "events"
    monkeypatch.setenv("SPECWATCH_ENGINE_EVENTS", str(path))
    monkeypatch.setenv("SPECWATCH_SIMILARITY", "none")
    async with watched(Engine()) as port:
        core = ScriptedEngine(path)
        core.send(*whole("chatcmpl-1-00000001", ROWS))
        await exchange(port, ask(STREAM))
        # Another server of the same socket records without it.
        monkeypatch.setenv("SPECWATCH_DATABASE_URL", f"sqlite:///{path.parent}/other.db")
        async with watched(Engine()) as other:
            await exchange(other, ask(STREAM))
        assert "without the engine's events: engine_events: " in caplog.text
        core.close()
    (row,), (plain,) = rows(configured), rows(path.parent / "other.db")
    assert (row["acceptance_source"], row["draft_tokens"], row["completion_tokens"]) == ("engine", 12, 10)
    assert (plain["acceptance_source"], plain["completion_tokens"]) == ("none", None)
    assert not path.exists()


async def test_a_client_that_leaves_is_an_abort(configured: Path) -> None:
    engine = Engine()
    async with watched(engine) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ask({"model": "slow", "stream": True}))
        await reader.readuntil(b'"content":"."')
        writer.close()
        await asyncio.wait_for(engine.left.wait(), 10)
        # And one that leaves inside its request.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ask(STREAM)[:-3])
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.sleep(0.05)
    slow, early = rows(configured)
    assert (slow["outcome"], slow["status"]) == ("client_abort", 200)
    assert slow["ttft_ms"] > 0
    assert (early["outcome"], early["status"]) == ("client_abort", None)


async def test_concurrency_is_counted(configured: Path) -> None:
    engine = Engine()
    async with watched(engine) as port:
        slow = [asyncio.ensure_future(exchange(port, ask({"model": "slow", "stream": True}))) for _ in range(3)]
        while len(engine.bodies) < 3:
            await asyncio.sleep(0.01)
        engine.go.set()
        await asyncio.gather(*slow)
        await exchange(port, ask(STREAM))
    assert sorted(row["concurrency"] for row in rows(configured)) == [1, 1, 2, 3]


# ---- the admin port


async def test_the_admin_port_tells_the_same_as_the_proxys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECWATCH_DRAFT_MODEL", "d")
    (admin,) = free_ports(1)
    monkeypatch.setenv("SPECWATCH_ADMIN", f"127.0.0.1:{admin}")
    async with watched(Engine()) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin}") as client:
        ready = (await client.get("/readyz")).json()
        assert (ready["status"], ready["failed_tasks"]) == ("ready", [])
        await asyncio.sleep(0.2)  # what the server is, is asked of itself
        await exchange(port, ask(USAGE))
        page: list[dict[str, Any]] = []
        while not page:
            page = (await client.get("/api/v1/requests")).json()["requests"]
            await asyncio.sleep(0.05)
        assert (page[0]["draft_model"], page[0]["fingerprint"]) == ("d", "vllm 0.32.0, draft d")
        text = (await client.get("/metrics")).text
        assert 'specwatch_accepted_length_tokens_sum{upstream="speculative"} 6.0' in text
        assert 'model="m"' in text
        assert 'specwatch_relay_requests_total{outcome="ok"} 1.0' in text
        refused = await client.put("/api/v1/fallback", json={"mode": "autoregressive"})
        assert refused.status_code == 409
        assert (await client.get("/api/v1/fallback")).json()["can_fall_back"] is False
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", admin))


async def test_it_starts_with_the_first_request_where_no_lifespan_is_told(configured: Path) -> None:
    async with watched(Engine(), lifespan="off") as port:
        assert b"x-specwatch-arm" in await exchange(port, ask(USAGE))
        await asyncio.sleep(1)  # nothing tells it of the end
    assert rows(configured)[0]["accepted_tokens"] == 6


def test_servers_of_several_processes_have_an_admin_port_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECWATCH_ADMIN", "127.0.0.1:9000")
    for name, port in (
        ("MainProcess", 9000),
        ("ApiServer_0", 9000),
        ("ApiServer_2", 9002),
        ("APIServer_DPRank_7", 9007),
    ):
        monkeypatch.setattr(multiprocessing.current_process(), "_name", name)
        assert _settings().admin == f"127.0.0.1:{port}"


async def test_the_servers_own_access_log_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "uvicorn.access"):
        async with watched(Engine()) as port:
            await exchange(port, ask(STREAM))
    assert any("/v1/chat/completions" in record.getMessage() for record in caplog.records)


# ---- whatever fails, the server serves


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SPECWATCH_DATABASE_URL", "mysql://h/d", "Specwatch is off, and requests are not recorded: database_url"),
        ("SPECWATCH_BASELINE", "1", "did you mean SPECWATCH_BASELINE_SHARE?"),
        ("SPECWATCH_ADMIN", "nowhere", "SPECWATCH_ADMIN: must be host:port"),
        ("SPECWATCH_CONFIG", "/nowhere.yaml", "/nowhere.yaml: No such file"),
        ("SPECWATCH_ADMIN", "198.51.100.1:1", "set admin_token"),
        ("SPECWATCH_ALERTS", "/nowhere.yaml", "requests are not recorded: /nowhere.yaml: No such file"),
    ],
)
async def test_wrong_settings_stop_no_request(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(variable, value)
    async with serving(Engine().app) as alone, watched(Engine()) as port:
        for request in (ask(STREAM), ask(USAGE), HEADS):
            assert await exchange(port, request) == await exchange(alone, request)
    (error,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert said in error.getMessage()
    assert error.exc_info is None


async def test_without_its_admin_port_it_records(
    configured: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("SPECWATCH_ADMIN", address)
        async with watched(Engine()) as port:
            assert b"200 OK" in await exchange(port, ask(USAGE))
    (error,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert f"admin: {address}: Address already in use" in error.getMessage()
    assert rows(configured)[0]["accepted_tokens"] == 6


async def test_no_database_stops_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("SPECWATCH_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("SPECWATCH_DATABASE_URL", f"postgresql://nobody:secret@127.0.0.1:{port}/none")
    async with watched(Engine()) as served:
        for _ in range(3):
            assert b"200 OK" in await exchange(served, ask(USAGE))
    kept = b"".join(file.read_bytes() for file in (tmp_path / "spool").rglob("*") if file.is_file())
    assert kept.count(b"chat_completions") == 3
    assert "secret" not in caplog.text
    assert b"secret" not in kept


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, sidecar.middleware; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"torch", "vllm", "streamlit", "pandas", "plotly"} & set(loaded)


# ---- laws, on the exchange alone


class Script:
    """An app, and the server around it, that do what is written; remembers what each was told."""

    def __init__(self, request: list[Message], steps: list[Any]) -> None:
        self.request = request
        self.steps = steps
        self.received: list[Message] = []
        self.sent: list[Message] = []

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        for step in self.steps:
            if step == "receive":
                self.received.append(await receive())
            elif isinstance(step, Exception):
                raise step
            else:
                await send(step)

    async def receive(self) -> Message:
        return self.request.pop(0) if self.request else {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message.get("body") == b"late":
            raise OSError("the client is gone")
        self.sent.append(message)


def scope_of() -> Scope:
    return {
        "type": "http",
        "method": "POST",
        "http_version": "1.1",
        "path": "/v1/chat/completions",
        "headers": [(b"content-type", b"application/json")],
    }


def run(
    script: Script,
    *,
    add_usage: bool = False,
    rewrites: bool = False,
    app: App | None = None,
    plain: Callable[[Tap], bool] = lambda _: False,
) -> list[Record]:
    """The records of one exchange; what the app raises, the server swallows.

    `plain` tells of a tap whether its request is to be served without speculation.
    """
    records: list[Record] = []
    context = TapContext("test", records.append, {"": Facts()}, add_usage=add_usage, add_headers=False)
    ends: list[Outcome] = []
    chosen: list[bool] = []

    def choose(tap: Tap) -> bool:
        chosen.append(plain(tap))
        tap.sent("", Arm.AUTOREGRESSIVE if chosen[-1] else Arm.SPECULATIVE, 1)
        return chosen[-1]

    async def served(head: Any) -> None:
        tap = context.watch(head, 0.0)
        assert tap is not None
        exchange = Exchange(tap, script.receive, script.send, choose, ends.append, rewrites=add_usage or rewrites)
        with suppress(RuntimeError, OSError):
            await exchange.run(app or script.app, scope_of())

    asyncio.run(served(_RequestHead(scope_of())))
    assert len(ends) == len(records) == len(chosen)
    assert context.failures == 0
    return records


HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
PARTS = st.sampled_from(
    [b"", b"data: x\n\n", b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', b"data: [DONE]\n\n"]
)
STEPS = st.one_of(
    st.just("receive"),
    st.just(HEAD),
    st.just(HEAD | {"status": 400}),
    st.builds(lambda part, more: {"type": "http.response.body", "body": part, "more_body": more}, PARTS, st.booleans()),
    st.just({"type": "http.response.body"}),
    st.just({"type": "http.response.body", "body": b"late"}),
    st.just({"type": "http.response.trailers", "headers": []}),
    st.just(RuntimeError("broken")),
)
REQUEST = st.lists(
    st.one_of(
        st.builds(lambda more: {"type": "http.request", "body": b"{}", "more_body": more}, st.booleans()),
        st.just({"type": "http.disconnect"}),
    ),
    max_size=4,
)


@given(request=REQUEST, steps=st.lists(STEPS, max_size=8), rewrites=st.booleans())
def test_any_app_and_server_tell_each_other_the_same_and_there_is_one_record(
    request: list[Message], steps: list[Any], *, rewrites: bool
) -> None:
    alone, watched = Script(list(request), steps), Script(list(request), steps)
    with suppress(RuntimeError, OSError):
        asyncio.run(alone.app(scope_of(), alone.receive, alone.send))  # type: ignore[arg-type]
    assert len(run(watched, rewrites=rewrites)) == 1
    assert watched.sent == alone.sent
    assert watched.received == alone.received


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(each % (len(data) + 1) for each in at)})
    return [data[start:end] for start, end in pairwise(edges)]


CUTS = st.lists(st.integers(0, 5_000), max_size=30)
TIMES = {"started_at", "ttft_ms", "latency_ms", "tpot_ms", "max_chunk_gap_ms", "content_ms", "request_id"}


@given(request=CUTS, reply=CUTS, add_usage=st.booleans(), tail=st.booleans())
def test_any_chunking_gives_the_same_record_and_the_same_bytes(
    request: list[int], reply: list[int], *, add_usage: bool, tail: bool
) -> None:
    def served(request_parts: list[bytes], reply_parts: list[bytes]) -> tuple[dict[str, Any], bytes, bytes]:
        script = Script(
            [{"type": "http.request", "body": part, "more_body": True} for part in request_parts]
            + [{"type": "http.request", "body": b"", "more_body": False}],
            [],
        )

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            while (message := await receive()).get("more_body"):
                script.received.append(message)
            await send(HEAD)
            for part in reply_parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body"})

        (record,) = run(script, add_usage=add_usage, app=app)
        fields = {name: getattr(record, name) for name in type(record).__struct_fields__ if name not in TIMES}
        return fields, b"".join(m["body"] for m in script.received), b"".join(m.get("body", b"") for m in script.sent)

    asked = json.dumps(STREAM).encode()
    answered = b"".join(chat_stream(usage=True)) + (b": tail" if tail else b"")
    whole = served([asked], [answered])
    assert served(cut(asked, request), cut(answered, reply)) == whole
    assert whole[0]["acceptance"].accepted_tokens == 6
    expected = b"".join(chat_stream(usage=not add_usage)) + (b": tail" if tail else b"")
    assert whole[2] == expected


@given(cuts=CUTS, scenario=st.sampled_from(["billing", "support"]), rewrites=st.booleans())
def test_how_a_request_is_served_is_chosen_by_what_it_says_where_that_may_be_changed(
    cuts: list[int], scenario: str, *, rewrites: bool
) -> None:
    body = json.dumps({"model": "m", "metadata": {"scenario": scenario}}).encode()
    parts = cut(body, cuts)
    requests: list[Message] = [
        {"type": "http.request", "body": part, "more_body": number < len(parts)} for number, part in enumerate(parts, 1)
    ]
    script, got = Script(requests, []), b""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal got
        more = True
        while more:
            message = await receive()
            got, more = got + message["body"], message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    (record,) = run(script, rewrites=rewrites, app=app, plain=lambda tap: tap.scenario == "billing")
    changed = rewrites and scenario == "billing"
    assert got == (body[:-1] + b',"vllm_xargs":{"speculative":false}}' if changed else body)
    assert record.arm is (Arm.AUTOREGRESSIVE if changed else Arm.SPECULATIVE)
    assert record.scenario == scenario
