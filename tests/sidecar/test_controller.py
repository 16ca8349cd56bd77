"""Falling back by itself, seen from outside: what clients get and the engine is told, rows, API, metrics. C07, C08.

The engine is scripted; real servers, a real sidecar, a real database.
"""

import asyncio
import json
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.chain import free_ports
from support.proxy import post
from support.steered_engine import TOKEN, SteeredEngine
from support.traffic import accepting
from support.upstream import running

from sidecar.control.circuit import Readings
from sidecar.controller import Controller
from sidecar.settings import Settings

from .test_app import Process, sidecar
from .test_steering import can_fall_back, come

BODY = b'{"model":"m","temperature":0}'
GOOD, BAD = [4, 4, 4, 3], [1, 0, 2, 0]
QUICK = {
    "SPECWATCH_BASELINE_SHARE": "0",
    "SPECWATCH_FALLBACK_WINDOW": "20",
    "SPECWATCH_FALLBACK_MIN_DRAFT_TOKENS": "50",
    "SPECWATCH_FALLBACK_DWELL_S": "1.5",
    "SPECWATCH_FALLBACK_PROBES": "5",
    "SPECWATCH_FALLBACK_PROBE_SHARE": "0.5",
    "SPECWATCH_COUNTERS_EVERY_S": "0.2",
    "SPECWATCH_ENGINE_TOKEN": TOKEN,
}


async def ask(made: Process, count: int = 1, body: bytes = BODY, scenario: str = "chat") -> Counter[str]:
    """So many requests, one after the other; how they were served, by the header of each reply."""
    arms: Counter[str] = Counter()
    for _ in range(count):
        answer = await made.exchange(post(body, extra=f"X-Scenario: {scenario}\r\n".encode()))
        assert answer.startswith(b"HTTP/1.1 200"), answer
        (arm,) = (line for line in answer.split(b"\r\n") if line.startswith(b"x-specwatch-arm: "))
        arms[arm.partition(b": ")[2].decode()] += 1
    return arms


async def state(made: Process) -> dict[str, Any]:
    return dict((await made.get("/api/v1/fallback")).json())


async def reaches(made: Process, wanted: str) -> dict[str, Any]:
    async def found() -> Any:
        now = await state(made)
        return now if now["state"] == wanted else None

    return dict(await come(found))


@pytest.mark.parametrize("actuator", ["opt_out", "upstream", "cap"])
async def test_it_falls_back_probes_and_returns(tmp_path: Path, actuator: str) -> None:
    engine, plain = SteeredEngine(), SteeredEngine()
    plain.cap, plain.counting.speculates = 0, False
    environment = QUICK | {"SPECWATCH_FALLBACK_ACTUATOR": actuator}
    async with running(engine.handler) as server, running(plain.handler) as other:
        flags = ("--fallback-upstream", other.url) if actuator == "upstream" else ()
        async with sidecar(tmp_path, server.url, *flags, **environment) as made:
            await come(lambda: can_fall_back(made))
            engine.accepts = GOOD
            assert await ask(made, 20) == {"speculative": 20}
            engine.accepts = BAD
            served = await ask(made, 30)
            assert served["autoregressive"] > 0
            found = await state(made)
            assert (found["mode"], found["state"], found["trigger"]) == ("auto", "autoregressive", "acceptance")
            assert found["evidence"]["p"] < 0.65
            assert found["evidence"]["k"] == 4
            assert f"p {found['evidence']['p']:.3f} over the last" in found["reason"]
            if actuator == "cap":
                await come(lambda: nothing(engine.cap == 0))
            # Bad probes do not bring it back, and the next dwell is longer.
            await reaches(made, "probing")
            await ask(made, 30)
            found = await state(made)
            assert (found["state"], found["evidence"]["dwell_s"]) == ("autoregressive", 3.0)
            engine.accepts = GOOD
            await reaches(made, "probing")
            served = await ask(made, 60)
            assert 5 <= served["probe"] < 40
            await reaches(made, "speculative")
            assert await ask(made, 5) == {"speculative": 5}
            if actuator == "cap":
                await come(lambda: nothing(engine.cap is None))

            async def told() -> Any:
                history = (await state(made))["history"][::-1]
                rows = [each for each in history if each["trigger"] != "engine"]
                return (
                    [(each["from_state"], each["to_state"], each["trigger"]) for each in rows]
                    if len(rows) > 4
                    else None
                )

            assert await come(told) == [
                ("speculative", "autoregressive", "acceptance"),
                ("autoregressive", "probing", "dwell"),
                ("probing", "autoregressive", "probes"),
                ("autoregressive", "probing", "dwell"),
                ("probing", "speculative", "probes"),
            ]
            metrics = (await made.get("/metrics")).text
            counted = (
                'specwatch_fallback_transitions_total{from="speculative",reason="acceptance",to="autoregressive"} 1.0'
            )
            assert counted in metrics
            said = await made.stop()
            assert "all traffic: autoregressive after speculative (acceptance): p 0." in said
    if actuator != "upstream":
        plain_bodies = [json.loads(body) for body in engine.bodies if b"vllm_xargs" in body]
        assert all(body["vllm_xargs"] == {"speculative": False} for body in plain_bodies)


async def nothing(value: bool) -> bool:
    return value


async def test_one_slice_alone_and_over_a_restart(tmp_path: Path) -> None:
    engine = SteeredEngine()
    environment = QUICK | {
        "SPECWATCH_FALLBACK_SLICES": '["scenario","temperature"]',
        "SPECWATCH_FALLBACK_DWELL_S": "60",
        "SPECWATCH_FALLBACK_WINDOW": "40",
    }
    hot = b'{"model":"m","temperature":1.3}'
    async with running(engine.handler) as server:
        async with sidecar(tmp_path, server.url, **environment) as made:
            await come(lambda: can_fall_back(made))
            engine.accepts = GOOD
            await ask(made, 30)
            engine.accepts = BAD
            await ask(made, 12, hot)
            await asyncio.sleep(0.05)
            found = await state(made)
            assert (found["state"], [each["slice"] for each in found["slices"]]) == ("speculative", ["temperature=>1"])
            assert found["slices"][0]["state"] == "autoregressive"
            engine.accepts = GOOD
            assert await ask(made, 5, hot) == {"autoregressive": 5}
            assert await ask(made, 5) == {"speculative": 5}
            assert await ask(made, 5, scenario="other") == {"speculative": 5}
            await made.stop()
        async with sidecar(tmp_path, server.url, **environment) as made:
            await come(lambda: can_fall_back(made))
            found = await state(made)
            assert [each["slice"] for each in found["slices"]] == ["temperature=>1"]
            assert found["since"] > found["slices"][0]["since"]
            assert await ask(made, 3, hot) == {"autoregressive": 3}
            assert await ask(made, 3) == {"speculative": 3}
            # An operator's order wins over it, and ends it.
            assert (await made.put({"mode": "speculative", "reason": "we look at it"})).status_code == 200
            assert await ask(made, 3, hot) == {"speculative": 3}
            assert (await made.put({"mode": "auto", "reason": "seen"})).status_code == 200
            assert (await state(made))["slices"] == []


async def test_no_cap_is_left_behind(tmp_path: Path) -> None:
    engine = SteeredEngine()
    engine.accepts = BAD
    environment = QUICK | {"SPECWATCH_FALLBACK_ACTUATOR": "cap", "SPECWATCH_FALLBACK_DWELL_S": "60"}
    async with running(engine.handler) as server:
        async with sidecar(tmp_path, server.url, **environment) as made:
            await come(lambda: can_fall_back(made))
            await ask(made, 30)
            await come(lambda: nothing(engine.cap == 0))
            await made.stop()
            assert engine.cap is None
        # The next one goes on with it, and is killed...
        async with sidecar(tmp_path, server.url, **environment):
            await come(lambda: nothing(engine.cap == 0))
            await asyncio.sleep(0.2)
        assert engine.cap == 0
        # ... so that the one after it, for which the dwell is over, takes it away.
        async with sidecar(tmp_path, server.url, **environment | {"SPECWATCH_FALLBACK_DWELL_S": "0.1"}) as made:
            await reaches(made, "probing")
            await come(lambda: nothing(engine.cap is None))


async def test_an_operators_cap_of_0_stays(tmp_path: Path) -> None:
    engine = SteeredEngine()
    engine.cap = 0
    async with running(engine.handler) as server:
        async with sidecar(tmp_path, server.url, SPECWATCH_FALLBACK_ACTUATOR="cap", **QUICK) as made:
            await come(lambda: can_fall_back(made))
            for mode in ("autoregressive", "auto"):
                assert (await made.put({"mode": mode})).status_code == 200
                await asyncio.sleep(2.2)
            await made.stop()
    assert (engine.cap, engine.orders) == (0, [])


class Parts:
    """A controller without servers: `rows` are what the database has."""

    def __init__(self, *rows: dict[str, Any], **settings: Any) -> None:
        self.forgot = 0
        #: Whether a request is under way that may be drafted for.
        self.speculates = False
        self.put: list[Any] = []
        #: Monotonic times since which drafted tokens were asked for.
        self.asked: list[float] = []
        parts: Any = SimpleNamespace(
            put_transition=self.put.append,
            last_decisions=lambda instance: rows,
            transition=lambda *labels: None,
            cap=None,
        )
        self.controller = Controller(
            Settings(instance="here", **settings),
            *(parts, parts, parts, parts),
            can_fall_back=lambda: True,
            outage=lambda: None,
            readings=Readings,
            forget=self._forget,
            drafted_since=self._drafted_since,
            speculates=lambda upstream: self.speculates,
            plain_upstream="speculative",
        )

    def _forget(self) -> None:
        self.forgot += 1

    def _drafted_since(self, upstream: str, monotonic: float) -> int | None:
        self.asked.append(monotonic)
        return 7

    def serve(self, count: int, p: float) -> None:
        for _ in range(count):
            self.controller.add(accepting(p, started_at=time.time()))


def told(state: str, trigger: str = "operator", **fields: Any) -> dict[str, Any]:
    decided = {"mode": "auto", "from_state": "speculative", "to_state": state, "trigger": trigger}
    return decided | {"slice": "", "reason": "r", "evidence": None, "at": datetime(2026, 1, 1, tzinfo=UTC)} | fields


async def test_an_order_from_before_wins_over_what_was_decided_until_the_database_came() -> None:
    parts = Parts(told("speculative", mode="speculative"))
    parts.serve(100, 0.3)
    assert parts.controller.state().state == "autoregressive"
    await parts.controller.restore()
    state = parts.controller.state()
    assert (state.mode, state.state, state.reason) == ("speculative", "speculative", "r")
    # What a circuit decided before does not: that is newer.
    parts = Parts(told("speculative", "probes"))
    parts.serve(100, 0.3)
    await parts.controller.restore()
    assert parts.controller.state().state == "autoregressive"


async def test_rows_of_a_later_version_are_left_out() -> None:
    parts = Parts(told("autoregressive", "acceptance"), told("autoregressive", "boredom"), told("half", "acceptance"))
    await parts.controller.restore()
    assert parts.controller.state().trigger == "acceptance"


def test_an_order_has_all_figures_begin_anew() -> None:
    """Also those of several requests: what was similar or late before may have been why it was ordered."""
    parts = Parts()
    parts.controller.set_mode("auto", "other weights")
    assert parts.forgot == 1


def test_counters_are_asked_once_all_that_was_begun_before_is_over() -> None:
    """A long reply is drafted for to its end, whatever is decided meanwhile."""
    parts = Parts()
    parts.controller.set_mode("autoregressive", "drill")
    parts.speculates = True
    for now in (1000.0, 1200.0):
        parts.controller.tick(time.time(), now)
    assert (parts.asked, parts.controller.state().state) == ([], "autoregressive")
    parts.speculates = False
    for now in (1201.0, 1202.0):
        parts.controller.tick(time.time(), now)
    assert parts.asked == [1201.0, 1201.0]
    assert parts.controller.state().state == "ineffective"


async def test_c08_an_upstream_that_drafts_all_the_same_is_ineffective(tmp_path: Path) -> None:
    """The plain upstream raises draft counters: the fallback to it is no fallback."""
    engine, other = SteeredEngine(), SteeredEngine()
    async with running(engine.handler) as server, running(other.handler) as second:
        async with sidecar(tmp_path, server.url, "--fallback-upstream", second.url, **QUICK) as made:
            await made.put({"mode": "autoregressive", "reason": "drill"})
            served = asyncio.create_task(keep_asking(made))  # noqa: TID251
            found = await reaches(made, "ineffective")
            served.cancel()
            assert found["effective"] is False
            assert found["reason"] == "drill (the engine drafts tokens all the same)"
            assert 'specwatch_fallback_state{state="ineffective"} 1.0' in (await made.get("/metrics")).text

            async def row() -> Any:
                newest = (await state(made))["history"][0]
                return newest if newest["trigger"] == "effect" else None

            newest = await come(row)
            assert (newest["from_state"], newest["to_state"]) == ("autoregressive", "ineffective")
            await made.stop()


async def keep_asking(made: Process) -> None:
    while True:
        await made.exchange(post(BODY))
        await asyncio.sleep(0.05)


async def test_engine_errors_send_requests_to_the_other_upstream(tmp_path: Path) -> None:
    engine, other = SteeredEngine(), SteeredEngine()
    other.cap, other.counting.speculates = 0, False
    async with running(engine.handler) as server, running(other.handler) as second:
        async with sidecar(tmp_path, server.url, "--fallback-upstream", second.url, **QUICK) as made:
            engine.broken = True
            answers = []
            for _ in range(8):
                answers.append(await made.exchange(post(BODY)))
                await asyncio.sleep(0.05)  # a record comes some milliseconds after its reply
            # A request that the engine may have begun is never sent twice: five clients saw its error.
            assert [answer.startswith(b"HTTP/1.1 500") for answer in answers] == [True] * 5 + [False] * 3
            found = await state(made)
            assert (found["state"], found["trigger"]) == ("autoregressive", "engine_errors")
            engine.broken, engine.accepts = False, GOOD
            await reaches(made, "probing")
            await ask(made, 30)
            await reaches(made, "speculative")


async def test_a_dry_run_changes_nothing_for_clients(tmp_path: Path) -> None:
    engine = SteeredEngine()
    engine.accepts = BAD
    async with running(engine.handler) as server:
        async with sidecar(tmp_path, server.url, SPECWATCH_FALLBACK_DRY_RUN="true", **QUICK) as made:
            await come(lambda: can_fall_back(made))
            assert await ask(made, 30) == {"speculative": 30}
            found = await state(made)
            assert (found["state"], found["dry_run"]) == ("speculative", True)
            assert found["reason"].startswith("dry run; would be autoregressive: p 0.")
            assert not any(b"vllm_xargs" in body for body in engine.bodies)

            async def row() -> Any:
                history = (await state(made))["history"]
                return history[-1] if history else None

            row_told = await come(row)
            assert (row_told["to_state"], row_told["evidence"]["dry_run"]) == ("autoregressive", True)
            assert row_told["reason"].startswith("dry run: p 0.")


async def test_what_is_told_is_what_serves_while_an_upstream_is_away(tmp_path: Path) -> None:
    engine, other = SteeredEngine(), SteeredEngine()
    engine.accepts = GOOD
    other.cap, other.counting.speculates = 0, False
    (port,) = free_ports(1)
    async with running(other.handler) as second:
        away = f"http://127.0.0.1:{port}"
        async with sidecar(tmp_path, away, "--fallback-upstream", second.url, **QUICK) as made:
            assert await ask(made, 3) == {"autoregressive": 3}
            found = await state(made)
            assert (found["mode"], found["state"]) == ("auto", "autoregressive")
            assert found["reason"].startswith("the upstream that speculates cannot be reached, and requests go to the")
            metrics = (await made.get("/metrics")).text
            # It was never there, and may be loading its model.
            assert 'specwatch_upstream_up{upstream="speculative"}' not in metrics
            assert 'specwatch_upstream_up{upstream="autoregressive"} 1.0' in metrics
            assert 'specwatch_fallback_state{state="autoregressive"} 1.0' in metrics
    async with running(engine.handler) as server:
        async with sidecar(tmp_path, server.url, "--fallback-upstream", away, **QUICK) as made:
            await come(lambda: can_fall_back(made))
            assert (await made.put({"mode": "autoregressive", "reason": "drill"})).status_code == 200
            await ask(made)  # which finds the other away
            # Then the engine serves without speculation by itself.
            assert await ask(made, 3) == {"autoregressive": 3}
            assert json.loads(engine.bodies[-1])["vllm_xargs"] == {"speculative": False}
            assert (await state(made))["state"] == "autoregressive"
            engine.has_route = False
            await made.get("/api/v1/engine")
            found = await state(made)
            assert (found["state"], found["can_fall_back"]) == ("speculative", False)
            assert await ask(made) == {"speculative": 1}


async def test_an_order_ends_what_slices_decided_and_says_so(tmp_path: Path) -> None:
    engine = SteeredEngine()
    engine.accepts = BAD
    environment = QUICK | {"SPECWATCH_FALLBACK_SLICES": '["scenario"]', "SPECWATCH_FALLBACK_DWELL_S": "60"}
    async with running(engine.handler) as server:
        async with sidecar(tmp_path, server.url, **environment) as made:
            await come(lambda: can_fall_back(made))
            await ask(made, 15)
            assert [each["slice"] for each in (await state(made))["slices"]] == ["scenario=chat"]
            await made.put({"mode": "speculative", "reason": "we look at it"})

            async def told() -> Any:
                rows = [row for row in (await state(made))["history"] if row["slice"]]
                return rows if len(rows) > 1 else None

            newest = (await come(told))[0]
            assert (newest["from_state"], newest["to_state"]) == ("autoregressive", "speculative")
            assert (newest["trigger"], newest["reason"]) == ("operator", "ended by an order: we look at it")
            await made.stop()
        async with sidecar(tmp_path, server.url, **environment) as made:
            found = await state(made)
            assert (found["mode"], found["reason"], found["slices"]) == ("speculative", "we look at it", [])
