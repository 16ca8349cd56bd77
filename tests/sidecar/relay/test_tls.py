"""TLS to clients and to the upstream."""

import asyncio
import socket
import ssl

import pytest
import trustme
from support.proxy import body_of, post, proxy
from support.upstream import Upstream, chat_stream, chunked, json_reply, replying, resets_at_its_end, running

from sidecar.record import Outcome


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture
def client(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def ask(port: int, client: ssl.SSLContext, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("localhost", port, ssl=client)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


def read_all(port: int, client: ssl.SSLContext, request: bytes) -> bytes:
    """As `ask`; an end of the connection that is not one of TLS raises, which asyncio passes over."""
    with (
        socket.create_connection(("localhost", port), timeout=20) as plain,
        client.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False) as connection,
    ):
        connection.sendall(request)
        answer = b""
        while data := connection.recv(65_536):
            answer += data
        return answer


async def test_a_client_over_tls_gets_the_same_bytes(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    async with (
        running(replying(chunked(*chat_stream(usage=False)))) as upstream,
        proxy(upstream.url, tls=server) as made,
    ):
        answer = await ask(made.port, client, post(b'{"stream":true}'))
        assert body_of(answer) == b"".join(chat_stream(usage=False))
        assert (await made.record()).outcome is Outcome.OK
        assert await asyncio.to_thread(read_all, made.port, client, post(b'{"stream":true}'))


async def test_a_client_over_tls_is_told_what_is_wrong_with_its_request(
    server: ssl.SSLContext, client: ssl.SSLContext
) -> None:
    async with running(replying(json_reply({}))) as upstream, proxy(upstream.url, tls=server) as made:
        assert (await ask(made.port, client, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        early = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
        assert (await ask(made.port, client, early)).startswith(b"HTTP/1.1 400 ")


async def test_plain_http_to_the_tls_port_ends_and_the_next_client_is_served(
    server: ssl.SSLContext, client: ssl.SSLContext
) -> None:
    async with running(replying(json_reply({}))) as upstream, proxy(upstream.url, tls=server) as made:
        assert b"200" not in await made.exchange(post(b"{}"))
        assert body_of(await ask(made.port, client, post(b"{}"))) == b"{}"


async def test_c21_a_cut_reply_without_a_length_looks_cut_over_tls(
    server: ssl.SSLContext, client: ssl.SSLContext
) -> None:
    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await writer.drain()
        await asyncio.sleep(0.1)
        resets_at_its_end(writer)

    async with running(handler) as upstream, proxy(upstream.url, tls=server) as made:
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await asyncio.to_thread(read_all, made.port, client, post(b"{}"))


async def test_an_upstream_over_tls(
    server: ssl.SSLContext,
    authority: trustme.CA,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    trusted = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    async with running(replying(chunked(*chat_stream(usage=False))), tls=server) as upstream:
        url = f"https://localhost:{upstream.port}"
        async with proxy(url) as made:
            for _ in range(2):
                assert body_of(await made.exchange(post(b'{"stream":true}'))) == b"".join(chat_stream(usage=False))
            assert upstream.connections == 1


async def test_an_upstream_whose_certificate_is_not_trusted_is_refused(server: ssl.SSLContext) -> None:
    async with running(replying(json_reply({})), tls=server) as upstream:
        async with proxy(f"https://localhost:{upstream.port}") as made:
            answer = await made.exchange(post(b"{}"))
            assert answer.startswith(b"HTTP/1.1 502 ")
            assert b"certificate" in answer
            assert (await made.record()).outcome is Outcome.BAD_GATEWAY
            assert not upstream.heads


async def test_c19_drain_leaves_no_reply_that_is_read_on_over_tls(
    server: ssl.SSLContext, client: ssl.SSLContext
) -> None:
    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        await reader.read()

    async with running(handler) as upstream, proxy(upstream.url, tls=server, relay={"abort_grace_s": 60.0}) as made:
        writers = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("localhost", made.port, ssl=client)
            writer.write(post(b"{}", close=False))
            await reader.readuntil(b"\r\n\r\n")
            writers.append(writer)
        await made.relay.drain(0.1)
        assert len(made.records) == 3
        assert made.choices[0].upstream.in_flight == 0
        assert not made.relay.abandoned
        for writer in writers:
            writer.close()
