"""Upstreams that cannot be reached. C21: what may have been processed is sent to no other."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trustme
from support.proxy import Proxy, post, proxy
from support.scripted_engine import until
from support.upstream import Upstream as Server
from support.upstream import echo, json_reply, replying, resets_at_its_end, running

from sidecar.record import Arm, Outcome
from sidecar.relay.upstream import RETRY_S, Upstream

SECOND = json_reply({"from": "second"})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def deaf() -> Iterator[str]:
    """The URL of a server to which connections wait for ever."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:  # its backlog is full
            filler.setblocking(False)
            filler.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"
        for filler in fillers:
            filler.close()


async def reached(made: Proxy) -> None:
    """Once the first upstream is known to be there."""
    while made.choices[0].upstream.down:
        await asyncio.sleep(0.02)


def seekers() -> int:
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return names.count("Upstream.seek")


async def test_an_upstream_that_refuses_is_passed_over_and_found_again(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    async with (
        running(replying(SECOND)) as second,
        proxy(f"http://127.0.0.1:{port}", second.url) as made,
    ):
        for number in range(1, 4):
            answer = await made.exchange(post(b"{}"))
            assert b"second" in answer
            assert b"x-specwatch-arm: autoregressive\r\n" in answer
            record = await made.record(number)
            assert (record.upstream, record.arm) == ("autoregressive", Arm.AUTOREGRESSIVE)
        assert caplog.text.count("cannot be reached") == 1
        async with running(replying(json_reply({"from": "first"})), port=port) as first:
            await asyncio.wait_for(reached(made), 20)
            assert first.bodies == [], "no request was needed to find it"
            assert b"first" in await made.exchange(post(b"{}"))
        assert caplog.text.count("is reached again") == 1


async def test_while_an_upstream_is_sought_no_client_waits_for_it() -> None:
    with deaf() as url:
        async with running(replying(SECOND)) as second, proxy(url, second.url, connect_timeout_s=0.3) as made:
            first = made.choices[0].upstream
            assert b"second" in await made.exchange(post(b"{}"))
            first._connect_timeout_s = 600  # whoever still tries it does not come back
            await asyncio.sleep(RETRY_S + 0.2)  # it is being tried again
            assert seekers() == 1
            for answer in await asyncio.gather(*(made.exchange(post(b"{}")) for _ in range(20))):
                assert b"second" in answer
            assert first.in_flight == 0


async def test_an_upstream_is_looked_at_while_no_request_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.relay.upstream.LOOK_S", 0.02)
    port = free_port()
    upstream = Upstream("a", f"http://127.0.0.1:{port}")
    watch = asyncio.ensure_future(upstream.watch())
    try:
        await until(lambda: upstream.down)
        assert not upstream.reached
        async with running(replying(SECOND), port=port):
            await until(lambda: upstream.reached and not upstream.down)
        await until(lambda: upstream.down)
        assert upstream.reached
    finally:
        watch.cancel()


async def test_many_that_fail_at_once_leave_one_that_seeks() -> None:
    async with (
        running(replying(SECOND)) as second,
        proxy(f"http://127.0.0.1:{free_port()}", second.url) as made,
    ):
        answers = await asyncio.gather(*(made.exchange(post(b"{}")) for _ in range(20)))
        assert all(b"second" in answer for answer in answers)
        assert seekers() == 1
        assert len(second.bodies) == 20


async def test_where_no_upstream_can_be_reached_the_client_is_told_at_once() -> None:
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    async with proxy(*urls) as made:
        for number in (1, 2):
            answer = await made.exchange(post(b"{}"))
            assert answer.startswith(b"HTTP/1.1 502 ")
            assert b"cannot be reached" in answer
            assert (await made.record(number)).outcome is Outcome.BAD_GATEWAY
        assert all(choice.upstream.in_flight == 0 for choice in made.choices)


async def test_a_single_upstream_is_asked_by_each_request() -> None:
    port = free_port()
    async with proxy(f"http://127.0.0.1:{port}") as made:
        assert (await made.exchange(post(b"{}"))).startswith(b"HTTP/1.1 502 ")
        async with running(replying(SECOND), port=port):
            assert b"second" in await made.exchange(post(b"{}"))


# ---- what goes to the other upstream, and what does not


@asynccontextmanager
async def tls_nobody_trusts() -> AsyncIterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    async with running(echo(), tls=context) as server:
        yield f"https://localhost:{server.port}"


@asynccontextmanager
async def no_tls() -> AsyncIterator[str]:
    async with running(echo()) as server:
        yield f"https://127.0.0.1:{server.port}"


@asynccontextmanager
async def refusing() -> AsyncIterator[str]:
    yield f"http://127.0.0.1:{free_port()}"


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    with deaf() as url:
        yield url


@pytest.mark.parametrize("size", [10, 3_000_000])
@pytest.mark.parametrize("failing", [refusing, silent, no_tls, tls_nobody_trusts])
async def test_a_request_of_which_nothing_was_sent_goes_whole_to_the_other(failing: object, size: int) -> None:
    body = b'{"prompt":"' + b"x" * size + b'"}'
    async with (
        failing() as url,  # type: ignore[operator]
        running(replying(SECOND)) as second,
        proxy(url, second.url, connect_timeout_s=0.5, hold=1_000) as made,
    ):
        answer = await made.exchange(post(body))
        assert b"second" in answer
        assert second.bodies == [body]
        record = await made.record()
        assert (record.arm, record.outcome, record.bytes_in) == (Arm.AUTOREGRESSIVE, Outcome.OK, len(body))


async def takes_the_head(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def takes_all(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await server.read_request(reader)


async def takes_all_and_resets(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    resets_at_its_end(writer)
    await server.read_request(reader)


async def says_it_goes_on(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await server.read_request(reader)
    writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")


async def has_failed(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await server.read_request(reader)
    writer.write(json_reply({"error": {"message": "the engine is dead"}}, b"503 Service Unavailable"))


@pytest.mark.parametrize("fails", [takes_the_head, takes_all, takes_all_and_resets, says_it_goes_on, has_failed])
@pytest.mark.parametrize("fresh", [True, False])
async def test_c21_a_request_that_may_have_been_processed_goes_to_no_other(fails: object, *, fresh: bool) -> None:
    sent = 0

    async def handler(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        if not fresh:  # it fails on a connection that has served before
            await server.read_request(reader)
            writer.write(SECOND)
        sent += 1
        await fails(server, reader, writer)  # type: ignore[operator]

    async with running(handler) as first, running(replying(SECOND)) as second, proxy(first.url, second.url) as made:
        if not fresh:
            assert b"200 OK" in await made.exchange(post(b"{}"))
        answer = await made.exchange(post(b'{"model":"m"}'))
        assert b"HTTP/1.1 50" in answer
        assert (first.connections, sent, second.bodies) == (1, 1, [])
        record = await made.record(1 if fresh else 2)
        assert (record.upstream, record.arm) == ("speculative", Arm.SPECULATIVE)
        assert not made.choices[0].upstream.down, "it can be reached"
