"""An engine whose draft is good at one scenario and bad at another, and prompts for it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.steered_engine import SteeredEngine
from support.upstream import BLOCK, DONE, Upstream, chat_chunk, chunked, event

K = 4
#: Accepted draft tokens of each verify step, of 4 drafted.
ACCEPTED = {"billing": [4, 3, 4, 4, 2, 4], "faults": [0, 1, 0, 2, 0, 1]}
#: What a step takes, s: a target step, and a draft token more.
TARGET_S, DRAFT_S = 0.0005, 0.0001


class Drafting(SteeredEngine):
    """Takes time as a pair of models does, obeys caps and opt-outs, and is `broken` for the prompts in `fails`."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: set[str] = set()
        #: Whether it fails those that opt out of speculation.
        self.refuses_plain = False
        #: What it says with speculation, where that is another text.
        self.says: dict[str, str] = {}
        #: Whether replies tell how many tokens were drafted.
        self.tells = True
        self.asked: list[tuple[str, bool]] = []
        #: Of each request: max_tokens, and (cap, mode) then.
        self.limits: list[tuple[int | None, tuple[int | None, str]]] = []

    async def handler(self, upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await upstream.read_request(reader)
            method, path, _ = upstream.heads[-1].decode().split(" ", 2)
            if path != "/v1/chat/completions":
                writer.write(self._answer(method, path, upstream.heads[-1], body))
                await writer.drain()
                continue
            asked = json.loads(body)
            text, scenario = asked["messages"][0]["content"], asked["messages"][0]["name"]
            out = (asked.get("vllm_xargs") or {}).get("speculative") is False
            plain = out or self.cap == 0
            self.asked.append((text, plain))
            self.limits.append((asked.get("max_tokens"), (self.cap, self.mode)))
            if text in self.fails or (out and self.refuses_plain):
                writer.write(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
                continue
            k = 0 if plain else K if self.cap is None else self.cap
            # No two prompts are quite alike.
            accepts = [min(each, k) for each in ACCEPTED[scenario][: 4 + len(text) % 3]] * (1 + int(text[1:]) % 2)
            steps = [each + 1 for each in accepts] if k else [1] * 20
            said = text if plain else self.says.get(text, text)
            first, *rest = chunked(
                chat_chunk({"role": "assistant", "content": ""}),
                chat_chunk({"content": said[:1]}),
                chat_chunk({"content": said[1:]}, "stop"),
                usage(1 + sum(steps), accepts, k if self.tells else 0),
                DONE,
            ).split(b"data: ")
            writer.write(first + b"data: ".join([b"", *rest[:2], b""]))
            await writer.drain()
            await asyncio.sleep(len(steps) * (TARGET_S + k * DRAFT_S))
            writer.write(b"data: ".join(rest[2:]))
            await writer.drain()


def usage(tokens: int, accepts: list[int], k: int) -> bytes:
    block: dict[str, Any] = BLOCK | {
        "mean_acceptance_length": 1 + sum(accepts) / len(accepts),
        "draft_acceptance_rate": sum(accepts) / (k * len(accepts)) if k else 0.0,
        "acceptance_histogram": [accepts.count(j) for j in range(K + 1)],
        "num_spec_steps": len(accepts),
        "num_accepted_draft_tokens": sum(accepts),
        "num_draft_tokens": k * len(accepts),
        "per_step_accepted": accepts,
        "per_step_drafted": [k] * len(accepts),
    }
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [],
            "usage": {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens},
            "metrics": {"speculative_decoding": block} if k else {},
        }
    )


@pytest.fixture
def drafting() -> Drafting:
    return Drafting()


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    """120 prompts, three quarters of them of the good scenario."""
    rows = []
    for i in range(120):
        scenario = "faults" if i % 4 == 0 else "billing"
        message = {"role": "user", "name": scenario, "content": f"q{i}"}
        rows.append({"custom_id": f"p{i}", "scenario": scenario, "messages": [message], "max_tokens": 64})
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
