"""The client of the control route against a server that plays it: every failure is a sentence with a remedy."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from support.chain import free_ports
from support.steered_engine import TOKEN, SteeredEngine, error
from support.upstream import Handler, Upstream, json_reply, running

from sidecar.control import engine as module
from sidecar.control.engine import EngineControl, EngineError, EngineState, Swap, SwapWorker


@asynccontextmanager
async def control(handler: Handler, token: str | None = TOKEN) -> AsyncIterator[tuple[EngineControl, Upstream]]:
    async with running(handler) as server, httpx.AsyncClient(trust_env=False) as client:
        yield EngineControl(client, server.url, token), server


async def test_states_are_typed_and_later_fields_are_no_matter() -> None:
    engine = SteeredEngine()
    engine.cores = 2
    async with control(engine.handler) as (made, _):
        first, second = await made.states()
    assert (first.engine, first.method, first.num_speculative_tokens, first.cap) == (0, "draft_model", 4, None)
    assert (first.events.sent, first.events.connected) == (5, True)
    assert second.engine == 1


async def test_a_core_that_does_not_speculate_tells_little() -> None:
    async with control(lambda *a: answering(json_reply({"engines": [{"engine": 0, "method": None}]}), *a)) as (made, _):
        assert await made.states() == [EngineState(0)]


async def test_orders_reach_the_engine_as_they_are_meant() -> None:
    engine = SteeredEngine()
    async with control(engine.handler) as (made, _):
        assert [(state.cap, state.mode) for state in await made.set_cap(2, None)] == [(2, "hard")]
        assert [(state.cap, state.mode) for state in await made.set_cap(None, "soft")] == [(None, "soft")]
        assert await made.swap("/models/draft_b") == [Swap(0, [SwapWorker("aa", "bb", 0.1, 0.05)], 0.06)]
    assert engine.orders == [
        ("/specwatch/v1/speculation", {"cap": 2}),
        ("/specwatch/v1/speculation", {"cap": None, "mode": "soft"}),
        ("/specwatch/v1/draft", {"checkpoint": "/models/draft_b"}),
    ]


async def answering(
    reply: bytes, upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """`reply` to the control route; /version tells a version where the reply is one of vLLM's own."""
    while True:
        await upstream.read_request(reader)
        if b" /version " in upstream.heads[-1]:
            known = b"fastapi" in reply
            writer.write(json_reply({"version": "0.32.0"}) if known else json_reply({}, b"404 Not Found"))
        else:
            writer.write(reply)


Order = Callable[[EngineControl], Awaitable[object]]
STATES: Order = EngineControl.states


def cap(made: EngineControl) -> Awaitable[object]:
    return made.set_cap(9, None)


def swap(made: EngineControl) -> Awaitable[object]:
    return made.swap("/models/draft_b")


NOT_FOUND = json_reply({"detail": "Not Found", "by": "fastapi"}, b"404 Not Found")

NESTED = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

FAILURES: dict[str, tuple[bytes, Order, str, int, str | None, str]] = {
    # reply, order, code, status, param, words
    "another token": (
        error(b"401 Unauthorized", "x", "unauthorized"),
        STATES,
        "wrong_engine_token",
        502,
        None,
        "has another SPECWATCH_ENGINE_TOKEN than the engine_token set here",
    ),
    "no token at the engine": (
        error(b"403 Forbidden", "x", "no_token"),
        STATES,
        "no_engine_token",
        502,
        None,
        "was started without SPECWATCH_ENGINE_TOKEN",
    ),
    "no plugin": (NOT_FOUND, STATES, "no_plugin", 502, None, "vLLM 0.32.0 at .* has no control route .*--middleware"),
    "no plugin, an order": (NOT_FOUND, cap, "no_plugin", 502, None, "has no control route"),
    "a gateway's own 403": (
        json_reply({"error": "forbidden", "by": "fastapi"}, b"403 Forbidden"),
        STATES,
        "no_plugin",
        502,
        None,
        "has no control route \\(it answered 403\\)",
    ),
    "not vLLM": (json_reply({}, b"404 Not Found"), STATES, "not_vllm", 502, None, "is no vLLM"),
    "not vLLM, and says yes to everything": (
        json_reply({"hello": 1}),
        STATES,
        "no_plugin",
        502,
        None,
        "answered GET /specwatch/v1/engine, but not as the engine plugin does",
    ),
    "a page": (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
        swap,
        "no_plugin",
        502,
        None,
        "answered PUT /specwatch/v1/draft, but not",
    ),
    "what nobody can read": (
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(NESTED) + NESTED,
        STATES,
        "no_plugin",
        502,
        None,
        "answered GET /specwatch/v1/engine, but not",
    ),
    "no core": (json_reply({"engines": []}), STATES, "no_plugin", 502, None, "tells of no engine core"),
    "the plugin stands down": (
        error(b"409 Conflict", "the plugin does not know this vLLM and stands down", "refused"),
        STATES,
        "refused",
        409,
        None,
        "stands down",
    ),
    "a cap that is too high": (
        error(b"409 Conflict", "cap: must be null or a whole number from 0 to 4", "refused", "cap"),
        cap,
        "refused",
        409,
        "cap",
        "cap: must be null",
    ),
    "a checkpoint of another shape": (
        error(b"409 Conflict", "checkpoint: its weights have another shape", "refused", "checkpoint"),
        swap,
        "refused",
        409,
        "checkpoint",
        "another shape",
    ),
    "a path that is none": (
        error(b"400 Bad Request", "checkpoint: must be absolute", "invalid", "checkpoint"),
        swap,
        "invalid",
        422,
        "checkpoint",
        "must be absolute",
    ),
    "the engine fails": (
        error(b"502 Bad Gateway", "the engine could not do it: dead", "engine_failed"),
        cap,
        "engine_failed",
        502,
        None,
        "could not do it",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_what_the_engine_says_instead(name: str) -> None:
    reply, order, code, status, param, words = FAILURES[name]
    async with control(lambda *a: answering(reply, *a)) as (made, _):
        with pytest.raises(EngineError) as caught:
            await order(made)
    found = caught.value
    assert (found.code, found.status, found.param) == (code, status, param)
    assert re.search(words, str(found)), found
    assert TOKEN not in str(found)
    assert found.stands_down == (code in ("refused", "engine_failed"))
    assert not found.unanswered


async def test_without_a_token_nothing_is_sent() -> None:
    engine = SteeredEngine()
    async with control(engine.handler, None) as (made, server):
        with pytest.raises(EngineError, match="engine_token is not set here: set it") as caught:
            await made.states()
        assert server.connections == 0
    assert (caught.value.code, caught.value.status) == ("no_engine_token", 409)


async def test_an_engine_that_is_not_there_or_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(EngineError, match=f"http://127.0.0.1:{port} cannot be reached") as caught:
            await EngineControl(client, f"http://127.0.0.1:{port}", TOKEN).states()
        assert (caught.value.code, caught.value.unanswered) == ("engine_unreachable", True)

    async def silent(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        await reader.read()

    async def cut(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")

    monkeypatch.setattr(module, "ASK_S", 0.2)
    async with control(silent) as (made, _):
        with pytest.raises(EngineError, match=r"did not answer in 0\.2 s") as caught:
            await made.states()
        assert (caught.value.code, caught.value.unanswered) == ("engine_silent", True)
    async with control(cut) as (made, _):
        with pytest.raises(EngineError, match="cannot be reached") as caught:
            await made.states()
        assert caught.value.unanswered
