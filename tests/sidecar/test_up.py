"""How `specwatch up` lets engines and sidecar find each other."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

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
