"""A server that says exactly the bytes a test wants, and remembers what it was sent."""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Handler = Callable[["Upstream", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Upstream:
    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.closed_by_peer = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def read_request(self, reader: asyncio.StreamReader) -> bytes:
        """The next request's body; its head goes to `heads`. Raises IncompleteReadError at the end."""
        head = await reader.readuntil(b"\r\n\r\n")
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:-2])
        }
        body = b""
        if fields.get(b"transfer-encoding"):
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                body += (await reader.readexactly(size + 2))[:-2]
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass
        elif b"content-length" in fields:
            body = await reader.readexactly(int(fields[b"content-length"]))
        self.heads.append(head)
        self.bodies.append(body)
        return body

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.handler(self, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed_by_peer.set()
        finally:
            writer.close()


@asynccontextmanager
async def running(handler: Handler, *, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    upstream = Upstream(handler)
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await upstream._serve(reader, writer)

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=1 << 26, ssl=tls)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def resets_at_its_end(writer: asyncio.StreamWriter) -> None:
    """Have the connection end with a reset, whatever was read and written."""
    no_linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)


def replying(*replies: bytes, close: bool = False) -> Handler:
    """Answers the n-th request of a connection with the n-th of `replies`, the last again and again."""

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        while True:
            await upstream.read_request(reader)
            writer.write(replies[min(number, len(replies) - 1)])
            await writer.drain()
            number += 1
            if close:
                return

    return handler


def echo() -> Handler:
    """Answers each request with its own head and body as a length-delimited body."""

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await upstream.read_request(reader)
            text = upstream.heads[-1] + body
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
            await writer.drain()

    return handler


def json_reply(value: object, status: bytes = b"200 OK") -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


def chunked(*parts: bytes, head: bytes = b"content-type: text/event-stream; charset=utf-8\r\n") -> bytes:
    """A 200 with each of `parts` in a chunk of its own."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\n" + head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


#: A block as vLLM 0.32 sends it: 3 verify steps, 2 + 4 + 0 of 4 drafted tokens accepted.
BLOCK = {
    "mean_acceptance_length": 3.0,
    "draft_acceptance_rate": 0.5,
    "acceptance_histogram": [1, 0, 1, 0, 1],
    "num_spec_steps": 3,
    "num_accepted_draft_tokens": 6,
    "num_draft_tokens": 12,
    "num_spec_tokens": 4,
    "per_step_accepted": [2, 4, 0],
    "per_step_drafted": [4, 4, 4],
}
USAGE = {"prompt_tokens": 5, "total_tokens": 15, "completion_tokens": 10}


STAMP = {"system_fingerprint": 'vllm-0.32.0-"1"'}


def chat_chunk(delta: object, finish: str | None = None, **more: object) -> bytes:
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
            **more,
        }
    )


def usage_chunk() -> bytes:
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [],
            "usage": USAGE,
            **STAMP,
            "metrics": {"speculative_decoding": BLOCK, "queue_time_ms": 1.5},
        }
    )


DONE = b"data: [DONE]\n\n"


def chat_stream(*, usage: bool) -> list[bytes]:
    """The events of a streamed chat completion, as vLLM sends them with and without usage."""
    return [
        chat_chunk({"role": "assistant", "content": ""}),
        chat_chunk({"content": "你好"}),
        chat_chunk({"content": ' {"error":1} world'}),
        chat_chunk({"content": "!"}, "stop", **({} if usage else STAMP)),
        *([usage_chunk()] if usage else []),
        DONE,
    ]
