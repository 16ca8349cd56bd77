"""Looks at this machine and its files, and that none of them hangs or changes what it looks at."""

import asyncio
import json
import os
import shutil
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from support.doctor import NOW, Engine, facts, good, report, row, settings, stored
from support.upstream import Upstream, json_reply, replying, running

from sidecar.admission import digest
from sidecar.doctor import figures
from sidecar.doctor.facts import Kind, Unseen
from sidecar.doctor.looks import database, gpus, limits, logs, machine, models, servers
from sidecar.doctor.samples import Samples
from sidecar.threads import in_thread


def test_who_listens_here() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = machine.listeners()[server.getsockname()[1]]
    assert (found.pid, found.sidecar, found.engine) == (os.getpid(), False, False)


@pytest.mark.parametrize(
    ("command", "words", "sidecar", "engine"),
    [
        ("python -m sidecar.cli sidecar --upstream http://u:p@h", "python -m sidecar.cli sidecar", True, False),
        ("python -m specwatch_engine.launch.serve --model m", "python -m specwatch_engine.launch.serve", False, True),
        ("/usr/bin/vllm serve m --api-key secret", "/usr/bin/vllm serve m", False, True),
        ("nginx", "nginx", False, False),
    ],
)
def test_a_command_is_told_without_its_flags(command: str, words: str, sidecar: bool, engine: bool) -> None:
    found = machine._listener(1, command)
    assert (found.words, found.sidecar, found.engine) == (words, sidecar, engine)


def test_this_machine(tmp_path: Path) -> None:
    made = settings(tmp_path)
    (tmp_path / "spool" / "writer-1").mkdir(parents=True)
    (tmp_path / "spool" / "writer-1" / "1").write_bytes(b"x" * 100)
    (tmp_path / "spool" / "quarantine.jsonl").write_bytes(b"{}\n{}\n")
    found = machine.look(made)
    assert not isinstance(found.spool, Unseen)
    assert (found.spool.bytes, found.spool.files, found.spool.quarantined) == (100, 1, 2)
    assert found.disks[0].what == "database_url"
    assert "specwatch" in found.packages
    assert "Python" in found.platform


SMI = """#!/bin/sh
case "$*" in
  *clocks_event_reasons*) {old} ;;
  *query-gpu*) echo "0, NVIDIA H200, 143000, 143771, 93, 61, 0x0000000000000048" ;;
  *compute-apps*) echo "77, VLLM::EngineCore, 142000" ;;
esac
"""


@pytest.mark.parametrize(
    "old",
    ['echo "0, NVIDIA H200, 143000, 143771, 93, 61, 0x0000000000000048"', "echo 'Field is not valid'; exit 2"],
    ids=["new driver", "old driver"],
)
async def test_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI.format(old=old))
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = await gpus.look()
    assert not isinstance(found, Unseen)
    (gpu,) = found
    assert (gpu.name, gpu.used_mib, gpu.total_mib, gpu.busy, gpu.temperature) == (
        ("NVIDIA H200"),
        143_000,
        143_771,
        93,
        61,
    )
    assert gpu.throttled == ("hardware slowdown", "temperature (hardware)")
    assert gpu.processes == ((77, "VLLM::EngineCore", 142_000),)


@pytest.mark.parametrize(
    ("script", "words"),
    [(None, "there is no nvidia-smi"), ("exit 9", "nvidia-smi failed"), ("sleep 60", "gave no answer")],
)
async def test_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str) -> None:
    monkeypatch.setattr(gpus, "_LIMIT_S", 0.5)
    shutil.copy("/bin/sleep", tmp_path / "sleep")
    if script is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = await gpus.look()
    assert isinstance(found, Unseen)
    assert words in found.why


async def test_what_hangs_is_left_behind() -> None:
    began = time.monotonic()
    found = await limits.within(0.2, in_thread(lambda: time.sleep(30)))
    assert found == Unseen("it took longer than 0.2 s", "slow")
    assert time.monotonic() - began < 10

    def fails() -> None:
        raise ValueError("of\nits own")

    assert await limits.within(5, in_thread(fails)) == Unseen("ValueError: of its own", "failed")


async def trickles(_upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer that never ends."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


async def test_a_whole_look_at_what_hangs_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "ASK_S", 0.5)
    async with running(trickles) as server:
        address = f"127.0.0.1:{server.port}"
        made = settings(tmp_path, upstream=server.url, fallback_upstream=server.url, admin=address)
        began = time.monotonic()
        found = await asyncio.to_thread(report, made)
        assert time.monotonic() - began < 20
    assert "upstream-wrong" in {each.id for each in found.findings}


def there(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


async def test_nothing_is_changed_by_looking(tmp_path: Path) -> None:
    """No file is made, and an engine is sent nothing but GETs."""
    engine = Engine()
    async with running(engine.handler) as server:
        made = settings(tmp_path, upstream=server.url, engine_token="hush-hush")
        before = there(tmp_path)
        await asyncio.to_thread(report, made)
        assert there(tmp_path) == before
        assert {head.split(b" ")[0] for head in server.heads} == {b"GET"}
        assert engine.orders == []
        assert engine.bodies == []


async def test_a_name_that_is_none() -> None:
    async with httpx.AsyncClient() as client:
        found = await servers.identify(client, "http://nobody.invalid:8200", {})
    assert found.kind is Kind.NOTHING
    assert "nobody.invalid cannot be resolved" in found.words


async def test_a_server_of_another_clock_and_one_that_wants_a_key() -> None:
    date = (datetime.now(UTC) - timedelta(seconds=90)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    body = b'{"data":[{"id":"m"}]}'
    head = b"HTTP/1.1 200 OK\r\ndate: %b\r\ncontent-length: %d\r\n\r\n%b" % (date.encode(), len(body), body)
    async with httpx.AsyncClient() as client:
        async with running(replying(head)) as server:
            found = await servers.identify(client, server.url, {})
            assert found.skew_s == pytest.approx(-90, abs=5)
        async with running(replying(json_reply({"error": "Unauthorized"}, b"401 Unauthorized"))) as server:
            found = await servers.identify(client, server.url, {})
            assert (found.kind, found.locked) == (Kind.OPENAI, True)


# ---- files


def test_logs(tmp_path: Path) -> None:
    engine, other = tmp_path / "engine.log", tmp_path / "dashboard.log"
    engine.write_text("x\n" * 5000 + "vllm ended: torch.OutOfMemoryError: CUDA out of memory\n")
    other.write_text("address already in use\n")
    found = asyncio.run(logs.look(engine, named=False))
    assert len(found.tail) == logs.LINES
    assert not isinstance(found.diagnosis, Unseen)
    assert found.diagnosis["name"] == "gpu-out-of-memory"
    assert asyncio.run(logs.look(other, named=False)).diagnosis == Unseen("it is no engine's log", "other")
    assert logs.of_run(tmp_path, [str(engine), str(tmp_path / "none.log")]) == [other, engine]


def test_certificates(tmp_path: Path) -> None:
    file, signed = tmp_path / "tls.pem", tmp_path / "certificate.json"
    ends = datetime.now(UTC) + timedelta(days=5)
    trustme.CA().issue_cert("localhost", not_after=ends).cert_chain_pems[0].write_to_path(file)
    content = json.loads((Path(__file__).parents[2] / "support/certificate.json").read_text())
    signed.write_text(json.dumps(content))
    made = settings(tmp_path, tls_certificate=file, tls_key=file, certificate=signed)
    tls, qualified = models.certificates(made)
    assert tls.expires == pytest.approx(ends.timestamp(), abs=2)
    assert qualified.problem is None
    assert qualified.expires is not None
    content["signed_off_by"] = None
    content["sha256"] = digest(content)
    signed.write_text(json.dumps(content))
    file.write_text("no certificate")
    tls, qualified = models.certificates(made)
    assert "cannot be read" in (tls.problem or "")
    assert "nobody has signed it off" in (qualified.problem or "")
    signed.unlink()
    os.mkfifo(signed)
    assert "is no file" in (models.certificates(made)[1].problem or "")


def test_pairs_that_cannot_be_named(tmp_path: Path) -> None:
    made = settings(tmp_path)
    assert isinstance(models.pair_names(made, None, {}, {}), Unseen)
    assert models.pair_names(made, None, {"target_model": "a", "draft_model": "b"}, {}) == ("a", "b")
    assert models.pair_names(made, None, {"target_model": "a", "draft_model": "b"}, {"draft_model": "c"}) == ("a", "c")
    found = models.pair_names(made, None, {"method": "ngram", "target_model": "a"}, {})
    assert isinstance(found, Unseen)
    assert found.code == "no_draft"
    found = models.pair((str(tmp_path / "none"), str(tmp_path / "none")))
    assert isinstance(found, Unseen)


def test_rows_are_of_the_last_day_and_newest_first(tmp_path: Path) -> None:
    made = settings(tmp_path)
    now = time.time()
    old = list(good(3))
    stored(made, [*old, *good(700)])
    found = database.rows(made, now)
    assert len(found) == 703
    assert [figures.at(each) for each in found] == sorted((figures.at(each) for each in found), reverse=True)
    assert database.rows(made, now + 2 * 86_400) == []


# ---- figures


def test_lately_is_an_hour_or_the_last_so_many() -> None:
    def ago(seconds: float) -> dict[str, Any]:
        return row(started_at=datetime.fromtimestamp(NOW - seconds, UTC).isoformat())

    many = [ago(i) for i in range(0, 3600 * 2, 10)]
    assert len(figures.lately(many, NOW)) == 361
    few = [ago(4000 + i) for i in range(300)]
    assert len(figures.lately(few, NOW)) == figures.FEW


@given(st.lists(st.floats(1, 1e4), min_size=20, max_size=200), st.lists(st.floats(1, 1e4), min_size=20, max_size=200))
def test_a_ratio_lies_in_its_interval(ours: list[float], theirs: list[float]) -> None:
    found = figures.p95_ratio(ours, theirs)
    assert found is not None
    assert found.low <= found.value <= found.high


# ---- samples

LABELS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True), st.text("ab\u00fc {},=", max_size=5), max_size=3
)


@given(st.lists(st.tuples(st.sampled_from(["a", "vllm:b", "c_total"]), LABELS, st.floats(-1e6, 1e6)), max_size=10))
def test_samples_are_read_as_they_were_written(written: list[tuple[str, dict[str, str], float]]) -> None:
    lines = [
        f"{name}{{{','.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in labels.items())}}} "
        f"{number!r}"
        for name, labels, number in written
    ]
    found = Samples("\n".join(["# HELP a words", *lines, ""]).encode())
    for name in ("a", "vllm:b", "c"):
        wanted = [(labels, number) for each, labels, number in written if each.removesuffix("_total") == name]
        assert list(found.of(name)) == wanted


@given(st.binary(max_size=300))
def test_samples_of_anything(text: bytes) -> None:
    assert Samples(text).total("a") is None or b"a" in text


def test_whole_facts_can_be_made() -> None:
    assert facts().engine is not None
