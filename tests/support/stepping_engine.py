"""vLLM with the plugin, whose replies take their steps: a step of T(k) each, tokens by a scenario's own luck.

It serves in a thread of its own, as a command that is under test has the main one.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from .steered_engine import SteeredEngine
from .upstream import DONE, STAMP, Upstream, chat_chunk, event, running

TOKENS = 8


class SteppingEngine(SteeredEngine):
    """`p`: chance of a draft token by scenario. Times in ms."""

    def __init__(
        self, p: dict[str, float], *, most: int = 10, a: float = 1.5, b: float = 0.1, plain: float = 12.0
    ) -> None:
        super().__init__()
        self.p, self.most = p, most
        self.a, self.b, self.plain = a, b, plain
        self.method = "draft_model"
        self.soft_only = ""
        #: Draft tokens by a table of its own, whatever the cap.
        self.table: int | None = None
        #: Whether replies carry the block of figures.
        self.tells = True
        #: Generation requests so far, with whose number `on_request` is called.
        self.asked = 0
        self.on_request: Callable[[int], None] = lambda number: None

    def state(self, number: int = 0) -> dict[str, Any]:
        more = {"method": self.method, "num_speculative_tokens": self.most}
        return super().state(number) | more

    async def handler(self, upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await upstream.read_request(reader)
            method, path, _ = upstream.heads[-1].split(b" ", 2)
            if not path.endswith(b"/chat/completions") or self.broken:
                answer = self._answer(method.decode(), path.decode(), upstream.heads[-1], self._order(body))
                writer.write(answer)
                await writer.drain()
                continue
            self.bodies.append(body)
            self.asked += 1
            self.on_request(self.asked)
            head = upstream.heads[-1].decode().lower()
            scenario = head.partition("\r\nx-scenario: ")[2].partition("\r\n")[0]
            await self._stream(writer, json.loads(body), scenario)

    def _order(self, body: bytes) -> bytes:
        mode = json.loads(body).get("mode") if body else None
        self.refuses = (
            f"mode: only soft is possible, because {self.soft_only}" if self.soft_only and mode == "hard" else ""
        )
        if mode == "cold":
            self.refuses = "mode: cold is not possible with this proposer and model runner, use hard"
        return body

    async def _stream(self, writer: asyncio.StreamWriter, asked: dict[str, Any], scenario: str) -> None:
        plain = (asked.get("vllm_xargs") or {}).get("speculative") is False and self.obeys
        k = 0 if plain else self.most if self.cap is None else self.cap
        if k and self.table is not None:
            k = min(k, self.table)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + _chunk(chat_chunk({"role": "assistant", "content": "a"})))
        await writer.drain()
        tokens = min(TOKENS, asked.get("max_tokens") or TOKENS)
        luck, left, accepted = Random(str(asked["messages"])), tokens - 1, []
        while left > 0:
            await asyncio.sleep((self.a + self.b * k if k else self.plain) / 1000)
            got = 0
            while got < k and luck.random() < self.p[scenario]:
                got += 1
            accepted.append(got)
            left -= got + 1
            writer.write(_chunk(chat_chunk({"content": " a" * (got + 1)})))
            await writer.drain()
        usage = {"prompt_tokens": 5, "completion_tokens": tokens - left, "total_tokens": 5 + tokens - left}
        told: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        told |= {"choices": [], "usage": usage, **STAMP}
        if k and accepted and self.tells:
            told["metrics"] = {"speculative_decoding": _block(accepted, k, self.most)}
        end = _chunk(chat_chunk({}, "stop")) + _chunk(event(told)) + _chunk(DONE) + b"0\r\n\r\n"
        writer.write(end)
        await writer.drain()


def _block(accepted: list[int], k: int, most: int) -> dict[str, Any]:
    steps, total = len(accepted), sum(accepted)
    return {
        "mean_acceptance_length": 1 + total / steps,
        "draft_acceptance_rate": total / (k * steps),
        "acceptance_histogram": [accepted.count(j) for j in range(most + 1)],
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": total,
        "num_draft_tokens": k * steps,
        "num_spec_tokens": most,
        "per_step_accepted": accepted,
        "per_step_drafted": [k] * steps,
    }


def _chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part)


@contextmanager
def serving(engine: SteppingEngine) -> Iterator[str]:
    """Its URL while the block runs."""
    loop, up, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with running(engine.handler) as upstream:
            urls.append(upstream.url)
            up.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert up.wait(10)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
        loop.close()
