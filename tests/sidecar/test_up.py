"""How `specwatch up` lets engines and sidecar find each other, and stages the demo's incident."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sidecar import cli
from sidecar.settings import load
from sidecar.up import Up, _Engine

SHARED = ("SPECWATCH_ENGINE_TOKEN", "SPECWATCH_ENGINE_EVENTS")


def test_token_and_socket_are_made_unless_they_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (Up(load(run_dir=Path("run")), None)._introduce() for _ in range(2))
    assert first["SPECWATCH_ENGINE_EVENTS"] == f"{tmp_path}/run/engine.sock"
    assert len(first["SPECWATCH_ENGINE_TOKEN"]) > 40
    assert first["SPECWATCH_ENGINE_TOKEN"] != second["SPECWATCH_ENGINE_TOKEN"]
    given = Up(load(engine_token="hush", engine_events=Path("mine.sock")), None)._introduce()
    assert given == {"SPECWATCH_ENGINE_TOKEN": "hush", "SPECWATCH_ENGINE_EVENTS": f"{tmp_path}/mine.sock"}


def test_a_path_too_long_for_a_socket_is_replaced_for_the_run(tmp_path: Path) -> None:
    for length in (107, 108):
        name = "x" * (length - len(f"{tmp_path}//engine.sock"))
        up = Up(load(run_dir=tmp_path / name, listen="127.0.0.1:0", admin="127.0.0.1:0", dashboard="127.0.0.1:0"), None)
        path = Path(up._introduce()["SPECWATCH_ENGINE_EVENTS"])
        assert (path.parent == tmp_path / name) is (length == 107)
        assert len(os.fsencode(path)) <= 107
    assert path.parent.stat().st_mode & 0o77 == 0
    up._start = lambda: None  # type: ignore[method-assign]
    up._asked.set()
    assert up.run() == 0
    assert not path.parent.exists()


def test_the_token_reaches_engines_and_sidecar_alone_and_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], Any]] = []

    class Child:
        stderr = ()

        def __init__(self, arguments: list[str], *, env: Any, **_: object) -> None:
            started.append((arguments, env))

    monkeypatch.setattr(subprocess, "Popen", Child)
    up = Up(load(run_dir=tmp_path, engine_token="hush-hush", admin_token="order-it", admin_read_token="read-it"), None)
    up._shared = up._introduce()
    up._spawn_engine(_Engine("engine", Path("e.yaml"), {"url": "http://127.0.0.1:8200"}))
    up._spawn("sidecar", "sidecar.cli", "sidecar", *up._sidecar_flags([]), shares=True)
    up._spawn("dashboard", "dashboard", variables=up._tokens)
    for arguments, _ in started:
        assert not [token for token in ("hush-hush", "order-it", "read-it") if token in " ".join(arguments)]
    engine, sidecar, dashboard = (environment for _, environment in started)
    for environment in (engine, sidecar):
        assert {name: environment[name] for name in SHARED} == up._shared
        assert environment["PATH"] == os.environ["PATH"]
    assert not dashboard.keys() & SHARED
    assert dashboard["SPECWATCH_ADMIN_TOKEN"] == "order-it"
    assert dashboard["SPECWATCH_ADMIN_READ_TOKEN"] == "read-it"
    assert not {"SPECWATCH_ADMIN_TOKEN", "SPECWATCH_ADMIN_READ_TOKEN"} & engine.keys()


#: Stands for the demo's traffic: notes what it was asked for, and runs until it is told to end.
TRAFFIC = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
(pathlib.Path.cwd() / sys.argv[1]).write_text(" ".join(sys.argv[2:]))
signal.pause()
"""


class Staged:
    """`Up` of a demo that is ready, with nothing but traffic, in a thread of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, incident_s: int | None) -> None:
        self.folder = folder
        self.started = 0
        self.code: int | None = None
        start = subprocess.Popen
        addresses = dict.fromkeys(("listen", "admin", "dashboard"), "127.0.0.1:0")

        def popen(command: list[str], **more: Any) -> Any:
            self.started += 1
            # Of the thread that started it, which is not the process's first.
            more["preexec_fn"] = None
            return start([sys.executable, "-c", TRAFFIC, str(self.started), *command[3:]], cwd=folder, **more)

        monkeypatch.setattr(subprocess, "Popen", popen)
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        self.up = Up(load(run_dir=folder, demo=True, **addresses), None, incident_s)
        self.up._start = self._start  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _start(self) -> None:
        self.up._spawn_traffic("familiar", seed=0)
        self.up._announce()

    def _run(self) -> None:
        self.code = self.up.run()

    def arguments(self, number: int) -> dict[str, str]:
        """Of the traffic that was started so, once it runs."""
        until(lambda: (self.folder / str(number)).exists() and (self.folder / str(number)).read_text())
        found = (self.folder / str(number)).read_text().split()
        return dict(argument.removeprefix("--").split("=") for argument in found)

    def end(self) -> None:
        self.up._asked.set()
        self._thread.join(30)
        assert self.code == 0
        assert [child.returncode for _, child in self.up._children] == [0] * self.started


def until(reached: Any) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_incident_is_other_traffic_in_place_of_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    staged = Staged(tmp_path, monkeypatch, incident_s=1)
    try:
        first, second = staged.arguments(1), staged.arguments(2)
        assert (first["mix"], second["mix"]) == ("familiar", "incident")
        assert first["seed"] != second["seed"]
        assert {**first, "mix": "", "seed": ""} == {**second, "mix": "", "seed": ""}
        until(lambda: staged.up._children[0][1].poll() == 0)
        # The end of that one is not the end of the run.
        time.sleep(1)
        assert staged.code is None
        assert staged.started == 2
    finally:
        staged.end()
    said = " ".join(capfd.readouterr().err.split())
    assert said.index("incident is staged in 1 s") < said.index("incident staged: ")
    assert "billing" not in said


def test_traffic_that_has_ended_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = Staged(tmp_path, monkeypatch, incident_s=1)
    try:
        staged.arguments(1)
        staged.up._children[0][1].terminate()
        assert staged.arguments(2)["mix"] == "incident"
    finally:
        staged.end()


def test_unattended_nothing_is_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        staged = Staged(tmp_path, monkeypatch, incident_s=None)
        try:
            staged.arguments(1)
            time.sleep(1.5)
        finally:
            staged.end()
    assert staged.started == 1
    said = " ".join(capfd.readouterr().err.split())
    assert "specwatch up --incident SECONDS stages one" in said
    assert "incident staged" not in said


def test_an_incident_without_the_demo_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["up", "--incident", "5"])
    assert (result.exit_code, "set demo: true" in result.output) == (2, True), result.output
    for wrong in ("-1", "soon", "nan"):
        assert CliRunner().invoke(cli.app, ["up", "--incident", wrong]).exit_code == 2
