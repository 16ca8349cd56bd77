"""Commands: wrong use and wrong configuration are one sentence and exit code 2, before anything is started."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sidecar.cli import app


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def wrong_files(folder: Path) -> list[tuple[Path, str]]:
    """Files that cannot be used, each with a word of what is to be said of it."""
    (folder / "wrong.yaml").write_text("a: [")
    (folder / "unknown.yaml").write_text("no_such_setting: 1")
    (folder / "value.yaml").write_text("port: 8200000\nlisten: nowhere")
    return [
        (folder / "none.yaml", "none.yaml"),
        (folder / "wrong.yaml", "wrong.yaml"),
        (folder / "unknown.yaml", "no_such_setting"),
        (folder / "value.yaml", "port"),
        (folder, "Is a directory"),
    ]


@pytest.mark.parametrize("command", ["up", "sidecar", "status", "fallback auto", "db upgrade"])
def test_a_wrong_configuration_is_exit_code_2(command: str, tmp_path: Path) -> None:
    for file, word in wrong_files(tmp_path):
        code, said = run(*command.split(), "-c", str(file))
        assert (code, word in said) == (2, True), said
    code, said = run(*command.split(), SPECWATCH_BASELINE_SHERE="1")
    assert (code, "did you mean SPECWATCH_BASELINE_SHARE?" in said) == (2, True), said
    assert run(*command.split(), "--no-such-flag")[0] == 2


def test_so_is_that_of_an_engine(tmp_path: Path) -> None:
    for file, word in wrong_files(tmp_path)[:2]:
        command = [sys.executable, "-m", "sidecar.cli", "engine", "-c", str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, word in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("fallback off", "use auto, speculative or autoregressive"),
        ("sidecar --listen nowhere", "--listen: must be host:port"),
        ("dashboard --listen nowhere", "--listen: must be host:port"),
        ("sidecar --database-url mysql://h/d", "database_url"),
        ("db upgrade --database-url mysql://h/d", "database_url"),
        ("no-such-command", "No such command"),
        ("fallback", "Missing argument"),
        ("", "Usage"),
    ],
)
def test_wrong_use_is_exit_code_2(arguments: str, words: str) -> None:
    code, said = run(*arguments.split())
    assert (code, words in said) == (2, True), said
