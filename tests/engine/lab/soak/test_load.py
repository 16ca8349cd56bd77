import asyncio
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from specwatch_engine.lab.prompts import Prompt
from specwatch_engine.lab.soak.load import Load, Phase, body, served_model
from support.scripted_engine import until
from support.steered_engine import SteeredEngine
from support.upstream import chat_stream, chunked, json_reply, replying, running


def prompt(text: str, scenario: str = "billing", **more: Any) -> Prompt:
    return Prompt(text, scenario, {"messages": [{"role": "user", "content": text}]} | more, "/v1/chat/completions")


PROMPTS = [prompt(f"number {i}") for i in range(20)]


def load(url: str = "http://127.0.0.1:1", **changes: Any) -> Load:
    options: dict[str, Any] = {"phases": [Phase(0, PROMPTS)], "rate": None, "concurrency": 2, "seed": 0}
    return Load(url=url, model="m", **options | changes)


async def sending(made: Load, enough: Callable[[], object], most_s: float = 30.0) -> float:
    """Until there is `enough`; when it began (Unix s)."""
    since = time.time()
    made.clock = lambda: since + most_s if enough() else time.time()
    await made.run(since, since + most_s)
    return since


def passes(made: Load, count: int, elapsed_s: float = 0.0) -> list[list[str]]:
    return [[made._next(elapsed_s).id for _ in PROMPTS] for _ in range(count)]


def test_every_pass_has_all_prompts_in_an_order_of_its_own() -> None:
    orders = passes(load(), 10)
    assert all(sorted(each) == sorted(prompt.id for prompt in PROMPTS) for each in orders)
    assert len({tuple(each) for each in orders}) == 10
    assert passes(load(), 10) == orders
    assert passes(load(seed=1), 10) != orders


def test_no_order_comes_again_after_a_resume() -> None:
    first = load()
    before = passes(first, 3)
    assert not {tuple(each) for each in before} & {tuple(each) for each in passes(load(passed=first.passed), 3)}


def test_prompts_change_when_it_is_time() -> None:
    made = load(phases=[Phase(0, PROMPTS), Phase(60, [prompt("later")])])
    assert made._next(59.9).id.startswith("number")
    assert made._next(60.0).id == "later"


def test_what_is_sent() -> None:
    assert body(prompt("a", max_tokens=5), "m") == {
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 5,
        "temperature": 0,
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert body(prompt("a", temperature=0.7), "m")["temperature"] == 0.7


async def test_a_rate_is_kept() -> None:
    engine = SteeredEngine()
    async with running(engine.handler) as upstream:
        made = load(upstream.url, rate=20.0, concurrency=8)
        since = await sending(made, lambda: len(engine.bodies) >= 10)
        took = time.time() - since
        heads = [head for head in upstream.heads if head.startswith(b"POST")]
    assert 10 <= len(heads) <= 20 * took
    assert b"x-scenario: billing" in heads[0]
    assert sum(sent.requests for sent in made.sent.values()) == len(heads)
    assert not any(sent.failures for sent in made.sent.values())
    assert json.loads(engine.bodies[0])["stream"] is True


async def test_so_many_are_in_flight() -> None:
    most = flying = asked = 0
    go_on = asyncio.Event()

    async def slow(upstream: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal most, flying, asked
        while True:
            await upstream.read_request(reader)
            asked, flying = asked + 1, flying + 1
            most = max(most, flying)
            await go_on.wait()
            await asyncio.sleep(0.02)
            flying -= 1
            writer.write(chunked(*chat_stream(usage=True)))

    async with running(slow) as upstream:
        made = load(upstream.url, concurrency=3)
        running_load = asyncio.ensure_future(sending(made, lambda: asked >= 12))
        now = time.time()
        await until(lambda: flying == 3)
        assert now <= made.oldest() <= time.time()
        go_on.set()
        await running_load
    assert most == 3


@pytest.mark.parametrize(("mute", "silent"), [("all", 4), ("one", 1)])
async def test_a_request_of_which_nothing_comes_is_told_from_an_engine_that_hangs(mute: str, silent: int) -> None:
    asked = 0

    async def handler(upstream: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while True:
            await upstream.read_request(reader)
            asked += 1
            if asked == 10 or (mute == "all" and asked > 10):
                await asyncio.sleep(60)
            writer.write(chunked(*chat_stream(usage=True)))

    # Goes on by one each time that it is looked at.
    clock = itertools.count(1)
    async with running(handler) as upstream:
        made = load(upstream.url, concurrency=4, clock=lambda: next(clock))
        running_load = asyncio.ensure_future(made.run(0, 500))
        await until(lambda: asked >= 13 and made.silent(1000) == silent)
        assert made.silent(0) == 0
        began = made.hangs(next(clock))
        running_load.cancel()
    assert (began is not None) is (mute == "all")


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (json_reply({}, b"502 Bad Gateway"), "status 502"),
        (json_reply({"choices": []}), "cut short"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ndata: ", "RemoteProtocolError"),
    ],
    ids=["status", "no end", "connection ends"],
)
async def test_failures_are_told_apart(reply: bytes, failure: str) -> None:
    async with running(replying(reply, close=True)) as upstream:
        made = load(upstream.url, rate=20.0)
        await sending(made, lambda: len(upstream.heads) >= 3)
    failures = [kind for sent in made.sent.values() for kind in sent.failures]
    assert set(failures) == {failure}


async def test_nobody_listens() -> None:
    made = load(rate=20.0)
    await sending(made, lambda: made.sent)
    assert made.sent
    assert all(set(sent.failures) == {"ConnectError"} for sent in made.sent.values())
    assert await served_model("http://127.0.0.1:1") is None


async def test_any_name_of_a_scenario_and_any_text_is_sent() -> None:
    engine = SteeredEngine()
    odd = [prompt("half a pair: \ud83d", "计费"), prompt("b", "two\nlines"), prompt("c", "plain")]
    async with running(engine.handler) as upstream:
        made = load(upstream.url, phases=[Phase(0, odd)], concurrency=1, rate=20.0)
        await sending(made, lambda: len(engine.bodies) >= 6)
        heads = [head for head in upstream.heads if head.startswith(b"POST")]
    assert not any(sent.failures for sent in made.sent.values())
    sent = [json.loads(each) for each in engine.bodies]
    named = {(each.get("metadata") or {}).get("scenario") for each in sent}
    assert named == {"计费", "two\nlines", None}
    assert sum(b"x-scenario: plain" in head for head in heads) == sum("metadata" not in each for each in sent)
