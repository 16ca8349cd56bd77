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


@pytest.mark.parametrize(
    "command", ["up", "sidecar", "status", "fallback auto", "db upgrade", "alerts check", "doctor"]
)
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
        ("alerts check nowhere.yaml", "nowhere.yaml: No such file"),
        ("alerts test nowhere.yaml", "nowhere.yaml: No such file"),
        ("alerts test", "Missing argument"),
        ("no-such-command", "No such command"),
        ("fallback", "Missing argument"),
        ("qualify --settings nowhere.yaml", "nowhere.yaml: No such file"),
        ("self-draft --settings", "requires an argument"),
        ("", "Usage"),
    ],
)
def test_wrong_use_is_exit_code_2(arguments: str, words: str) -> None:
    code, said = run(*arguments.split())
    assert (code, words in said) == (2, True), said


WRONG = "rules:\n  - {alert: Slow, expr: acceptance_rte < 0.5, severity: warning}"
RIGHT = "rules:\n  - {alert: Slow, expr: acceptance_rate < 0.5, severity: warning}"


def test_a_wrong_file_of_alerts_is_exit_code_2_and_names_the_key(tmp_path: Path) -> None:
    file, settings = tmp_path / "alerts.yaml", tmp_path / "specwatch.yaml"
    file.write_text(WRONG)
    settings.write_text("alerts: alerts.yaml")
    for command in (
        f"alerts check {file}",
        f"alerts check -c {settings}",
        f"sidecar -c {settings}",
        f"up -c {settings}",
    ):
        code, said = run(*command.split())
        words = f"specwatch: {file}: rules[0].expr: there is no reading acceptance_rte; did you mean acceptance_rate?"
        assert (code, words in said) == (2, True), said
    file.write_text(RIGHT)
    code, said = run("alerts", "check", "-c", str(settings))
    assert (code, "1 of your own" in said) == (0, True), said
    code, said = run("alerts", "check", SPECWATCH_ALERTS="")
    assert (code, "SPECWATCH_ALERTS: is empty" in said) == (2, True), said
    code, said = run("alerts", "check")
    assert (code, "0 of your own" in said) == (0, True), said


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        ("pending", 0, "good.yaml: passed {file}: passed"),
        ("firing", 1, "good.yaml: passed {file}: a bad draft: at 0 s expected Slow firing; got Slow"),
        ("resolved", 2, "specwatch: {file}: tests[0].expect[0].alerts[0].status: must be one of"),
    ],
)
def test_tests_of_rules_tell_by_their_exit_code(status: str, code: int, words: str, tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(RIGHT.replace("severity", "for: 1m, severity"))
    good, file = tmp_path / "good.yaml", tmp_path / "mine.yaml"
    for path, expected in ((good, "pending"), (file, status)):
        path.write_text(
            "config: alerts.yaml\ntests:\n- name: a bad draft\n  readings: {acceptance_rate: 0.4}\n"
            f"  only: [Slow]\n  expect: [{{at: 0s, alerts: [{{alert: Slow, status: {expected}}}]}}]"
        )
    found, said = run("alerts", "test", str(good), str(file))
    assert (found, words.format(file=file) in said) == (code, True), said


def test_tests_of_rules_need_no_secrets(tmp_path: Path) -> None:
    away = "\nreceivers:\n  - {name: chat, type: webhook, url_file: away}\nroute: {receiver: chat}"
    (tmp_path / "alerts.yaml").write_text(RIGHT + away)
    file = tmp_path / "mine.yaml"
    file.write_text(
        "config: alerts.yaml\ntests:\n- {name: a, readings: {acceptance_rate: 1}, expect: [{at: 0s, alerts: []}]}"
    )
    code, said = run("alerts", "check", str(tmp_path / "alerts.yaml"))
    assert (code, "receivers[0].url_file: the file cannot be read" in said) == (2, True), said
    code, said = run("alerts", "test", str(file))
    assert (code, "passed" in said) == (0, True), said


def test_what_grafana_is_asked_passes_through() -> None:
    command = [sys.executable, "-m", "sidecar.cli", "grafana"]
    helped = subprocess.run([*command, "push", "--help"], capture_output=True, text=True)
    assert (helped.returncode, "specwatch grafana push" in helped.stdout) == (0, True), helped.stdout
    wrong = subprocess.run([*command, "push", "--no-such-flag"], capture_output=True, text=True)
    assert (wrong.returncode, "--no-such-flag" in wrong.stderr) == (2, True), wrong.stderr
