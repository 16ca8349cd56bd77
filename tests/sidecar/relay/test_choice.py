"""Where a request goes is chosen once, by what its body says, and holds for its reply.

C08: the header and the record say who served; what the reply says of its model is left alone.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from support.proxy import Proxy, post, proxy
from support.upstream import Upstream as Server
from support.upstream import chat_stream, chunked, json_reply, replying, running

from sidecar.record import Arm, Record
from sidecar.relay.upstream import Choice
from sidecar.relay.watch import Watch
from sidecar.tap.tap import Tap

SAYS = {"model": "m", "temperature": 0.5, "metadata": {"scenario": "billing"}}
BODY = json.dumps(SAYS).encode()
LONG = json.dumps(SAYS | {"prompt": "x" * 400_000}).encode()


def chunks(body: bytes, *, extra: bytes = b"") -> bytes:
    head = post(b"", extra=extra).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    parts = [body[i : i + 50] for i in range(0, len(body), 50)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@dataclass(frozen=True)
class Seen:
    """What a choice is made by."""

    scenario: str
    model: str | None
    temperature: float | None
    body_bytes: int | None


@asynccontextmanager
async def choosing(
    first: Server, second: Server, **tap: Any
) -> AsyncIterator[tuple[Proxy, list[Seen | None], list[int]]]:
    """A proxy, what each of its choices was made by, and the place in its `choices` that the next one takes."""
    async with proxy(first.url, second.url, **tap) as made:
        seen: list[Seen | None] = []
        place = [0]

        def choose(watch: Watch | None) -> Sequence[Choice]:
            tap = watch if isinstance(watch, Tap) else None
            seen.append(tap and Seen(tap.scenario, tap.model, tap.temperature, tap.body_bytes))
            return [made.choices[place[0]]]

        made.relay.choose = choose
        yield made, seen, place


WHOLE = Seen("billing", "m", 0.5, len(BODY))
NAMED = b"x-scenario: support\r\n"
CASES: dict[str, tuple[bytes, Seen | None]] = {
    "whole": (post(BODY), WHOLE),
    "in chunks": (chunks(BODY), WHOLE),
    "named by the header": (post(BODY, extra=NAMED), Seen("support", "m", 0.5, len(BODY))),
    "longer than is held": (post(LONG), Seen("default", None, None, len(LONG))),
    "longer than is held, named by the header": (post(LONG, extra=NAMED), Seen("support", None, None, len(LONG))),
    "longer than is held, in chunks": (chunks(LONG, extra=NAMED), Seen("support", None, None, None)),
    "no JSON": (post(b"{"), Seen("default", None, None, 1)),
    "values of other types": (post(b'{"model":1,"temperature":"0"}'), Seen("default", None, None, 29)),
    "no body": (post(b""), Seen("default", None, None, 0)),
    "no generation": (b"GET /v1/models HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", None),
    "no generation, with a body": (post(BODY, b"/v1/embeddings"), None),
}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("name", CASES)
async def test_what_a_choice_is_made_by(name: str, *, at_once: bool) -> None:
    request, expected = CASES[name]
    async with (
        running(replying(json_reply({"model": "target"}))) as first,
        running(replying(json_reply({}))) as second,
        choosing(first, second, hold=500) as (made, seen, _),
    ):
        reader, writer = await made.connect()
        size = len(request) if at_once else len(request) // 7
        for at in range(0, len(request), size):
            writer.write(request[at : at + size])
            await asyncio.sleep(0)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert seen == [expected]
        assert answer.endswith(b'{"model": "target"}')
        assert second.bodies == []
        if expected is not None:
            record = await made.record()
            assert (record.scenario, record.temperature) == (expected.scenario, expected.temperature)
            assert record.model == (expected.model or "target")


async def served_by(made: Proxy, answer: bytes, number: int) -> tuple[Record, str]:
    """The record, and the header's word."""
    (line,) = (line for line in answer.split(b"\r\n") if line.startswith(b"x-specwatch-arm: "))
    return await made.record(number), line.partition(b": ")[2].decode()


async def test_c08_header_and_record_tell_who_served_after_a_choice_that_changed_while_the_request_was_read() -> None:
    events = chat_stream(usage=False)
    async with (
        running(replying(json_reply({"model": "target"}))) as first,
        running(replying(chunked(*events))) as second,
        choosing(first, second) as (made, seen, place),
    ):
        reader, writer = await made.connect()
        writer.write(post(BODY)[:-5])
        await asyncio.sleep(0.05)
        assert not seen, "the body is not there yet"
        place[0] = 1
        writer.write(BODY[-5:])
        answer = await asyncio.wait_for(reader.read(), 20)
        record, header = await served_by(made, answer, 1)
        assert (record.upstream, record.arm, header) == ("autoregressive", Arm.AUTOREGRESSIVE, "autoregressive")
        assert (first.bodies, second.bodies) == ([], [BODY])
        assert b'"model":"m"' in answer, "as the upstream calls it"


async def test_a_choice_that_changes_inside_a_reply_is_for_the_next_request() -> None:
    events, go = chat_stream(usage=True), asyncio.Event()

    async def slowly(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        reply = chunked(*events)
        writer.write(reply[:400])
        await go.wait()
        writer.write(reply[400:])

    async with (
        running(slowly) as first,
        running(replying(json_reply({}))) as second,
        choosing(first, second) as (made, seen, place),
    ):
        reader, writer = await made.connect()
        writer.write(post(BODY, close=False))
        answer = await reader.readuntil(b"\r\n\r\n")
        place[0] = 1
        go.set()
        answer += await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 20)
        record, header = await served_by(made, answer, 1)
        assert (record.upstream, record.arm, header) == ("speculative", Arm.SPECULATIVE, "speculative")
        assert record.acceptance.draft_tokens == 12
        writer.write(post(BODY))
        record, header = await served_by(made, await asyncio.wait_for(reader.read(), 20), 2)
        assert (record.upstream, record.arm, header) == ("autoregressive", Arm.AUTOREGRESSIVE, "autoregressive")
        assert len(seen) == 2
        assert (first.bodies, second.bodies) == ([BODY], [BODY])
