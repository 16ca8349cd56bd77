"""A certificate before a real sidecar and a scripted engine: what clients get, rows, API, metrics, what is said."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from support.proxy import post
from support.steered_engine import TOKEN, SteeredEngine
from support.upstream import running

from sidecar.admission import digest

from .test_app import Process, sidecar
from .test_controller import BODY, GOOD, QUICK, ask, state
from .test_steering import can_fall_back, come

CERTIFIED, REFUSED = "address_confirmation", "fault_report"


def certificate(folder: Path, *certified: str, days: float = 30, **changes: Any) -> Path:
    """Of the scripted engine, valid for so long from now on."""
    document: dict[str, Any] = json.loads((Path(__file__).parents[1] / "support" / "certificate.json").read_text())
    now = datetime.now(UTC).replace(microsecond=0)
    document |= {"issued_at": _time(now), "expires_at": _time(now + timedelta(days=days))}
    document["scenarios"] |= {name: {"certified": True, "why": "p is high."} for name in certified}
    document |= changes
    document["sha256"] = digest(document)
    file = folder / "certificate.json"
    whole = folder / "certificate.json.next"
    whole.write_text(json.dumps(document))
    whole.replace(file)
    return file


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


async def stands(made: Process, wanted: str) -> dict[str, Any]:
    async def found() -> Any:
        told = (await state(made))["certificate"]
        return told if told["state"] == wanted else None

    return dict(await come(found))


async def metric(made: Process) -> str:
    lines = (await made.get("/metrics")).text.splitlines()
    return next((line for line in lines if line.startswith("specwatch_certificate_valid ")), "none")


async def events(made: Process, kind: str) -> list[str]:
    return [each["words"] for each in (await made.get(f"/api/v1/events?kind={kind}")).json()["events"]]


async def test_scenarios_begin_as_they_are_certified_and_a_swap_ends_it(tmp_path: Path) -> None:
    engine = SteeredEngine()
    engine.accepts = GOOD
    environment = QUICK | {"SPECWATCH_CERTIFICATE": str(certificate(tmp_path))}
    async with running(engine.handler) as server:
        async with sidecar(tmp_path, server.url, **environment) as made:
            told = await stands(made, "valid")
            assert (told["certified"], told["not_certified"]) == ([CERTIFIED], [REFUSED, "订单"])
            assert (told["signed_off_by"], told["not_compared"]) == ("Ada Lovelace", [])
            await come(lambda: can_fall_back(made))
            assert await metric(made) == "specwatch_certificate_valid 1.0"
            for scenario, arm in ((REFUSED, "autoregressive"), (CERTIFIED, "speculative"), ("new", "autoregressive")):
                assert await ask(made, 1, scenario=scenario) == {arm: 1}
            slices = {each["slice"]: each for each in (await state(made))["slices"]}
            assert slices.keys() == {f"scenario={REFUSED}", "scenario=new"}
            assert slices[f"scenario={REFUSED}"]["trigger"] == "certificate"
            assert "p is 0.392" in slices[f"scenario={REFUSED}"]["reason"]
            assert "does not name this scenario" in slices["scenario=new"]["reason"]
            # Good probes bring it back, as after any fallback.
            engine.accepts = GOOD

            async def returned() -> Any:
                await ask(made, 5, scenario=REFUSED)
                return REFUSED not in str((await state(made))["slices"])

            await come(returned)
            assert await ask(made, 3, scenario=REFUSED) == {"speculative": 3}
            async with httpx.AsyncClient(trust_env=False) as http:
                answer = await http.put(f"{made.admin}/api/v1/engine/draft", json={"checkpoint": "/models/draft_b"})
                assert answer.status_code == 200
            # At once, and what probes of the other draft had earned as well.
            for scenario in (CERTIFIED, REFUSED):
                assert await ask(made, 1, scenario=scenario) == {"autoregressive": 1}
            told = (await state(made))["certificate"]
            assert (told["state"], told["certified"]) == ("other_engine", [])
            assert "the content of the draft model is" in told["words"]
            assert "qualify anew with `specwatch qualify`" in told["words"]
            assert await metric(made) == "specwatch_certificate_valid 0.0"
            summary = (await made.get("/api/v1/summary")).json()
            assert summary["fallback"]["certificate"] == told

            async def rows() -> Any:
                switched, noticed = await events(made, "switch"), await events(made, "engine")
                fell_back = any(f"(scenario={CERTIFIED}): not certified" in words for words in switched)
                return fell_back and any("is of another engine" in words for words in noticed)

            await come(rows)
            # An order wins over it.
            async with httpx.AsyncClient(trust_env=False) as http:
                await http.put(f"{made.admin}/api/v1/fallback", json={"mode": "speculative", "reason": "we know"})
            assert await ask(made, 1, scenario=CERTIFIED) == {"speculative": 1}
            said = await made.stop()
        assert "is of another engine" in said
        assert TOKEN not in said


async def test_a_certificate_that_does_not_hold_certifies_nothing_until_it_is_replaced(tmp_path: Path) -> None:
    engine = SteeredEngine()
    file = certificate(tmp_path, signed_off_by=None)
    environment = QUICK | {"SPECWATCH_FALLBACK_DWELL_S": "60", "SPECWATCH_CERTIFICATE": str(file)}
    async with running(engine.handler) as server:
        async with sidecar(tmp_path, server.url, **environment) as made:
            told = await stands(made, "unusable")
            assert f"{file}: nobody has signed it off" in told["words"]
            assert (told["run"], told["certified"], told["not_certified"]) == (None, [], [])
            await come(lambda: can_fall_back(made))
            assert await ask(made, 1, scenario=CERTIFIED) == {"autoregressive": 1}
            certificate(tmp_path, days=-1)
            assert "expired on" in (await stands(made, "expired"))["words"]
            certificate(tmp_path)
            await stands(made, "valid")

            async def goes_on() -> Any:
                return not (await state(made))["slices"]

            await come(goes_on)
            assert await ask(made, 2, scenario=CERTIFIED) == {"speculative": 2}
            file.unlink()
            await stands(made, "unusable")

            async def stops() -> Any:
                return await ask(made, 1, scenario=CERTIFIED) == {"autoregressive": 1}

            await come(stops)
            said = await made.stop()
        assert said.count("No such file") >= 1
        # What was decided holds over a restart.
        async with sidecar(tmp_path, server.url, **environment) as made:
            (found,) = (await state(made))["slices"]
            assert (found["slice"], found["trigger"]) == (f"scenario={CERTIFIED}", "certificate")


async def test_where_the_engine_is_not_asked_it_is_said_that_it_was_not_compared(tmp_path: Path) -> None:
    engine, plain = SteeredEngine(), SteeredEngine()
    environment = {key: value for key, value in QUICK.items() if key != "SPECWATCH_ENGINE_TOKEN"}
    environment |= {"SPECWATCH_CERTIFICATE": str(certificate(tmp_path))}
    async with running(engine.handler) as server, running(plain.handler) as other:
        environment["SPECWATCH_FALLBACK_UPSTREAM"] = other.url
        async with sidecar(tmp_path, server.url, **environment) as made:
            told = await stands(made, "valid")
            assert told["not_compared"] == ["method", "k", "device", "target_digest", "draft_digest", "target", "draft"]
            assert "not compared" in told["words"]
            assert await ask(made, 1, scenario=REFUSED) == {"autoregressive": 1}
            assert await ask(made, 1, scenario=CERTIFIED) == {"speculative": 1}
            answer = await made.exchange(post(BODY))
            assert b"x-specwatch-arm: autoregressive" in answer, "a request that names no scenario is `default`'s"
