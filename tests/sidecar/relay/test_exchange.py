"""Exchanges over real sockets: bytes, framing, pooling, failures. C14, C17, C19-C25."""

import asyncio
import json

import pytest
from support.proxy import body_of, post, proxy
from support.upstream import (
    DONE,
    Upstream,
    chat_chunk,
    chat_stream,
    chunked,
    echo,
    json_reply,
    replying,
    running,
)

from sidecar.record import Arm, Outcome

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STREAMING = b'{"model":"m","stream":true,"messages":[]}'


async def until_closed(upstream: Upstream) -> None:
    await asyncio.wait_for(upstream.closed_by_peer.wait(), 10)


# ---- bytes


async def test_c24_target_head_and_body_reach_the_upstream_unchanged() -> None:
    async with running(echo()) as upstream, proxy(upstream.url) as made:
        request = (
            b"POST /v1/some/new%2Fapi?a=%2F&b=+%20&c= HTTP/1.1\r\nhost: H\r\nX-A: caf\xe9\r\nx-a:  2 \r\n"
            b"Connection: x-hop\r\nX-Hop: 1\r\nCookie: a=b\r\nContent-Length: 4\r\n\r\n\x00\xff\r\n"
        )
        reader, writer = await made.connect()
        writer.write(request)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(4) == b"\x00\xff\r\n"
        writer.close()
        sent = request.replace(b"Connection: x-hop\r\nX-Hop: 1\r\n", b"").partition(b"\r\n\r\n")[0]
        assert upstream.heads == [sent + b"\r\n\r\n"]


async def test_c23_reply_head_keeps_order_case_repeats_and_loses_hop_by_hop_alone() -> None:
    reply = (
        b"HTTP/1.1 429 Slow Down Please\r\nSet-Cookie: a=1\r\ndate: x\r\nset-cookie: b=2\r\nX-Raw: \xff\r\n"
        b"Connection: keep-alive, x-private\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\nContent-Length: 2\r\n\r\nno"
    )
    async with running(replying(reply)) as upstream, proxy(upstream.url) as made:
        answer = await made.exchange(b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert answer == (
            b"HTTP/1.1 429 Slow Down Please\r\nSet-Cookie: a=1\r\ndate: x\r\nset-cookie: b=2\r\nX-Raw: \xff\r\n"
            b"Content-Length: 2\r\nConnection: close\r\n\r\nno"
        )


async def test_c23_multipart_with_a_chunked_upload_and_a_vtt_reply() -> None:
    part = b'--B\r\nContent-Disposition: form-data; name="file"\r\n\r\nRIFF\x00\x00\xff\r\n--B--\r\n'
    upload = b"5;q=1\r\n" + part[:5] + b"\r\n%x\r\n" % (len(part) - 5) + part[5:] + b"\r\n0\r\n\r\n"
    vtt = b"HTTP/1.1 200 OK\r\nContent-Type: text/vtt\r\nContent-Length: 6\r\n\r\nWEBVTT"
    async with running(replying(vtt)) as upstream, proxy(upstream.url) as made:
        answer = await made.exchange(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
            b"Content-Type: multipart/form-data; boundary=B\r\nTransfer-Encoding: chunked\r\n\r\n" + upload
        )
        assert answer.endswith(b"\r\n\r\nWEBVTT")
        assert upstream.bodies == [part]


async def test_c24_trailers_pass_and_the_connection_goes_on() -> None:
    reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n"
    async with running(replying(reply, OK)) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert await reader.readexactly(len(reply)) == reply
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert await reader.readexactly(len(OK)) == OK
        writer.close()
        assert upstream.connections == 1


async def test_c24_expect_is_answered_and_not_passed_on() -> None:
    async with running(echo()) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(
            b"POST /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
            b"Expect: 100-continue\r\nContent-Length: 5000000\r\n\r\n"
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"x" * 5_000_000)
        answer = await asyncio.wait_for(reader.read(), 20)
        assert answer.endswith(b"x" * 5_000_000)
        assert b"expect" not in upstream.heads[0].lower()


async def test_c24_an_upgrade_is_relayed_both_ways() -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhi")
        writer.write((await reader.readexactly(4)).upper())

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(
            b"GET /v1/realtime HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: x\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert await reader.readexactly(2) == b"hi"
        writer.write(b"abcd")
        assert await reader.read() == b"ABCD"
        assert b"Upgrade: websocket" in upstream.heads[0]


async def test_early_hints_pass() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    async with running(replying(hints + OK)) as upstream, proxy(upstream.url) as made:
        answer = await made.exchange(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert answer.startswith(hints + b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("method", "reply"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"),
    ],
)
async def test_replies_without_a_body_end_with_their_head(method: bytes, reply: bytes) -> None:
    async with running(replying(reply)) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        for _ in range(2):
            writer.write(method + b" / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await asyncio.wait_for(reader.readexactly(len(reply)), 2) == reply
        writer.close()


async def test_a_close_delimited_reply_ends_with_the_connection() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it"
    async with running(replying(reply, close=True)) as upstream, proxy(upstream.url) as made:
        answer = await made.exchange(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert answer == reply.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
        assert made.relay.outcomes == {Outcome.OK: 1}


async def test_an_http_1_0_client_gets_no_chunks() -> None:
    async with running(replying(chunked(b"ab", b"c", head=b""))) as upstream, proxy(upstream.url) as made:
        answer = await made.exchange(b"GET / HTTP/1.0\r\n\r\n")
        assert answer == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running(echo()) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        requests = [b"POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n%d" % (n, n) for n in range(8)]
        writer.write(b"\r\n".join([*requests, b""]))
        for request in requests:
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(request)) == request
        writer.close()


async def test_c25_each_read_is_passed_on_at_once() -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"ff\r\ndata: half")
        await reader.read()

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(post(b'{"stream":false}'))
        await reader.readuntil(b"\r\n\r\n")
        assert await asyncio.wait_for(reader.readexactly(14), 2) == b"ff\r\ndata: half"
        writer.close()


async def test_c24_a_large_upload_and_reply_pass_in_bounded_memory() -> None:
    size = 64 << 20

    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        left = size
        while left:
            left -= len(await reader.read(1 << 20))
            await asyncio.sleep(0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 20):
            writer.write(b"y" * (1 << 20))
            await writer.drain()

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
        most = 0
        for _ in range(size >> 20):
            writer.write(b"x" * (1 << 20))
            await writer.drain()
            for connection in made.relay.connections:
                exchange = connection.exchange
                if exchange is not None and exchange._connection is not None:
                    most = max(most, exchange._connection.transport.get_write_buffer_size())
        await reader.readuntil(b"\r\n\r\n")
        left = size
        while left:
            left -= len(await reader.read(1 << 20))
            await asyncio.sleep(0)
            for connection in made.relay.connections:
                most = max(most, connection.transport.get_write_buffer_size())
        assert most < 4 << 20
        writer.close()


# ---- refusals


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: h\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 70_000, 431),
        (b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n", 501),
        (b"GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505),
    ],
)
async def test_what_is_no_http_is_refused_and_not_forwarded(request_bytes: bytes, status: int) -> None:
    async with running(echo()) as upstream, proxy(upstream.url) as made:
        answer = await made.exchange(request_bytes)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert json.loads(body_of(answer))["error"]["type"] == "specwatch_bad_request"
        assert upstream.heads == []


async def test_a_bad_chunk_in_the_middle_is_not_forwarded() -> None:
    async with running(echo()) as upstream, proxy(upstream.url) as made:
        answer = await made.exchange(
            b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n+5\r\nhello\r\n0\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert upstream.bodies == []


async def test_what_follows_a_refused_request_is_not_served() -> None:
    async with running(echo()) as upstream, proxy(upstream.url) as made:
        answer = await made.exchange(b"GET / HTTP/1.1\r\nHost : h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert upstream.heads == []


# ---- failures of the upstream


async def test_a_refused_connection_is_told_and_recorded() -> None:
    async with proxy("http://127.0.0.1:9") as made:
        answer = await made.exchange(post(b"{}"))
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert json.loads(body_of(answer))["error"]["type"] == "specwatch_upstream_unreachable"
        record = await made.record()
        assert (record.outcome, record.status) == (Outcome.BAD_GATEWAY, 502)


async def test_a_refused_connection_goes_to_the_next_upstream() -> None:
    async with running(replying(json_reply({}))) as second, proxy("http://127.0.0.1:9", second.url) as made:
        answer = await made.exchange(post(b'{"model":"m"}'))
        assert answer.startswith(b"HTTP/1.1 200 ")
        record = await made.record()
        assert (record.upstream, record.arm) == ("autoregressive", Arm.AUTOREGRESSIVE)
        assert made.choices[0].upstream.in_flight == made.choices[1].upstream.in_flight == 0


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200", b"nonsense\r\n\r\n"])
async def test_c21_a_generation_is_never_sent_twice(said: bytes) -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        writer.write(said)

    async with running(handler) as upstream, running(echo()) as second, proxy(upstream.url, second.url) as made:
        answer = await made.exchange(post(b"{}"))
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert len(upstream.bodies) == 1
        assert second.bodies == []
        assert (await made.record()).outcome is Outcome.BAD_GATEWAY


async def test_c21_a_reply_cut_short_stays_cut() -> None:
    part = b"".join(chat_stream(usage=False)[:2])

    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (len(part), part))

    async with running(handler) as upstream, proxy(upstream.url) as made:
        answer = await made.exchange(post(STREAMING))
        assert part in answer
        assert not answer.endswith(b"0\r\n\r\n")
        record = await made.record()
        assert record.outcome is Outcome.TRUNCATED
        assert record.status == 200
        assert len(upstream.bodies) == 1


async def test_c21_idle_connections_close_before_the_upstream_does() -> None:
    async with running(replying(OK)) as upstream, proxy(upstream.url) as made:
        idle = made.choices[0].upstream
        reader, writer = await made.connect()
        for age in (0.0, 10.0):
            for connection in idle._idle:
                connection.idle_since -= age
            writer.write(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
            assert await reader.readexactly(len(OK)) == OK
        assert upstream.connections == 2
        writer.close()


async def test_a_get_on_a_stale_connection_is_sent_again_and_a_post_is_not() -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        writer.write(OK)
        await upstream.read_request(reader)  # and closes without a word

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await asyncio.wait_for(reader.readexactly(len(OK)), 2) == OK
        assert upstream.connections == 2
        writer.write(post(b"{}"))
        assert (await reader.read()).startswith(b"HTTP/1.1 502 ")
        assert upstream.connections == 2


async def test_c21_silence_is_bounded_only_where_that_is_asked_for() -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        await reader.readexactly(1)

    async with running(handler) as upstream, proxy(upstream.url, relay={"idle_timeout_s": 0.1}) as made:
        answer = await made.exchange(post(b"{}"))
        assert answer.startswith(b"HTTP/1.1 504 ")
        assert (await made.record()).outcome is Outcome.TIMEOUT
        await until_closed(upstream)


async def test_bytes_nobody_asked_for_are_not_a_reply() -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        writer.write(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await reader.read()

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await reader.readexactly(len(OK)) == OK
        writer.close()
        assert upstream.connections == 2


async def test_an_early_reply_reaches_a_client_that_is_still_sending() -> None:
    reply = json_reply({"error": {"message": "too large"}}, b"413 Content Too Large")

    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 50000000\r\n\r\n")
        for _ in range(50):
            writer.write(b"x" * 1_000_000)
            await asyncio.sleep(0)
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert answer.endswith(reply.partition(b"\r\n\r\n")[2])
        writer.close()


# ---- the client leaves


@pytest.mark.parametrize("state", ["before the head", "after the head", "in the stream", "waiting for JSON"])
async def test_c19_a_client_that_leaves_ends_the_upstream_request(state: str) -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        if state in ("after the head", "in the stream"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if state == "in the stream":
            for event in chat_stream(usage=False)[:3]:
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await reader.readexactly(1)

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        writer.write(post(STREAMING if state != "waiting for JSON" else b'{"model":"m"}'))
        if state == "in the stream":
            await reader.readuntil(b"world")
        elif state == "after the head":
            await reader.readuntil(b"\r\n\r\n")
        else:
            while not upstream.bodies:
                await asyncio.sleep(0.005)
        writer.close()
        await until_closed(upstream)
        record = await made.record()
        assert record.outcome is Outcome.CLIENT_ABORT
        assert record.acceptance.draft_tokens is None
        assert (record.ttft_ms is not None) == (state == "in the stream")
        assert made.choices[0].upstream.in_flight == 0


async def test_c19_many_aborts_leave_nothing_open() -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        writer.write(chunked(*chat_stream(usage=False))[:400])
        await reader.readexactly(1)

    async with running(handler) as upstream, proxy(upstream.url) as made:

        async def leave_early() -> None:
            reader, writer = await made.connect()
            writer.write(post(STREAMING))
            await reader.readuntil(b"\r\n\r\n")
            writer.close()

        for _ in range(10):
            await asyncio.gather(*(leave_early() for _ in range(20)))
        await made.record(200)
        await asyncio.sleep(0.1)
        assert not made.relay.connections
        assert made.relay.in_flight == 0
        assert made.choices[0].upstream.in_flight == 0
        assert not made.choices[0].upstream._idle


# ---- usage is asked for, unseen


async def test_c17_a_stream_gets_its_figures_and_the_client_its_own_bytes() -> None:
    events = chat_stream(usage=False)
    async with (
        running(replying(chunked(*chat_stream(usage=True)))) as upstream,
        proxy(upstream.url, add_usage=True, add_headers=False) as made,
    ):
        answer = await made.exchange(
            post(STREAMING, close=False, extra=b"Accept-Encoding: gzip\r\nConnection: close\r\n")
        )
        assert answer == chunked(*events).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
        assert json.loads(upstream.bodies[0]) == json.loads(STREAMING) | {"stream_options": {"include_usage": True}}
        assert b"accept-encoding" not in upstream.heads[0].lower()
        record = await made.record()
        assert record.acceptance.accepted_tokens == 6
        assert record.completion_tokens == 10
        assert record.outcome is Outcome.OK


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream":true,"stream_options":{"include_usage":true}}',
        b'{"stream":true,"stream_options":{"include_usage":false}}',
        b'{"stream":false,"seed":12345678901234567890}',
    ],
)
async def test_c17_what_the_client_said_stands(body: bytes) -> None:
    reply = chunked(*chat_stream(usage=True))
    async with running(replying(reply)) as upstream, proxy(upstream.url, add_headers=False) as made:
        answer = await made.exchange(post(body))
        assert body_of(answer) == body_of(reply)
        assert upstream.bodies == [body]


async def test_c17_a_refused_change_is_taken_back_once() -> None:
    refusal = json_reply({"error": {"message": "unknown field"}}, b"400 Bad Request")

    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        while True:
            body = await upstream.read_request(reader)
            writer.write(refusal if b"stream_options" in body else chunked(*chat_stream(usage=False)))

    async with running(handler) as upstream, proxy(upstream.url, add_usage=True) as made:
        answer = await made.exchange(post(STREAMING))
        assert body_of(answer) == b"".join(chat_stream(usage=False))
        assert len(upstream.bodies) == 2
        assert upstream.bodies[1] == STREAMING
        record = await made.record()
        assert record.outcome is Outcome.OK
        assert record.acceptance.draft_tokens is None
        assert len(made.records) == 1


async def test_c17_a_request_that_is_wrong_anyway_is_refused_with_the_upstreams_words() -> None:
    refusal = json_reply({"error": {"message": "no such model"}}, b"400 Bad Request")
    async with running(replying(refusal)) as upstream, proxy(upstream.url, add_usage=True, add_headers=False) as made:
        answer = await made.exchange(post(STREAMING))
        assert answer == refusal.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
        assert len(upstream.bodies) == 2


async def test_a_compressed_stream_is_passed_on_whole() -> None:
    head = b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
    reply = chunked(b"\x1f\x8b\x00", b"\xff", head=head)
    async with running(replying(reply)) as upstream, proxy(upstream.url) as made:
        assert body_of(await made.exchange(post(STREAMING))) == b"\x1f\x8b\x00\xff"
        assert "no gzip" in ((await made.record()).acceptance.reason or "")


async def test_a_body_longer_than_is_held_streams_through_unread() -> None:
    body = b'{"stream":true,"x":"' + b"y" * 5000 + b'"}'
    async with (
        running(replying(chunked(*chat_stream(usage=False)))) as upstream,
        proxy(upstream.url, hold=1000) as made,
    ):
        answer = await made.exchange(post(body))
        assert body_of(answer) == b"".join(chat_stream(usage=False))
        assert upstream.bodies == [body]


async def test_a_chunked_request_is_held_and_sent_as_it_came() -> None:
    async with running(echo()) as upstream, proxy(upstream.url) as made:
        answer = await made.exchange(
            b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            b'5;x\r\n{"n":\r\n2\r\n1}\r\n0\r\nT: 1\r\n\r\n'
        )
        assert upstream.bodies == [b'{"n":1}']
        assert b"Transfer-Encoding: chunked" in answer


# ---- headers of the sidecar's own


async def test_added_headers_are_two_and_can_be_turned_off() -> None:
    reply = json_reply({"choices": []})
    async with running(replying(reply)) as upstream, proxy(upstream.url) as made:
        head = (await made.exchange(post(b"{}"))).partition(b"\r\n\r\n")[0].split(b"\r\n")
        own = reply.partition(b"\r\n\r\n")[0].split(b"\r\n")
        added = [line.partition(b":")[0] for line in head if line not in own]
        assert added == [b"x-request-id", b"x-specwatch-arm", b"Connection"]
        record = await made.record()
        assert b"x-request-id: " + record.request_id.encode() in head


async def test_a_hidden_header_is_not_forwarded() -> None:
    hidden = {"hidden": frozenset((b"x-scenario",))}
    async with running(replying(json_reply({}))) as upstream, proxy(upstream.url, relay=hidden) as made:
        await made.exchange(post(b"{}", extra=b"X-Scenario: billing\r\n"))
        assert b"x-scenario" not in upstream.heads[0].lower()
        assert (await made.record()).scenario == "billing"


# ---- the end


async def test_drain_lets_a_stream_end_and_takes_no_new_connection() -> None:
    go = asyncio.Event()

    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        writer.write(chunked(chat_chunk({"content": "a"}))[:-5])
        await go.wait()
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE))
        await reader.read()

    async with running(handler) as upstream, proxy(upstream.url) as made:
        reader, writer = await made.connect()
        _, idle = await made.connect()
        writer.write(post(STREAMING, close=False))
        await reader.readuntil(b'"content":"a"')
        draining = asyncio.ensure_future(made.relay.drain(5))
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionError):
            await made.connect()
        go.set()
        assert (await reader.read()).endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
        assert await draining == 0
        assert (await made.record()).outcome is Outcome.OK
        writer.close()
        idle.close()


async def test_drain_cuts_what_does_not_end_and_records_it() -> None:
    async def handler(upstream: Upstream, reader: Reader, writer: Writer) -> None:
        await upstream.read_request(reader)
        await reader.read()

    async with running(handler) as upstream, proxy(upstream.url) as made:
        _, writer = await made.connect()
        writer.write(post(STREAMING))
        while not upstream.bodies:
            await asyncio.sleep(0.005)
        assert await made.relay.drain(0.1) == 1
        assert (await made.record()).outcome is Outcome.BAD_GATEWAY
        writer.close()
