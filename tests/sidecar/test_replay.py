"""Requests that are sent twice more, and what is compared of them.

C27 only the same prompt and parameters are compared; where replies part is told.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.scripted_engine import until
from support.upstream import chunked, json_reply, running
from support.way import answering, chat, way

from sidecar.probes.similarity import Kind
from sidecar.relay.http1 import RequestHead
from sidecar.replay import Replays, Ways, bodies
from sidecar.similarity import Pair
from sidecar.tap.request import read_request
from sidecar.tasks import Tasks

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "你好"}]}


def reply(text: str | None, name: str = "chatcmpl-x") -> bytes:
    return json_reply({"id": name, "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]})


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({}, {"max_tokens": 512}),
        (
            {"temperature": 0.9, "seed": 12345678901234567890, "max_tokens": 80},
            {"max_tokens": 80, "seed": 12345678901234567890},
        ),
        ({"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 9000}, {"max_tokens": 512}),
        ({"max_completion_tokens": None}, {"max_completion_tokens": 512}),
        ({"vllm_xargs": {"a": 1}}, {"max_tokens": 512, "vllm_xargs": {"a": 1}}),
    ],
)
def test_c27_both_are_the_same_request_but_for_the_speculation(asked: dict[str, Any], sent: dict[str, Any]) -> None:
    expected = BODY | {"stream": False, "temperature": 0} | sent
    body = json.dumps(BODY | asked).encode()
    assert [json.loads(each) for each in bodies(body, opt_out=False)] == [expected, expected]
    first, second = (json.loads(each) for each in bodies(body, opt_out=True))
    assert first == expected
    assert second == expected | {"vllm_xargs": asked.get("vllm_xargs", {}) | {"speculative": False}}


class Made:
    def __init__(self, *urls: str, share: float = 1.0, per_minute: float = 6000) -> None:
        self.tasks = Tasks()
        self.pairs: list[Pair] = []
        self.in_flight = 1
        self.ways: Ways | None = Ways(urls[0], urls[-1], opt_out=len(urls) == 1)
        self.client = httpx.AsyncClient(trust_env=False)
        self.replays = Replays(
            share,
            per_minute,
            self.client,
            ways=lambda: self.ways,
            in_flight=lambda: self.in_flight,
            spawn=self.tasks.spawn,
            done=self.pairs.append,
        )

    def sample(
        self,
        body: object = BODY,
        endpoint: str = "chat_completions",
        fields: bytes = b"",
        path: bytes = b"/v1/chat/completions",
    ) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = RequestHead(b"POST " + path + b" HTTP/1.1\r\nHost: h\r\n" + fields + b"\r\n")
        request = read_request(raw)
        assert request is not None
        self.replays.sample(endpoint, head, request, raw, "billing")

    async def idle(self) -> None:
        await until(lambda: not self.replays._busy)

    async def close(self) -> None:
        await self.tasks.close()
        await self.client.aclose()
        assert self.tasks.failed == []


async def test_two_replies_are_a_pair() -> None:
    async with running(answering(reply("a \ud800"))) as first, running(answering(reply("b"))) as second:
        made = Made(first.url, second.url)
        made.sample(fields=b"Authorization: Bearer k\xe9y\r\nX-Other: 1\r\n")
        await until(lambda: made.pairs)
        (pair,) = made.pairs
        assert (pair.kind, pair.request_id, pair.scenario) == (Kind.REPLAY, "chatcmpl-x", "billing")
        assert pair.read() == ("a ?", "b", None)
        for upstream in (first, second):
            (head,) = upstream.heads
            assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
            assert b"bearer k\xe9y" in head.lower()
            assert b"x-other" not in head.lower()
        await made.close()


@pytest.mark.parametrize(
    ("name", "change", "sample"),
    [
        ("another endpoint", {}, {"endpoint": "completions"}),
        ("several replies", {}, {"body": BODY | {"n": 2}}),
        ("opted out by itself", {}, {"body": BODY | {"vllm_xargs": {"speculative": False}}}),
        ("too long", {}, {"body": BODY | {"x": "x" * 70_000}}),
        ("another host", {}, {"path": b"@example.org/chat/completions"}),
        ("another port", {}, {"path": b"1/chat/completions"}),
        ("no way", {"ways": None}, {}),
        ("too busy", {"in_flight": 9}, {}),
    ],
)
async def test_what_is_not_replayed(name: str, change: dict[str, Any], sample: dict[str, Any]) -> None:
    made = Made("http://127.0.0.1:1")
    for each, value in change.items():
        setattr(made, each, value)
    made.sample(**sample)
    assert not made.replays._busy, name
    await made.close()


async def test_one_at_a_time_and_within_the_budget() -> None:
    async with running(answering(reply("a"))) as upstream:
        made = Made(upstream.url, per_minute=12)
        for _ in range(5):
            made.sample()
        await until(lambda: made.pairs)
        assert len(upstream.bodies) == 2
        assert json.loads(upstream.bodies[1])["vllm_xargs"] == {"speculative": False}
        for _ in range(5):
            await made.idle()
            made.sample()
        await made.idle()
        assert len(made.pairs) == 2, "ten seconds' worth"
        await made.close()


@pytest.mark.parametrize(
    "answer",
    [
        json_reply({"error": "no"}, b"400 Bad Request"),
        json_reply({"id": "x", "choices": []}),
        json_reply([1]),
        reply(None),
        reply(""),
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nnot",
        b"nonsense\r\n\r\n",
    ],
)
async def test_an_upstream_that_does_not_answer_is_no_pair(answer: bytes) -> None:
    async with running(answering(answer)) as upstream:
        made = Made(upstream.url)
        made.sample()
        await made.idle()
        assert (made.pairs, made.tasks.failed) == ([], [])
        await made.close()


async def test_the_whole_way(tmp_path: Path) -> None:
    def served(body: bytes) -> bytes:
        asked = json.loads(body)
        if asked.get("stream"):
            return chunked(*chat("chatcmpl-a"))
        return reply("The bill is 43.50 euros." if "vllm_xargs" in asked else "The bill is 38.50 euros.", "chatcmpl-r")

    options: dict[str, Any] = {
        "similarity": "universal-sentence-encoder",
        "similarity_share": 0.0,
        "replay_share": 1.0,
        "scenarios": ["billing"],
    }
    async with way(tmp_path, answering(served), **options) as made:
        answer = await made.ask(BODY | {"stream": True}, extra=b"x-scenario: billing\r\n")
        assert answer.count(b"data: ") == 4
        recorder = made.sidecar.recorder
        await until(lambda: recorder.similarity.state()["replay"]["pairs"] == 1, 60)
        assert len(made.records) == 1, "a replay is no request of a client"
        assert recorder.similarity.state()["replay_equal"] == 0.0
        assert recorder.similarity.count == 0


async def test_nothing_is_replayed_while_nothing_is_to_be_drafted(tmp_path: Path) -> None:
    async with way(tmp_path, answering(reply("a")), similarity="universal-sentence-encoder", replay_share=1.0) as made:
        recorder = made.sidecar.recorder
        recorder.controller.set_mode("autoregressive", "test")
        assert recorder._replay_ways() is None
        await made.ask(BODY)
        await made.record()
        assert len([head for head in made.upstream.heads if head.startswith(b"POST")]) == 1
