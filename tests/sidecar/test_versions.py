"""What runs is told once and with each change, and no secret is."""

import asyncio
import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from support.steered_engine import TOKEN, SteeredEngine
from support.upstream import Upstream, running

from sidecar.settings import load
from sidecar.steering import Steering
from sidecar.store.rows import VersionRow
from sidecar.tap.tap import Facts
from sidecar.versions import HIDDEN, Versions, changed_settings

from .test_app import Process, sidecar

SECRET = "s3cret"


@pytest.fixture(autouse=True)
def _default_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECWATCH_SPOOL", raising=False)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {}),
        ({"fallback_below": 0.65, "admin": "127.0.0.1:8001", "spool": "specwatch-spool"}, {}),
        ({"fallback_below": 0.6, "add_usage": True}, {"fallback_below": "0.6", "add_usage": "true"}),
        ({"spool": "/var/a b", "alerts": "a.yaml"}, {"spool": "/var/a b", "alerts": "a.yaml"}),
        ({"fallback_triggers": [], "scenarios": ["a", "b"]}, {"fallback_triggers": "[]", "scenarios": '["a","b"]'}),
        ({"retention_days": {"minutes": "none"}}, {"retention_days": '{"minutes":null}'}),
        ({"upstream": "http://10.0.0.1:8200/"}, {"upstream": "http://10.0.0.1:8200"}),
        ({"database_url": "postgresql://db/specwatch"}, {"database_url": "postgresql://db/specwatch"}),
        (
            {"admin_token": SECRET, "admin_read_token": SECRET + "2"},
            {"admin_token": HIDDEN, "admin_read_token": HIDDEN},
        ),
        ({"engine_token": SECRET}, {"engine_token": HIDDEN}),
        ({"redact": [SECRET]}, {"redact": HIDDEN}),
        ({"upstream": f"http://me:{SECRET}@host:1"}, {"upstream": HIDDEN}),
        ({"fallback_upstream": f"https://{SECRET}@host:1"}, {"fallback_upstream": HIDDEN}),
        ({"database_url": f"postgresql://me:{SECRET}@db/x"}, {"database_url": HIDDEN}),
        ({"database_url": f"postgresql://me:{SECRET}/\n@db/x"}, {"database_url": HIDDEN}),
        ({"database_url": f"postgresql://db/x?password={SECRET}"}, {"database_url": HIDDEN}),
        ({"scenario_rules": {"a": f"http://x/?t={SECRET}"}}, {"scenario_rules": HIDDEN}),
    ],
)
def test_settings_that_are_not_at_their_defaults(given: dict[str, Any], told: dict[str, str]) -> None:
    found = changed_settings(load(**given))
    assert found == told
    assert SECRET not in str(found)


def test_a_start_has_one_time_and_its_version_last() -> None:
    rows: list[VersionRow] = []
    Versions("here", rows.append).started("1.2", load(fallback_below=0.6, engine_events=Path("e")), 5.0)
    assert rows == [
        VersionRow(5.0, "here", "", "settings.engine_events", "e"),
        VersionRow(5.0, "here", "", "settings.fallback_below", "0.6"),
        VersionRow(5.0, "here", "", "specwatch", "1.2"),
    ]


def test_an_upstream_is_told_when_it_is_known_and_when_it_changes() -> None:
    rows: list[VersionRow] = []
    made = Versions("here", rows.append)
    for now, upstream, found in (
        (1.0, "u", {"vllm": "1", "k": None}),
        (2.0, "u", {"vllm": "1", "k": 4}),
        (3.0, "w", {"vllm": "1", "k": 4}),
        (4.0, "u", {"vllm": None, "k": 4}),
        (5.0, "u", {"vllm": "2", "k": 4}),
        (6.0, "u", {"vllm": "1", "k": 4}),
    ):
        made.seen(upstream, found, now)
    assert [(row.at, row.upstream, row.name, row.value) for row in rows] == [
        (1.0, "u", "vllm", "1"),
        (2.0, "u", "k", "4"),
        (3.0, "w", "vllm", "1"),
        (3.0, "w", "k", "4"),
        (5.0, "u", "vllm", "2"),
        (6.0, "u", "vllm", "1"),
    ]


class Loading(SteeredEngine):
    """Its control route comes later than the rest."""

    loading = True

    async def handler(self, upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await upstream.read_request(reader)
            method, path, _ = upstream.heads[-1].split(b" ", 2)
            if self.loading and path.startswith(b"/specwatch/"):
                writer.close()
                return
            writer.write(self._answer(method.decode(), path.decode(), upstream.heads[-1], body))
            await writer.drain()


async def test_an_upstream_is_told_once_its_plugin_was_asked() -> None:
    """Else every restart would tell of the settings first, and then of what the plugin knows better."""
    engine, told = Loading(), list[dict[str, Any]]()
    configured = {"u": Facts("mine", 3)}
    async with running(engine.handler) as server, httpx.AsyncClient(trust_env=False) as http:

        def steering(token: str | None) -> Steering:
            secret = None if token is None else SecretStr(token)
            made = Steering(
                http,
                {"u": server.url},
                configured,
                secret,
                "u",
                lambda what: None,
                noticed=lambda name: told.append(made.what_runs(name)),
            )
            return made

        made = steering(TOKEN)
        await made.look_round()
        assert made.facts["u"].draft_model == "mine"
        assert told == []
        engine.loading = False
        await made.look_round()
        itself = {"vllm": "0.32.0", "models": "m"}
        known: dict[str, Any] = {
            "draft_model": "draft_a",
            "num_speculative_tokens": 4,
            "target_digest": engine.target_digest,
            "draft_digest": engine.draft_digest,
            "device": "cpu",
        }
        assert told
        assert all(each == itself | known for each in told)
        told.clear()
        await made.swap("/models/draft_b", "")
        assert told[-1] == itself | known | {"draft_model": "draft_b", "draft_digest": engine.draft_digest}
        assert engine.draft_digest != known["draft_digest"]
        # Without a plugin, and where it is not asked, all is known that ever will be.
        for other, has_route in ((steering(TOKEN), False), (steering(None), True)):
            engine.has_route = has_route
            told.clear()
            await other.look_round()
            configured_alone = dict.fromkeys(known) | {"draft_model": "mine", "num_speculative_tokens": 3}
            assert told[-1] == itself | configured_alone


async def test_restarts_and_changes_are_events(tmp_path: Path) -> None:
    engine = SteeredEngine()
    environment = {"SPECWATCH_ENGINE_TOKEN": TOKEN, "SPECWATCH_INSTANCE": "here"}

    async def events(made: Process, count: int) -> list[str]:
        """Words of the first so many, oldest first."""
        for _ in range(400):
            found = (await made.get("/api/v1/events?kind=version")).json().get("events", [])
            if len(found) >= count:
                break
            await asyncio.sleep(0.05)
        return [each["words"] for each in reversed(found)]

    async with running(engine.handler) as server:
        started = f"Specwatch {version('specwatch')} started"
        known = [
            started,
            "speculative: vLLM is 0.32.0",
            "speculative: the list of served models is m",
            "speculative: the draft model is draft_a",
            "speculative: the number of draft tokens a step (k) is 4",
            f"speculative: the digest of the target model's checkpoint is {engine.target_digest}",
            f"speculative: the digest of the draft model's checkpoint is {engine.draft_digest}",
            "speculative: the device is cpu",
        ]
        async with sidecar(tmp_path, server.url, "--draft-model", "mine", **environment) as made:
            assert await events(made, 8) == known
            known.append("speculative: the draft model is draft_b, and was draft_a")
            before = engine.draft_digest
            async with httpx.AsyncClient(trust_env=False) as http:
                await http.put(f"{made.admin}/api/v1/engine/draft", json={"checkpoint": "/models/draft_b"})
            changed = f"is {engine.draft_digest}, and was {before}"
            known.append(f"speculative: the digest of the draft model's checkpoint {changed}")
            assert await events(made, 10) == known
            said = await made.stop()
        async with sidecar(tmp_path, server.url, **environment) as made:
            found = await events(made, 12)
            # The ports are others each time.
            assert [words for words in found if "127.0.0.1" not in words] == [
                *known,
                "Setting draft_model is at its default again, and was mine",
                started,
            ]
            assert "Setting spool" not in str(found)
            said += await made.stop()
    assert TOKEN not in said + str(found)
    with closing(sqlite3.connect(tmp_path / "specwatch.db")) as database:
        rows = database.execute("SELECT name, value FROM versions WHERE name LIKE 'settings.%_token'").fetchall()
    assert rows == [("settings.engine_token", HIDDEN)] * 2
