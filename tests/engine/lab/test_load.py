import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.lab.load import FIRST, Batch, LoadError, Reply, check_plain, replies
from specwatch_engine.lab.prompts import CHAT, COMPLETIONS, Prompt
from specwatch_engine.lab.said import said_in
from specwatch_engine.lab.stand import Engine, StandError
from support.steered_engine import TOKEN, SteeredEngine
from support.upstream import DONE, Handler, Upstream, chat_chunk, chunked, event, json_reply, running, usage_chunk

from sidecar.record import AcceptanceSource, Arm, Outcome

ASK = {"messages": [{"role": "user", "content": "Hi"}]}
PLAIN_USAGE = event(
    {"id": "chatcmpl-1", "model": "m", "choices": [], "usage": {"completion_tokens": 10}, "metrics": {}}
)


def asked(number: int, **body: Any) -> list[Prompt]:
    return [Prompt(f"p{n}", "billing", {**ASK, **body}, CHAT) for n in range(number)]


def stand(url: str, **changes: Any) -> Engine:
    return replace(Engine(url, "m", None, draft="/models/draft", k=4), **changes)


Answer = Callable[[dict[str, Any]], bytes]


def answering(answer: Answer, seen: list[tuple[bytes, dict[str, Any]]] | None = None) -> Handler:
    """Answers generation requests by what they ask, everything else with nothing."""

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await upstream.read_request(reader)
            if body:
                head = upstream.heads[-1]
                if seen is not None:
                    seen.append((head, json.loads(body)))
                reply = answer(json.loads(body))
            else:
                reply = json_reply({})
            writer.write(reply)
            await writer.drain()
            if b"content-length" not in reply and not reply.endswith(b"0\r\n\r\n"):
                return

    return handler


def served(body: dict[str, Any]) -> bytes:
    plain = (body.get("vllm_xargs") or {}).get("speculative") is False
    return chunked(
        chat_chunk({"role": "assistant", "content": ""}),
        chat_chunk({"content": "你"}),
        chat_chunk({"content": "好!"}, "stop"),
        PLAIN_USAGE if plain else usage_chunk(),
        DONE,
    )


async def sent(
    handler: Handler, prompts: list[Prompt], *, concurrency: int = 2, plain: bool = False, **changes: Any
) -> tuple[Batch, list[Reply]]:
    found: list[Reply] = []
    async with running(handler) as upstream:
        engine = stand(upstream.url, **changes)
        batch = await replies(engine, prompts, concurrency=concurrency, plain=plain, on_reply=found.append)
    return batch, found


async def test_each_exchange_is_the_record_of_production() -> None:
    seen: list[tuple[bytes, dict[str, Any]]] = []
    batch, found = await sent(answering(served, seen), asked(5, max_tokens=9))
    assert (batch.requests, batch.completion_tokens, batch.failures, batch.drafted_plain) == (5, 50, {}, 0)
    assert batch.seconds > 0
    assert sorted(reply.prompt.id for reply in found) == [f"p{n}" for n in range(5)]
    for reply in found:
        record = reply.record
        assert (reply.text, reply.tool_calls, reply.k, reply.ok) == ("你好!", None, 4, True)
        assert (record.arm, record.outcome, record.scenario) == (Arm.SPECULATIVE, Outcome.OK, "billing")
        assert record.acceptance.source is AcceptanceSource.RESPONSE
        assert (record.acceptance.accepted_tokens, record.acceptance.draft_tokens) == (6, 12)
        assert (record.completion_tokens, record.draft_model, record.temperature) == (10, "/models/draft", 0)
        assert record.ttft_ms is not None
        assert record.latency_ms is not None
        assert 0 < record.ttft_ms <= record.latency_ms
        assert record.replies == 1
    assert len({reply.record.request_id for reply in found}) == 5
    head, body = seen[0]
    assert body == {
        **ASK,
        "max_tokens": 9,
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    assert b"x-scenario: billing" in head


async def test_what_the_prompt_says_of_the_model_and_the_stream_does_not_count() -> None:
    seen: list[tuple[bytes, dict[str, Any]]] = []
    await sent(answering(served, seen), asked(1, model="x", stream=False, stream_options={}, temperature=None))
    body = seen[0][1]
    assert (body["model"], body["stream"], body["stream_options"]) == ("m", True, {"include_usage": True})
    assert body["temperature"] == 0


async def test_a_plain_batch_opts_out() -> None:
    seen: list[tuple[bytes, dict[str, Any]]] = []
    prompts = asked(2, vllm_xargs={"a": 1})
    batch, found = await sent(answering(served, seen), prompts, plain=True, token="t")
    assert [body["vllm_xargs"] for _, body in seen] == [{"a": 1, "speculative": False}] * 2
    assert {reply.record.arm for reply in found} == {Arm.BASELINE}
    assert {reply.k for reply in found} == {0}
    assert {reply.record.acceptance.draft_tokens for reply in found} == {None}
    assert (batch.drafted_plain, batch.completion_tokens) == (0, 20)


async def test_a_plain_batch_that_is_drafted_for_is_none() -> None:
    def disobedient(body: dict[str, Any]) -> bytes:
        return served({})

    batch, found = await sent(answering(disobedient), asked(3), plain=True, token="t")
    assert batch.drafted_plain == 3
    assert {reply.record.arm for reply in found} == {Arm.SPECULATIVE}
    with pytest.raises(StandError, match=r"3 requests that opted out .* give --plain URL"):
        check_plain(stand("http://h:1", token="t"), batch)


async def test_a_plain_engine_is_asked_as_it_is() -> None:
    seen: list[tuple[bytes, dict[str, Any]]] = []
    found: list[Reply] = []
    async with running(answering(served)) as speculating, running(answering(served_plain, seen)) as plain:
        engine = stand(speculating.url, plain_url=plain.url, plain_model="m-plain")
        batch = await replies(engine, asked(2), concurrency=2, plain=True, on_reply=found.append)
        assert engine.baseline == "true_ar"
    assert [(body["model"], body.get("vllm_xargs")) for _, body in seen] == [("m-plain", None)] * 2
    assert {(reply.record.arm, reply.record.upstream) for reply in found} == {(Arm.BASELINE, "autoregressive")}
    assert batch.requests == 2


async def test_a_plain_engine_that_speculates_is_none() -> None:
    async with running(answering(served)) as speculating, running(answering(served)) as plain:
        engine = stand(speculating.url, plain_url=plain.url, plain_model="m")
        batch = await replies(engine, asked(2), concurrency=2, plain=True, on_reply=lambda reply: None)
        with pytest.raises(StandError, match=rf"--plain: the engine at {plain.url} speculates itself, 2 requests"):
            check_plain(engine, batch)
        check_plain(engine, await replies(engine, asked(2), concurrency=2, on_reply=lambda reply: None))


def served_plain(body: dict[str, Any]) -> bytes:
    return served({"vllm_xargs": {"speculative": False}})


@pytest.mark.parametrize(("cap", "k", "arm"), [(None, 4, Arm.SPECULATIVE), (2, 2, Arm.SPECULATIVE)])
async def test_the_cap_in_force_is_told(cap: int | None, k: int, arm: Arm) -> None:
    engine = SteeredEngine()
    engine.cap = cap
    _, found = await sent(engine.handler, asked(1), token=TOKEN)
    assert (found[0].k, found[0].record.arm) == (k, arm)


async def test_at_a_cap_of_zero_requests_go_without_speculation() -> None:
    engine = SteeredEngine()
    engine.cap = 0

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await upstream.read_request(reader)
            method, path, _ = upstream.heads[-1].decode().split(" ", 2)
            reply = served_plain({}) if body else engine._answer(method, path, upstream.heads[-1], body)
            writer.write(reply)
            await writer.drain()

    _, found = await sent(handler, asked(1), token=TOKEN)
    assert (found[0].k, found[0].record.arm, found[0].record.capped) == (0, Arm.AUTOREGRESSIVE, True)


# ---- failures

CUT = chunked(chat_chunk({"content": "Hal"}))[:-5]


@pytest.mark.parametrize(
    ("reply", "outcome", "words", "text"),
    [
        (
            json_reply({"error": {"message": "no such model"}}, b"404 Not Found"),
            Outcome.UPSTREAM_ERROR,
            "status 404: no such model",
            "",
        ),
        (b"HTTP/1.1 503 X\r\ncontent-length: 4\r\n\r\nbusy", Outcome.UPSTREAM_ERROR, "status 503", ""),
        (
            b"HTTP/1.1 502 X\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\nbusy",
            Outcome.UPSTREAM_ERROR,
            "status 502: busy",
            "",
        ),
        (
            chunked(event({"error": {"message": "out of blocks"}}), DONE),
            Outcome.UPSTREAM_ERROR,
            "status 200: out of blocks",
            "",
        ),
        (
            chunked(chat_chunk({"content": "Hal"}), event({"error": "no room left"}), DONE),
            Outcome.UPSTREAM_ERROR,
            "status 200: no room left",
            "Hal",
        ),
        (chunked(chat_chunk({"content": "Hal"})), Outcome.TRUNCATED, "ended before its last event", "Hal"),
        (CUT, Outcome.TRUNCATED, "peer closed connection", "Hal"),
        (b"", Outcome.BAD_GATEWAY, "disconnected", ""),
    ],
)
async def test_a_failed_request_is_a_reply_that_says_so(reply: bytes, outcome: Outcome, words: str, text: str) -> None:
    to_come = [reply]
    handler = answering(lambda body: to_come.pop() if to_come else served(body))
    batch, found = await sent(handler, asked(3), concurrency=1)
    assert [each.record.outcome for each in found] == [outcome, Outcome.OK, Outcome.OK]
    assert batch.failures == {outcome.value: 1}
    assert batch.first_failure is not None
    assert words in batch.first_failure
    assert (found[0].text, found[0].ok) == (text, False)
    assert (batch.requests, batch.completion_tokens) == (3, 20)


async def test_where_all_first_requests_fail_the_engine_is_at_fault() -> None:
    seen: list[tuple[bytes, dict[str, Any]]] = []
    found: list[Reply] = []
    refusal = json_reply({"error": {"message": "The model `m` does not exist."}}, b"404 Not Found")
    async with running(answering(lambda body: refusal, seen)) as upstream:
        with pytest.raises(LoadError, match=r"first 5 requests .* status 404: The model `m` does not exist") as raised:
            await replies(stand(upstream.url), asked(50), concurrency=2, on_reply=found.append)
    # For what is kept: a server may repeat the prompt that it complains of.
    assert raised.value.plain.endswith("all failed, the first with: status 404")
    assert FIRST <= len(seen) <= FIRST + 2


async def test_a_batch_of_few_is_left_to_whoever_asked_for_it() -> None:
    refusal = json_reply({"detail": "Bad"}, b"400 Bad Request")
    batch, _ = await sent(answering(lambda body: refusal), asked(3))
    assert (batch.failures, batch.first_failure) == ({"upstream_error": 3}, "status 400: Bad")
    assert batch.first_failure_plain == "status 400"


async def test_nobody_there_is_a_failure_too() -> None:
    async with running(answering(served)) as upstream:
        url = upstream.url
    found: list[Reply] = []
    batch = await replies(stand(url), asked(2), concurrency=2, on_reply=found.append)
    assert batch.failures == {"bad_gateway": 2}
    assert {reply.record.status for reply in found} == {None}


async def test_what_the_caller_raises_ends_the_batch() -> None:
    class Enough(Exception):
        pass

    found: list[Reply] = []

    def take(reply: Reply) -> None:
        found.append(reply)
        if len(found) == 3:
            raise Enough

    seen: list[tuple[bytes, dict[str, Any]]] = []
    async with running(answering(served, seen)) as upstream:
        with pytest.raises(Enough):
            await replies(stand(upstream.url), asked(50), concurrency=4, on_reply=take)
    assert len(seen) < 10


async def test_no_prompts_are_a_batch_of_none() -> None:
    batch, found = await sent(answering(served), [])
    assert (batch.requests, batch.completion_tokens, found) == (0, 0, [])


async def test_so_many_are_in_flight_and_no_more() -> None:
    flying, most = 0, 0

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal flying, most
        while True:
            body = await upstream.read_request(reader)
            if body:
                flying += 1
                most = max(most, flying)
                await asyncio.sleep(0.01)
                flying -= 1
            writer.write(served({}) if body else json_reply({}))
            await writer.drain()

    _, found = await sent(handler, asked(20), concurrency=3)
    assert most == 3
    assert max(reply.record.concurrency for reply in found) == 3


# ---- what cannot be measured


async def test_temperatures_above_zero_are_refused_on_the_cpu_build() -> None:
    engine = stand("http://127.0.0.1:1", fingerprint={"device": "cpu: Some Processor x 2"})
    with pytest.raises(StandError, match=r"1 prompts have a temperature above 0 \(p0 the first\).*--greedy"):
        await replies(engine, asked(1, temperature=0.7), concurrency=1, on_reply=print)


async def test_without_a_way_to_be_plain_there_is_no_plain_arm() -> None:
    with pytest.raises(StandError, match="set SPECWATCH_ENGINE_TOKEN to the engine's, or give --plain URL"):
        await replies(stand("http://127.0.0.1:1"), asked(1), concurrency=1, plain=True, on_reply=print)


# ---- what replies say


TOOLS = [
    {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"q"'}}]},
    {"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "stop", "arguments": "{}"}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
]
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q":1}'}},
    {"id": "c2", "type": "function", "function": {"name": "stop", "arguments": "{}"}},
]


def test_tool_calls_come_bit_by_bit() -> None:
    said = said_in(b"".join(map(chat_chunk, TOOLS)) + DONE, streamed=True)
    assert (said.text, said.tool_calls) == ("", CALLS)
    whole = json.dumps({"choices": [{"index": 0, "message": {"content": None, "tool_calls": CALLS}}]}).encode()
    assert said_in(whole, streamed=False).tool_calls == CALLS


@pytest.mark.parametrize(
    ("data", "streamed", "text"),
    [
        (event({"choices": [{"index": 0, "text": "a"}]}) + event({"choices": [{"index": 0, "text": "b"}]}), True, "ab"),
        (event({"choices": [{"index": 1, "delta": {"content": "x"}}]}), True, ""),
        (
            b"".join(b'data: {"choices":[{"delta":{"content":"\\u%b"}}]}\n\n' % half for half in (b"d83d", b"de00")),
            True,
            "😀",
        ),
        (b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n', True, "\ufffd"),
        (json.dumps({"choices": [{"text": "whole"}]}).encode(), False, "whole"),
        (b"nonsense", False, ""),
        (b"[]", False, ""),
    ],
)
def test_texts_are_read(data: bytes, streamed: bool, text: str) -> None:
    assert said_in(data, streamed=streamed).text == text


_JUNK = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("choices", "delta", "message", "content", "tool_calls", "function", "index", "name", "text")
            ),
            inner,
        )
    ),
)


@given(st.lists(_JUNK, max_size=5), st.booleans())
def test_whatever_a_server_sends_can_be_read(events: list[Any], streamed: bool) -> None:
    data = b"".join(map(event, events)) if streamed else json.dumps(events[:1] and events[0]).encode()
    said = said_in(data, streamed=streamed)
    said.text.encode()
    assert said.tool_calls is None or all(call["function"]["name"] is not None for call in said.tool_calls)


async def test_completions_are_asked_at_their_own_path() -> None:
    seen: list[tuple[bytes, dict[str, Any]]] = []

    def complete(body: dict[str, Any]) -> bytes:
        return chunked(
            event({"id": "cmpl-1", "model": "m", "choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}),
            usage_chunk(),
            DONE,
        )

    _, found = await sent(answering(complete, seen), [Prompt("a", "默认", {"prompt": "Once"}, COMPLETIONS)])
    assert seen[0][0].startswith(b"POST /v1/completions ")
    assert (found[0].text, found[0].record.endpoint, found[0].record.scenario) == ("a", "completions", "默认")
