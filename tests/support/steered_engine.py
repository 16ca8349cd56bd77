"""vLLM with the plugin as the sidecar sees it: control route, counters, requests that may ask for no speculation."""

import asyncio
import json
from hashlib import sha256
from typing import Any

from .counting import Counting
from .upstream import BLOCK, USAGE, Upstream, chat_stream, chunked, json_reply

TOKEN = "hush-hush"


class SteeredEngine:
    """Its `handler` answers as `support.upstream.running` wants it. What is public here may be changed any time."""

    def __init__(self) -> None:
        self.cap: int | None = None
        self.mode = "hard"
        self.draft_model: str | None = "/models/draft_a"
        #: Digests of what is loaded; a swap brings another draft.
        self.target_digest: str | None = "9f86d081884c7d65"
        self.draft_digest: str | None = "2c26b46b68ffc68f"
        self.device: str | None = "cpu"
        #: Cores that the route tells of.
        self.cores = 1
        #: The plugin's words where it has failed in the cores, or refuses an order.
        self.stands_down = ""
        self.refuses = ""
        #: Whether there is a control route at all.
        self.has_route = True
        #: Whether requests are served as they ask to be.
        self.obeys = True
        #: Statuses for generation requests whose bodies ask for no speculation.
        self.refusal: bytes | None = None
        self.orders: list[tuple[str, Any]] = []
        #: What /metrics tells; every request that is drafted for adds what its reply says.
        self.counting = Counting()
        #: Bodies of generation requests.
        self.bodies: list[bytes] = []
        #: Draft tokens accepted in each verify step of a request, of 4.
        self.accepts: list[int] = [2, 4, 0]
        #: Whether generation requests fail.
        self.broken = False

    async def handler(self, upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await upstream.read_request(reader)
            method, path, _ = upstream.heads[-1].split(b" ", 2)
            writer.write(self._answer(method.decode(), path.decode(), upstream.heads[-1], body))
            await writer.drain()

    def _answer(self, method: str, path: str, head: bytes, body: bytes) -> bytes:
        if path == "/version":
            return json_reply({"version": "0.32.0"})
        if path == "/v1/models":
            return json_reply({"data": [{"id": "m"}]})
        if path == "/metrics":
            return self.counting.reply
        if path.startswith("/specwatch/"):
            return self._control(method, path, head, body) if self.has_route else json_reply({}, b"404 Not Found")
        return self._generate(path, body)

    def _control(self, method: str, path: str, head: bytes, body: bytes) -> bytes:
        if f"\r\nauthorization: bearer {TOKEN}\r\n" not in head.decode().lower():
            return error(b"401 Unauthorized", "the bearer token is not that of the engine", "unauthorized")
        if self.stands_down:
            return error(b"409 Conflict", self.stands_down, "refused")
        order = json.loads(body) if body else None
        if method == "PUT":
            self.orders.append((path, order))
            if self.refuses:
                param = self.refuses.partition(":")[0]
                return error(b"409 Conflict", self.refuses, "refused", param)
        if path.endswith("/draft"):
            self.draft_model = order["checkpoint"]
            self.draft_digest = sha256(order["checkpoint"].encode()).hexdigest()[:16]
            worker = {"before": "aa", "after": "bb", "stage_s": 0.1, "commit_s": 0.05}
            return json_reply({"engines": [{"engine": 0, "workers": [worker], "still_s": 0.06}]})
        if path.endswith("/speculation"):
            self.cap = order["cap"]
            self.mode = order.get("mode") or self.mode
        return json_reply({"engines": [self.state(number) for number in range(self.cores)]})

    def state(self, number: int = 0) -> dict[str, Any]:
        return {
            "engine": number,
            "vllm": "0.32.0",
            "method": "draft_model",
            "num_speculative_tokens": 4,
            "cap": self.cap,
            "mode": self.mode,
            "at_zero": "the draft model runs once a step, to keep its cache",
            "step": 123,
            "running": 2,
            "waiting": 0,
            "opted_out": 0,
            "target_model": "/models/target",
            "draft_model": self.draft_model,
            "target_digest": self.target_digest,
            "draft_digest": self.draft_digest,
            "device": self.device,
            "events": {"sent": 5, "dropped": 0, "connected": True},
            "of a later version": 1,
        }

    def _generate(self, path: str, body: bytes) -> bytes:
        self.bodies.append(body)
        try:
            asked = json.loads(body)
        except ValueError:
            asked = None
        asked = asked if isinstance(asked, dict) else {}
        own = asked.get("vllm_xargs")
        plain = isinstance(own, dict) and own.get("speculative") is False
        if self.broken:
            return json_reply({"error": {"message": "EngineDeadError"}}, b"500 Internal Server Error")
        if plain and self.refusal is not None:
            return json_reply({"error": {"message": "vllm_xargs?"}}, self.refusal)
        drafts = self.cap != 0 and not (plain and self.obeys)
        if drafts:
            self.counting.step(self.accepts)
        self.counting.engines[0].finished += 1
        if asked.get("stream") and path.endswith("/chat/completions"):
            usage = bool((asked.get("stream_options") or {}).get("include_usage"))
            return chunked(*chat_stream(usage=usage))
        answer = {"model": "m", "usage": USAGE} | (
            {"metrics": {"speculative_decoding": self._block()}} if drafts else {}
        )
        return json_reply(answer)

    def _block(self) -> dict[str, Any]:
        steps, accepted = len(self.accepts), sum(self.accepts)
        return BLOCK | {
            "mean_acceptance_length": 1 + accepted / steps,
            "draft_acceptance_rate": accepted / (4 * steps),
            "acceptance_histogram": [self.accepts.count(j) for j in range(5)],
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": 4 * steps,
            "per_step_accepted": self.accepts,
            "per_step_drafted": [4] * steps,
        }


def error(status: bytes, message: str, code: str, param: str | None = None) -> bytes:
    """As the plugin says it."""
    return json_reply({"error": {"message": message, "type": "specwatch_engine", "param": param, "code": code}}, status)
