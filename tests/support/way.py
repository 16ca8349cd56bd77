"""The whole way: a client, the sidecar, an upstream that says what it is told, and an engine that tells its events."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sidecar.app import Sidecar
from sidecar.record import Record
from sidecar.settings import load

from .chain import free_ports
from .proxy import post
from .scripted_engine import ScriptedEngine, until
from .upstream import DONE, Handler, Upstream, chat_chunk, event, json_reply, running


class Way:
    """A sidecar in the test's loop, the engine behind it, and what was recorded."""

    def __init__(self, sidecar: Sidecar, engine: ScriptedEngine | None, port: int, upstream: Upstream) -> None:
        self.sidecar = sidecar
        self._engine = engine
        self.upstream = upstream
        self.port = port
        self.records: list[Record] = []
        write = sidecar.recorder.writer.put

        def put(record: Record) -> None:
            self.records.append(record)
            write(record)

        sidecar.recorder.writer.put = put  # type: ignore[method-assign]

    @property
    def engine(self) -> ScriptedEngine:
        assert self._engine is not None
        return self._engine

    async def ask(self, body: object, path: bytes = b"/v1/chat/completions", extra: bytes = b"") -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(post(json.dumps(body).encode(), path, extra=extra))
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answer

    async def record(self, count: int = 1) -> Record:
        await until(lambda: len(self.records) >= count)
        return self.records[count - 1]


@asynccontextmanager
async def way(folder: Path, handler: Handler, *, engine: bool = True, **settings: Any) -> AsyncIterator[Way]:
    async with running(handler) as upstream:
        port, admin = free_ports(2)
        given = {
            "upstream": upstream.url,
            "listen": f"127.0.0.1:{port}",
            "admin": f"127.0.0.1:{admin}",
            "database_url": f"sqlite:///{folder}/specwatch.db",
            "engine_events": folder / "events",
            "baseline_share": 0.0,
            "similarity": "none",
            **settings,
        }
        sidecar, stop = Sidecar(load(**given)), asyncio.Event()
        task = asyncio.ensure_future(sidecar.run(stop))
        feed = sidecar.recorder.feed
        assert feed is not None
        await until(lambda: (folder / "events").exists())
        made = Way(sidecar, ScriptedEngine(folder / "events") if engine else None, port, upstream)
        await until(lambda: feed.connected == engine)
        for _ in range(400):
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                break
            except OSError:
                await asyncio.sleep(0.01)
        try:
            yield made
        finally:
            stop.set()
            await asyncio.wait_for(task, 30)
            assert not sidecar.recorder.tasks.failed
            assert sidecar.recorder.writer.written == len(made.records)


def answering(reply: bytes | Callable[[bytes], bytes], told: Callable[[], None] = lambda: None) -> Handler:
    """Gives `reply` to each generation request, after calling `told`."""

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await upstream.read_request(reader)
            if upstream.heads[-1].startswith(b"POST"):
                told()
                writer.write(reply if isinstance(reply, bytes) else reply(body))
            else:
                writer.write(json_reply({"data": []}))
            await writer.drain()

    return handler


def chat(reply_id: str, *, usage: bool = False) -> list[bytes]:
    """The events of a stream that tells no figures."""
    events = [chat_chunk({"role": "assistant"}), chat_chunk({"content": "a"}), chat_chunk({"content": "b"}, "stop")]
    if usage:
        events.append(
            event({"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 10}})
        )
    return [each.replace(b"chatcmpl-1", reply_id.encode()) for each in [*events, DONE]]
