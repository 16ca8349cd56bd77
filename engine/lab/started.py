"""An engine of the run's own: started by the launcher on a free port, and stopped when the run ends."""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from .control import TOKEN
from .models import there
from .progress import Say
from .run import Run
from .stand import EngineOptions, StandError

LAUNCHER = (sys.executable, "-m", "specwatch_engine.launch")
#: The variable that names the socket of the plugin's events.
EVENTS = "SPECWATCH_ENGINE_EVENTS"
_READY = "engine ready on "
#: What the launcher says of an engine that ended.
_TELLING = ("engine: cause:", "engine: seen:", "engine: remedy:", "engine: whole log:")
_STAGE = re.compile(r"engine: .* \(\d+ s\)")
_POLL_S = 0.2
#: The launcher itself allows vLLM 20 s to stop.
_STOP_S = 30.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Started:
    url: str
    token: str
    process: int
    log: Path
    events: Path


@contextmanager
def started(options: EngineOptions, run: Run, say: Say) -> Iterator[Started]:
    """Raises StandError, with the launcher's own words, where the engine does not start."""
    file = configuration(options, run)
    (port,), token = free_ports(1), secrets.token_urlsafe(24)
    log, words = run.folder / "engine.log", run.folder / "launch.log"
    command = [*LAUNCHER, "-c", str(file), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--log", str(log), "--ready-timeout", f"{options.ready_s:g}"]
    with TemporaryDirectory(prefix="specwatch-") as folder, words.open("wb") as output:
        # Of its own: a listener that the environment names is there for another engine. Paths of sockets are short.
        events = Path(folder) / "events"
        process = subprocess.Popen(
            command,
            env=dict(os.environ) | {TOKEN: token, EVENTS: str(events)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the run, which stops its engine in order.
            start_new_session=True,
            preexec_fn=dies_with(os.getpid()) if sys.platform == "linux" else None,
        )
        try:
            url = _wait(process, words, say, options.ready_s)
            yield Started(url, token, process.pid, log, events)
        finally:
            _stop(process)


def configuration(options: EngineOptions, run: Run) -> Path:
    """The file to start with: the one named, or one of target and draft, written into the run's folder.

    Raises StandError where that file, or one of the models, is not there.
    """
    if options.config is not None:
        if not options.config.is_file():
            raise StandError(f"-c: there is no file {options.config}: name a speculative_config.yaml")
        return options.config
    settings = {
        "model": there("--target", str(options.target)),
        "speculative_config": {"model": there("--draft", str(options.draft)), "num_speculative_tokens": options.k},
    }
    about = "# Written by the lab, of --target, --draft and --k.\n"
    return run.write("speculative_config.yaml", about + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def _wait(process: subprocess.Popen[bytes], words: Path, say: Say, limit_s: float) -> str:
    """The engine's URL once it serves."""
    until, told = time.monotonic() + limit_s + _STOP_S, 0
    with say.waiting("the engine is being started") as stage:
        while True:
            ended = process.poll() is not None
            *lines, _ = words.read_text("utf-8", "replace").split("\n")
            for line in lines[told:]:
                if line.startswith(_READY):
                    say(line)
                    return line.removeprefix(_READY).split(" ")[0]
                if _STAGE.fullmatch(line):
                    stage(line)
                elif not line.startswith("  |"):
                    say(line)
            told = len(lines)
            if ended or time.monotonic() > until:
                raise StandError(_why(lines, process, words))
            time.sleep(_POLL_S)


def _why(lines: list[str], process: subprocess.Popen[bytes], words: Path) -> str:
    """What the launcher said last of an engine that did not start."""
    last: dict[str, str] = {}
    for line in lines:
        for kind in _TELLING:
            if line.startswith(kind):
                last[kind] = line.removeprefix("engine: ")
    said = list(last.values()) or [line for line in lines if line.strip()][-5:]
    status = process.poll()
    ended = "was not ready in time" if status is None else f"did not start (the launcher's exit status is {status})"
    return "\n".join([f"the engine {ended}; all that was said is in {words}", *(f"  {line}" for line in said)])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """In order; a second signal has the launcher make haste."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                continue
    if process.poll() is None:
        process.kill()  # its engine ends too: it watches for that
        process.wait()


def free_ports(number: int) -> list[int]:
    """On loopback; all at once, so that they differ."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def dies_with(parent: int) -> Callable[[], None]:
    """Has a child get SIGTERM when the run's process is gone, however it went: an engine must not be left behind."""
    library = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask
