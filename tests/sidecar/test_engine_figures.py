"""The whole way: a client, the sidecar, an upstream that says what it is told, and an engine that tells its events."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.proxy import body_of, post
from support.scripted_engine import ROWS, whole
from support.upstream import Upstream, chunked, event, json_reply
from support.way import answering, chat, way

from sidecar.record import AcceptanceSource, Outcome
from sidecar.recorder import Recorder
from sidecar.settings import load


def traffic() -> Any:
    return SimpleNamespace(outcomes={}, refused=0, in_flight=0)


CHOICE = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}
STARTED = {"id": "resp_a", "object": "response", "model": "m", "status": "in_progress"}
ENDPOINTS: dict[str, tuple[bytes, Any, bytes, list[str], int]] = {
    "chat, streamed": (
        b"/v1/chat/completions",
        {"stream": True},
        chunked(*chat("chatcmpl-a")),
        ["chatcmpl-a-00000001"],
        5,
    ),
    "chat, whole": (
        b"/v1/chat/completions",
        {},
        json_reply({"id": "chatcmpl-a", "model": "m", "choices": [CHOICE]}),
        ["chatcmpl-a-00000001"],
        5,
    ),
    "n = 2": (
        b"/v1/chat/completions",
        {"n": 2, "stream": True},
        chunked(*chat("chatcmpl-a")),
        ["0_chatcmpl-a-00000001", "1_chatcmpl-a-00000001"],
        5,
    ),
    "two prompts": (
        b"/v1/completions",
        {"prompt": ["a", "b"]},
        json_reply({"id": "cmpl-a", "model": "m", "choices": [{"text": "x", "finish_reason": "stop"}] * 2}),
        ["cmpl-a-0-00000001", "cmpl-a-1-00000002"],
        10,
    ),
    "a response": (
        b"/v1/responses",
        {},
        json_reply(STARTED | {"status": "completed"}),
        ["resp_a_0-00000001"],
        5,
    ),
    "a response, streamed": (
        b"/v1/responses",
        {"stream": True},
        chunked(
            event({"type": "response.created", "response": STARTED}),
            event({"type": "response.output_text.delta", "item_id": "msg_1", "delta": "a"}),
            event({"type": "response.completed", "response": STARTED | {"status": "completed"}}),
        ),
        ["resp_a_0-00000001"],
        5,
    ),
    "a message": (
        b"/v1/messages",
        {},
        json_reply({"id": "chatcmpl-a", "type": "message", "model": "m", "stop_reason": "end_turn"}),
        ["chatcmpl-a-00000001"],
        5,
    ),
    "a message, streamed": (
        b"/v1/messages",
        {"stream": True},
        chunked(
            event({"type": "message_start", "message": {"id": "chatcmpl-a", "model": "m"}}),
            event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}),
            event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
            event({"type": "message_stop"}),
        ),
        ["chatcmpl-a-00000001"],
        5,
    ),
}


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_every_kind_of_request_has_its_figures(tmp_path: Path, name: str) -> None:
    path, body, reply, engine_ids, prompt_tokens = ENDPOINTS[name]

    def tell() -> None:
        for engine_id in engine_ids:
            made.engine.send(*whole(engine_id, ROWS))

    async with way(tmp_path, answering(reply, tell), add_headers=False) as made:
        assert body_of(await made.ask({"model": "m", **body}, path)) == body_of(reply)
        record = await made.record()
        count = len(engine_ids)
        assert (record.outcome, record.acceptance.source) == (Outcome.OK, AcceptanceSource.ENGINE)
        assert record.draft_model == "draft"  # as the engine's core names it
        assert record.acceptance.histogram == (count, 0, count, 0, count)
        assert record.acceptance.rejected_at == (count, 0, count, 0)
        assert record.acceptance.reached == (3 * count, 2 * count, 2 * count, count)
        assert (record.prompt_tokens, record.completion_tokens) == (prompt_tokens, 10 * count)
        assert (record.tpot_ms is not None) == (record.ttft_ms is not None) == bool(body.get("stream"))
        (asked,) = filter(None, made.upstream.bodies)  # the sidecar asks what the upstream is, too
        assert json.loads(asked) == {"model": "m", **body}
        shown = made.sidecar.recorder.metrics.render().decode()
    told = {
        "connected_cores": 1,
        "steps_total": 4 * count,
        "steps_dropped_total": 0,
        'requests_total{fate="joined"}': count,
        'requests_total{fate="unjoined"}': 0,
        'requests_total{fate="incomplete"}': 0,
        "malformed_packets_total": 0,
        "disagreements_total": 0,
    }
    assert [
        line for line in shown.splitlines() if line.startswith("specwatch_engine_feed_") and "_created" not in line
    ] == [f"specwatch_engine_feed_{name} {float(value)}" for name, value in told.items()]


def test_metrics_are_there_before_anything_happens(tmp_path: Path) -> None:
    recorder = Recorder(
        load(database_url=f"sqlite:///{tmp_path}/specwatch.db"), {"speculative": "http://127.0.0.1:9"}, traffic
    )
    shown = recorder.metrics.render().decode()
    assert shown.count("\nspecwatch_engine_feed_") == 7
    assert "specwatch_engine_feed_connected_cores" not in shown  # 0 would be a plugin that tells nothing


async def test_requests_at_the_same_time_have_figures_of_their_own(tmp_path: Path) -> None:
    count = 60
    numbers = iter(range(count))

    def reply(body: bytes) -> bytes:
        number = json.loads(body)["seed"]
        rows = [((1, 2, 3, 4), (1,) * (1 + number % 5))] * (1 + number % 7)
        asyncio.get_running_loop().call_later(
            0.002 * (number % 20), made.engine.send, *whole(f"chatcmpl-{number}-0000000a", rows)
        )
        return chunked(*chat(f"chatcmpl-{number}"))

    async with way(tmp_path, answering(reply)) as made:
        await asyncio.gather(*[made.ask({"seed": next(numbers), "stream": True}) for _ in range(count)])
        await made.record(count)
        assert len(made.records) == count
        for record in made.records:
            number = int((record.reply_id or "").removeprefix("chatcmpl-"))
            steps = 1 + number % 7
            found = record.acceptance
            assert (found.verify_steps, found.draft_tokens) == (steps, 4 * steps)
            assert found.accepted_tokens == steps * (number % 5)


async def test_two_requests_of_one_x_request_id_have_no_figures(tmp_path: Path) -> None:
    both = asyncio.Event()

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        if not upstream.heads[-1].startswith(b"POST"):
            writer.write(json_reply({"data": []}))
            return
        number = sum(head.startswith(b"POST") for head in upstream.heads)
        steps = whole(f"chatcmpl-mine-0000000{number}", ROWS)
        made.engine.send(steps[0])
        if number == 2:
            both.set()
        await both.wait()
        made.engine.send(*steps[1:])
        writer.write(chunked(*chat("chatcmpl-mine")))
        await writer.drain()

    async with way(tmp_path, handler) as made:
        extra = b"X-Request-Id: mine\r\n"
        await asyncio.gather(*[made.ask({"stream": True}, extra=extra) for _ in range(2)])
        await made.record(2)
        for record in made.records:
            assert record.acceptance.source is AcceptanceSource.NONE
            assert "had this id at the same time" in (record.acceptance.reason or "")


async def test_a_client_that_leaves_has_figures_of_what_was_generated(tmp_path: Path) -> None:
    first = chat("chatcmpl-a")[:2]

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        if not upstream.heads[-1].startswith(b"POST"):
            writer.write(json_reply({"data": []}))
            return
        steps = whole("chatcmpl-a-00000001", ROWS, output=9, reason="abort")
        made.engine.send(*steps[:2])
        writer.write(chunked(*first)[: -len(b"0\r\n\r\n")])
        await reader.read()  # the sidecar hangs up
        made.engine.send(*steps[2:])

    async with way(tmp_path, handler) as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(post(b'{"stream":true}'))
        await reader.readuntil(b'"content":"a"')
        writer.close()
        record = await made.record()
        assert (record.outcome, record.acceptance.source) == (Outcome.CLIENT_ABORT, AcceptanceSource.ENGINE)
        assert (record.acceptance.verify_steps, record.completion_tokens, record.tpot_ms) == (3, 9, None)


async def test_one_asked_again_by_the_same_x_request_id_has_figures_of_its_own(tmp_path: Path) -> None:
    """The first time nobody waited for as much as the reply's head."""

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        if not upstream.heads[-1].startswith(b"POST"):
            writer.write(json_reply({"data": []}))
            return
        if b"left" in upstream.bodies[-1]:
            steps = whole("chatcmpl-mine-00000001", ROWS[:2], output=3, reason="abort")
            made.engine.send(*steps[:1])
            came.set()
            await reader.read()  # the sidecar hangs up
            made.engine.send(*steps[1:])
            return
        made.engine.send(*whole("chatcmpl-mine-00000002", ROWS))
        writer.write(chunked(*chat("chatcmpl-mine")))
        await writer.drain()

    came = asyncio.Event()
    extra = b"X-Request-Id: mine\r\n"
    async with way(tmp_path, handler) as made:
        _, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(post(b'{"stream":true,"user":"left"}', extra=extra))
        await came.wait()
        writer.close()
        record = await made.record()
        assert (record.outcome, record.acceptance.source) == (Outcome.CLIENT_ABORT, AcceptanceSource.ENGINE)
        assert (record.acceptance.verify_steps, record.completion_tokens) == (1, 3)
        await made.ask({"stream": True}, extra=extra)
        record = await made.record(2)
        assert (record.outcome, record.acceptance.verify_steps, record.completion_tokens) == (Outcome.OK, 3, 10)


async def test_without_an_engine_nothing_waits(tmp_path: Path) -> None:
    async with way(tmp_path, answering(chunked(*chat("chatcmpl-a"))), engine=False) as made:
        began = asyncio.get_running_loop().time()
        for _ in range(5):
            await made.ask({"stream": True})
        record = await made.record(5)
        assert asyncio.get_running_loop().time() - began < 2.0
        assert "load the engine plugin" in (record.acceptance.reason or "")


async def test_a_sidecar_that_starts_anew_takes_over_and_joins_again(tmp_path: Path) -> None:
    def tell() -> None:
        made.engine.send(*whole("chatcmpl-a-00000001", ROWS))

    for _ in range(2):
        async with way(tmp_path, answering(chunked(*chat("chatcmpl-a")), tell)) as made:
            await made.ask({"stream": True})
            assert (await made.record()).acceptance.source is AcceptanceSource.ENGINE
        assert made.engine.closed_by_peer


async def test_an_engine_that_starts_anew_is_heard_again(tmp_path: Path) -> None:
    def tell() -> None:
        made.engine.send(*whole(f"chatcmpl-a-0000000{len(made.records)}", ROWS))

    async with way(tmp_path, answering(chunked(*chat("chatcmpl-a")), tell)) as made:
        for number in range(1, 4):
            await made.ask({"stream": True})
            assert (await made.record(number)).acceptance.source is AcceptanceSource.ENGINE
            made.engine.close()
            made.engine.first = 1
            made.engine.connect()


async def test_what_waits_at_the_end_is_written(tmp_path: Path) -> None:
    async with way(tmp_path, answering(chunked(*chat("chatcmpl-a", usage=True)))) as made:
        for _ in range(3):
            await made.ask({"stream": True})
        assert len(made.records) < 3
    assert [record.completion_tokens for record in made.records] == [10, 10, 10]
