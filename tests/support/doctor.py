"""Facts for single checks, and an engine and a database for whole looks."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from sidecar.doctor.facts import EngineFacts, Facts, Kind, Machine, Server, SidecarFacts, Unseen
from sidecar.doctor.findings import Check, Report, Severity, run
from sidecar.doctor.gather import look
from sidecar.doctor.order import ALL
from sidecar.doctor.samples import Samples
from sidecar.record import Record
from sidecar.settings import Settings, load
from sidecar.store.upgrade import upgrade

from .chain import free_ports
from .records import figures, record
from .steered_engine import SteeredEngine
from .stored import count, wait_for, writing
from .upstream import json_reply

AWAY = Unseen("it is away", "away")
#: Unix time of facts that no clock is asked for.
NOW = 1_790_000_000.0
BAD = (Severity.FAULT, Severity.WARNING)


class Engine(SteeredEngine):
    """A healthy engine, with what newer checks ask of /metrics and /v1/models."""

    def __init__(self) -> None:
        super().__init__()
        self.version: str | None = "0.32.0"
        self.prefix_caching = "True"
        self.models: dict[str, Any] = {"id": "m", "root": "m", "max_model_len": 4096}
        self.more = ""
        self.has_metrics = True
        #: Good drafts: 4, 4, 3 and 4 of 4, so that p is 0.94.
        self.accepts = [4, 4, 3, 4]
        # A client that reads /metrics may know when the process began.
        self.counting.started = time.time() - 3600

    def _answer(self, method: str, path: str, head: bytes, body: bytes) -> bytes:
        if path == "/version":
            return json_reply({"version": self.version}) if self.version else json_reply({}, b"404 Not Found")
        if path == "/v1/models":
            return json_reply({"object": "list", "data": [self.models]})
        if path == "/metrics":
            if not self.has_metrics:
                return json_reply({}, b"404 Not Found")
            text = self.counting.text + self._cache().encode()
            return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)
        if path in ("/readyz", "/_stcore/health"):
            return json_reply({}, b"404 Not Found")
        return super()._answer(method, path, head, body)

    def state(self, number: int = 0) -> dict[str, Any]:
        return super().state(number) | {"target_model": self.models["root"]}

    def _cache(self) -> str:
        if not self.counting.stats:
            return ""
        labels = 'engine="0",model_name="m"'
        return (
            f'vllm:cache_config_info{{enable_prefix_caching="{self.prefix_caching}",{labels}}} 1.0\n'
            f"vllm:kv_cache_usage_perc{{{labels}}} 0.1\nvllm:num_preemptions_total{{{labels}}} 0.0\n{self.more}"
        )


def settings(folder: Path, **fields: Any) -> Settings:
    """Of a place of its own, on ports where nobody listens."""
    listen, admin, dashboard, upstream = free_ports(4)
    return load(
        None,
        **{
            "upstream": f"http://127.0.0.1:{upstream}",
            "listen": f"127.0.0.1:{listen}",
            "admin": f"127.0.0.1:{admin}",
            "dashboard": f"127.0.0.1:{dashboard}",
            "database_url": f"sqlite:///{folder}/specwatch.db",
            "spool": folder / "spool",
            "run_dir": folder / ".run",
        }
        | fields,
    )


class Process:
    """A sidecar of these settings, in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, made: Settings) -> None:
        self._process = process
        self._made = made

    async def exchange(self, request: bytes) -> bytes:
        """What it answers, until it closes."""
        host, _, port = self._made.listen.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answer


@asynccontextmanager
async def sidecar(made: Settings, **environment: str) -> AsyncIterator[Process]:
    """Runs until the block is left; then it must end well."""
    values = {
        f"SPECWATCH_{name.upper()}": str(getattr(made, name))
        for name in ("upstream", "listen", "admin", "database_url", "spool")
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar.cli", "sidecar"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | values | environment,
    )
    try:
        for _ in range(600):
            assert process.returncode is None
            try:
                _reader, writer = await asyncio.open_connection(*made.listen.rpartition(":")[::2])
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.05)
        yield Process(process, made)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def written(made: Settings, number: int) -> None:
    """Until there are so many rows."""
    await asyncio.to_thread(wait_for, lambda: _rows(made) >= number)


def _rows(made: Settings) -> int:
    try:
        return count(made.database_url)
    except SQLAlchemyError:  # the tables are being made
        return 0


def stored(made: Settings, records: Sequence[Record]) -> None:
    """Write them into a new database of these settings."""
    upgrade(made.database_url)
    with writing(made.database_url) as writer:
        for each in records:
            writer.put(each)


def good(number: int, **fields: Any) -> list[Record]:
    """Requests of the last minutes at k=4 and a p of 0.8, which stream."""
    now = time.time()
    plain = {
        "stream": True,
        "ttft_ms": 60.0,
        "latency_ms": 400.0,
        "tpot_ms": 10.0,
        "prompt_tokens": 200,
        "completion_tokens": 60,
        "temperature": 0.0,
        "fingerprint": "vllm 0.32.0, draft d, k=4",
        "acceptance": figures((1, 1, 2, 2, 14)),
    }
    return [record(started_at=now - 600 + 500 * i / number, **plain | fields) for i in range(number)]


def report(made: Settings, logs: Sequence[Path] = ()) -> Report:
    """All looks, and all checks."""
    return run(ALL, look(made, logs))


def ids(found: Report, *severities: Severity) -> set[str]:
    return {each.id for each in found.of(*(severities or BAD))}


# ---- facts of single checks


def row(**fields: Any) -> dict[str, Any]:
    """A `RequestRow` of a good request of a minute ago."""
    plain = {
        "request_id": "r",
        "started_at": _time(NOW - 60),
        "instance": "one",
        "upstream": "speculative",
        "arm": "speculative",
        "model": "m",
        "scenario": "default",
        "outcome": "ok",
        "status": 200,
        "temperature": 0.0,
        "prompt_tokens": 100,
        "completion_tokens": 100,
        "num_speculative_tokens": 4,
        "acceptance_quality": "ok",
        "acceptance_reason": None,
        "ttft_ms": 50.0,
        "latency_ms": 500.0,
        "tpot_ms": 10.0,
        "max_chunk_gap_ms": 30.0,
        "queue_ms": 1.0,
        "concurrency": 1,
        "fingerprint": "vllm 0.32.0, draft d, k=4",
    } | _steps((1, 1, 2, 2, 14))
    return plain | fields


def drafted(histogram: tuple[int, ...], **fields: Any) -> dict[str, Any]:
    """The same with `histogram[j]` verify steps that accepted j tokens, of k = len - 1."""
    return row(**{**_steps(histogram), "num_speculative_tokens": len(histogram) - 1, **fields})


def _steps(histogram: tuple[int, ...]) -> dict[str, Any]:
    found = figures(histogram)
    assert found.rejected_at is not None
    assert found.reached is not None
    return {
        "verify_steps": found.verify_steps,
        "draft_tokens": found.draft_tokens,
        "accepted_tokens": found.accepted_tokens,
        "rejected_at": list(found.rejected_at),
        "reached": list(found.reached),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def at(seconds: float) -> str:
    return _time(NOW + seconds)


SERVER = Server("http://127.0.0.1:8200", Kind.VLLM, "vLLM 0.32.0 with model m", "0.32.0", ("m",), "m", 4096)


def engine(text: str | Unseen = AWAY, **fields: Any) -> EngineFacts:
    """`text`: of its /metrics."""
    raw = text if isinstance(text, Unseen) else text.encode()
    samples = raw if isinstance(raw, Unseen) else Samples(raw)
    plain = EngineFacts("speculative", SERVER, raw, samples, Unseen("engine_token is not set here", "no_engine_token"))
    return replace(plain, **fields)


_PARTS = ("summary", "windows", "alignment", "quality", "fallback", "alerts", "events", "requests")


def side(metrics: str = "", **fields: Any) -> SidecarFacts:
    """A sidecar that is well."""
    plain = SidecarFacts(
        url="http://127.0.0.1:8001",
        ready={"status": "ready", "database": "ok", "failed_tasks": []},
        **dict.fromkeys(
            ("summary", "windows", "alignment", "quality", "fallback", "alerts", "events", "requests"), AWAY
        ),
        samples=Samples(metrics.encode()),
    )
    return replace(plain, **fields)


def facts(**fields: Any) -> Facts:
    """Everything is away but for an engine, unless `fields` say so."""
    plain = Facts(
        now=NOW,
        settings=Settings(),
        sidecar=AWAY,
        engines={"speculative": engine()},
        neighbours=[],
        ports={},
        engine_files={},
        database=AWAY,
        rows=AWAY,
        day=AWAY,
        machine=Machine(),
        gpus=AWAY,
        logs=[],
        pair=AWAY,
    )
    return replace(plain, **fields)


def told(checks: Sequence[Check], made: Facts) -> dict[str, str]:
    """Severities by id; `unseen` where a check could not be made."""
    found = run(checks, made)
    seen = {each.id: each.severity.value for each in found.findings}
    missing = {each.id: "unseen" for each in found.not_looked}
    assert not any("the check itself failed" in each.why for each in found.not_looked), found.not_looked
    return missing | seen


def chat(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0} | more).encode()
