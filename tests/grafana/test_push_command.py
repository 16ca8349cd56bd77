"""specwatch grafana push as it is typed: flags, environment, what is printed, exit codes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from specwatch_grafana import __main__, shipped
from specwatch_grafana.connection import INSTALL
from support import grafana_package
from support.grafana_server import ADMIN, RELEASES, VIEWER, Fault, GrafanaServer, serving
from typer.testing import CliRunner, Result


@pytest.fixture
def server() -> Iterator[GrafanaServer]:
    with serving(RELEASES["13"]) as grafana:
        yield grafana


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GRAFANA_URL", "GRAFANA_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    made = grafana_package.make(tmp_path / "package")
    monkeypatch.setattr(shipped.Shipped.__init__, "__defaults__", (made,))
    return made


def run(*arguments: str, token: str | None = ADMIN, **environment: str) -> Result:
    given = environment | ({"GRAFANA_TOKEN": token} if token is not None else {})
    result = CliRunner().invoke(__main__.app, arguments, env=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "secret" not in result.output
    return result


def test_what_is_printed(server: GrafanaServer) -> None:
    pushing = ("push", "--url", server.url, "--prometheus-url", "http://p:9090", "--alerts")
    first = run(*pushing)
    assert first.exit_code == 0
    assert first.stdout == (
        f"server        {server.url}: ok, Grafana 13.2.3\n"
        "data source   specwatch-prom: created\n"
        "folder        specwatch: created\n"
        "dashboard     specwatch-latency: created\n"
        "dashboard     specwatch-overview: created\n"
        "alert rules   acceptance: created\n"
        "alert rules   state/other: created\n"
        "changed: 6 of 6\n"
    )
    second = run(*pushing)
    assert second.exit_code == 0
    assert second.stdout.splitlines()[-2:] == ["alert rules   state/other: unchanged", "unchanged"]
    assert (first.stderr, second.stderr) == ("", "")


def test_json(server: GrafanaServer) -> None:
    pushing = ("push", "--prometheus-url", "http://p:9090", "--json")
    dry = json.loads(run(*pushing, "--dry-run", GRAFANA_URL=server.url).stdout)
    assert (dry["dry_run"], dry["ok"], dry["changed"], server.writes) == (True, True, 4, [])
    first = json.loads(run(*pushing, GRAFANA_URL=server.url).stdout)
    assert {key: first[key] for key in ("url", "dry_run", "ok", "changed", "not_tried")} == {
        "url": server.url,
        "dry_run": False,
        "ok": True,
        "changed": 4,
        "not_tried": [],
    }
    assert first["steps"][2] == {"kind": "folder", "name": "specwatch", "outcome": "created", "detail": ""}
    assert json.loads(run(*pushing, GRAFANA_URL=server.url).stdout)["changed"] == 0
    server.faults.append(Fault("GET", "/api/folders/specwatch", 500, {"message": "no"}))
    failed = run(*pushing, GRAFANA_URL=server.url)
    assert failed.exit_code == 1
    told = json.loads(failed.stdout)
    assert (told["ok"], told["steps"][-1]["outcome"], len(told["not_tried"])) == (False, "failed", 2)
    assert "looking for folder specwatch: Grafana or a proxy" in failed.stderr


def test_a_failure_is_one_line_and_what_was_done_by_then(server: GrafanaServer) -> None:
    server.faults.append(Fault("POST", "/api/dashboards/db", 422, {"message": "no"}, times=1))
    result = run("push", "--url", server.url, "--prometheus-url", "http://p:9090")
    assert result.exit_code == 1
    assert result.stderr == (
        f"specwatch: {server.url}: saving dashboard specwatch-latency: not valid for this Grafana (HTTP 422: no); "
        "if it is provisioned: change the file it comes from, or set allowUiUpdates: true for it in Grafana's "
        "provisioning\n"
        "specwatch: changed: specwatch-prom, specwatch, specwatch-overview\n"
    )
    result = run("push", "--url", server.url, "--folder", "other", token=VIEWER)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "specwatch: nothing changed; not tried: specwatch-latency, specwatch-overview"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "specwatch: --url or GRAFANA_URL: is needed, as in http://127.0.0.1:3000"),
        (("--url", "x"), "specwatch: --url: must be http://HOST[:PORT][/SUB-PATH]"),
        (("--url", "http://h", "--folder", "a b"), "specwatch: --folder: must be 1 to 40 letters, digits, - or _"),
        (("--url", "http://h", "--datasource-uid", "x" * 41), "specwatch: --datasource-uid: must be 1 to 40"),
        (("--url", "http://h", "--prometheus-url", "p:9090"), "specwatch: --prometheus-url: must be http://HOST"),
        (("--url", "http://h", "--receiver", "x"), "specwatch: --receiver: is a contact point's name, and for alert"),
        (("--url", "http://h", "--receiver", " ", "--alerts"), "specwatch: --receiver: is a contact point's name"),
        (("--url", "http://h", "--token-file", "/nowhere"), "specwatch: --token-file: /nowhere cannot be read as text"),
        (("--url", "http://h", "--org", "0"), "Invalid value for '--org'"),
        (("--url", "http://h", "--no-such"), "No such option"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], said: str) -> None:
    result = run("push", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_a_token_that_is_none_is_wrong_use() -> None:
    result = run("push", "--url", "http://h", token="two secret words")
    assert (result.exit_code, "must be one line" in result.stderr) == (2, True)


def test_a_token_from_a_file(server: GrafanaServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{ADMIN}\n")
    pushing = ("push", "--url", server.url, "--token-file", str(file), "--prometheus-url", "http://p:9090")
    assert run(*pushing, token="glsa_other").exit_code == 0
    file.write_text("\n")
    result = run(*pushing)
    assert (result.exit_code, result.stderr) == (2, f"specwatch: --token-file: {file} is empty\n")


def test_without_grafana_client_one_line_says_what_to_install(server: GrafanaServer, tmp_path: Path) -> None:
    (tmp_path / "grafana_client").mkdir()
    (tmp_path / "grafana_client" / "__init__.py").write_text("raise ImportError('away')\n")
    command = [sys.executable, "-m", "specwatch_grafana", "push", "--url", server.url]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"specwatch: {INSTALL}\n")
    assert "pip install 'specwatch[grafana]'" in INSTALL


def test_as_a_process_of_its_own(server: GrafanaServer) -> None:
    command = [sys.executable, "-m", "specwatch_grafana", "push", "--prometheus-url", "http://p:9090"]
    given = {**os.environ, "GRAFANA_URL": server.url, "GRAFANA_TOKEN": ADMIN}
    first = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60)
    assert (first.returncode, first.stderr) == (0, "")
    second = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60)
    assert (second.returncode, second.stderr, second.stdout.splitlines()[-1]) == (0, "", "unchanged")


def test_help_names_every_option_in_the_words_of_the_command() -> None:
    text = " ".join(run("push", "--help").stdout.split())
    for option in ("--url", "--token-file", "--org", "--prometheus-url", "--datasource-uid", "--folder", "--alerts"):
        assert option in text
    assert "specwatch-prom" in text
