"""A sidecar before an engine with the plugin: fallback without a second upstream, cap and swap, by API and command."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.proxy import post
from support.scripted_engine import ScriptedEngine
from support.steered_engine import TOKEN, SteeredEngine
from support.upstream import json_reply, replying, running

from sidecar.control.engine import EngineState
from sidecar.control.facts import facts_of
from sidecar.tap.tap import Facts

from .test_app import Process, run, sidecar

BODY = b'{"model":"m"}'
ASKED = b'{"model":"m","vllm_xargs":{"speculative":false}}'


async def put(made: Process, path: str, body: object) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.put(f"{made.admin}/api/v1/{path}", json=body)


async def come(found: Callable[[], Awaitable[Any]]) -> Any:
    """What `found` gives once that is something."""
    for _ in range(400):
        if value := await found():
            return value
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come")


async def can_fall_back(made: Process) -> Any:
    return (await made.get("/api/v1/fallback")).json()["can_fall_back"]


async def history(made: Process, count: int) -> list[dict[str, Any]]:
    """The newest first, once there are so many."""

    async def found() -> Any:
        rows = (await made.get("/api/v1/fallback")).json()["history"]
        return rows if len(rows) >= count else None

    return await come(found)  # type: ignore[no-any-return]


async def row(made: Process, count: int) -> dict[str, Any]:
    """The newest, once there are so many."""

    async def found() -> Any:
        rows = (await made.get("/api/v1/requests")).json().get("requests", [])
        return rows[0] if len(rows) == count else None

    return await come(found)  # type: ignore[no-any-return]


async def test_one_engine_falls_back_by_what_requests_ask_for(tmp_path: Path) -> None:
    engine = SteeredEngine()
    environment = {"SPECWATCH_ENGINE_TOKEN": TOKEN, "SPECWATCH_BASELINE_SHARE": "0"}
    async with running(engine.handler) as server:
        async with sidecar(tmp_path, server.url, "--draft-model", "mine", **environment) as made:
            await come(lambda: can_fall_back(made))
            assert b"x-specwatch-arm: speculative" in await made.exchange(post(BODY))
            assert (await made.put({"mode": "autoregressive", "reason": "drill"})).status_code == 200
            assert b"x-specwatch-arm: autoregressive" in await made.exchange(post(BODY))
            assert engine.bodies == [BODY, ASKED]
            found = await row(made, 2)
            assert (found["arm"], found["upstream"], found["draft_tokens"]) == ("autoregressive", "speculative", None)
            assert found["fingerprint"] == "vllm 0.32.0, draft draft_a, k=4"
            assert 'specwatch_fallback_state{state="autoregressive"} 1.0' in (await made.get("/metrics")).text

            answer = await put(made, "engine", {"cap": 2, "reason": "crowded"})
            assert (answer.status_code, answer.json()["cores"][0]["cap"]) == (200, 2)
            newest = (await history(made, 2))[0]
            assert (newest["from_state"], newest["to_state"]) == ("autoregressive", "autoregressive")
            assert (newest["mode"], newest["reason"]) == ("autoregressive", "draft tokens capped at 2 (hard): crowded")
            reason = (await made.get("/api/v1/fallback")).json()["reason"]
            assert reason == "drill (the engine's cap is 2: at most 2 tokens are drafted)"
            await made.exchange(post(BODY))
            assert (await row(made, 3))["fingerprint"] == "vllm 0.32.0, draft draft_a, k=4, cap 2"

            engine.obeys = False
            await made.exchange(post(BODY))
            assert (await row(made, 4))["arm"] == "speculative"
            assert "specwatch_opt_out_ineffective_total 1.0" in (await made.get("/metrics")).text
            said = await made.stop()
            assert TOKEN not in said
        engine.obeys = True
        async with sidecar(tmp_path, server.url, **environment) as made:

            async def in_force() -> Any:
                state = (await made.get("/api/v1/fallback")).json()
                return state if state["state"] == "autoregressive" else None

            # The order, and not the change of the cap after it.
            assert (await come(in_force))["reason"].startswith("drill")
            assert b"x-specwatch-arm: autoregressive" in await made.exchange(post(BODY))
            engine.has_route = False
            await made.get("/api/v1/engine")
            assert b"x-specwatch-arm: speculative" in await made.exchange(post(BODY))
            state = (await made.get("/api/v1/fallback")).json()
            assert (state["mode"], state["state"], state["can_fall_back"]) == ("autoregressive", "speculative", False)
            assert state["reason"].startswith("drill (not in force: no autoregressive upstream")
            engine.has_route = True
            await made.get("/api/v1/engine")
            assert b"x-specwatch-arm: autoregressive" in await made.exchange(post(BODY))
            await made.stop()


async def test_a_core_that_tells_its_events_is_known_to_have_the_plugin(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    engine = SteeredEngine()
    async with running(engine.handler) as server:
        async with sidecar(tmp_path, server.url, SPECWATCH_ENGINE_EVENTS=str(path)) as made:
            assert (await made.put({"mode": "autoregressive"})).status_code == 409
            core = ScriptedEngine(path)
            await come(lambda: can_fall_back(made))
            assert (await made.put({"mode": "autoregressive"})).status_code == 200
            assert b"x-specwatch-arm: autoregressive" in await made.exchange(post(BODY))
            core.close()

            async def gone() -> bool:
                return not await can_fall_back(made)

            await come(gone)
            assert b"x-specwatch-arm: speculative" in await made.exchange(post(BODY))
            refused = await put(made, "engine", {"cap": 2})
            assert refused.status_code == 409
            assert "engine_token is not set here" in refused.json()["error"]["message"]
            await made.stop()
    assert engine.bodies == [ASKED, BODY]


async def test_a_small_share_is_a_baseline(tmp_path: Path) -> None:
    engine = SteeredEngine()
    environment = {"SPECWATCH_ENGINE_TOKEN": TOKEN, "SPECWATCH_BASELINE_SHARE": "0.5"}
    async with running(engine.handler) as server, sidecar(tmp_path, server.url, **environment) as made:
        await come(lambda: can_fall_back(made))
        for _ in range(40):
            await made.exchange(post(BODY))
        await row(made, 40)
        rows = (await made.get("/api/v1/requests?limit=40")).json()["requests"]
        assert {each["arm"] for each in rows} == {"baseline", "speculative"}
        assert sum(each["arm"] == "baseline" for each in rows) == engine.bodies.count(ASKED)
        await made.stop()


async def test_the_api_tells_of_every_engine_and_passes_orders_on(tmp_path: Path) -> None:
    engine, plain = SteeredEngine(), replying(json_reply({}, b"404 Not Found"))
    async with running(engine.handler) as server, running(plain) as second:
        flags = ("--fallback-upstream", second.url)
        async with sidecar(tmp_path, server.url, *flags, SPECWATCH_ENGINE_TOKEN=TOKEN) as made:
            first, other = (await made.get("/api/v1/engine")).json()["engines"]
            state = engine.state()
            state.pop("of a later version")
            assert first == {"upstream": "speculative", "reachable": True, "reason": None, "cores": [state]}
            assert (other["upstream"], other["reachable"], other["cores"]) == ("autoregressive", False, [])
            assert "is no vLLM" in other["reason"]

            answer = await put(made, "engine/draft", {"checkpoint": "/models/draft_b", "reason": "better"})
            assert answer.json() == {
                "upstream": "speculative",
                "checkpoint": "/models/draft_b",
                "cores": [
                    {
                        "engine": 0,
                        "workers": [{"before": "aa", "after": "bb", "stage_s": 0.1, "commit_s": 0.05}],
                        "still_s": 0.06,
                    }
                ],
            }
            assert (await history(made, 1))[0]["reason"] == "draft model swapped for /models/draft_b: better"
            await made.exchange(post(BODY))
            found = await row(made, 1)
            assert (found["draft_model"], "draft draft_b" in found["fingerprint"]) == ("draft_b", True)

            for path, body, status, param in (
                ("engine", {}, 422, "cap"),
                ("engine", {"cap": -1}, 422, "cap"),
                ("engine", {"cap": True}, 422, "cap"),
                ("engine", {"cap": "2"}, 422, "cap"),
                ("engine", {"cap": 2, "mode": "warm"}, 422, "mode"),
                ("engine", {"cap": 2, "caps": 2}, 422, "caps"),
                ("engine/draft", {}, 422, "checkpoint"),
                ("engine/draft", {"checkpoint": ""}, 422, "checkpoint"),
            ):
                refused = await put(made, path, body)
                assert (refused.status_code, refused.json()["error"]["param"]) == (status, param), refused.text
            engine.refuses = "cap: must be null (the engine's default) or a whole number from 0 to 4"
            refused = (await put(made, "engine", {"cap": 9})).json()["error"]
            assert refused == {
                "message": engine.refuses,
                "type": "invalid_request_error",
                "param": "cap",
                "code": "refused",
            }
            engine.refuses = ""
            engine.has_route = False
            answer = await put(made, "engine", {"cap": None})
            assert (answer.status_code, answer.json()["error"]["type"]) == (502, "specwatch_engine_unavailable")
            assert "has no control route" in answer.json()["error"]["message"]
            assert len((await made.get("/api/v1/fallback")).json()["history"]) == 1
            await made.stop()


async def test_commands(tmp_path: Path) -> None:
    engine = SteeredEngine()
    async with running(engine.handler) as server:
        async with sidecar(tmp_path, server.url, SPECWATCH_ENGINE_TOKEN=TOKEN) as made:
            admin = made.admin.removeprefix("http://")

            async def command(*arguments: str) -> tuple[int, str]:
                code, said = await run(*arguments, SPECWATCH_ADMIN=admin)
                return code, " ".join(said.split())

            await come(lambda: can_fall_back(made))
            code, said = await command("cap", "0", "--mode", "soft", "--reason", "drill")
            assert (code, said) == (
                0,
                f"engine 0 capped at 0 of 4 draft tokens a step (mode soft): {engine.state()['at_zero']}",
            )
            assert b"x-specwatch-arm: autoregressive" in await made.exchange(post(BODY))
            assert engine.bodies == [BODY]
            code, said = await command("status")
            assert (code, "engine, speculative capped at 0 of 4 draft tokens a step (mode soft)" in said) == (0, True)
            code, said = await command("status", "--json")
            assert json.loads(said)["engines"][0]["cores"][0]["cap"] == 0
            code, said = await command("cap", "default", "--json")
            assert (code, json.loads(said)["cores"][0]["cap"]) == (0, None)
            assert (await command("cap", "default"))[
                1
            ] == "engine 0 drafts up to 4 tokens a step, as configured (mode soft)"
            code, said = await command("swap", "/models/draft_b")
            assert (code, said) == (0, "engine 0 drafts with /models/draft_b; it stood still 0.06 s")
            code, said = await command("swap", "relative", "--json")
            assert json.loads(said)["checkpoint"] == f"{os.getcwd()}/relative"
            assert (await command("fallback", "autoregressive"))[0] == 0
            rows = await history(made, 6)
            assert rows[0]["reason"] == "specwatch fallback"
            assert rows[-1]["reason"] == "draft tokens capped at 0 (soft): drill"
            for wrong in (("cap", "few"), ("cap", "-1"), ("cap",), ("cap", "2", "--mode", "warm"), ("swap",)):
                assert (await command(*wrong))[0] == 2, wrong
            engine.refuses = "checkpoint: its weights have another shape"
            code, said = await command("swap", "/models/draft_c")
            assert (code, engine.refuses in said) == (1, True)
            await made.stop()
        code, said = await run("cap", "2", SPECWATCH_ADMIN=admin)
        assert (code, "no sidecar answers" in said) == (1, True)


@pytest.mark.parametrize(
    ("version", "configured", "engines", "fingerprint", "drafts_nothing"),
    [
        (None, Facts(), [], None, False),
        ("0.32.0", Facts("d", 4), [], "vllm 0.32.0, draft d, k=4", False),
        ("0.32.0", Facts("d", 4), [EngineState(0)], "vllm 0.32.0, draft d, k=4", False),
        (
            None,
            Facts("d", 4),
            [EngineState(0, 0, method="m", draft_model="/x/e", num_speculative_tokens=5)],
            "draft e, k=5, cap 0",
            True,
        ),
        (None, Facts(), [EngineState(0, 2), EngineState(1, 2)], "cap 2", False),
        (None, Facts(), [EngineState(0, 0), EngineState(1)], "cap 0", False),
    ],
)
def test_fingerprints(
    version: str | None, configured: Facts, engines: list[EngineState], fingerprint: str | None, drafts_nothing: bool
) -> None:
    found = facts_of(version, configured, engines)
    assert (found.fingerprint, found.drafts_nothing) == (fingerprint, drafts_nothing)
