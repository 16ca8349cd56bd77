"""No secret, prompt or reply gets into a bundle, nor a secret onto the terminal; and the command's exit codes."""

import asyncio
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from support.canaries import Canaries, files
from support.doctor import AWAY, BAD, Engine, facts, good, settings, sidecar, stored, written
from support.proxy import post
from support.upstream import running

from sidecar.doctor.bundle import BundleError, redacted, write
from sidecar.doctor.command import doctor
from sidecar.doctor.facts import LogFacts
from sidecar.doctor.findings import NotLooked, Report, as_json, note
from sidecar.doctor.hide import HandedOn, Shown
from sidecar.settings import Settings

#: Lines of an engine's log, as vLLM 0.32 with --enable-log-requests and as its errors have them.
QUOTING = (
    (
        "(APIServer pid=1) INFO 11-30 18:05:52 [logger.py:40] Received request chatcmpl-1: prompt: '{text}', params: "
        "SamplingParams(n=1)"
    ),
    (
        "(APIServer pid=1) INFO 11-30 18:05:52 [logger.py:60] Generated response chatcmpl-1: output: '{text}', "
        "output_token_ids: None"
    ),
    "{text}",
    "    {text}",
    "(EngineCore pid=2) ERROR 11-30 18:05:52 [core.py:1] messages=[{{'role': 'user', 'content': '{text}'}}]",
    "pydantic_core.ValidationError: 1 validation error: input_value='{text}', input_type=str",
    "ValueError: cannot encode '{text}' here",
    'INFO:     127.0.0.1:1 - "GET /v1/models?key={text} HTTP/1.1" 200 OK',
)
KEPT = (
    "(EngineCore pid=2) ERROR 11-30 18:05:52 [core.py:9] EngineCore failed to start.",
    'Traceback (most recent call last):\n  File "/x/core.py", line 9, in run\n    raise Failed(self.batch)',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    'INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "2026-11-30 18:12:52,915 INFO sidecar.alerting: 25 alert rules; receivers: none",
)


def unpacked(file: Path, folder: Path) -> Path:
    with tarfile.open(file) as tar:
        tar.extractall(folder, filter="data")
    return folder / "specwatch-doctor"


async def test_no_secret_and_no_text_gets_into_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Marks in every secret, in prompts and replies that pass a real sidecar, and in logs that quote them."""
    canaries = Canaries()
    token, read, password, rule = (canaries(name) for name in ("token", "read token", "password", "rule"))
    engine_token = canaries("engine token")
    log = tmp_path / "engine.log"
    lines = [line.format(text=canaries.text("log", str(number))) for number, line in enumerate(QUOTING)]
    log.write_text(
        "\n".join([*KEPT, *lines, *KEPT, (f"INFO 11-30 18:05:52 [x.py:1] authorization: Bearer {token}1"), ""])
    )
    async with running(Engine().handler) as server:
        made = settings(
            tmp_path,
            upstream=server.url,
            admin_token=token,
            admin_read_token=read,
            engine_token=engine_token,
            redact=[rule],
            scenario_rules={"s": rule},
        )
        names = {"ADMIN_TOKEN": token, "ADMIN_READ_TOKEN": read, "ENGINE_TOKEN": engine_token, "STORE_TEXT": "true"}
        async with sidecar(made, **{f"SPECWATCH_{name}": value for name, value in names.items()}) as process:
            for number in range(20):
                body = {"model": "m", "messages": [{"role": "user", "content": canaries.text("prompt", str(number))}]}
                await process.exchange(post(json.dumps(body).encode()))
            await written(made, 20)
            file = tmp_path / "b.tar.gz"
            assert await asyncio.to_thread(lambda: doctor(made, logs=[log], bundle=file)) == 1
    folder = unpacked(file, tmp_path / "out")
    for name, content in files(folder):
        assert canaries.found(content) == [], name
    said = capsys.readouterr()
    secrets = {"token", "read token", "engine token", "rule"}
    assert secrets & set(canaries.found((said.out + said.err).encode())) == set()
    assert password not in said.out
    # What may be there is, which shows that the search looks at it.
    text = (folder / "logs" / "0-engine.log.txt").read_text()
    for line in KEPT:
        assert line in text
    assert "lines left out]" in text
    assert json.loads((folder / "settings.json").read_text())["admin_token"] == "(hidden)"
    assert json.loads((folder / "summary.json").read_text())["traffic"]["requests"] == 20
    listed = {line.split()[0] for line in said.out.partition("b.tar.gz holds")[2].splitlines()[1:] if line.strip()}
    assert listed == {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"findings.json", "packages.json", "platform.json", "gpu.json", "alerts.json", "events.json"} <= listed
    assert file.stat().st_mode & 0o077 == 0


@given(st.text(max_size=80), st.sampled_from(QUOTING))
def test_of_a_line_that_quotes_nothing_is_left(text: str, line: str) -> None:
    marked = f"zqmark {text} zqmark"
    hide = HandedOn(Settings())
    for told in hide.log(line.format(text=marked).splitlines()):
        assert "zqmark" not in told


@pytest.mark.parametrize("mark", ["'", '"'])
def test_a_line_of_megabytes_takes_no_hours(mark: str) -> None:
    (told,) = HandedOn(Settings()).log([f"INFO 11-30 18:05:52 [x.py:1] it says {mark}" + "a " * 500_000])
    assert told == "INFO 11-30 18:05:52 [x.py:1] it says [text]"


def test_lines_of_known_form_stay() -> None:
    lines = [line for each in KEPT for line in each.splitlines()]
    assert list(HandedOn(Settings()).log(lines)) == lines


def test_what_is_shown_has_no_secrets() -> None:
    made = Settings(
        engine_token=SecretStr("s3cretvalue"),
        database_url="postgresql://bob:hunter2hunter@10.0.0.5/d",
        redact=[r"CUST-\d+"],
    )
    shown = Shown(made)
    text = "s3cretvalue at postgresql://bob:hunter2hunter@10.0.0.5/d for CUST-12, http://u:p@h:1 with Bearer abcdefgh"
    assert shown(text) == (
        "(hidden) at postgresql://(hidden)@10.0.0.5/d for [redacted], http://(hidden)@h:1 with Bearer (hidden)"
    )
    assert "10.0.0.5" not in HandedOn(made)(text)
    assert redacted(made)["database_url"] == "(hidden)"


DATABASES = {
    "a user alone is no secret": ("postgresql://specwatch@db/x", "run `specwatch db upgrade`", True),
    "a password": ("postgresql://me:hunter2hunter@db/x", "password hunter2hunter is wrong", False),
    "with escapes": ("postgresql://me:p%40ss%2Fword@db/x", "password p@ss/word is wrong", False),
    "as an option": ("postgresql://db/x?user=me&password=p%40ssword", "password p@ssword is wrong", False),
    "as an option, as it stands there": ("postgresql://db/x?password=p%40ssword", "not found: p%40ssword", False),
    "of a certificate's key": ("postgresql://db/x?sslpassword=hunter2hunter", "hunter2hunter", False),
    "no URL": ("postgresql://[", "well", True),
}


@pytest.mark.parametrize("name", DATABASES)
def test_of_a_databases_url_the_password_alone_is_hidden(name: str) -> None:
    url, text, stays = DATABASES[name]
    assert (Shown(Settings(database_url=url))(text) == text) is stays


def test_what_is_hidden_in_json_leaves_it_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = 'quo"ted\\token'
    found = note("x", f"it says Bearer abcdefgh and {token}", "Bearer abcdefgh", remedy=token, command=token)
    shown = Shown(Settings(engine_token=SecretStr(token)))
    told = as_json(Report([found], [NotLooked("y", f"Bearer {token}", token)]), shown)
    assert told["findings"][0]["title"] == "it says Bearer (hidden) and (hidden)"
    assert "ted" not in json.dumps(told, ensure_ascii=False)
    made = settings(tmp_path, engine_token=token)
    stored(made, good(30, scenario="Bearer abcdefgh"))
    doctor(made, as_json=True)
    assert json.loads(capsys.readouterr().out)["findings"]


def test_a_bundle_is_its_owners_whoever_put_its_part_there(tmp_path: Path) -> None:
    (tmp_path / "others").write_text("kept")
    (tmp_path / ".b.tgz.part").symlink_to(tmp_path / "others")
    write(tmp_path / "b.tgz", facts(), Report([], []))
    assert (tmp_path / "others").read_text() == "kept"
    assert (tmp_path / "b.tgz").stat().st_mode & 0o177 == 0


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert doctor(settings(tmp_path), logs=[tmp_path / "pipe"]) == 2
    assert "is no file" in capsys.readouterr().err


def test_a_bundle_without_a_sidecar_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    log = LogFacts(Path("/x/engine.log"), 1, 1.0, ("INFO 11-30 18:05:52 [x.py:1] well",), AWAY)
    file = tmp_path / "b.tgz"
    sizes = write(file, facts(logs=[log]), Report([], []))
    assert {"findings.json", "settings.json", "logs/0-engine.log.txt"} <= sizes.keys()
    assert "summary.json" not in sizes
    assert [path.name for path in tmp_path.iterdir()] == ["b.tgz"]
    with pytest.raises(BundleError, match="Not a directory"):
        write(file / "c.tgz", facts(), Report([], []))


# ---- the command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"logs": ["none.log"]}, "--log: {folder}/none.log: No such file or directory; name the log file of an engine"),
        ({"bundle": "b.zip"}, "--bundle: {folder}/b.zip must end in .tar.gz"),
        ({"bundle": "none/b.tar.gz"}, "--bundle: there is no folder {folder}/none"),
        ({"bundle": "folder.tar.gz"}, "--bundle: {folder}/folder.tar.gz is a folder"),
    ],
)
def test_wrong_use_is_status_2(
    tmp_path: Path, arguments: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.tar.gz").mkdir()
    given_ = {
        name: [tmp_path / each for each in value] if isinstance(value, list) else tmp_path / value
        for name, value in arguments.items()
    }
    assert doctor(settings(tmp_path), **given_) == 2
    assert capsys.readouterr().err.strip() == f"specwatch doctor: {words.format(folder=tmp_path)}"


def test_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    made = settings(tmp_path, idle_timeout_s=2)
    stored(made, good(30, scenario="[bold]x[/]\x1b[31m", max_chunk_gap_ms=1900.0))
    assert doctor(made) == 1
    said = capsys.readouterr().out
    first = said.splitlines()[0].split()
    assert first[:2] == ["fault", "upstream-wrong"]
    severities = [line.split()[0] for line in said.partition("\n\n")[0].splitlines() if line[0].isalpha()]
    order = ["fault", "warning", "note", "fine"]
    assert severities == sorted(severities, key=order.index)
    assert "warning idle-timeout-near: idle_timeout_s is near what requests need: p99 1.90 s" in said
    for name in ("  seen    ", "  likely  ", "  do      ", "  look    "):
        assert name in said
    assert "Not looked at" in said
    assert "\x1b" not in said
    assert doctor(made, as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["exit_status"]) == ("fault", 1)
    assert {each["severity"] for each in found["findings"] if each["cause"]} <= {*BAD, "note"}
    assert found["not_looked_at"]
