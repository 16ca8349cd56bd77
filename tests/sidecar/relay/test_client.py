"""Clients that are silent, that leave unseen, and whose reply is read on after they left."""

import asyncio
from collections.abc import Callable

import pytest
from support.proxy import body_of, post, proxy
from support.upstream import Upstream, chat_chunk, chat_stream, chunked, json_reply, replying, running

from sidecar.record import AcceptanceQuality, Outcome

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def piece(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


@pytest.mark.parametrize(
    ("name", "sent", "answer"),
    [
        ("nothing at all", b"", b""),
        ("half a head", b"POST /v1/completions HTTP/1.1\r\nHos", b"HTTP/1.1 408 "),
        ("half a body", b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 408 "),
        ("half an unwatched body", b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 408 "),
    ],
)
async def test_a_silent_client_is_told_and_let_go(name: str, sent: bytes, answer: bytes) -> None:
    async with (
        running(replying(json_reply({}))) as upstream,
        proxy(upstream.url, relay={"client_timeout_s": 0.2}) as made,
    ):
        said = await made.exchange(sent)
        assert said.startswith(answer)
        assert bool(said) == bool(answer), name


async def test_an_idle_connection_is_kept_within_the_limit_and_closed_after_it() -> None:
    async with (
        running(replying(json_reply({}))) as upstream,
        proxy(upstream.url, relay={"client_timeout_s": 1.5}) as made,
    ):
        reader, writer = await made.connect()
        for _ in range(2):
            writer.write(post(b"{}", close=False))
            await reader.readuntil(b"{}")
            await asyncio.sleep(1)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_a_reply_longer_than_the_clients_limit_is_no_silence_of_the_client() -> None:
    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        await asyncio.sleep(2.5)
        writer.write(json_reply({}))
        await writer.drain()

    async with running(handler) as upstream, proxy(upstream.url, relay={"client_timeout_s": 0.2}) as made:
        assert body_of(await made.exchange(post(b"{}"))) == b"{}"


async def test_c19_a_client_that_leaves_while_it_is_unread_is_noticed() -> None:
    async def deaf(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(30)

    async with running(deaf) as upstream, proxy(upstream.url) as made:
        _, writer = await made.connect()
        writer.write(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n")
        for _ in range(5_000):
            writer.write(b"x" * 65_536)
            await writer.drain()
            await asyncio.sleep(0.001)
            if any(connection._pauses for connection in made.relay.connections):
                break
        else:
            raise AssertionError("the client is still being read")
        writer.transport.abort()
        for _ in range(300):
            await asyncio.sleep(0.01)
            if not made.relay.connections:
                break
        assert not made.relay.connections
        assert made.relay.outcomes[Outcome.CLIENT_ABORT] == 1


async def leaving(grace: float | None) -> tuple[bool, object]:
    """A client leaves after the first event. Whether the upstream could say all, and the record."""
    events = chat_stream(usage=True)
    finished = asyncio.Event()

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        writer.write(HEAD)
        for event in events:
            writer.write(piece(event))
            await writer.drain()
            await asyncio.sleep(0.1)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        finished.set()
        await reader.read()

    async with running(handler) as upstream, proxy(upstream.url, relay={"abort_grace_s": grace}) as made:
        reader, writer = await made.connect()
        writer.write(post(b'{"stream":true,"stream_options":{"include_usage":true}}', close=False))
        await reader.readuntil(b"assistant")
        writer.close()
        record = await made.record()
        assert not made.relay.abandoned
        assert made.choices[0].upstream.in_flight == 0
        assert record.outcome is Outcome.CLIENT_ABORT
        return finished.is_set(), record.acceptance.quality


@pytest.mark.parametrize(
    ("grace", "whole", "quality"),
    [
        (None, False, AcceptanceQuality.UNKNOWN),
        (0.15, False, AcceptanceQuality.UNKNOWN),
        (10.0, True, AcceptanceQuality.OK),
    ],
)
async def test_c19_a_reply_is_read_on_for_its_figures_where_that_is_asked_for(
    grace: float | None, whole: bool, quality: AcceptanceQuality
) -> None:
    assert await leaving(grace) == (whole, quality)


async def test_c19_drain_ends_replies_that_are_read_on() -> None:
    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        writer.write(HEAD + piece(chat_chunk({"content": "x"})))
        await reader.read()
        upstream.closed_by_peer.set()

    async with running(handler) as upstream, proxy(upstream.url, relay={"abort_grace_s": 60.0}) as made:
        reader, writer = await made.connect()
        writer.write(post(b'{"stream":true}', close=False))
        await reader.readuntil(b"content")
        writer.close()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if made.relay.abandoned:
                break
        assert not made.records
        await made.relay.drain(0)
        assert (await made.record()).outcome is Outcome.CLIENT_ABORT
        await asyncio.wait_for(upstream.closed_by_peer.wait(), 5)


async def test_a_reply_that_was_read_on_leaves_its_connection_to_the_next() -> None:
    async with (
        running(replying(chunked(*chat_stream(usage=True)))) as upstream,
        proxy(upstream.url, relay={"abort_grace_s": 5.0}) as made,
    ):
        for _ in range(3):
            await made.exchange(post(b'{"stream":true}'))
        assert upstream.connections == 1


async def until(true: Callable[[], object]) -> None:
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


async def flooding(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await upstream.read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n" + b"x" * 50_000_000)
    await reader.read()
    upstream.closed_by_peer.set()


async def test_a_client_that_never_takes_its_reply_is_let_go() -> None:
    async with running(flooding) as upstream, proxy(upstream.url, relay={"client_timeout_s": 0.5}) as made:
        _, writer = await made.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post(b"{}", close=False))
        assert (await made.record()).outcome is Outcome.CLIENT_ABORT
        await asyncio.wait_for(upstream.closed_by_peer.wait(), 5)
        writer.transport.abort()


async def test_c19_a_client_that_leaves_without_taking_its_reply_ends_it_at_once() -> None:
    async with running(flooding) as upstream, proxy(upstream.url) as made:
        _, writer = await made.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(post(b"{}", close=False))
        await until(lambda: any(not connection._writable for connection in made.relay.connections))
        writer.write_eof()
        assert (await made.record()).outcome is Outcome.CLIENT_ABORT
        await asyncio.wait_for(upstream.closed_by_peer.wait(), 5)
        assert made.choices[0].upstream.in_flight == 0
        writer.transport.abort()


async def test_what_is_written_after_the_client_left_is_not_counted_as_written_to_it() -> None:
    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        writer.write(HEAD)
        await asyncio.sleep(0.3)
        writer.write(piece(b"x" * 100_000) + b"0\r\n\r\n")
        await reader.read()

    async with running(handler) as upstream, proxy(upstream.url, relay={"abort_grace_s": 5.0}) as made:
        reader, writer = await made.connect()
        writer.write(post(b'{"stream":true}', close=False))
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        assert (await made.record()).bytes_out < 1_000


async def test_an_upstream_that_takes_nothing_of_an_upload_is_no_silence_of_the_client() -> None:
    async def deaf(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(30)

    limits = {"client_timeout_s": 0.2, "idle_timeout_s": 0.5}
    async with running(deaf) as upstream, proxy(upstream.url, relay=limits) as made:
        reader, writer = await made.connect()
        writer.write(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 90000000\r\n\r\n" + b"x" * 90_000_000)
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 504 ")
        writer.transport.abort()


@pytest.mark.parametrize(
    ("begun", "outcome", "said"),
    [(True, Outcome.TRUNCATED, b"HTTP/1.1 200 "), (False, Outcome.BAD_GATEWAY, b"HTTP/1.1 503 ")],
)
async def test_what_drain_cuts_the_proxy_cut_and_not_the_client(begun: bool, outcome: Outcome, said: bytes) -> None:
    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        if begun:
            writer.write(HEAD)
        await reader.read()

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(post(b'{"stream":true}', close=False))
        await until(lambda: upstream.heads)
        await asyncio.sleep(0.05)
        await made.relay.drain(0)
        assert (await made.record()).outcome is outcome
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(said)
        writer.close()
