"""A sidecar of the soak's own, before the engine: its record is in the run's folder, and nothing of it falls back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from ...launch.child import tail
from ..control import TOKEN
from ..run import Run
from ..stand import Engine, StandError
from ..started import dies_with, free_ports

#: Times, s: until it serves, and until it has written what is in flight.
_READY_S, _STOP_S = 90.0, 40.0
#: Requests that are served without speculation, to compare latencies with.
BASELINE_SHARE = 0.05
#: Texts compared: few, as the embedder takes a processor from the engine of a small machine.
_SIMILARITY_SHARE, _SIMILARITY_PER_MINUTE = 0.1, 10


@dataclass(frozen=True, slots=True)
class Watched:
    """The sidecar that the soak runs through."""

    proxy: str
    api: str
    api_token: str | None = None
    process: int | None = None
    database: Path | None = None
    log: Path | None = None
    child: subprocess.Popen[bytes] | None = None

    def death(self) -> str | None:
        """A sentence, where the soak's own sidecar has ended."""
        status = None if self.child is None else self.child.poll()
        if status is None:
            return None
        return f"The sidecar ended with exit status {status}; the end of {self.log}: {_tail(self.log)}"


@contextmanager
def private(engine: Engine, run: Run, scenarios: Sequence[str], events: Path | None) -> Iterator[Watched]:
    """`events`: the socket that the engine's plugin was given. Raises StandError where it does not come up."""
    listen, admin = free_ports(2)
    settings = {
        "upstream": engine.url,
        "listen": f"127.0.0.1:{listen}",
        "admin": f"127.0.0.1:{admin}",
        "database_url": f"sqlite:///{run.folder / 'soak.db'}",
        "spool": str(run.folder / "spool"),
        "run_dir": str(run.folder),
        "fallback_triggers": [],
        "baseline_share": BASELINE_SHARE,
        "similarity_share": _SIMILARITY_SHARE,
        "similarity_per_minute": _SIMILARITY_PER_MINUTE,
        "scenarios": list(scenarios)[:50],
        "admin_per_second": 200,
        "drain_s": 10,
    }
    given = {
        "fallback_upstream": engine.plain_url,
        "draft_model": None if engine.draft is None else Path(engine.draft).name,
        "num_speculative_tokens": engine.k or None,
        "engine_events": None if events is None else str(events.absolute()),
    }
    settings |= {name: value for name, value in given.items() if value is not None}
    file = run.write("sidecar.yaml", yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    # What this shell has set is meant for another sidecar.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPECWATCH_")}
    if engine.token is not None:
        environment[TOKEN] = engine.token
    log = run.folder / "sidecar.log"
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "sidecar.cli", "sidecar", "-c", str(file)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=dies_with(os.getpid()) if sys.platform == "linux" else None,
        )
    watched = Watched(
        proxy=f"http://127.0.0.1:{listen}",
        api=f"http://127.0.0.1:{admin}",
        process=child.pid,
        database=run.folder / "soak.db",
        log=log,
        child=child,
    )
    try:
        _wait(watched)
        yield watched
    finally:
        _stop(child)


def _wait(watched: Watched) -> None:
    until = time.monotonic() + _READY_S
    while time.monotonic() < until:
        if (death := watched.death()) is not None:
            raise StandError(death)
        with suppress(httpx.HTTPError):
            if httpx.get(f"{watched.api}/readyz", timeout=2, trust_env=False).status_code == 200:
                return
        time.sleep(0.2)
    raise StandError(
        f"the sidecar was not ready after {_READY_S:.0f} s; the end of {watched.log}: {_tail(watched.log)}"
    )


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _tail(log: Path | None) -> str:
    return " | ".join([] if log is None else tail(log, 5)) or "nothing was said"
