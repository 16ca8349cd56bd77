"""Peers that are odd, slow or hostile: nothing leaks, hangs, grows or reaches another client."""

import asyncio

import pytest
from support.proxy import Proxy, post, proxy
from support.upstream import Upstream, chat_stream, chunked, echo, json_reply, replying, resets_at_its_end, running

from sidecar.record import Outcome
from sidecar.relay.body import ChunkedBody
from sidecar.relay.http1 import ProtocolError, RequestHead

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
MANY = 96 << 20


async def settled(made: Proxy) -> None:
    for _ in range(200):
        if not made.relay.connections:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{len(made.relay.connections)} client connections are left")


@pytest.mark.parametrize("framing", [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_an_upgrade_is_not_offered_with_a_body(framing: bytes) -> None:
    head = RequestHead(b"POST / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\n" + framing + b"\r\n")
    assert not head.upgrade
    assert all(not line.lower().startswith(b"upgrade") for line in head.forwarded())


async def test_a_connection_that_was_offered_an_upgrade_serves_nobody_else() -> None:
    async with running(replying(OK)) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        for request in (UPGRADE, GET):
            writer.write(request)
            assert await reader.readexactly(len(OK)) == OK
        assert upstream.connections == 2
        writer.close()


@pytest.mark.parametrize("name", [b"Connection", b"content-length", b"Transfer-Encoding", b"Host", b"Upgrade"])
def test_trailers_cannot_mean_anything_to_the_connection(name: bytes) -> None:
    with pytest.raises(ProtocolError):
        ChunkedBody().feed(b"0\r\n" + name + b": close\r\n\r\n")


async def test_an_early_reply_leaves_the_client_readable_and_the_upstream_unused() -> None:
    size = 4_150_000

    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"POST" in head:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(0.2)  # the upload fills every buffer meanwhile
        writer.write(OK)
        await asyncio.sleep(5)

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
        writer.write(b"x" * size)
        assert (await asyncio.wait_for(reader.readuntil(b"ok"), 5)).startswith(b"HTTP/1.1 200")
        # The upload may be complete for the relay or not; it closes the connection or reads on, but does not hang.
        writer.write(GET)
        assert await asyncio.wait_for(reader.read(100), 5) in (b"", OK)
        writer.close()
        await settled(made)


async def test_a_pipelining_client_is_left_unread() -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await reader.readexactly(1 << 30)

    async with running(handler) as upstream, proxy(upstream.url) as made:
        _, writer = await made.connect()
        sent = 0
        while sent < MANY:
            writer.write(GET * 20_000)
            sent += len(GET) * 20_000
            try:
                await asyncio.wait_for(writer.drain(), 0.3)
            except TimeoutError:
                break
        (connection,) = made.relay.connections
        assert len(connection._later) < 2 << 20
        writer.transport.abort()
        await asyncio.sleep(0)


async def test_a_tunnel_has_back_pressure_both_ways() -> None:
    sides: list[asyncio.StreamWriter] = []

    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        writer.write(SWITCH)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        sides.append(writer)
        await asyncio.sleep(30)

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for side in (writer, sides[0]):
            for _ in range(MANY >> 20):
                side.write(b"x" * (1 << 20))
                try:
                    await asyncio.wait_for(side.drain(), 0.3)
                except TimeoutError:
                    break
            else:
                raise AssertionError("everything was taken from a peer whose bytes nobody reads")
        writer.transport.abort()
        sides[0].transport.abort()


async def test_bytes_sent_with_an_upgrade_are_not_lost() -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        await asyncio.sleep(0.05)
        writer.write(SWITCH)
        writer.write(await reader.readexactly(9))

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(UPGRADE + b"EARLY")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"LATE")
        assert await asyncio.wait_for(reader.readexactly(9), 2) == b"EARLYLATE"
        writer.close()


async def test_a_switch_nobody_offered_is_a_bad_gateway() -> None:
    async with running(replying(SWITCH)) as upstream, proxy(upstream.url) as made:
        assert (await made.exchange(GET)).startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize("path", [b"/x", b"/v1/chat/completions"])
async def test_a_slow_upload_is_no_silence_of_the_upstream(path: bytes) -> None:
    async with (
        running(replying(json_reply({}))) as upstream,
        proxy(upstream.url, relay={"idle_timeout_s": 0.3}) as made,
    ):
        reader, writer = await made.connect()
        writer.write(b"POST %b HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 10\r\n\r\n" % path)
        for _ in range(10):
            await asyncio.sleep(0.1)
            writer.write(b"x")
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_slow_reader_is_no_silence_of_the_upstream() -> None:
    size = 30 << 20
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"y" * size
    async with running(replying(reply)) as upstream, proxy(upstream.url, relay={"idle_timeout_s": 0.3}) as made:
        reader, writer = await made.connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await asyncio.wait_for(reader.readexactly(size), 20)) == size
        writer.close()


async def test_a_cut_reply_without_a_length_does_not_look_complete() -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\npart")
        await asyncio.sleep(0.1)
        resets_at_its_end(writer)

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(post(b"{}"))
        with pytest.raises(ConnectionResetError):
            while await reader.read(1000):
                pass
        assert (await made.record()).outcome is Outcome.TRUNCATED
        writer.close()


async def test_an_http_1_0_upstream_is_not_given_chunks_for_its_reply() -> None:
    body = b"".join(chat_stream(usage=True))
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with running(replying(head + body, close=True)) as upstream, proxy(upstream.url, add_usage=True) as made:
        answer = await made.exchange(post(b'{"stream":true}'))
        assert b"transfer-encoding" not in answer.lower()
        assert b"content-length" not in answer.lower()
        assert answer.endswith(b"\r\n\r\n" + b"".join(chat_stream(usage=False)))


async def test_a_refused_change_goes_back_to_the_same_upstream() -> None:
    refusal = json_reply({"detail": "extra field"}, b"422 Unprocessable Content")

    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        while True:
            body = await upstream.read_request(reader)
            writer.write(refusal if b"stream_options" in body else chunked(*chat_stream(usage=False)))

    async with (
        running(handler) as upstream,
        running(echo()) as second,
        proxy(upstream.url, second.url, add_usage=True) as made,
    ):
        answer = await made.exchange(post(b'{"stream":true}'))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert len(upstream.bodies) == 2
        assert second.bodies == []


async def test_a_head_sent_byte_by_byte_is_read() -> None:
    async with running(replying(OK)) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        for at in range(len(GET)):
            writer.write(GET[at : at + 1])
            await asyncio.sleep(0)
        assert await asyncio.wait_for(reader.readexactly(len(OK)), 2) == OK
        writer.close()


async def test_drain_waits_for_an_upgraded_connection() -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        writer.write(SWITCH)
        writer.write(await reader.readexactly(4))

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        draining = asyncio.ensure_future(made.relay.drain(5))
        await asyncio.sleep(0.1)
        writer.write(b"last")
        assert await asyncio.wait_for(reader.read(), 2) == b"last"
        assert await draining == 0
        writer.close()


async def test_a_reply_whose_first_chunk_is_malformed_is_a_bad_gateway() -> None:
    reply = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
    async with running(replying(reply)) as upstream, proxy(upstream.url) as made:
        assert (await made.exchange(post(b"{}"))).startswith(b"HTTP/1.1 502 ")
        assert (await made.record()).outcome is Outcome.BAD_GATEWAY


@pytest.mark.parametrize("framing", [b"Content-Length: 2\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
async def test_an_early_reply_to_a_small_request_does_not_cost_the_client_its_connection(framing: bytes) -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(json_reply({"early": True}, b"404 Not Found"))
        await reader.read()

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(b"POST /v1/embeddings HTTP/1.1\r\nHost: h\r\n" + framing)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        await reader.readexactly(15)
        if b"chunked" in framing:  # nobody knows how much would have to be thrown away
            assert b"Connection: close" in head
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            return
        assert b"close" not in head.lower()
        writer.write(b"{}GET /next HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 404 ")
        assert upstream.connections == 2
        writer.close()
        await settled(made)


@pytest.mark.parametrize("then", ["leaves", "is silent"])
async def test_a_client_that_never_sends_the_rest_after_an_early_reply(then: str) -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(json_reply({}))
        await reader.read()

    async with running(handler) as upstream, proxy(upstream.url, relay={"client_timeout_s": 0.2}) as made:
        reader, writer = await made.connect()
        writer.write(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{")
        await reader.readuntil(b"{}")
        if then == "leaves":
            writer.close()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        await settled(made)
        assert made.relay.outcomes.total() == 1


async def test_a_tunnel_whose_upstream_takes_nothing_does_not_outlive_its_client() -> None:
    async def deaf(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
        await writer.drain()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not writer.transport.is_closing():
            await asyncio.sleep(0.1)
            writer.write(b".")  # shows a peer that is gone
        upstream.closed_by_peer.set()

    async with running(deaf) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"x" * 30_000_000)
        await asyncio.sleep(0.3)
        writer.transport.abort()
        await asyncio.wait_for(upstream.closed_by_peer.wait(), 10)


async def test_a_large_request_behind_a_reply_not_yet_taken_is_served() -> None:
    body = b"y" * 4_000_000

    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        for reply in (b"x" * 20_000_000, b"ok"):
            await upstream.read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(reply), reply))

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET + b"POST /y HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await asyncio.sleep(0.5)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        await asyncio.wait_for(reader.readexactly(20_000_000), 10)
        assert (await asyncio.wait_for(reader.readuntil(b"ok"), 10)).startswith(b"HTTP/1.1 200 ")
        assert upstream.bodies[-1] == body
        writer.close()


async def test_what_nobody_watches_is_not_read_on_for_a_client_that_left() -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
        await reader.read()
        upstream.closed_by_peer.set()

    async with running(handler) as upstream, proxy(upstream.url, relay={"abort_grace_s": 60.0}) as made:
        _, writer = await made.connect()
        writer.write(b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.close()
        await asyncio.wait_for(upstream.closed_by_peer.wait(), 5)
        assert not made.relay.abandoned
        await settled(made)


async def test_a_host_that_is_no_name_is_a_bad_gateway() -> None:
    async with proxy("http://a..b:80") as made:
        assert (await made.exchange(post(b"{}"))).startswith(b"HTTP/1.1 502 ")
        assert made.choices[0].upstream.in_flight == 0
