"""`specwatch db upgrade` and `specwatch db prune`, as commands."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.records import record
from support.stored import count, wait_for, writing

from sidecar.settings import RETENTION_DAYS

DAY = 86_400


def run(*arguments: str, **variables: str) -> tuple[int, str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPECWATCH_")}
    command = [sys.executable, "-m", "sidecar.cli", "db", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean | variables)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a.db'}"


def fill(url: str, *days: float) -> None:
    now = time.time()
    with writing(url) as writer:
        for ago in days:
            writer.put(record(started_at=now - ago * DAY))
        wait_for(lambda: writer.written == len(days))


def test_upgrade_says_what_it_did(url: str) -> None:
    assert run("upgrade", "--database-url", url) == (
        0,
        "tables: revision 0008, new\nrollups: none were missing\n",
        "",
    )
    fill(url, 1, 2)
    assert run("upgrade", SPECWATCH_DATABASE_URL=url) == (
        0,
        "tables: revision 0008\nrollups: 6 minutes, hours and days made\n",
        "",
    )


def test_prune_says_what_goes_and_what_went(url: str, tmp_path: Path) -> None:
    run("upgrade", "--database-url", url)
    fill(url, 1, 40, 41)
    # Their rollups are not made yet.
    config = tmp_path / "specwatch.yaml"
    config.write_text(f"database_url: {url}\nretention_days: {{texts: none}}\n")
    assert "requests: 0 rows would go" in run("prune", "-c", str(config), "--dry-run")[1]
    run("upgrade", "-c", str(config))
    code, said, _ = run("prune", "-c", str(config), "--dry-run")
    assert code == 0
    assert "requests: 2 rows would go\n" in said
    assert "texts" not in said
    assert count(url) == 3
    code, said, _ = run("prune", "-c", str(config))
    assert code == 0
    assert "requests: 2 rows deleted\n" in said
    assert count(url) == 1
    code, said, _ = run("prune", "-c", str(config), "--older", "requests=0.5", "--json")
    told = json.loads(said)
    assert (code, told["done"], told["dry_run"]) == (0, True, False)
    assert (told["deleted"]["requests"], told["left"]["requests"]) == (1, 0)
    assert count(url) == 0


def test_a_budget_that_ends_first_is_exit_code_1(url: str) -> None:
    fill(url, *(40 + i / DAY for i in range(500)))
    run("upgrade", "--database-url", url)
    code, said, _ = run("prune", "--database-url", url, "--budget", "0.000001s")
    assert (code, "requests: 0 rows deleted, 500 are left\n" in said) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--older", "requests"), "--older: 'requests' names no days; write it as requests=30"),
        (("--older", "requests=0"), "names no days"),
        (("--older", "requests=nan"), "names no days"),
        (("--older", "rollups=3"), "--older: 'rollups' is no table; use one of requests, texts"),
        (("--budget", "soon"), "--budget: 'soon' is no time"),
        (("--budget", "-1s"), "--budget: '-1s' is no time"),
        (("--database-url", "mysql://h/d"), "database_url"),
        (("-c", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_wrong_use_is_exit_code_2(url: str, arguments: tuple[str, ...], words: str) -> None:
    code, _, said = run(
        "prune", *arguments, **({} if "--database-url" in arguments else {"SPECWATCH_DATABASE_URL": url})
    )
    assert (code, words in said) == (2, True), said


def test_a_database_that_is_not_there_is_exit_code_1(url: str) -> None:
    code, _, said = run("prune", "--database-url", url)
    assert code == 1
    assert "database_url" in said
    away = "postgresql://postgres@127.0.0.1:1/none"
    for command in ("prune", "upgrade"):
        assert run(command, "--database-url", away)[0] == 1


def test_every_setting_can_be_named(url: str) -> None:
    run("upgrade", "--database-url", url)
    older = [part for name in RETENTION_DAYS for part in ("--older", f"{name}=5")]
    code, said, _ = run("prune", "--database-url", url, *older)
    assert (code, len(said.splitlines())) == (0, len(RETENTION_DAYS))
