"""Ten faults, planted in real processes, ports, files and databases: the doctor finds each, and says what to do."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from specwatch_engine.demo.prepare import misalign
from specwatch_engine.demo.weights import CHECKPOINTS
from support.doctor import BAD, Engine, chat, facts, good, ids, report, settings, sidecar, stored, written
from support.postgres import cluster
from support.proxy import post
from support.records import figures
from support.steered_engine import TOKEN
from support.upstream import json_reply, replying, running

from sidecar.doctor.checks import database
from sidecar.doctor.command import doctor
from sidecar.doctor.findings import Finding, Report, run
from sidecar.doctor.looks.database import look
from sidecar.record import Acceptance, Outcome
from sidecar.settings import Settings


@asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[str]:
    async with running(engine.handler) as server:
        yield server.url


async def looked(made: Settings, *logs: Path) -> Report:
    return await asyncio.to_thread(report, made, logs)


def only(found: Report, name: str) -> Finding:
    (finding,) = [each for each in found.findings if each.id == name]
    assert finding.severity in BAD
    assert finding.seen
    assert finding.cause
    assert finding.remedy
    return finding


# ---- 1: the wrong port


async def test_1_nothing_listens_there_and_the_right_port_is_named(tmp_path: Path) -> None:
    async with serving(Engine()) as url:
        file = tmp_path / "engine.yaml"
        file.write_text(
            f"model: a/b\nspeculative_model: c/d\nnum_speculative_tokens: 4\nport: {url.rpartition(':')[2]}\n"
        )
        made = settings(tmp_path, engine=file)
        finding = only(await looked(made), "upstream-wrong")
        assert finding.title == f"nothing answers at upstream {made.upstream}"
        assert finding.remedy == f"set upstream: {url} (vLLM 0.32.0 with model m)"
        assert finding.command == f"curl -si {made.upstream}/v1/models"


async def hangs(_upstream: object, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (replying(json_reply({"detail": "Not Found"}, b"404 Not Found")), "is not OpenAI-compatible"),
        (replying(b"SSH-2.0-OpenSSH_9.2\r\n", close=True), "does not speak HTTP with us"),
        (hangs, "takes connections and does not answer"),
        (replying(json_reply({"failed_tasks": []})), "is the admin port of a Specwatch sidecar, not an engine"),
        (replying(json_reply({"error": {"type": "specwatch_x"}}, b"502 Bad Gateway")), "is another sidecar"),
    ],
    ids=["another server", "no HTTP", "hangs", "admin port", "sidecar without an engine"],
)
async def test_1_something_else_listens_there(
    tmp_path: Path, handler: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if handler is hangs:
        monkeypatch.setattr("sidecar.doctor.looks.servers.ASK_S", 1.0)
    async with running(handler) as server:
        finding = only(await looked(settings(tmp_path, upstream=server.url)), "upstream-wrong")
        assert words in finding.title


async def test_1_the_sidecar_itself(tmp_path: Path) -> None:
    made = settings(tmp_path)
    finding = only(
        await looked(settings(tmp_path, upstream=f"http://{made.listen}", listen=made.listen)), "upstream-wrong"
    )
    assert finding.title == "upstream is the sidecar's own data port"


# ---- 2: a moved token


async def test_2_a_moved_token_id(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(CHECKPOINTS / "draft_generalist", draft)
    engine = Engine()
    engine.models["root"] = str(CHECKPOINTS / "target")
    engine.draft_model = str(draft)
    async with serving(engine) as url:
        made = settings(tmp_path, upstream=url, engine_token=TOKEN)
        assert "tokenizer-files" in {each.id for each in (await looked(made)).findings}
        misalign(CHECKPOINTS / "draft_generalist", draft)
        finding = only(await looked(made), "tokenizers-misaligned")
        assert finding.command == f"specwatch tokenizers {CHECKPOINTS / 'target'} {draft}"
        assert any("in the target" in each for each in finding.seen)


# ---- 3: k too large


async def test_3_k_too_large(tmp_path: Path) -> None:
    """At each position 60 % of the steps that come there are accepted: of ten, the last are drafted in vain."""
    steps = (400, 240, 144, 86, 52, 31, 19, 11, 7, 4, 6)
    made = settings(tmp_path, draft_cost=0.1)
    stored(made, good(50, acceptance=figures(steps)))
    finding = only(await looked(made), "draft-too-long")
    # E is 0.6 + 0.6^2 + ..., so that (1 + E) / (1 + k c) is 1.63 at k=2, 1.67 at 3, 1.65 at 4 and 1.25 at 10.
    assert finding.title == "k is too large: 10 tokens are drafted, and 3 would do"
    assert "num_speculative_tokens: 3" in finding.remedy
    assert finding.seen[0] == "99% of 50000 verify steps are truncated (limit 35%)"
    assert any("expected gain 1.25 at k=10, 1.67 at k=3" in each for each in finding.seen), finding.seen


# ---- 4: a time-out that is too short


async def test_4_timeouts(tmp_path: Path) -> None:
    made = settings(tmp_path, idle_timeout_s=2, first_byte_limit_s=0.05)
    cut = good(5, outcome=Outcome.TIMEOUT, latency_ms=2010.0, ttft_ms=None, acceptance=Acceptance())
    stored(made, [*good(60, max_chunk_gap_ms=1500.0), *cut])
    found = await looked(made)
    finding = only(found, "idle-timeout-short")
    assert finding.title.startswith("idle_timeout_s ends requests: 5 of the last 65 requests")
    assert "idle_timeout_s: 60" in finding.remedy
    assert only(found, "first-byte-limit-short").seen == ("60 of 60 streams were later than that",)


# ---- 5: the database is gone


def at_database(made: Settings) -> Report:
    """What is said of the database alone."""
    return run(database.CHECKS, facts(settings=made, database=look(made)))


@pytest.mark.parametrize(
    ("url", "title", "seen"),
    [
        ("mysql://u@h/d", "the database", "'mysql' is not supported"),
        ("sqlite:///{folder}/none/specwatch.db", "{folder}/none/specwatch.db", "there is no folder {folder}/none"),
        ("sqlite:///{folder}", "{folder}", "is a folder"),
        ("postgresql://u:hunter2hunter@127.0.0.1:1/d", "127.0.0.1:1/d", "onnection refused"),
        ("sqlite:///{folder}/broken.db", "broken.db", "file is not a database"),
    ],
)
def test_5_the_database_is_gone(tmp_path: Path, url: str, title: str, seen: str) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database" * 1000)
    found = at_database(settings(tmp_path, database_url=url.format(folder=tmp_path)))
    finding = only(found, "database-gone")
    assert title.format(folder=tmp_path) in finding.title
    assert seen.format(folder=tmp_path) in finding.seen[0]
    assert "hunter2" not in repr(found)


async def test_5_a_locked_file_old_tables_and_a_spool_that_was_left(tmp_path: Path) -> None:
    made = settings(tmp_path)
    stored(made, good(3))
    (tmp_path / "spool" / "writer-1").mkdir(parents=True)
    (tmp_path / "spool" / "writer-1" / "1").write_bytes(b"x" * 5000)
    with closing(sqlite3.connect(tmp_path / "specwatch.db", isolation_level=None)) as other:
        other.execute("UPDATE alembic_version SET version_num = '0005'")
        found = await looked(made)
        assert {"migrations-behind", "spool-left"} <= ids(found)
        other.execute("BEGIN IMMEDIATE")
        finding = only(await looked(made), "database-gone")
        assert finding.seen[0] == "database is locked"
        assert "holds the write lock" in finding.cause


def test_5_a_server_that_hangs_or_takes_no_rows(tmp_path: Path) -> None:
    with cluster() as server:
        url = server.new_url()
        made = settings(tmp_path, database_url=url)
        stored(made, good(3))
        assert {each.id for each in at_database(made).findings} >= {"database", "migrations", "clocks"}
        with psycopg.connect(url, autocommit=True) as connection:
            name = url.rpartition("/")[2]
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
        assert only(at_database(made), "database-read-only").seen[0].startswith("transactions are read-only")
        server.freeze()
        try:
            finding = only(at_database(made), "database-gone")
            assert "hangs" in finding.cause or "does not run" in finding.cause
        finally:
            server.thaw()


# ---- 6: nobody asks for usage


async def test_6_no_usage_event_and_1_another_sidecar(tmp_path: Path) -> None:
    async with serving(Engine()) as url:
        made = settings(tmp_path, upstream=url)
        async with sidecar(made) as process:
            for _ in range(30):
                await process.exchange(post(chat(stream=True)))
            for _ in range(10):
                await process.exchange(post(chat(stream=True, stream_options={"include_usage": True})))
            await written(made, 40)
            finding = only(await looked(made), "no-usage")
            assert finding.title == "75% of the replies tell no acceptance figures"
            assert "add_usage: true" in finding.remedy

            found = await looked(settings(tmp_path / "second", upstream=f"http://{made.listen}"))
            finding = only(found, "upstream-wrong")
            assert finding.title == "upstream is another sidecar, not an engine"
            assert any("sidecar.cli sidecar" in each for each in finding.seen)


# ---- 7: another vLLM than the plugin knows


async def test_7_the_engine_is_too_old(tmp_path: Path) -> None:
    engine = Engine()
    engine.version = "0.28.0"
    engine.stands_down = "vLLM 0.28.0 is not known, only 0.32.0"
    log = tmp_path / "engine.log"
    log.write_text(
        "WARNING 01-01 00:00:00 Specwatch stands down, the engine serves without it: vLLM 0.28.0 is not known\n"
    )
    made = settings(tmp_path, engine_token=TOKEN)
    async with running(engine.handler) as server:
        made = settings(tmp_path, upstream=server.url, engine_token=TOKEN)
        without = Acceptance(
            reason="the usage event has no acceptance block: is the engine started with per-request metrics?"
        )
        stored(made, good(40, acceptance=without))
        found = await looked(made, log)
    assert only(found, "engine-version").title == "vLLM 0.28.0 is older than the plugin knows"
    assert only(found, "plugin-fails").seen == (engine.stands_down,)
    assert "vLLM 0.28.0 is not known" in only(found, "plugin-stood-down").seen[0]
    assert "--per-request-spec-decode-metrics" in only(found, "no-block").remedy


# ---- 8: metrics are off


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda engine: setattr(engine.counting, "stats", False), "metrics-off"),
        (lambda engine: setattr(engine.counting, "speculates", False), "no-speculation"),
        (lambda engine: setattr(engine, "has_metrics", False), "metrics-missing"),
    ],
    ids=["--disable-log-stats", "no speculation", "no /metrics"],
)
async def test_8_metrics_are_off(tmp_path: Path, change: Any, name: str) -> None:
    engine = Engine()
    change(engine)
    async with serving(engine) as url:
        found = await looked(settings(tmp_path, upstream=url, counters_every_s=0))
    assert {name, "counters-off"} <= ids(found)
    assert "upstream-answers" in {each.id for each in found.findings}


# ---- 9: out of memory


def test_9_out_of_memory_after_a_crash_with_nothing_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "engine.log"
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB"
    )
    log.write_text(f"INFO 11-30 18:05:52 vllm starts\n{line}\nINFO 11-30 18:05:53 engine ends\n")
    assert doctor(settings(tmp_path), logs=[log], as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    (finding,) = [each for each in found["findings"] if each["id"] == "out-of-memory"]
    assert finding["severity"] == "fault"
    assert line in finding["seen"][0]
    assert "gpu_memory_utilization" in finding["remedy"]
    assert "upstream-wrong" in {each["id"] for each in found["findings"]}


# ---- 10: long prompts without a prefix cache


async def test_10_prefix_caching_is_off(tmp_path: Path) -> None:
    engine = Engine()
    engine.prefix_caching = "False"
    async with serving(engine) as url:
        made = settings(tmp_path, upstream=url)
        stored(made, [*good(30), *good(20, prompt_tokens=3000)])
        finding = only(await looked(made), "prefix-caching-off")
        assert "20 of 50 prompts (40%) have more than 2048 tokens" in finding.seen
        assert "enable_prefix_caching: true" in finding.remedy


# ---- and nothing where nothing is wrong


async def test_a_healthy_system_has_no_findings(tmp_path: Path) -> None:
    async with serving(Engine()) as url:
        made = settings(tmp_path, upstream=url, engine_token=TOKEN)
        async with sidecar(made, SPECWATCH_ENGINE_TOKEN=TOKEN, SPECWATCH_BASELINE_SHARE="0") as process:
            for number in range(60):
                body = chat(stream=True, stream_options={"include_usage": True}) if number % 2 else chat()
                await process.exchange(post(body, extra=b"x-scenario: billing\r\n" if number % 3 else b""))
            await written(made, 60)
            found = await looked(made)
        # A machine that is busy with other tests is a slow one, as is said then.
        assert ids(found) <= {"sidecar-slow"}, [each for each in found.findings if each.severity in BAD]
        seen = {each.id for each in found.findings}
        assert {"upstream-answers", "sidecar", "database", "records", "acceptance", "coverage", "instance"} <= seen, (
            found.not_looked
        )
