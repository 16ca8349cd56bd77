"""The lab's commands: the lab runs as a child, its exit status is ours, its run has a row where there is a database."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar import lab
from sidecar.settings import SettingsError
from sidecar.store.upgrade import upgrade

TESTS = Path(__file__).parents[1]
TOKEN = "hush-hush"


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A scripted lab, and a folder of its own; steering is on, as for any lab."""
    monkeypatch.setattr(lab, "MODULE", "support.scripted_lab")
    monkeypatch.setattr(lab, "_LOOK_S", 0.02)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("SPECWATCH_ENGINE_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def database(folder: Path) -> str:
    url = f"sqlite:///{folder}/specwatch.db"
    upgrade(url)
    return url


def rows(folder: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(folder / "specwatch.db")) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM lab_runs")]


def test_what_is_given_is_passed_on_and_the_exit_status_is_the_labs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ["-c", "engine.yaml", "--prompts", "p.jsonl", "--number=5", "--settings-like", "x"]
    assert lab.run("qualify", given) == 1
    assert json.loads(capfd.readouterr().out) == given
    assert lab.run("sweep", ["wrong"]) == 2
    assert lab.run("soak", ["dies"]) == 128 + 9


def test_a_run_has_a_row_from_its_beginning_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    database(tmp_path)
    states: list[tuple[str, Any]] = []
    put = lab.put

    def noted(url: str, run: dict[str, Any]) -> None:
        put(url, run)
        states.append((rows(tmp_path)[0]["state"], rows(tmp_path)[0]["verdict"]))

    monkeypatch.setattr(lab, "put", noted)
    monkeypatch.setenv("SPECWATCH_INSTANCE", "here")
    assert lab.run("qualify", ["--out", "mine"]) == 1
    assert states[-1] == ("done", "rejected")
    (row,) = rows(tmp_path)
    assert (row["kind"], row["instance"], row["folder"]) == ("qualify", "here", str(tmp_path / "mine"))
    assert (row["model"], row["draft_model"], row["num_speculative_tokens"]) == ("/t", "/d", 4)
    assert capfd.readouterr().err == ""
    assert TOKEN not in str(row)


def test_one_that_is_killed_is_told_of_all_the_same(tmp_path: Path) -> None:
    database(tmp_path)
    assert lab.run("soak", ["dies"]) == 137
    (row,) = rows(tmp_path)
    assert (row["state"], row["ended_at"] is not None) == ("interrupted", True)


DATABASES: dict[str, tuple[dict[str, str], str, int, str]] = {
    "none is there, and none is named": ({}, "", 0, ""),
    "it is there, and none is named": ({}, "here", 1, ""),
    "one is named": ({"SPECWATCH_DATABASE_URL": "sqlite:///other.db"}, "other", 1, ""),
    "one is named that is not there": (
        {"SPECWATCH_DATABASE_URL": "sqlite:///other.db"},
        "",
        0,
        "specwatch: the run is not recorded: database_url: ",
    ),
    "one that cannot be reached": (
        {"SPECWATCH_DATABASE_URL": "postgresql://nobody:hidden@127.0.0.1:1/none"},
        "here",
        0,
        "specwatch: the run is not recorded: database_url: ",
    ),
    "settings that are wrong": (
        {"SPECWATCH_BASELINE_SHERE": "1"},
        "here",
        0,
        "specwatch: the run is not recorded: SPECWATCH_BASELINE_SHERE: no such setting",
    ),
    "a file of settings that is not there": (
        {"SPECWATCH_CONFIG": "away.yaml"},
        "here",
        0,
        "specwatch: the run is not recorded: away.yaml: No such file",
    ),
}


@pytest.mark.parametrize("name", DATABASES)
def test_a_run_is_recorded_where_there_is_a_database_and_goes_on_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    environment, there, recorded, words = DATABASES[name]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    if there:
        database(tmp_path)
        if there == "other":
            (tmp_path / "specwatch.db").rename(tmp_path / "other.db")
    assert lab.run("qualify", []) == 1
    said = capfd.readouterr().err
    assert words in said
    assert bool(said) is bool(words)
    assert "hidden" not in said
    if there == "other":
        (tmp_path / "other.db").rename(tmp_path / "specwatch.db")
    if there:
        assert len(rows(tmp_path)) == recorded
    else:
        assert not (tmp_path / "specwatch.db").exists()


def test_a_database_that_is_away_for_hours_is_worth_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECWATCH_DATABASE_URL", "postgresql://nobody:hidden@127.0.0.1:1/none")
    monkeypatch.setattr(lab, "_RECORD_S", 0.05)
    assert lab.run("soak", ["dies"]) == 137
    assert capfd.readouterr().err.count("is not recorded") == 1


def test_a_run_of_a_process_that_had_the_same_id_is_another(tmp_path: Path) -> None:
    old = lab.ROOT / "soak-0"
    old.mkdir(parents=True)
    (old / lab.RUN).write_text("{}")
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    (old / lab.LOCK).write_text(f"{child.pid}\n")
    before = {old: lab._held(old)}
    assert lab._folder_of(child, [], before) is None
    # It goes on with that run: it has taken the lock anew.
    os.utime(old / lab.LOCK, (1, 1))
    assert lab._folder_of(child, [], before) == tmp_path / old


def test_settings_that_are_named_must_be_there_and_name_the_database(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"away\.yaml"):
        lab.run("qualify", [], tmp_path / "away.yaml")
    assert not (tmp_path / ".run").exists()
    (tmp_path / "db").mkdir()
    (tmp_path / "s.yaml").write_text(f"database_url: {database(tmp_path / 'db')}\ninstance: there\n")
    assert lab.run("qualify", [], tmp_path / "s.yaml") == 1
    assert [row["instance"] for row in rows(tmp_path / "db")] == ["there"]


def test_help_is_the_labs_and_names_what_is_added(capfd: pytest.CaptureFixture[str]) -> None:
    assert lab.run("soak", ["--help"]) == 0
    said = capfd.readouterr().out
    assert said.startswith("usage: specwatch soak")
    assert "--settings FILE" in said
    assert "SPECWATCH_CONFIG" in said


@pytest.mark.parametrize("at_start", ["SIG_DFL", "SIG_IGN"])
@pytest.mark.parametrize(
    ("number", "group"), [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGHUP, True)]
)
def test_ctrl_c_ends_the_lab_and_its_row_says_so(
    number: signal.Signals, group: bool, at_start: str, tmp_path: Path
) -> None:
    database(tmp_path)
    code = (
        "import signal, sys; from sidecar import lab; lab.MODULE = 'support.scripted_lab'\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"signal.signal(signal.SIGINT, signal.default_int_handler if '{at_start}' == 'SIG_DFL' else signal.SIG_IGN)\n"
        "sys.exit(lab.run('soak', ['waits']))"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": f"{TESTS.parent}:{TESTS}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert started.stdout is not None
        while started.stdout.readline() != "waits\n":
            assert started.poll() is None
        for _ in range(400):
            if rows(tmp_path):
                break
            time.sleep(0.05)
        assert rows(tmp_path)[0]["state"] == "running"
        # A terminal sends Ctrl-C to the whole group; a service manager ends the process that it knows.
        if group:
            os.killpg(started.pid, number)
        else:
            started.send_signal(number)
        assert started.wait(30) == 130
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        started.stdout.close()
    assert rows(tmp_path)[0]["state"] == "interrupted"


def test_the_lab_itself_is_started_and_its_failure_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab, "MODULE", "specwatch_engine.lab")
    monkeypatch.delenv("PYTHONPATH")
    database(tmp_path)
    asked = [{"messages": [{"role": "user", "content": f"Hello {number}"}]} for number in range(12)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, asked)))
    assert lab.run("qualify", ["--prompts", "p.jsonl", "--engine", "http://127.0.0.1:1"]) == 2
    assert "127.0.0.1:1" in capfd.readouterr().err
    (row,) = rows(tmp_path)
    assert (row["kind"], row["state"], row["folder"].startswith(str(tmp_path / ".run/lab"))) == (
        "qualify",
        "failed",
        True,
    )
