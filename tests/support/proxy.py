"""A relay with its tap in the test's own loop, and a client that writes raw bytes to it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sidecar.record import Arm, Record
from sidecar.relay.server import Relay
from sidecar.relay.upstream import Choice, Upstream
from sidecar.tap.tap import Facts, TapContext
from sidecar.tasks import Tasks


class Proxy:
    def __init__(self, relay: Relay, port: int, records: list[Record], context: TapContext) -> None:
        self.relay = relay
        self.port = port
        self.records = records
        self.context = context
        self.choices: list[Choice] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 27)

    async def exchange(self, request: bytes) -> bytes:
        """Everything the relay sends for `request`, until it closes."""
        reader, writer = await self.connect()
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answer

    async def record(self, count: int = 1) -> Record:
        """The `count`-th record, waited for."""
        for _ in range(400):
            if len(self.records) >= count:
                return self.records[count - 1]
            await asyncio.sleep(0.01)
        raise AssertionError("no record was written")


@asynccontextmanager
async def proxy(
    *urls: str,
    relay: dict[str, Any] | None = None,
    tls: ssl.SSLContext | None = None,
    connect_timeout_s: float = 2.0,
    **tap: Any,
) -> AsyncIterator[Proxy]:
    records: list[Record] = []
    names: Sequence[str] = ("speculative", "autoregressive")
    facts = {name: Facts("draft", 4, "test") for name in names}
    context = TapContext("test", records.append, facts, **tap)
    choices = [
        Choice(Upstream(name, url, connect_timeout_s=connect_timeout_s), Arm(name))
        for name, url in zip(names, urls, strict=False)
    ]
    tasks = Tasks()
    server = Relay(lambda _: list(made.choices), context.watch, tasks.spawn, **(relay or {}))
    made = Proxy(server, await server.start("127.0.0.1", 0, tls), records, context)
    made.choices = choices
    try:
        yield made
    finally:
        await server.drain(0)
        for choice in choices:
            choice.upstream.close_idle()
        await tasks.close()
        assert not tasks.failed
        assert context.failures == 0


def post(body: bytes, path: bytes = b"/v1/chat/completions", *, close: bool = True, extra: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b%b\r\n%b" % (
        path,
        len(body),
        b"Connection: close\r\n" if close else b"",
        extra,
        body,
    )


def body_of(answer: bytes) -> bytes:
    """The payload of a whole response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return body
    payload = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if not int(size, 16):
            return payload
        payload += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
