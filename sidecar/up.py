"""`specwatch up`: engine(s), sidecar and dashboard as one, each in a process of its own."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from .children import die_with_parent
from .engine_feed.feed import MAX_PATH
from .incident import Incident
from .settings import Settings, split_address

#: How long a process may take to stop before it is killed, s. The sidecar's drain limit comes on top.
# An engine's launcher itself allows vLLM 20 s.
_STOP_S = 30.0
_TRAFFIC = "demo traffic"
_DEMO_RATE = 1.0
_DEMO_S = 3600.0

_console = Console(stderr=True, highlight=False)


class _Stop(Exception):
    """The run is over: exit code and, if it failed, why."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Engine:
    name: str
    file: Path
    #: What `--describe` printed.
    facts: dict[str, Any]

    @property
    def url(self) -> str:
        return str(self.facts["url"])


class Up:
    """Starts what the settings name, waits until it serves, and stops it again in reverse order.

    `incident_s`: how long after that the demo's incident is staged; None: when it is asked for.
    """

    def __init__(self, settings: Settings, config: Path | None, incident_s: int | None = None) -> None:
        self._settings = settings
        self._config = config
        self._incident = Incident(incident_s, lambda line: _console.print(line, markup=False, soft_wrap=True))
        self._children: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._asked = threading.Event()
        #: Set once an engine has said that it is warm.
        self._ready: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        #: Environment by which engines and sidecar find each other.
        self._shared: dict[str, str] = {}
        #: Of the socket, where the run's own folder has too long a path for one.
        self._folder: str | None = None
        self._began = time.monotonic()

    def run(self) -> int:
        """Blocks until Ctrl-C, SIGTERM or the end of a part. Returns the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._asked.set())
        try:
            self._start()
            self._watch()
        except _Stop as stop:
            if stop.code:
                _console.print(f"[red]specwatch up:[/] {stop}", soft_wrap=True)
            return stop.code
        finally:
            self._stop_children()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
        return 0

    @property
    def _clients_url(self) -> str:
        return f"{'https' if self._settings.tls_certificate else 'http'}://{self._settings.listen}"

    @property
    def _tokens(self) -> dict[str, str]:
        """For the dashboard, which reads no file of settings. A command line would show them to every user."""
        given = {name: getattr(self._settings, name) for name in ("admin_token", "admin_read_token")}
        return {f"SPECWATCH_{name.upper()}": token.get_secret_value() for name, token in given.items() if token}

    # ---- start

    def _start(self) -> None:
        settings = self._settings
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        for name in ("listen", "admin", "dashboard"):
            _check_free(name, getattr(settings, name))
        if settings.demo:
            self._call("specwatch_engine.demo.prepare", str(settings.run_dir / "models"))
        engines = [
            self._describe(name, file)
            for name, file in (("engine", settings.engine), ("fallback engine", settings.fallback_engine))
            if file is not None
        ]
        for engine in engines:
            _check_free(f"the port of {engine.file}", engine.url.partition("://")[2])
        if settings.engine is not None:
            self._shared = self._introduce()
        for engine in engines[:1]:
            self._spawn_engine(engine)
        self._spawn("sidecar", "sidecar.cli", "sidecar", *self._sidecar_flags(engines), shares=True)
        host, port = split_address(settings.dashboard)
        self._spawn(
            "dashboard",
            "dashboard",
            "--api",
            f"http://{settings.admin}",
            "--host",
            host,
            "--port",
            str(port),
            log=settings.run_dir / "dashboard.log",
            variables=self._tokens,
        )
        self._wait(f"http://{settings.admin}/readyz", "sidecar")
        for engine in engines[:1]:
            while not self._ready[engine.name].is_set():
                self._tick(engine.name)
        self._wait(f"http://{settings.dashboard}/_stcore/health", "dashboard")
        if settings.demo:
            self._spawn_traffic("familiar", seed=0)
        self._announce()
        # Only now, so that it does not slow down the start of the engine that clients wait for.
        for engine in engines[1:]:
            self._spawn_engine(engine)

    def _spawn_engine(self, engine: _Engine) -> None:
        arguments = ("specwatch_engine.launch", "-c", str(engine.file))
        self._spawn(engine.name, *arguments, ready=self._ready[engine.name], shares=True)

    def _spawn_traffic(self, mix: str, seed: int) -> None:
        options = {
            "url": self._clients_url,
            "mix": mix,
            "seed": seed,
            "rate": _DEMO_RATE,
            "seconds": _DEMO_S,
            "concurrency": 2,
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        log = self._settings.run_dir / f"traffic_{mix}.log"
        self._spawn(_TRAFFIC, "specwatch_engine.demo.traffic", *arguments, log=log)

    def _introduce(self) -> dict[str, str]:
        """The engine's socket and token, for both sides. A command line would show the token to every user."""
        settings = self._settings
        token = settings.engine_token.get_secret_value() if settings.engine_token else secrets.token_urlsafe(32)
        path = (settings.engine_events or settings.run_dir / "engine.sock").absolute()
        if settings.engine_events is None and len(os.fsencode(path)) > MAX_PATH:
            self._folder = tempfile.mkdtemp(prefix="specwatch-")
            path = Path(self._folder, "engine.sock")
        return {"SPECWATCH_ENGINE_TOKEN": token, "SPECWATCH_ENGINE_EVENTS": str(path)}

    def _sidecar_flags(self, engines: list[_Engine]) -> list[str]:
        """What the engines' own files tell wins over settings that would only repeat it."""
        flags = ["-c", str(self._config)] if self._config else []
        for engine in engines:
            if engine.name == "engine":
                flags += ["--upstream", engine.url]
                for setting in ("draft_model", "num_speculative_tokens"):
                    if engine.facts.get(setting) is not None and getattr(self._settings, setting) is None:
                        value = engine.facts[setting]
                        flags += [
                            f"--{setting.replace('_', '-')}",
                            Path(value).name if setting == "draft_model" else str(value),
                        ]
            else:
                flags += ["--fallback-upstream", engine.url]
        return flags

    def _describe(self, name: str, file: Path) -> _Engine:
        answer = subprocess.run(
            [sys.executable, "-m", "specwatch_engine.launch", "-c", str(file), "--describe"],
            stdout=subprocess.PIPE,
            check=False,
        )
        if answer.returncode:
            raise _Stop(2, f"{file} cannot be used, see above")
        return _Engine(name, file, json.loads(answer.stdout))

    def _call(self, module: str, *arguments: str) -> None:
        if subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode:
            raise _Stop(1, f"{module} failed, see above")

    def _spawn(
        self,
        name: str,
        module: str,
        *arguments: str,
        log: Path | None = None,
        ready: threading.Event | None = None,
        shares: bool = False,
        variables: dict[str, str] | None = None,
    ) -> None:
        output = log.open("wb") if log is not None else None
        child = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE if ready else subprocess.STDOUT if output else None,
            env=os.environ | (self._shared if shares else {}) | (variables or {}),
            # Ctrl-C reaches this process alone; the parts are then stopped in order.
            start_new_session=True,
            # It would keep its port.
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
        if output is not None:
            output.close()
        if ready is not None:
            threading.Thread(target=_pump, args=(name, child, ready), daemon=True).start()
        self._children.append((name, child))

    def _wait(self, url: str, name: str) -> None:
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(url, timeout=2, trust_env=False).status_code == 200:
                    return
            self._tick(name)

    def _tick(self, waiting_for: str = "") -> None:
        if self._asked.wait(0.2):
            raise _Stop(0)
        self._check(waiting_for)

    def _check(self, waiting_for: str = "") -> None:
        for name, child in self._children:
            code = child.poll()
            if code is None or (name == _TRAFFIC and not waiting_for):
                continue
            log = self._settings.run_dir / f"{name}.log"
            tail = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
            raise _Stop(1, "\n".join([*tail, f"{name} ended by itself with exit code {code}"]))

    def _announce(self) -> None:
        settings = self._settings
        took = time.monotonic() - self._began
        _console.print(
            f"\n[bold]Specwatch is ready[/] after {took:.0f} s\n"
            f"  API for clients  {self._clients_url}/v1\n"
            f"  dashboard        http://{settings.dashboard}\n"
            f"  admin            http://{settings.admin}/api/v1/summary, /metrics\n"
            + (
                f"  demo traffic     {_DEMO_RATE:g} request a second for {_DEMO_S / 60:g} minutes\n"
                f"  incident         {self._incident.offer()}\n"
                if settings.demo
                else ""
            )
            + "  state            specwatch status\n"
            "Ctrl-C stops everything.",
            soft_wrap=True,
        )

    # ---- run and stop

    def _watch(self) -> None:
        while not self._asked.wait(0.5):
            self._check()
            if self._settings.demo and self._incident.due():
                self._stage_incident()
        raise _Stop(0)

    def _stage_incident(self) -> None:
        """Other traffic in place of that there is, which finishes the replies under way."""
        for name, child in self._children:
            if name == _TRAFFIC:
                child.terminate()
        self._spawn_traffic("incident", seed=1)

    def _stop_children(self) -> None:
        # Engines last: what is in flight through the sidecar still needs them.
        order = self._children[::-1]
        order.sort(key=lambda entry: entry[0].endswith("engine"))
        if order:
            _console.print("stopping; replies in flight may take a while")
        for name, child in order:
            if child.poll() is None:
                with suppress(ProcessLookupError):
                    child.send_signal(signal.SIGTERM)
                try:
                    child.wait(_STOP_S + (self._settings.drain_s if name == "sidecar" else 0))
                except subprocess.TimeoutExpired:
                    _console.print(f"{name} did not stop in time and is killed")
                    with suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)
                    child.wait()


def _pump(name: str, child: subprocess.Popen[bytes], ready: threading.Event) -> None:
    """Passes on what an engine launcher says; two live lines on one terminal would garble each other."""
    assert child.stderr is not None
    for raw in child.stderr:
        line = raw.decode(errors="replace").rstrip()
        _console.print(f"{name}: {line.removeprefix('engine: ')}", markup=False, soft_wrap=True)
        if line.startswith("engine ready on "):
            ready.set()


def _check_free(name: str, address: str) -> None:
    host, port = split_address(address)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise _Stop(
                1, f"{name}: {address} cannot be used ({error.strerror}): stop what runs there or change it"
            ) from None
