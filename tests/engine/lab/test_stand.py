import argparse
import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from specwatch_engine.lab import stand, started
from specwatch_engine.lab.progress import Say
from specwatch_engine.lab.run import Run
from specwatch_engine.lab.stand import EngineOptions, StandError, attached
from support.steered_engine import TOKEN, SteeredEngine
from support.upstream import json_reply, replying, running

LAUNCHER = (sys.executable, str(Path(__file__).with_name("fake_launcher.py")))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run.create("qualify", {}, tmp_path / "run")
    yield made
    made.close()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    for name in ("SPECWATCH_ENGINE_TOKEN", "SPECWATCH_ENGINE_EVENTS", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return io.StringIO()


# ---- options


def options(*argv: str) -> EngineOptions:
    parser = argparse.ArgumentParser()
    stand.add_arguments(parser)
    return EngineOptions.of(parser.parse_args(argv))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--engine", "http://h:1"], EngineOptions(engine="http://h:1")),
        (["-c", "f.yaml", "--plain", "http://h:2"], EngineOptions(config=Path("f.yaml"), plain="http://h:2")),
        (["--target", "t", "--draft", "d"], EngineOptions(target="t", draft="d", k=4)),
        (["--target", "t", "--draft", "d", "--k", "7"], EngineOptions(target="t", draft="d", k=7)),
    ],
)
def test_an_engine_is_named_in_one_of_three_ways(argv: list[str], expected: EngineOptions) -> None:
    assert options(*argv) == expected


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no engine is named: give --engine URL"),
        (["--engine", "http://h:1", "-c", "f"], "--engine and -c: an engine is named more than once"),
        (["--target", "t", "-c", "f"], "-c and --target: an engine is named more than once"),
        (["--target", "t"], "--draft is missing: --target and --draft go together"),
        (["--draft", "t"], "--target is missing"),
        (["--engine", "localhost:8200"], "--engine: 'localhost:8200' is no URL: write it as http://"),
        (["--engine", "http://h:1", "--plain", "h"], "--plain: 'h' is no URL"),
        (["--engine", "http://h:1", "--k", "4"], "--k: goes with --target and --draft"),
        (["--target", "t", "--draft", "d", "--k", "0"], "--k: must be at least 1, not 0"),
    ],
)
def test_what_names_no_engine_is_refused_by_its_option(argv: list[str], words: str) -> None:
    with pytest.raises(StandError, match=words):
        options(*argv)


# ---- one that runs


async def about(engine: SteeredEngine, told: io.StringIO, token: str | None = TOKEN, path: str = "") -> stand.Engine:
    async with running(engine.handler) as upstream:
        found = EngineOptions(engine=upstream.url + path)
        return await asyncio.to_thread(attached, found, Say(told), None, token)


async def test_what_the_plugin_tells_is_the_fingerprint(told: io.StringIO) -> None:
    engine = SteeredEngine()
    state = engine.state() | {"target_digest": "ab", "device": "cpu: X", "target_model": None}
    del state["draft_digest"]
    engine.state = lambda number=0: state  # type: ignore[method-assign]
    found = await about(engine, told, path="/v1/")
    assert (found.model, found.token, found.k, found.vllm, found.draft) == ("m", TOKEN, 4, "0.32.0", "/models/draft_a")
    assert found.fingerprint == {
        "vllm": "0.32.0",
        "target": None,
        "target_digest": "ab",
        "draft": "/models/draft_a",
        "draft_digest": None,
        "method": "draft_model",
        "k": 4,
        "device": "cpu: X",
    }
    assert tuple(found.fingerprint) == stand.FINGERPRINT
    assert (found.baseline, found.process, found.log) == ("spec_disabled", None, None)
    assert told.getvalue() == ""


async def test_a_cap_that_stands_is_told(told: io.StringIO) -> None:
    engine = SteeredEngine()
    engine.cap = 2
    await about(engine, told)
    assert "has a cap of 2 draft tokens now" in told.getvalue()


async def test_without_a_token_an_engine_is_measured_as_it_stands(told: io.StringIO) -> None:
    found = await about(SteeredEngine(), told, None)
    assert (found.token, found.k, found.draft, found.vllm) == (None, None, None, "0.32.0")
    assert "SPECWATCH_ENGINE_TOKEN is not set: the engine is measured as it stands" in told.getvalue()


async def test_without_the_plugin_too(told: io.StringIO) -> None:
    engine = SteeredEngine()
    engine.has_route = False
    assert (await about(engine, told)).token is None
    assert "the engine cannot be steered, and is measured as it stands" in told.getvalue()


async def test_an_engine_that_does_not_speculate_has_k_0(told: io.StringIO) -> None:
    engine = SteeredEngine()
    engine.state = lambda number=0: {"engine": 0, "vllm": "0.32.0", "method": None}  # type: ignore[method-assign]
    found = await about(engine, told)
    assert (found.k, found.token) == (0, TOKEN)


async def test_a_wrong_token_is_an_error(told: io.StringIO) -> None:
    with pytest.raises(StandError, match="another SPECWATCH_ENGINE_TOKEN"):
        await about(SteeredEngine(), told, "wrong")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (json_reply({"data": []}), "answered 200 and names no model: give the URL of vLLM itself"),
        (json_reply({"detail": "no"}, b"404 Not Found"), "answered 404 and names no model"),
        (json_reply({"error": "Unauthorized"}, b"401 Unauthorized"), "wants an API key: set VLLM_API_KEY"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", "names no model"),
    ],
)
async def test_what_is_no_engine_is_said(told: io.StringIO, reply: bytes, words: str) -> None:
    async with running(replying(reply)) as upstream:
        with pytest.raises(StandError, match=f"--engine: .*{words}"):
            await asyncio.to_thread(attached, EngineOptions(engine=upstream.url), Say(told))
        good = SteeredEngine()
        async with running(good.handler) as other:
            with pytest.raises(StandError, match=f"--plain: .*{words}"):
                await asyncio.to_thread(attached, EngineOptions(engine=other.url, plain=upstream.url), Say(told))
    with pytest.raises(StandError, match=r"--engine: nothing answers at .*: start the engine, or correct the URL"):
        await asyncio.to_thread(attached, EngineOptions(engine=upstream.url), Say(told))


async def test_an_engine_to_compare_with_makes_another_baseline(told: io.StringIO) -> None:
    async with running(SteeredEngine().handler) as one, running(SteeredEngine().handler) as other:
        asked = EngineOptions(engine=one.url, plain=other.url + "/")
        found = await asyncio.to_thread(attached, asked, Say(told))
    assert (found.plain_url, found.plain_model, found.baseline) == (other.url, "m", "true_ar")


async def test_the_cap_is_as_it_was_when_the_run_is_over(
    told: io.StringIO, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECWATCH_ENGINE_TOKEN", TOKEN)
    engine = SteeredEngine()
    engine.cap, engine.mode = 3, "soft"

    def measure(url: str) -> None:
        with stand.engine(EngineOptions(engine=url), run, Say(told)) as found:
            found.control.cap(1, "hard")
            assert (engine.cap, engine.mode) == (1, "hard")
            raise KeyboardInterrupt

    async with running(engine.handler) as upstream:
        with suppress(KeyboardInterrupt):
            await asyncio.to_thread(_interrupted, measure, upstream.url)
    assert (engine.cap, engine.mode) == (3, "soft")


def _interrupted(measure: Any, url: str) -> None:
    # A future does not hand KeyboardInterrupt on.
    with suppress(KeyboardInterrupt):
        measure(url)


# ---- one that is started


def config(folder: Path, **said: Any) -> EngineOptions:
    path = folder / "engine.json"
    path.write_text(json.dumps({"told": str(folder / "told.json"), **said}))
    return EngineOptions(config=path)


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_engine_of_its_own_serves_and_ends_with_the_run(
    tmp_path: Path, told: io.StringIO, run: Run, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    monkeypatch.setattr(started, "LAUNCHER", LAUNCHER)
    monkeypatch.setattr(started, "_STOP_S", 1.0)
    monkeypatch.setenv("SPECWATCH_ENGINE_EVENTS", "/of/another/engine")
    monkeypatch.setenv("SPECWATCH_ENGINE_TOKEN", "another's")
    asked = config(tmp_path, say=["engine: loading target (3 s)", "  | quoted"], stubborn=stubborn)
    with stand.engine(asked, run, Say(told)) as found:
        saw = json.loads((tmp_path / "told.json").read_text())
        assert found.token == saw["variables"]["SPECWATCH_ENGINE_TOKEN"] not in (None, "another's")
        assert str(found.events) == saw["variables"]["SPECWATCH_ENGINE_EVENTS"]
        assert len(str(found.events)) < 100
        assert found.process == saw["pid"]
        assert saw["arguments"]["--log"] == str(found.log) == str(run.folder / "engine.log")
        assert (found.model, found.k, found.target, found.draft) == ("served", 3, "/models/target", "/models/draft")
        assert os.getsid(saw["pid"]) == saw["pid"]
        found.control.cap(1)
    with pytest.raises(ProcessLookupError):
        os.kill(saw["pid"], 0)
    assert "engine: stopped" in (run.folder / "launch.log").read_text()
    assert "engine ready on" in told.getvalue()
    assert "quoted" not in told.getvalue()


def test_a_failed_start_is_told_in_the_launchers_words(
    tmp_path: Path, told: io.StringIO, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(started, "LAUNCHER", LAUNCHER)
    lines = [
        "engine: ended during start-up: exit status 1",
        "  | RuntimeError: ...",
        "engine: cause: an early one",
        "engine: cause: draft and target have vocabularies of different size",
        "engine: remedy: use a draft trained with the target's tokenizer",
    ]
    with pytest.raises(StandError) as raised:
        with stand.engine(config(tmp_path, say=lines, exit=1), run, Say(told)):
            pytest.fail("it did not start")
    first, *rest = str(raised.value).splitlines()
    assert first.startswith("the engine did not start (the launcher's exit status is 1)")
    assert rest == [
        "  cause: draft and target have vocabularies of different size",
        "  remedy: use a draft trained with the target's tokenizer",
    ]


def test_an_engine_that_is_never_ready_is_given_up(
    tmp_path: Path, told: io.StringIO, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = (sys.executable, "-c", "import time; print('engine: importing (0 s)', flush=True); time.sleep(60)")
    monkeypatch.setattr(started, "LAUNCHER", sleeper)
    monkeypatch.setattr(started, "_STOP_S", 1.0)
    asked = EngineOptions(config=config(tmp_path).config, ready_s=0.5)
    with pytest.raises(StandError, match=r"was not ready in time.*\n  engine: importing"):
        with stand.engine(asked, run, Say(told)):
            pytest.fail("it did not start")


def test_the_real_launcher_says_what_is_wrong_with_a_file(tmp_path: Path, told: io.StringIO, run: Run) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text("model: ./nowhere\nspeculative_config:\n  model: ./nobody\n  num_speculative_tokens: 3\n")
    with pytest.raises(StandError, match=r"exit status is 2.*\n.*engine.yaml:1: model: there is no model at"):
        with stand.engine(EngineOptions(config=path), run, Say(told)):
            pytest.fail("it did not start")
    with pytest.raises(StandError, match="-c: there is no file"):
        with stand.engine(EngineOptions(config=tmp_path / "none"), run, Say(told)):
            pytest.fail("it did not start")


def test_target_and_draft_become_a_file_that_the_launcher_takes(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    file = started.configuration(EngineOptions(target="target", draft="./draft", k=7), run)
    assert file.parent == run.folder
    assert yaml.safe_load(file.read_text()) == {
        "model": str(tmp_path / "target"),
        "speculative_config": {"model": str(tmp_path / "draft"), "num_speculative_tokens": 7},
    }
    from specwatch_engine.launch.config import load

    assert load(file).num_speculative_tokens == 7


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_an_engine_is_not_left_behind(tmp_path: Path) -> None:
    asked = config(tmp_path)
    code = (
        "import sys, time; from pathlib import Path; from specwatch_engine.lab import stand, started\n"
        "from specwatch_engine.lab.run import Run; from specwatch_engine.lab.progress import Say\n"
        f"started.LAUNCHER = {LAUNCHER!r}\n"
        f"run = Run.create('soak', {{}}, Path({str(tmp_path / 'r')!r}))\n"
        f"with stand.engine(stand.EngineOptions(config=Path({str(asked.config)!r})), run, Say()) as found:\n"
        "    print('up', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    port = int(json.loads((tmp_path / "told.json").read_text())["arguments"]["--port"])
    deadline = time.monotonic() + 10
    with pytest.raises(OSError, match="refused"):
        while time.monotonic() < deadline:
            socket.create_connection(("127.0.0.1", port), 1).close()
            time.sleep(0.05)
