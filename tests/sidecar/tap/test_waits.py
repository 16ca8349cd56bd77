"""Streams that wait for their first content, in a tap and behind the proxy. C15: a comment is none, nor is a role."""

import asyncio

import pytest
from support.proxy import post, proxy
from support.tapped import JSON, SSE, Run
from support.upstream import Upstream, chat_chunk, chat_stream, chunked, event, replying, running

from sidecar.record import Arm, Outcome
from sidecar.relay.http1 import ResponseHead

STREAM = b'{"stream":true}'
ROLE = chat_chunk({"role": "assistant", "content": ""})
CONTENT = chat_chunk({"content": "x"})


def waits(run: Run, now: float = 14.0) -> list[float]:
    return run.context.waits("speculative", now)


@pytest.mark.parametrize("body", [b'{"stream":false}', b"{}", b"[]", b"{", None])
def test_what_is_no_stream_or_was_not_read_does_not_wait(body: bytes | None) -> None:
    assert waits(Run(body)) == []


@pytest.mark.parametrize(
    ("reads", "waiting"),
    [
        ([], True),
        ([b": ping\r\n\r\n", ROLE], True),
        ([ROLE, CONTENT[:20]], True),
        ([ROLE + CONTENT], False),
        ([CONTENT[:20], CONTENT[20:]], False),
        ([ROLE] * 20 + [CONTENT], False),
        ([chat_chunk({"reasoning": "x"})], False),
        ([b": ping\n\n" * 40_000], False),  # not read further, so that nothing more is known
    ],
)
def test_c15_a_stream_waits_until_its_first_content(reads: list[bytes], *, waiting: bool) -> None:
    run = Run(STREAM)
    assert waits(run) == [4.0]
    run.reply(*((0.1 * number, read) for number, read in enumerate(reads)))
    for _ in range(2):
        assert waits(run, 15.0) == ([5.0] if waiting else [])
    run.end()
    assert waits(run, 16.0) == []


@pytest.mark.parametrize("arm", Arm)
def test_it_is_known_whether_what_is_under_way_may_be_drafted_for(arm: Arm) -> None:
    run = Run(STREAM, arm=arm)
    assert run.context.speculates("speculative") is (arm in (Arm.SPECULATIVE, Arm.PROBE))
    assert not run.context.speculates("autoregressive")
    run.end()
    assert not run.context.live


def test_looking_changes_no_record() -> None:
    def served(*, looked_at: bool) -> object:
        run = Run(STREAM, fields=b"x-request-id: r\r\n")
        run.tap.response(ResponseHead(b"HTTP/1.1 200 OK\r\n" + SSE + b"\r\n", b"POST"), 10.1)
        for number, part in enumerate(chat_stream(usage=True)):
            if looked_at:
                waits(run)
            run.tap.feed(part, 10.2 + number / 10)
        record = run.end()
        return [getattr(record, name) for name in type(record).__struct_fields__ if name != "started_at"]

    assert served(looked_at=True) == served(looked_at=False)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_one_that_ends_without_content_waits_no_longer(outcome: Outcome) -> None:
    run = Run(STREAM)
    run.end(outcome, None)
    assert waits(run) == []


def test_a_reply_that_is_no_stream_is_waited_for_no_longer() -> None:
    run = Run(STREAM)
    run.reply((1.0, b'{"error":{"message":"no"}}'), status=500, fields=JSON)
    assert waits(run) == []
    run = Run(STREAM)
    run.reply((1.0, event({"error": {"message": "no"}})))
    assert waits(run) == [4.0], "it has had no content"


def test_waits_are_told_by_upstream() -> None:
    run = Run(STREAM)
    run.tap.sent("other", Arm.SPECULATIVE, 1)  # the first could not be reached
    assert run.context.waits("other", 12.0) == [2.0]
    assert waits(run) == []


async def test_behind_the_proxy() -> None:
    go = asyncio.Event()

    async def slow(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        reply = chunked(ROLE, CONTENT)
        writer.write(reply[:-40])
        await go.wait()
        writer.write(reply[-40:])

    async with running(slow) as engine, running(replying(chunked(*chat_stream(usage=False)))) as other:
        async with proxy(engine.url, other.url) as made:

            def waiting() -> list[float]:
                return made.context.waits("speculative", made.relay.time())

            answers = [asyncio.ensure_future(made.exchange(post(STREAM))) for _ in range(3)]
            answers.append(asyncio.ensure_future(made.exchange(post(b"{}"))))
            while len(engine.bodies) < 4:
                await asyncio.sleep(0.01)
            assert len(waiting()) == 3
            made.choices.reverse()
            await made.exchange(post(STREAM))
            assert len(waiting()) == 3
            assert made.context.waits("autoregressive", made.relay.time()) == []
            _, writer = await made.connect()
            made.choices.reverse()
            writer.write(post(STREAM))
            while len(engine.bodies) < 5:
                await asyncio.sleep(0.01)
            assert len(waiting()) == 4
            writer.close()
            await made.record(2)
            assert len(waiting()) == 3, "its client has left"
            go.set()
            await asyncio.gather(*answers)
            assert waiting() == []
            assert not made.context.live


@pytest.mark.parametrize("arm", [Arm.BASELINE, Arm.AUTOREGRESSIVE])
def test_what_nothing_is_drafted_for_waits_for_no_draft(arm: Arm) -> None:
    assert waits(Run(STREAM, arm=arm)) == []
