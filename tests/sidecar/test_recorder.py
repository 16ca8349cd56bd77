"""What records: parts that start, fail visibly, and stop."""

import asyncio
import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from specwatch_engine.demo.prepare import misalign
from specwatch_engine.demo.weights import CHECKPOINTS
from support.chain import free_ports
from support.records import record
from support.scripted_engine import ScriptedEngine, until, whole

from sidecar.recorder import Recorder, StartError
from sidecar.settings import SettingsError, load
from sidecar.steering import Steering
from sidecar.store.queries import DatabaseUnavailable, Reader
from sidecar.versions import changed_settings

NO_TRAFFIC = SimpleNamespace(outcomes={}, refused=0, in_flight=0)


def recorder(folder: Path, **settings: Any) -> Recorder:
    given = {
        "database_url": f"sqlite:///{folder}/specwatch.db",
        "admin": "127.0.0.1:0",
        "similarity": "none",
        **settings,
    }
    return Recorder(load(**given), {"speculative": "http://127.0.0.1:9"}, lambda: NO_TRAFFIC)


def unavailable(*_: object, **__: object) -> None:
    raise DatabaseUnavailable("away")


async def test_what_is_queued_is_in_the_database_after_the_end(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    made.start()
    for _ in range(3):
        made.tap.sink(record())
    await made.stop()
    assert made.writer.written == 3
    assert len(made.windows.whole) == 3


async def test_the_admin_port_names_its_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        made = recorder(tmp_path, admin=address)
        with pytest.raises(StartError, match=f"admin: {address}: Address already in use.*; free the port"):
            made.start_admin()
    made = recorder(tmp_path, admin="nowhere.invalid:1", admin_token="hush")
    with pytest.raises(StartError, match=r"admin: nowhere\.invalid:1: "):
        made.start_admin()
    with pytest.raises(SettingsError, match="database_url"):
        recorder(tmp_path, database_url="mysql://h/d")


async def test_a_spool_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPECWATCH_SPOOL")
    taken = tmp_path / "specwatch-spool"
    taken.touch()
    with pytest.raises(SettingsError, match=f"^spool: {taken}: File exists; name a folder .* or set spool_mb to 0$"):
        recorder(tmp_path, spool="specwatch-spool")
    assert "spool" not in caplog.text
    # Nobody asked for it.
    made = recorder(tmp_path)
    made.start()
    assert f"spool: {taken}: File exists; while the database is away" in caplog.text
    made.tap.sink(record())
    await made.stop()
    assert made.writer.written == 1
    taken.unlink()
    made = recorder(tmp_path, spool_mb=0)
    made.start()
    await made.stop()
    assert not taken.exists()


async def test_c29_metrics_tell_what_is_spooled(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    made = recorder(tmp_path, database_url=f"sqlite:///{folder}/a.db", spool=tmp_path / "spool")
    folder.rmdir()
    made.start()
    for _ in range(3):
        made.tap.sink(record())
    # With what runs.
    rows = 3 + len(changed_settings(made.settings)) + 1
    await until(lambda: made.writer.spooled[0] == rows)
    told = made.metrics.render().decode()
    assert f"\nspecwatch_spool_records {rows}.0\n" in told
    assert f"\nspecwatch_writer_queue_length {rows}.0\n" in told
    assert f"\nspecwatch_spool_bytes {float(made.writer.spooled[1])}\n" in told
    for stage in ("queue", "spool", "refused"):
        assert f'\nspecwatch_records_dropped_total{{stage="{stage}"}} 0.0\n' in told
    folder.mkdir()
    await made.stop()
    again = recorder(tmp_path, database_url=f"sqlite:///{folder}/a.db", spool=tmp_path / "spool")
    again.start()
    await until(lambda: again.writer.written == 3)
    assert again.writer.spooled == (0, 0)
    await again.stop()


async def test_a_cap_before_the_database_comes_does_not_hide_the_order_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorder(tmp_path)
    monkeypatch.setattr(Steering, "obeys", True)
    made.writer.start()
    made.controller.set_mode("autoregressive", "drill")
    await made.stop()

    made = recorder(tmp_path)
    with monkeypatch.context() as away:
        away.setattr(Reader, "last_decisions", unavailable)
        made.writer.start()
        await made.controller.restore()
        made.controller.steered("draft tokens capped at 2 (hard): crowded")
        await until(lambda: made.writer.healthy)
    await made.controller.restore()
    assert (made.controller.state().mode, made.controller.state().reason) == ("autoregressive", "drill")
    made.controller.steered("draft tokens no longer capped: quiet")
    await made.stop()
    with closing(sqlite3.connect(tmp_path / "specwatch.db")) as database:
        rows = database.execute("SELECT mode, from_state, to_state, reason FROM transitions ORDER BY id").fetchall()
    assert rows == [
        ("autoregressive", "speculative", "autoregressive", "drill"),
        ("autoregressive", "autoregressive", "autoregressive", "draft tokens capped at 2 (hard): crowded"),
        ("autoregressive", "autoregressive", "autoregressive", "draft tokens no longer capped: quiet"),
    ]


async def test_a_dead_side_task_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    made = recorder(tmp_path, admin=f"127.0.0.1:{port}")
    made.start()
    made.start_admin()

    async def dies() -> None:
        raise RuntimeError("broken")

    made.tasks.spawn(dies(), "facts")
    async with httpx.AsyncClient(trust_env=False) as client:
        ready = await client.get(f"http://127.0.0.1:{port}/readyz")
        assert ready.json()["failed_tasks"] == ["facts"]

        async def breaks(server: uvicorn.Server, counter: int) -> bool:
            raise RuntimeError("broken")

        monkeypatch.setattr(uvicorn.Server, "on_tick", breaks)
        await asyncio.sleep(0.3)
        assert made.tasks.failed == ["facts", "admin"]
    await made.stop()


async def test_a_moved_token_is_told_everywhere(tmp_path: Path) -> None:
    """From the engine's socket to log, table, API and metrics. C12."""
    (port,) = free_ports(1)
    misalign(CHECKPOINTS / "draft_generalist", tmp_path / "draft")
    made = recorder(tmp_path, admin=f"127.0.0.1:{port}", engine_events=tmp_path / "events.sock", recent_drafts=5)
    made.start()
    made.start_feed()
    made.start_admin()
    target = str(CHECKPOINTS / "target")
    models = {"target_model": target, "target_tokenizer": target, "draft_tokenizer": target}
    engine = ScriptedEngine(tmp_path / "events.sock", draft_model=str(tmp_path / "draft"), **models)
    proposals = made.proposals
    assert proposals is not None
    engine.send(*whole("chatcmpl-0-01234567", [((), (300,))]))
    await until(lambda: proposals.state()["target_model"] and "being read" not in proposals.state()["reason"], 60)
    for number in range(1, 4):
        engine.send(*whole(f"chatcmpl-{number}-01234567", [((), (300,)), ((301, 5, 7), (301, 4))]))
    await until(lambda: made.writer.queue_length == 0 and proposals.state()["moved"])
    async with httpx.AsyncClient(trust_env=False, base_url=f"http://127.0.0.1:{port}") as client:

        async def told() -> dict[str, Any]:
            return dict((await client.get("/api/v1/alignment")).json()["moved"][0])

        while (await told())["target_text"] is None:
            await asyncio.sleep(0.02)
        assert (await told())["target_text"] == "<|eot|>"
        (newest, *_) = (await client.get("/api/v1/drafts?limit=2")).json()["drafts"]
        assert (newest["request_id"], newest["p"]) == ("chatcmpl-3", 1 / 3)
        assert [each["mark"] for step in newest["steps"] for each in step] == [
            "not_drafted",
            "accepted",
            "rejected",
            "discarded",
        ]
        metrics = (await client.get("/metrics")).text
        assert "specwatch_tokenizer_aligned 0.0" in metrics
        assert "specwatch_same_text_other_id_total 3.0" in metrics
    engine.close()
    await made.stop()
    with closing(sqlite3.connect(tmp_path / "specwatch.db")) as database:
        rows = database.execute("SELECT kind, target_id, draft_id, target_text, draft_text, count FROM alignments")
        assert rows.fetchall() == [("same_text", 4, 5, "<|eot|>", "<|eot|>", 3)]


async def test_without_engine_events_nothing_is_claimed(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    assert made.proposals is None
    assert b"specwatch_tokenizer_aligned" not in made.metrics.render()


async def test_the_keeper_works_beside_the_writer(tmp_path: Path) -> None:
    made = recorder(tmp_path, retention_days={"requests": 7})
    made.start()
    made.tap.sink(record(started_at=time.time() - 9 * 86_400))
    await until(lambda: made.keeper.pruned["requests"] == 1, seconds=60)
    told = made.metrics.render().decode()
    assert '\nspecwatch_rows_pruned_total{table="requests"} 1.0\n' in told
    assert "\nspecwatch_rollups_pending " in told
    await made.stop()
    assert not made.keeper._thread.is_alive()
