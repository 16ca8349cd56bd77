import asyncio
import json

import pytest
from specwatch_engine.lab.control import Control, ControlError, limit_of, token
from support.steered_engine import TOKEN, SteeredEngine
from support.upstream import json_reply, replying, running


async def test_the_cap_is_set_and_given_back() -> None:
    engine = SteeredEngine()
    async with running(engine.handler) as upstream:
        control = Control(upstream.url + "/", TOKEN)
        assert await asyncio.to_thread(control.in_force) == 4
        await asyncio.to_thread(control.cap, 2)
        assert (engine.cap, engine.mode) == (2, "hard")
        assert await asyncio.to_thread(control.in_force) == 2
        await asyncio.to_thread(control.cap, 0, "soft")
        assert (engine.cap, engine.mode) == (0, "soft")
        await asyncio.to_thread(control.cap, None)
        assert engine.orders[-1] == ("/specwatch/v1/speculation", {"cap": None})
        (state,) = await asyncio.to_thread(control.state)
        assert (state["vllm"], state["draft_model"]) == ("0.32.0", "/models/draft_a")


async def test_all_cores_must_obey() -> None:
    engine = SteeredEngine()
    engine.cores = 2
    state = engine.state

    def stubborn(number: int = 0) -> dict[str, object]:
        return state(number) | ({"cap": 3} if number else {})

    engine.state = stubborn  # type: ignore[method-assign]
    async with running(engine.handler) as upstream:
        control = Control(upstream.url, TOKEN)
        with pytest.raises(ControlError, match=r"core 1 .* has a cap of 3, not 1"):
            await asyncio.to_thread(control.cap, 1)
        assert await asyncio.to_thread(control.in_force) == 1


@pytest.mark.parametrize(
    ("change", "given", "code", "words"),
    [
        ({}, None, "no_token", "SPECWATCH_ENGINE_TOKEN is not set here: set it"),
        ({}, "wrong", "unauthorized", "another SPECWATCH_ENGINE_TOKEN than is set here: set it"),
        ({"has_route": False}, TOKEN, "no_plugin", "answered GET .* with 404, .*: start it with `specwatch engine`"),
        ({"stands_down": "the plugin has failed"}, TOKEN, "refused", "refuses: the plugin has failed"),
    ],
)
async def test_what_stands_in_the_way_is_said(
    change: dict[str, object], given: str | None, code: str, words: str
) -> None:
    engine = SteeredEngine()
    for name, value in change.items():
        setattr(engine, name, value)
    async with running(engine.handler) as upstream:
        control = Control(upstream.url, given)
        with pytest.raises(ControlError, match=words) as raised:
            await asyncio.to_thread(control.state)
        assert raised.value.code == code


async def test_a_refused_cap_is_in_the_plugins_words() -> None:
    engine = SteeredEngine()
    engine.refuses = "cap: must be a whole number from 0 to 4"
    async with running(engine.handler) as upstream:
        with pytest.raises(ControlError, match="refuses: cap: must be a whole number from 0 to 4"):
            await asyncio.to_thread(Control(upstream.url, TOKEN).cap, 9)


@pytest.mark.parametrize(
    "reply",
    [
        json_reply([]),
        json_reply({"engines": []}),
        json_reply({"engines": 3}),
        json_reply({"detail": "Not Found"}, b"404 Not Found"),
        json_reply({"error": {"message": "x", "type": "specwatch_engine"}}, b"403 Forbidden"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnope",
        b"nonsense\r\n\r\n",
    ],
)
async def test_foreign_answers_are_errors_with_words(reply: bytes) -> None:
    async with running(replying(reply, close=True)) as upstream:
        with pytest.raises(ControlError) as raised:
            await asyncio.to_thread(Control(upstream.url, TOKEN).state)
        assert upstream.url in str(raised.value)


async def test_nothing_that_answers_is_unreachable() -> None:
    async with running(replying(b"")) as upstream:
        url = upstream.url
    with pytest.raises(ControlError, match="does not answer") as raised:
        await asyncio.to_thread(Control(url, TOKEN).state)
    assert raised.value.code == "unreachable"


@pytest.mark.parametrize(
    ("state", "limit"),
    [
        ({"method": "draft_model", "cap": None, "num_speculative_tokens": 4}, 4),
        ({"method": "draft_model", "cap": 0, "num_speculative_tokens": 4}, 0),
        ({"method": None, "num_speculative_tokens": None}, 0),
        ({"method": "draft_model", "cap": None}, None),
    ],
)
def test_how_much_may_be_drafted(state: dict[str, object], limit: int | None) -> None:
    assert limit_of(json.loads(json.dumps(state))) == limit


def test_an_empty_token_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECWATCH_ENGINE_TOKEN", "")
    assert token() is None
    monkeypatch.setenv("SPECWATCH_ENGINE_TOKEN", "t")
    assert token() == "t"
