"""C08, C09: how a request is served, by arm, by what there is to fall back to, and by what can be changed of it."""

import gzip
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.proxy import Proxy, body_of, post, proxy
from support.steered_engine import SteeredEngine
from support.tapped import Run
from support.upstream import BLOCK, USAGE, chat_stream, json_reply, replying, running

from sidecar.app import _choices
from sidecar.control.circuit import Rules, State
from sidecar.control.fallback import Decision, Fallback, Mode
from sidecar.record import AcceptanceQuality, Arm, Outcome
from sidecar.tap.tap import Facts

ENDPOINTS = {
    "chat_completions": b"/v1/chat/completions",
    "completions": b"/v1/completions",
    "responses": b"/v1/responses",
    "messages": b"/v1/messages",
}
BODY = b'{ "model":"m", "seed":12345678901234567890,"a":1,"a":2 }\n'
ASKED = BODY[:-2] + b',"vllm_xargs":{"speculative":false}}\n'


@asynccontextmanager
async def served(arm: Arm, setup: str, engine: SteeredEngine, **tap: Any) -> AsyncIterator[tuple[Proxy, list[bytes]]]:
    """A proxy whose requests are of `arm`, and the bodies that a fallback upstream got."""
    share = 1.0 if arm is Arm.BASELINE else 0.0
    fallback = Fallback(Rules(), 0.0, can_fall_back=lambda: setup != "neither", baseline_share=share)
    if arm is Arm.AUTOREGRESSIVE:
        fallback.restore(Decision(Mode.AUTOREGRESSIVE, State.AUTOREGRESSIVE, 0.0, "ordered"), [])
    async with running(engine.handler) as server, running(replying(json_reply({"usage": USAGE}))) as plain:
        urls = (server.url, plain.url) if setup == "fallback upstream" else (server.url,)
        async with proxy(*urls, **tap) as made:
            upstreams = {choice.upstream.name: choice.upstream for choice in made.choices}
            made.choices = list(_choices(upstreams, apart=len(urls) > 1)[fallback.arm()])
            yield made, plain.bodies


def arm_of(answer: bytes) -> str:
    head = answer.partition(b"\r\n\r\n")[0]
    (line,) = (line for line in head.split(b"\r\n") if line.lower().startswith(b"x-specwatch-arm: "))
    return line.partition(b": ")[2].decode()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("setup", ["fallback upstream", "plugin", "neither"])
@pytest.mark.parametrize("arm", [Arm.SPECULATIVE, Arm.AUTOREGRESSIVE, Arm.BASELINE])
async def test_where_a_request_goes_and_what_is_said_of_it(arm: Arm, setup: str, endpoint: str) -> None:
    engine = SteeredEngine()
    async with served(arm, setup, engine) as (made, plain):
        answer = await made.exchange(post(BODY, ENDPOINTS[endpoint]))
        record = await made.record()
    elsewhere = setup == "fallback upstream" and arm is not Arm.SPECULATIVE
    changed = setup == "plugin" and arm is not Arm.SPECULATIVE
    assert (engine.bodies, plain) == (([], [BODY]) if elsewhere else ([ASKED if changed else BODY], []))
    expected = arm if elsewhere or changed else Arm.SPECULATIVE
    assert arm_of(answer) == record.arm == expected
    assert record.upstream == ("autoregressive" if elsewhere else "speculative")
    assert record.bytes_in == len(BODY)
    assert record.draft_model == ("draft" if expected is Arm.SPECULATIVE else None)
    if expected is not Arm.SPECULATIVE:
        assert record.acceptance.draft_tokens is None
        assert record.acceptance.reason == "served without speculation"


CODED = gzip.compress(BODY)
LONG = b'{"model":"m","prompt":"' + b"x" * 300_000 + b'"}'


def chunks(body: bytes) -> bytes:
    head = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    parts = [body[i : i + 7] for i in range(0, len(body), 7)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


CASES: dict[str, tuple[bytes, list[bytes], bool]] = {
    # request, bodies that the engine gets, whether that served it without speculation
    "chunks": (chunks(BODY), [ASKED], True),
    "an empty object": (post(b"{}"), [b'{"vllm_xargs":{"speculative":false}}'], True),
    "other arguments of the client's": (
        post(b'{"vllm_xargs":{"a":1.00}}'),
        [b'{"vllm_xargs":{"a":1.00},"vllm_xargs":{"a":1.00,"speculative":false}}'],
        True,
    ),
    "a client that wants it on": (
        post(b'{"vllm_xargs":{"speculative":true}}'),
        [b'{"vllm_xargs":{"speculative":true},"vllm_xargs":{"speculative":true,"speculative":false}}'],
        True,
    ),
    "a client that wants it off": (
        post(b'{"vllm_xargs":{"speculative":false}}'),
        [b'{"vllm_xargs":{"speculative":false}}'],
        True,
    ),
    "HTTP/1.0": (post(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"), [ASKED], True),
    "coded": (post(CODED, extra=b"Content-Encoding: gzip\r\n"), [CODED], False),
    "long": (post(LONG), [LONG], False),
    "long, in chunks": (chunks(LONG), [LONG], False),
    "no JSON": (post(b'{"model"'), [b'{"model"'], False),
    "no object": (post(b"[1]"), [b"[1]"], False),
    "arguments that are none": (post(b'{"vllm_xargs":[]}'), [b'{"vllm_xargs":[]}'], False),
    "no body": (post(b""), [b""], False),
}


@pytest.mark.parametrize("arm", [Arm.AUTOREGRESSIVE, Arm.BASELINE])
@pytest.mark.parametrize("name", CASES)
async def test_a_request_that_cannot_ask_is_said_to_be_speculative(name: str, arm: Arm) -> None:
    request, bodies, plain = CASES[name]
    engine = SteeredEngine()
    async with served(arm, "plugin", engine, hold=100_000) as (made, _):
        answer = await made.exchange(request)
        record = await made.record()
        assert made.context.ineffective == 0
    assert engine.bodies == bodies
    assert arm_of(answer) == record.arm == (arm if plain else Arm.SPECULATIVE)


async def test_a_body_in_many_reads_is_asked_as_one() -> None:
    engine = SteeredEngine()
    async with served(Arm.AUTOREGRESSIVE, "plugin", engine) as (made, _):
        reader, writer = await made.connect()
        for byte in post(BODY):
            writer.write(bytes((byte,)))
            await writer.drain()
        assert arm_of(await reader.read()) == "autoregressive"
        writer.close()
    assert engine.bodies == [ASKED]


@pytest.mark.parametrize("status", [b"400 Bad Request", b"422 Unprocessable Entity"])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_one_that_is_refused_goes_as_it_came(endpoint: str, status: bytes) -> None:
    engine = SteeredEngine()
    engine.refusal = status
    async with served(Arm.BASELINE, "plugin", engine) as (made, _):
        answer = await made.exchange(post(BODY, ENDPOINTS[endpoint]))
        record = await made.record()
    assert engine.bodies == [ASKED, BODY]
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert arm_of(answer) == record.arm == Arm.SPECULATIVE
    assert record.outcome is Outcome.OK


async def test_usage_is_asked_for_in_the_same_body() -> None:
    engine = SteeredEngine()
    body = b'{"model":"m","stream":true}'
    async with served(Arm.AUTOREGRESSIVE, "plugin", engine, add_usage=True) as (made, _):
        answer = await made.exchange(post(body, extra=b"Accept-Encoding: gzip\r\n"))
        assert body_of(answer) == b"".join(chat_stream(usage=False))
        assert arm_of(answer) == "autoregressive"
        record = await made.record()
    assert json.loads(engine.bodies[0]) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "vllm_xargs": {"speculative": False},
    }
    assert record.completion_tokens == 10


@pytest.mark.parametrize("add_usage", [False, True])
async def test_a_coded_reply_may_come_unless_usage_is_to_be_taken_out_of_it(add_usage: bool) -> None:
    engine = SteeredEngine()
    async with running(engine.handler) as server, proxy(server.url, add_usage=add_usage) as made:
        made.choices = list(_choices({"speculative": made.choices[0].upstream}, apart=False)[Arm.BASELINE])
        await made.exchange(post(b'{"stream":true}', extra=b"Accept-Encoding: gzip\r\n"))
        assert (b"Accept-Encoding: gzip\r\n" in server.heads[0]) is not add_usage
        assert server.heads[0].lower().count(b"content-length") == 1


async def test_c08_an_engine_that_drafts_all_the_same_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    engine = SteeredEngine()
    engine.obeys = False
    with caplog.at_level(logging.WARNING, "sidecar.tap.tap"):
        async with served(Arm.AUTOREGRESSIVE, "plugin", engine) as (made, _):
            for number in range(3):
                await made.exchange(post(BODY))
                record = await made.record(number + 1)
                assert (record.arm, record.draft_model) == (Arm.SPECULATIVE, "draft")
                assert record.acceptance.quality is AcceptanceQuality.OK
            assert made.context.ineffective == 3
    assert [entry.message for entry in caplog.records if entry.name == "sidecar.tap.tap"] == [
        "the engine drafted for a request that was to be served without speculation; more are counted"
    ]


# ---- what a tap alone is told

OWN = b'{"model":"m","vllm_xargs":{"speculative":0}}'
QUIET = b'{"model":"m","choices":[],"usage":{"completion_tokens":3}}'
JSON = b"Content-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("can", "given", "arm"),
    [
        (True, Arm.SPECULATIVE, Arm.AUTOREGRESSIVE),
        (False, Arm.SPECULATIVE, Arm.SPECULATIVE),
        (True, Arm.BASELINE, Arm.BASELINE),
        (False, Arm.BASELINE, Arm.BASELINE),
    ],
)
def test_a_clients_own_wish_counts_where_it_is_obeyed(can: bool, given: Arm, arm: Arm) -> None:
    run = Run(OWN, arm=given, can_opt_out=lambda: can)
    assert run.sent is None
    run.reply((1.0, QUIET), fields=JSON)
    assert run.end().arm is arm


def test_a_cap_of_nought_is_no_speculation() -> None:
    run = Run(b'{"model":"m"}')
    run.context.facts = {"speculative": Facts("draft", 4, "f, cap 0", drafts_nothing=True)}
    run.tap.sent("speculative", Arm.SPECULATIVE, 1)
    run.reply((1.0, QUIET), fields=JSON)
    record = run.end()
    assert (record.arm, record.acceptance.reason) == (Arm.AUTOREGRESSIVE, "served without speculation")
    run = Run(b'{"model":"m"}')
    run.context.facts = {"speculative": Facts("draft", 4, "f, cap 0", drafts_nothing=True)}
    run.tap.sent("speculative", Arm.SPECULATIVE, 1)
    # The cap was lifted while it was served.
    block = json.dumps({"usage": USAGE, "metrics": {"speculative_decoding": BLOCK}}).encode()
    run.reply((1.0, block), fields=JSON)
    assert run.end().arm is Arm.SPECULATIVE
    assert run.context.ineffective == 0, "nobody asked for no speculation"
