"""Sidecars of one fleet, each a process of its own: what one decides or is ordered, the others do. C38.

Engines are scripted; real servers, real sidecars, a real database. Clocks differ by minutes.
"""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.postgres import Cluster, cluster
from support.steered_engine import SteeredEngine
from support.upstream import running

from sidecar.store.upgrade import upgrade

from .test_app import Process, sidecar
from .test_controller import BAD, GOOD, QUICK, ask, reaches, state
from .test_steering import can_fall_back, come

#: What `time.time` gives is wrong by this variable's seconds. Timers, which go by another clock, are right.
SKEWED = """import os, time
time.time = lambda real=time.time: real() + float(os.environ.get("SKEW", "0"))
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Cluster]:
    with cluster() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/specwatch.db"
    server: Cluster = request.getfixturevalue("postgres")
    return server.new_url()


class Made:
    """Starts sidecars of a fleet, each before an engine of its own unless one is named."""

    def __init__(self, folder: Path, database: str, stack: AsyncExitStack) -> None:
        self.folder, self.database, self.stack = folder, database, stack
        self.engines: dict[str, SteeredEngine] = {}
        (folder / "sitecustomize.py").write_text(SKEWED)

    async def __call__(self, name: str, engine: SteeredEngine | None = None, **environment: str) -> Process:
        if engine is None:
            engine = SteeredEngine()
            engine.accepts = GOOD
        self.engines[name] = engine
        server = await self.stack.enter_async_context(running(engine.handler))
        given = QUICK | {
            "SPECWATCH_DATABASE_URL": self.database,
            "SPECWATCH_FLEET": "f",
            "SPECWATCH_INSTANCE": name,
            "SPECWATCH_SPOOL": str(self.folder / f"spool-{name}"),
            "PYTHONPATH": str(self.folder),
        }
        made = await self.stack.enter_async_context(sidecar(self.folder, server.url, **given | environment))
        await come(lambda: can_fall_back(made))
        return made

    async def shared(self, *names: str, **environment: str) -> list[Process]:
        found = [await self(name, **environment) for name in names]
        for each in found:
            await is_shared(each)
        return found


@pytest.fixture
async def make(tmp_path: Path, database: str) -> AsyncIterator[Made]:
    async with made_with(tmp_path, database) as made:
        yield made


@asynccontextmanager
async def made_with(folder: Path, database: str) -> AsyncIterator[Made]:
    async with AsyncExitStack() as stack:
        yield Made(folder, database, stack)


async def is_shared(made: Process, wanted: bool = True) -> None:
    async def found() -> bool:
        return (await state(made))["shared"] is wanted

    await come(found)


async def soon(what: str, found: Callable[[], Awaitable[Any]]) -> Any:
    began = time.monotonic()
    value = await come(found)
    took = time.monotonic() - began
    print(f"{what}: {took:.2f} s")
    assert took < 5
    return value


async def is_in(made: Process, **wanted: object) -> Any:
    found = await state(made)
    return found if all(found[name] == value for name, value in wanted.items()) else None


LONG = {"SPECWATCH_FALLBACK_DWELL_S": "60"}


async def test_c38_what_one_decides_or_is_ordered_the_other_does(make: Made) -> None:
    a = await make("a", SKEW="600", **LONG)
    b = await make("b", SKEW="-600", **LONG)
    await is_shared(a)
    await is_shared(b)
    make.engines["a"].accepts = BAD
    await ask(a, 25)
    assert await is_in(a, state="autoregressive", decided_by="a")
    found = await soon("a fell back, b follows", lambda: is_in(b, state="autoregressive"))
    assert (found["trigger"], found["decided_by"], found["fleet"], found["shared"]) == ("acceptance", "a", "f", True)
    assert found["evidence"]["adopted_from"] == "a"
    assert await ask(b, 3) == {"autoregressive": 3}
    # Its dwell ends with that of the other, by its own clock.
    until = [_seconds(each["until"]) for each in (await state(a), found)]
    assert until[0] - until[1] == pytest.approx(1200, abs=2)
    metrics = (await b.get("/metrics")).text
    assert "specwatch_fleet_up 1.0" in metrics
    counted = 'specwatch_fallback_transitions_total{from="speculative",reason="acceptance",to="autoregressive"} 1.0'
    assert counted in metrics
    assert (await b.put({"mode": "speculative", "reason": "we look"})).status_code == 200
    found = await soon("b was ordered, a obeys", lambda: is_in(a, mode="speculative"))
    assert (found["state"], found["reason"], found["decided_by"]) == ("speculative", "we look", "b")
    assert await ask(a, 3) == {"speculative": 3}

    # Each has a history of its own that is whole.
    async def told() -> Any:
        history = (await state(a))["history"]
        rows = {name: [_row(each) for each in history[::-1] if each["instance"] == name] for name in "ab"}
        return rows if all(len(each) == 2 for each in rows.values()) else None

    rows = await come(told)
    assert rows["a"] == [
        ("speculative", "autoregressive", "acceptance", None),
        ("autoregressive", "speculative", "operator", "b"),
    ]
    assert rows["b"] == [
        ("speculative", "autoregressive", "acceptance", "a"),
        ("autoregressive", "speculative", "operator", None),
    ]
    assert "mode speculative, serving speculative (adopted from b): we look" in await a.stop()
    assert "autoregressive after speculative (acceptance) (adopted from a): p 0." in await b.stop()


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _row(each: dict[str, Any]) -> tuple[Any, ...]:
    return each["from_state"], each["to_state"], each["trigger"], (each["evidence"] or {}).get("adopted_from")


async def test_c38_each_decides_by_itself_while_the_store_is_away(tmp_path: Path, postgres: Cluster) -> None:
    async with made_with(tmp_path, postgres.new_url()) as make:
        a, b = await make.shared("a", "b", **LONG)
        await a.put({"mode": "auto", "reason": "begin"})
        await soon("b has the order", lambda: is_in(b, reason="begin"))
        postgres.stop()
        try:
            await is_shared(a, False)
            await is_shared(b, False)
            assert "specwatch_fleet_up 0.0" in (await a.get("/metrics")).text
            assert await is_in(b, mode="auto", state="speculative", reason="begin")
            make.engines["b"].accepts = BAD
            await ask(b, 25)
            assert await is_in(b, state="autoregressive", decided_by="b")
            assert (await a.put({"mode": "speculative", "reason": "alone"})).status_code == 200
            assert await ask(a, 3) == {"speculative": 3}
            assert await is_in(a, mode="speculative", shared=False)
        finally:
            postgres.start()
        # An order wins over what a circuit has decided meanwhile.
        found = await soon("the store is back, b obeys", lambda: is_in(b, mode="speculative"))
        assert (found["reason"], found["decided_by"]) == ("alone", "a")
        assert await is_in(a, mode="speculative")
        c = await make("c", SKEW="600", **LONG)
        assert await is_in(c, mode="speculative", reason="alone", decided_by="a")
        said = await a.stop()
        assert said.count("fleet f: the database cannot be asked, each decides by itself") == 1
        assert said.count("fleet f: decisions are shared") == 2
        await b.stop()
        await c.stop()


async def test_c38_a_file_that_is_deleted_or_replaced_parts_no_fleet(tmp_path: Path) -> None:
    file = tmp_path / "specwatch.db"
    async with made_with(tmp_path, f"sqlite:///{file}") as make:
        a, b = await make.shared("a", "b", **LONG)
        upgrade(f"sqlite:///{tmp_path}/backup.db")
        make.engines["a"].accepts = BAD
        await ask(a, 25)
        await soon("a fell back, b follows", lambda: is_in(b, state="autoregressive"))

        async def told_again() -> bool:
            with closing(sqlite3.connect(file)) as connection, suppress(sqlite3.Error):
                return connection.execute("SELECT to_state FROM shared_states").fetchall() == [("autoregressive",)]
            return False

        for replace in (file.unlink, lambda: (tmp_path / "backup.db").rename(file)):
            for suffix in ("-wal", "-shm"):
                (tmp_path / f"specwatch.db{suffix}").unlink(missing_ok=True)
            replace()
            await come(told_again)
            assert await is_in(a, state="autoregressive")
            assert await is_in(b, state="autoregressive")
        for number, (one, other) in enumerate(((a, b), (b, a))):
            await one.put({"mode": "speculative", "reason": f"drill {number}"})
            await soon("one was ordered, the other obeys", partial(is_in, other, reason=f"drill {number}"))
        assert (await ask(b, 3)) == {"speculative": 3}


async def test_c38_the_others_go_on_where_one_is_killed(make: Made) -> None:
    a, b = await make.shared("a", "b")
    make.engines["a"].accepts = BAD
    await ask(a, 25)
    await soon("a fell back, b follows", lambda: is_in(b, decided_by="a"))
    a.process.kill()
    await a.process.wait()
    await reaches(b, "probing")
    third = await make("c")
    found = await state(third)
    assert found["state"] in ("probing", "autoregressive")
    served = await ask(b, 40)
    assert served["probe"] >= 5
    await soon("b has returned, c follows", lambda: is_in(third, state="speculative", decided_by="b"))
    assert await is_in(b, state="speculative", trigger="probes")
    # It goes on where the fleet is, whatever its own rows say last.
    again = await make("a")
    assert await is_in(again, state="speculative", decided_by="b")


async def test_c38_fleets_on_one_database_know_nothing_of_each_other(make: Made) -> None:
    odd = "flotte ä 🚢 'x' \"; %s"
    a, b, c, d = [
        await make(name, SPECWATCH_FLEET=fleet, **LONG, **extra)
        for name, fleet, extra in (
            ("a", odd, {}),
            ("b", odd, {}),
            ("c", "f", {}),
            ("d", odd, {"SPECWATCH_FALLBACK_DRY_RUN": "true"}),
        )
    ]
    for each in (a, b, c):
        await is_shared(each)
    await a.put({"mode": "autoregressive", "reason": "drill"})
    found = await soon("an odd name", lambda: is_in(b, mode="autoregressive"))
    assert (found["fleet"], found["decided_by"]) == (odd, "a")
    await asyncio.sleep(1)  # in which the others might
    assert await is_in(c, mode="auto", state="speculative", fleet="f", decided_by="c")
    # What is decided in a dry run is nobody's, and it takes no orders from others.
    assert await is_in(d, mode="auto", state="speculative", fleet=odd, shared=None, decided_by="d")
    assert "specwatch_fleet_up" not in (await d.get("/metrics")).text


CAPPED = {"SPECWATCH_FALLBACK_ACTUATOR": "cap"}


async def test_c38_sidecars_before_one_engine_do_not_undo_each_others_cap(make: Made) -> None:
    engine = SteeredEngine()
    engine.accepts = GOOD
    a, b, c = [await make(name, engine, **CAPPED, SPECWATCH_FALLBACK_DWELL_S="12") for name in "abc"]
    for each in (a, b, c):
        await is_shared(each)
    engine.accepts = BAD
    await ask(a, 25)
    for each in (b, c):
        await soon("follows", lambda each=each: is_in(each, state="autoregressive"))  # type: ignore[misc]
    await come(lambda: holds(engine.cap == 0))
    await asyncio.sleep(2)  # all have looked
    assert engine.cap == 0
    # One that stops gives it back; the others take it again.
    orders = len(engine.orders)
    await c.stop()
    await come(lambda: holds(len(engine.orders) > orders and engine.cap == 0))
    assert [order["cap"] for _, order in engine.orders[orders:]][:1] == [None]
    # The one that has capped it is killed, and the other one gives it back.
    a.process.kill()
    await a.process.wait()
    engine.accepts = GOOD
    await reaches(b, "probing")
    await come(lambda: holds(engine.cap is None))
    await asyncio.sleep(2)
    assert engine.cap is None
    assert [order["cap"] for _, order in engine.orders].count(0) <= 6


async def test_an_operators_cap_of_0_stays_in_a_fleet(tmp_path: Path) -> None:
    engine = SteeredEngine()
    engine.accepts, engine.cap = GOOD, 0
    async with made_with(tmp_path, f"sqlite:///{tmp_path}/specwatch.db") as make:
        a, b = [await make(name, engine, **CAPPED) for name in "ab"]
        for each in (a, b):
            await is_shared(each)
        for mode in ("autoregressive", "auto"):
            assert (await a.put({"mode": mode})).status_code == 200
            await soon(mode, lambda mode=mode: is_in(b, mode=mode))  # type: ignore[misc]
            await asyncio.sleep(2.2)
        await a.stop()
        await b.stop()
    assert (engine.cap, engine.orders) == (0, [])


async def holds(value: bool) -> bool:
    return value
