import argparse
import asyncio
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from specwatch_engine.lab import __main__ as command
from specwatch_engine.lab.load import Batch, LoadError
from specwatch_engine.lab.progress import Say
from specwatch_engine.lab.prompts import PromptError
from specwatch_engine.lab.run import Run, State
from specwatch_engine.lab.stand import StandError

Act = Callable[[argparse.Namespace, Run, Say], int]


class Room(ModuleType):
    """A command in place of qualify; `act` is what it does."""

    MAY_CHANGE = frozenset(("sign_off",))

    def __init__(self) -> None:
        super().__init__("a_room")
        self.act: Act = lambda args, run, say: 0
        self.args: list[argparse.Namespace] = []

    def run(self, args: argparse.Namespace, run: Run, say: Say) -> int:
        self.args.append(args)
        return self.act(args, run, say)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--p", type=float, default=0.65)
        parser.add_argument("--sign-off")
        parser.add_argument("--then")
        parser.set_defaults(number=100)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Room:
    made = Room()
    monkeypatch.setitem(sys.modules, "a_room", made)
    monkeypatch.setitem(command.COMMANDS, "qualify", ("a_room", "whether a draft is good enough"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    return made


NEW = ["qualify", "--engine", "http://h:1", "--prompts", "p.jsonl", "--out", "r"]
AGAIN = ["qualify", "--resume", "r"]


def told() -> Any:
    return json.loads(Path("r/run.json").read_text())


def test_a_room_is_given_its_options_and_its_run(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    def act(args: argparse.Namespace, run: Run, say: Say) -> int:
        run.save(state=State.DONE, verdict="qualified")
        say("so it is")
        return 0

    room.act = act
    assert command.main([*NEW, "--concurrency", "8,1,8", "--json"]) == 0
    (args,) = room.args
    assert (args.engine, args.number, args.concurrency, args.p, args.greedy) == ("http://h:1", 100, [1, 8], 0.65, False)
    assert args.prompts == str(Path("p.jsonl").absolute())
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == (told(), "so it is\n")
    assert (told()["state"], told()["kind"], told()["options"]["concurrency"]) == ("done", "qualify", [1, 8])


@pytest.mark.parametrize(("code", "state"), [(0, "done"), (1, "done"), (2, "failed")])
def test_a_run_is_over_when_its_room_is(room: Room, code: int, state: str) -> None:
    room.act = lambda args, run, say: code
    assert command.main(NEW) == code
    assert told()["state"] == state


@pytest.fixture
def heard() -> Iterator[None]:
    """The signals are heard, whatever those who started the tests ignore (nohup, a shell's background)."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("waiting", ["in a loop", "as it is"])
def test_an_interrupted_run_says_how_to_go_on(
    room: Room, capsys: pytest.CaptureFixture[str], number: int, waiting: str
) -> None:
    ended: list[str] = []

    def act(args: argparse.Namespace, run: Run, say: Say) -> int:
        run.append("rows", {"n": 1})
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        try:
            if waiting == "in a loop":
                asyncio.run(asyncio.sleep(30))
            signal.pause()
        finally:
            ended.append("in order")
        return 0

    room.act = act
    handler = signal.getsignal(signal.SIGTERM)
    assert command.main(NEW) == 130
    assert ended == ["in order"]
    assert signal.getsignal(signal.SIGTERM) is handler
    assert told()["state"] == "interrupted"
    assert told()["ended_at"]
    assert f"go on with `specwatch qualify --resume {Path('r').absolute()}`" in capsys.readouterr().err
    room.act = lambda args, run, say: len(run.rows("rows")) - 1
    assert command.main(AGAIN) == 0
    assert room.args[0] == argparse.Namespace(**(vars(room.args[1]) | {"out": "r", "resume": None}))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StandError("nothing answers"), "error: nothing answers\n"),
        (PromptError(["p:1: no", "p:2: nor"]), "error: p:1: no\np:2: nor\n"),
        (ValueError("oh"), "error: a fault of the lab itself; what was measured is in "),
    ],
)
@pytest.mark.parametrize("measured", [False, True])
def test_a_fault_ends_the_run_with_words(
    room: Room, capsys: pytest.CaptureFixture[str], error: Exception, words: str, measured: bool
) -> None:
    def act(args: argparse.Namespace, run: Run, say: Say) -> int:
        if measured:
            run.append("rows", {"asked": 1})
        raise error

    room.act = act
    assert command.main(NEW) == 2
    assert words in (err := capsys.readouterr().err)
    assert ("once that is seen to, go on with `specwatch qualify --resume" in err) == measured
    assert ("Traceback" in err) == isinstance(error, ValueError)
    assert (told()["state"], told()["verdict"]) == ("failed", "cannot tell")
    kept = "a fault of the lab itself: ValueError" if isinstance(error, ValueError) else str(error)
    assert told()["summary"]["reasons"] == [kept]


@pytest.mark.parametrize(
    "error",
    [
        PromptError(["p:1: no, not a secret"], ["p:1: no"]),
        LoadError(
            "the first 5 requests failed", Batch(first_failure="status 400: a secret", first_failure_plain="status 400")
        ),
        UnicodeEncodeError("utf-8", "a secret", 0, 1, "no"),
    ],
)
def test_what_is_quoted_is_said_and_not_kept(room: Room, capsys: pytest.CaptureFixture[str], error: Exception) -> None:
    def act(args: argparse.Namespace, run: Run, say: Say) -> int:
        raise error

    room.act = act
    assert command.main(NEW) == 2
    if not isinstance(error, UnicodeEncodeError):
        assert "a secret" in capsys.readouterr().err
    assert told()["summary"]["reasons"]
    assert not [path for path in Path("r").iterdir() if "a secret" in path.read_text()]


def test_a_full_disk_is_no_verdict(
    room: Room, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    def act(args: argparse.Namespace, run: Run, say: Say) -> int:
        monkeypatch.setattr(Run, "write", full)
        run.save(verdict="qualified")
        return 0

    room.act = act
    assert command.main(NEW) == 2
    assert "cannot be written: No space left on device: make room there" in (err := capsys.readouterr().err)
    assert "Traceback" not in err


def test_prompts_that_cannot_be_read_are_told_by_who_reads_them() -> None:
    assert command._digest("/proc/self/mem") is None
    assert command._digest("/nowhere") is None


# ---- resume


def test_what_was_found_stands_where_it_cannot_be_signed(room: Room) -> None:
    def done(args: argparse.Namespace, run: Run, say: Say) -> int:
        run.save(state=State.DONE, verdict="qualified")
        return 0

    def wrong(args: argparse.Namespace, run: Run, say: Say) -> int:
        raise StandError("no name")

    room.act = done
    command.main(NEW)
    room.act = wrong
    assert command.main([*AGAIN, "--sign-off", ""]) == 2
    assert (told()["state"], told()["verdict"]) == ("done", "qualified")


def test_a_second_failure_is_told_as_it_is(room: Room) -> None:
    words = iter(("first", "second"))

    def act(args: argparse.Namespace, run: Run, say: Say) -> int:
        raise StandError(next(words))

    room.act = act
    assert (command.main(NEW), command.main(AGAIN)) == (2, 2)
    assert told()["summary"]["reasons"] == ["second"]


def test_options_that_were_given_stand_when_the_run_goes_on(room: Room) -> None:
    command.main([*NEW, "--p", "0.7", "--number", "5", "--greedy"])
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    assert command.main(["qualify", "--resume", "../r", "--number", "5", "--sign-off", "me"]) == 0
    _, args = room.args
    assert (args.p, args.number, args.greedy, args.sign_off) == (0.7, 5, True, "me")
    assert Path(args.prompts).exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--number", "6"], "--number: the run has 5, not 6: leave it out, or begin a new run"),
        (["--engine", "http://h:2"], '--engine: the run has "http://h:1", not "http://h:2"'),
        (["--greedy"], "--greedy: the run has false, not true"),
        (["--p", "0.65"], "--p: the run has 0.7, not 0.65"),
    ],
)
def test_other_options_are_refused(room: Room, capsys: pytest.CaptureFixture[str], more: list[str], words: str) -> None:
    command.main([*NEW, "--number", "5", "--p", "0.7"])
    assert command.main([*AGAIN, *more]) == 2
    assert words in capsys.readouterr().err
    assert len(room.args) == 1


def test_other_prompts_in_the_same_file_are_refused(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(NEW)
    before = told()
    Path("p.jsonl").write_text('{"prompt": "b"}\n')
    assert command.main(AGAIN) == 2
    assert "p.jsonl is not what it was when the run began: put it back, or begin a new run" in capsys.readouterr().err
    assert told() == before


def test_the_prompts_that_come_later_are_told_apart_too(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    Path("later.jsonl").write_text('{"prompt": "a"}\n')
    command.main([*NEW, "--then", "later.jsonl@30"])
    whole = f"{Path('later.jsonl').absolute()}@30"
    assert (told()["options"]["then"], room.args[0].then) == (whole, whole)
    assert command.main([*AGAIN, "--then", "later.jsonl@30"]) == 0
    Path("later.jsonl").write_text('{"prompt": "b"}\n')
    assert command.main(AGAIN) == 2
    assert f"--then: {whole} is not what it was when the run began" in capsys.readouterr().err


def test_what_cannot_be_gone_on_with_is_said(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(AGAIN) == 2
    assert "there is no run in r" in capsys.readouterr().err
    command.main(NEW)
    assert command.main(NEW) == 2
    assert "--out: " in capsys.readouterr().err


# ---- the command line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["bogus"], "invalid choice: 'bogus'"),
        (["qualify", "--engine", "http://h"], "--prompts is missing"),
        ([*NEW, "--number", "0"], "--number: must be a whole number of at least 1, not '0'"),
        ([*NEW, "--concurrency", "1,x"], "--concurrency: must be whole numbers of at least 1, as 1,4,16, not '1,x'"),
        ([*NEW, "--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_wrong_use_is_told(room: Room, capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as raised:
        command.main(argv)
    assert raised.value.code == 2
    assert words in capsys.readouterr().err
    assert not Path("r").exists()


def test_one_rooms_absence_is_nothing_to_the_others(
    room: Room, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(command.COMMANDS, "sweep", (".sweep.nowhere", "x"))
    assert command.main(["sweep", "--prompts", "p.jsonl"]) == 2
    assert "sweep cannot be loaded: No module named" in capsys.readouterr().err
    assert command.main(NEW) == 0


@pytest.mark.parametrize("name", list(command.COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        command.main([name, "--help"])
    assert raised.value.code == 0
    assert f"usage: specwatch {name}" in capsys.readouterr().out


def test_the_lab_loads_nothing_heavy() -> None:
    code = (
        "import sys, importlib\n"
        "from specwatch_engine.lab import __main__ as command\n"
        "for name in command.COMMANDS: command._room(name)\n"
        "print([name for name in ('torch', 'vllm', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


# ---- progress


def test_without_a_terminal_bars_are_lines() -> None:
    stream = io.StringIO()
    say = Say(stream, every_s=0.0)
    with say.bar("acceptance", 3) as bar:
        for number in range(3):
            bar.advance(words=f"p 0.{number}")
    say("done [not markup]")
    assert re.sub(r"\d+ s", "N s", stream.getvalue()).splitlines() == [
        "acceptance: 1 of 3 (N s, about N s left); p 0.0",
        "acceptance: 2 of 3 (N s, about N s left); p 0.1",
        "acceptance: 3 of 3 (N s); p 0.2",
        "done [not markup]",
    ]
    stream.truncate(0)
    with Say(stream).bar("seldom", 3) as bar:
        bar.advance(3)
    assert stream.getvalue().count("\n") == 1
    with say.waiting("for the engine") as stage:
        stage("importing")
    assert stream.getvalue().splitlines()[-2:] == ["for the engine", "importing"]


def test_how_long_the_rest_takes_is_of_what_this_process_did() -> None:
    say = Say(io.StringIO())
    with say.bar("acceptance", 100, done=80) as bar:
        assert bar.left == ""
        bar._began -= 120
        bar.advance(4)
        assert bar.left == "about 8 minutes left"
        bar.advance(0, left_s=7200)
        assert bar.left == "at most 2.0 hours left"
        bar.advance(16)
        assert bar.left == ""


def test_on_a_terminal_bars_stand_in_each_other() -> None:
    leader, follower = os.openpty()
    with open(follower, "w") as stream:
        say = Say(stream)
        assert say.on_terminal
        with say.bar("rounds", 2) as rounds, say.bar("prompts", 4) as prompts:
            prompts.advance(4, "p 0.7")
            rounds.advance(left_s=600)
            say("a line")
        with say.waiting("for the engine") as stage:
            stage("importing")
        say("end")
    parts = []
    with suppress(OSError):  # which is how the other end's close is told
        while part := os.read(leader, 65_536):
            parts.append(part)
    shown = b"".join(parts).decode()
    os.close(leader)
    for words in ("rounds", "prompts", "4/4", "p 0.7", "at most 10 minutes left", "a line", "end"):
        assert words in shown


@pytest.mark.parametrize("option", ["--engine", "--plain", "--prompts"])
def test_a_password_in_a_url_does_not_get_into_a_run(
    room: Room, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([*NEW, option, "http://me:hidden@h:1"])
    err = capsys.readouterr().err
    assert (ended.value.code, "hidden" in err, Path("r").exists()) == (2, False, False)
    assert f"argument {option}: must have no user or password in it" in err
