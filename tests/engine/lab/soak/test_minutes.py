"""The soak before a scripted engine, through a sidecar of its own; a minute of it takes two seconds."""

import argparse
import asyncio
import io
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from specwatch_engine.lab.progress import Say
from specwatch_engine.lab.prompts import Prompt
from specwatch_engine.lab.run import Run, RunError, State
from specwatch_engine.lab.soak import command, minutes
from specwatch_engine.lab.soak.load import Load, Phase, _Flight
from specwatch_engine.lab.soak.minutes import ROWS, Soak, line
from specwatch_engine.lab.soak.private import Watched, private
from specwatch_engine.lab.soak.series import Reader
from specwatch_engine.lab.soak.verdict import Ended, judge
from specwatch_engine.lab.stand import Engine, EngineOptions, attached
from support.soak_rows import row
from support.steered_engine import TOKEN, SteeredEngine
from support.upstream import Upstream, running

PROMPTS = [
    Prompt(f"{scenario} {i}", scenario, {"messages": [{"role": "user", "content": f"{i}"}]}, "/v1/chat/completions")
    for scenario in ("billing", "code")
    for i in range(10)
]


@asynccontextmanager
async def before(url: str, run: Run) -> AsyncIterator[tuple[Engine, Watched]]:
    engine = Engine(url=url, model="m", token=TOKEN, k=4, process=os.getpid())
    sidecar = private(engine, run, ["billing", "code"], None)
    watched = await asyncio.to_thread(sidecar.__enter__)
    try:
        yield engine, watched
    finally:
        await asyncio.to_thread(sidecar.__exit__, None, None, None)


def soak_of(run: Run, engine: Engine, watched: Watched, reader: Reader, minutes: float) -> Soak:
    load = Load(watched.proxy, "m", [Phase(0, PROMPTS)], rate=30.0, concurrency=8, seed=0, minute_s=2)
    return Soak(run, engine, watched, load, reader, Say(io.StringIO()), minutes, minute_s=2)


async def test_minutes_become_rows_until_the_sidecar_dies(tmp_path: Path) -> None:
    run = Run.create("soak", {"minutes": 100}, tmp_path / "run")
    async with running(SteeredEngine().handler) as upstream, before(upstream.url, run) as (engine, watched):
        reader = Reader(watched.api)
        soak = soak_of(run, engine, watched, reader, 3)
        await soak.go()
        assert soak.death is None
        rows = run.rows(ROWS)
        whole = [each for each in rows if not each["partial"]]
        assert len(whole) >= 2
        assert [each["unread"] for each in rows if "unread" in each] == []
        for each in whole:
            assert set(each["acceptance"]) == {"billing", "code"}
            assert each["mix"]["requests"] + each["baseline"]["requests"] == each["seen"] == each["ok"]
            assert each["mix"]["p"] is not None
            assert each["seen"] > 0
            assert each["failures"] == {}
            assert each["sidecar"]["mb"] > 20
            assert each["engine"]["mb"] > 20
            assert each["database_mb"] > 0
            assert each["k"] == 4
        assert sum(each["seconds"] for each in rows) == pytest.approx(6, abs=0.1)

        assert watched.process is not None
        os.kill(watched.process, signal.SIGKILL)
        again = soak_of(run, engine, watched, reader, 50)
        await asyncio.wait_for(again.go(), 20)
        assert again.death is not None
        assert again.death.startswith("The sidecar ended with exit status -9; the end of ")
        assert "unread" in run.rows(ROWS)[-1]
        await reader.close()
    run.close()


def test_the_line_of_a_minute() -> None:
    told = row(11, {"billing": [(3, 4)] * 5, "code": [(4, 4)] * 5})
    assert line(told, 60) == (
        "minute 12 of 60: p 0.88 (billing 0.75, code 1.00), latency p95 800 ms, engine 1,500 MB, sidecar 200 MB,"
        " 10 requests"
    )
    told = row(11, {}, unread="refused", engine=None, sent=3, failures={"status 502": 3})
    assert line(told, 60) == "minute 12 of 60: no figures (refused), sidecar 200 MB, 3 requests, 3 failed"


def parsed(*given: str) -> argparse.Namespace:
    from specwatch_engine.lab.__main__ import parser_of

    return parser_of("soak", command).parse_args(given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "--minutes: how long?"),
        (["--minutes", "5", "--proxy", "http://a:1"], "--proxy and --api go together"),
        (["--minutes", "5", "--proxy", "a:1", "--api", "http://a:1"], "--proxy: 'a:1' is no URL"),
        (["--minutes", "5", "--then", "x.jsonl@9", "--engine", "http://a"], "--then: 'x.jsonl@9' must be FILE@MINUTES"),
        (["--minutes", "5", "--then", "x.jsonl", "--engine", "http://a"], "--then: 'x.jsonl' must be FILE@MINUTES"),
    ],
    ids=["no length", "proxy alone", "no URL", "then too late", "then without minutes"],
)
def test_wrong_use(tmp_path: Path, given: list[str], words: str) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    with pytest.raises(RunError) as error:
        command._checked(parsed("--prompts", str(prompts), *given), Say())
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("minutes", "then", "said"),
    [
        (7.9, None, "--minutes: 7.9 are too few to tell whether anything drifts, which takes 8"),
        (8, None, None),
        (30, 6, None),
        (30, 27, None),
        (30, 5, "--then: a change at minute 5 of 30 will hardly be found: give it 6 minutes before it, and 3 behind"),
        (30, 28, "--then: a change at minute 28 of 30 will hardly be found"),
        (600, 10, "give it 11 minutes before it"),
    ],
)
def test_what_will_not_be_told_is_said_before(minutes: float, then: float | None, said: str | None) -> None:
    phases = [Phase(0.0, []), *([] if then is None else [Phase(then * 60, [])])]
    found = command._untold(minutes, phases)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.mark.parametrize(("minutes", "seconds", "told"), [(8, 59, True), (7, 1, False)])
def test_fewer_minutes_than_are_warned_of_have_no_test(minutes: int, seconds: int, told: bool) -> None:
    """A run that begins so many seconds into a minute of the clock."""
    begins = [0.0, *(minute - seconds / 60 for minute in range(1, minutes + 1))]
    asked = {"billing": [(30, 40), (32, 40), (28, 40)] * 5}
    rows = [row(begin, asked, partial=at in (0, minutes)) for at, begin in enumerate(begins)]
    verdict = judge(rows, Ended(minutes)).verdict
    assert (verdict == "stable") == told


@pytest.mark.parametrize("given", [("--minutes", "0"), ("--hours", "x"), ("--rate", "-1"), ("--concurrency", "0")])
def test_no_such_number(given: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*given)
    assert f"{given[0]}: must be a" in capsys.readouterr().err


def test_hours_are_minutes() -> None:
    assert parsed("--hours", "1.5").minutes == 90
    assert parsed("--minutes", "7").minutes == 7


def test_a_finished_run_is_judged_again_without_an_engine(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    args = parsed("--prompts", str(prompts), "--minutes", "12", "--engine", "http://127.0.0.1:1")
    run = Run.create("soak", vars(args), tmp_path / "run")
    for minute in range(12):
        run.append(ROWS, row(minute, {"billing": [(30, 40), (32, 40), (28, 40)] * 5}))
    assert command.run(args, run, Say(io.StringIO())) == 0
    told: dict[str, Any] = run.told
    assert (told["state"], told["verdict"]) == ("done", "stable")
    assert "Nothing drifted over 12 whole minutes" in (run.folder / "report.md").read_text()
    run.close()


class Told:
    """An API that always answers."""

    async def minute(self, since: int, until: int) -> dict[str, Any]:
        own = ("minute", "at", "seconds", "partial", "sent", "failures", "pass", "engine", "sidecar", "database_mb")
        return {name: value for name, value in row(0, {}).items() if name not in own}


async def test_minutes_without_a_request_are_no_silence(tmp_path: Path) -> None:
    run = Run.create("soak", {"minutes": 100}, tmp_path / "run")
    load = Load("http://127.0.0.1:1", "m", [Phase(0, PROMPTS)], rate=0.001, concurrency=1, seed=0)
    soak = Soak(run, None, Watched("", ""), load, Told(), Say(io.StringIO()), 100)  # type: ignore[arg-type]
    for minute in range(8):
        await soak._row(60 * minute, 60 * minute, 60 * minute + 60, 0)
    assert soak.death is None
    load._flying[1] = _Flight(480.0, 480.0)
    for minute in range(8, 13):
        await soak._row(60 * minute, 60 * minute, 60 * minute + 60, 0)
    assert soak.death == "Nothing was answered any more from minute 8 on."


class Hanging(SteeredEngine):
    """Answers no request any more once so many were asked."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    async def handler(self, upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await upstream.read_request(reader)
            method, path, _ = upstream.heads[-1].split(b" ", 2)
            if len(self.bodies) >= self.most and method == b"POST":
                await asyncio.sleep(60)
            writer.write(self._answer(method.decode(), path.decode(), upstream.heads[-1], body))
            await writer.drain()


async def test_an_engine_that_hangs_in_the_last_minute_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minutes, "_PATIENCE_S", 4.0)
    monkeypatch.setattr(minutes, "_HUNG_S", 2.0)
    run = Run.create("soak", {"minutes": 3}, tmp_path / "run")
    async with running(Hanging(100).handler) as upstream, before(upstream.url, run) as (engine, watched):
        reader = Reader(watched.api)
        soak = soak_of(run, engine, watched, reader, 3)
        await soak.go()
        await reader.close()
    rows = run.rows(ROWS)
    assert soak.death == rows[-1]["death"]
    assert soak.death.startswith("Nothing was answered any more from minute ")
    assert [row for row in rows[:-1] if "death" in row] == []
    assert rows[-1]["failures"] == {"no answer": 8}
    assert sum(row["sent"] for row in rows) == 108
    assert judge(rows, Ended(3)).verdict == "failed"
    run.close()


async def test_a_death_is_told_whatever_comes_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def goes_on(args: argparse.Namespace, run: Run, *more: Any) -> None:
        seen.append(dict(run.told))
        for minute in range(12, 20):
            run.append(ROWS, steady(minute))

    def steady(minute: int, **changes: Any) -> dict[str, Any]:
        return row(minute, {"billing": [(30, 40), (32, 40), (28, 40)] * 5}, **changes)

    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(command, "_go", goes_on)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    async with running(SteeredEngine().handler) as upstream:
        args = parsed("--prompts", str(prompts), "--minutes", "20", "--engine", upstream.url)
        first = Run.create("soak", vars(args), tmp_path / "run")
        for minute in range(12):
            first.append(ROWS, steady(minute, **({"death": "The engine ended."} if minute == 11 else {})))
        engine = await asyncio.to_thread(attached, EngineOptions.of(args), Say(io.StringIO()))
        first.save(state=State.DONE, verdict="failed", fingerprint=engine.fingerprint)
        first.close()
        run = Run.resume(first.folder)
        assert await asyncio.to_thread(command.run, args, run, Say(io.StringIO())) == 1
    assert [(each["state"], each["ended_at"], each["verdict"]) for each in seen] == [("running", None, None)]
    assert (run.told["state"], run.told["verdict"]) == ("done", "failed")
    assert run.told["summary"]["reasons"][0] == "The engine ended."
    run.close()
