"""`python -m specwatch_engine.lab qualify|sweep|soak|self-draft …`: the commands that measure drafts.

`specwatch qualify …` and its like start this. Exit status: 0 a good verdict, 1 a bad one, or one that is good in part,
2 nothing can be told, or the command is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import importlib
import json
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from . import stand
from .control import ControlError
from .options import positive, positives
from .progress import Say
from .prompts import PromptError
from .run import Run, RunError, State, read
from .stand import StandError
from .summary import Summary

OK, CANNOT_TELL, INTERRUPTED = 0, 2, 130

#: Each with its module and what it is for. A module has `run(args, run, say) -> int`, `add_arguments(parser)`, and may
#: have MAY_CHANGE: names of options that a run may be gone on with that were others before.
COMMANDS = {
    "qualify": (".qualify.command", "whether a draft is good enough, and for which scenarios"),
    "sweep": (".sweep.command", "how many draft tokens a step are best"),
    "soak": (".soak.command", "whether speculation stays as it is for hours"),
    "self-draft": (".self_draft.command", "make a draft of the target's own lower layers"),
}
#: Those that send prompts to an engine, and can be gone on with.
MEASURING = ("qualify", "sweep", "soak")
DEFAULT_NUMBER = 1_000
DEFAULT_MAX_TOKENS = 512

#: A full disk is no fault of the lab's.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_FAULTS = (StandError, PromptError, ControlError, RunError)


def main(argv: list[str] | None = None) -> int:
    """`argv` is without the program's name. Returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] not in COMMANDS:
        _overview().parse_args(argv)
        return CANNOT_TELL
    name, rest = argv[0], argv[1:]
    say = Say()
    try:
        room = _room(name)
    except ImportError as error:
        own = (error.name or "").startswith("specwatch_engine")
        say(f"error: {name} cannot be loaded: {error}: install specwatch{' anew' if own else '[lab]'}")
        return CANNOT_TELL
    parser = parser_of(name, room)
    args = parser.parse_args(rest)
    if name in MEASURING and args.resume is None and args.prompts is None:
        parser.error("--prompts is missing: a file of prompts, or the URL of a sidecar's admin port")
    try:
        run = _run_of(name, room, args, rest)
    except RunError as error:
        say(f"error: {error}")
        return CANNOT_TELL
    try:
        return _guarded(room, args, run, say)
    finally:
        with suppress(OSError):
            run.close()
        if name in MEASURING and args.json:
            print(json.dumps(run.told, ensure_ascii=False, indent=2))


def _guarded(room: ModuleType, args: argparse.Namespace, run: Run, say: Say) -> int:
    """The command, and what `run.json` says of how it ended."""
    try:
        with _signals():
            code = int(room.run(args, run, say))
            if run.told["state"] == State.RUNNING:
                run.save(state=State.FAILED if code == CANNOT_TELL else State.DONE)
            return code
    except KeyboardInterrupt:
        if run.told["state"] != State.DONE:
            with suppress(OSError):
                run.save(state=State.INTERRUPTED)
        say("interrupted" + (f": go on with `{resume_command(run)}`" if run.kind in MEASURING else ""))
        return INTERRUPTED
    except _FAULTS as error:
        _failed(run, getattr(error, "plain", None) or str(error))
        say(f"error: {error}")
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            words = f"{run.folder} cannot be written: {error.strerror}: make room there"
            _failed(run, words)
            say(f"error: {words}")
        else:
            # What it says may quote a prompt or a reply.
            _failed(run, f"a fault of the lab itself: {type(error).__name__}")
            traceback.print_exc()
            say(f"error: a fault of the lab itself; what was measured is in {run.folder}")
    if run.kind in MEASURING and run.measured:
        say(f"once that is seen to, go on with `{resume_command(run)}`")
    return CANNOT_TELL


@contextmanager
def _signals() -> Iterator[None]:
    """Has the run end in order, and the engine get its cap back, by kill and by the terminal's end as by Ctrl-C."""
    before = {
        number: signal.signal(number, _as_interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP)
        # nohup has the terminal's end ignored.
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def resume_command(run: Run) -> str:
    folder = str(run.folder)
    return f"specwatch {run.kind} --resume {folder if ' ' not in folder else repr(folder)}"


def _failed(run: Run, why: str) -> None:
    """`why` is kept: it has no word of a prompt or a reply in it."""
    if run.told["state"] == State.DONE:
        return  # what it found stands, though it could not be signed
    verdict = "cannot tell"
    summary = run.told["summary"] or Summary(f"{run.kind.capitalize()}: not finished", verdict, [why])
    # A full disk is to be told by the exit status still.
    with suppress(OSError):
        run.save(state=State.FAILED, verdict=run.told["verdict"] or verdict, summary=summary)


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    # Whatever waits for Ctrl-C, a loop of asyncio as well, is to see this one.
    signal.raise_signal(signal.SIGINT)


# ---- runs


def _run_of(name: str, room: ModuleType, args: argparse.Namespace, rest: list[str]) -> Run:
    """The run that the command line means; `args` become those that it began with. Raises RunError."""
    if name not in MEASURING:
        return Run.create(name, vars(args))
    if args.resume is None:
        vars(args).update(_settled(vars(args)))
        folder = None if args.out is None else Path(args.out)
        return Run.create(name, vars(args) | _digests(vars(args)), folder)
    folder = Path(args.resume)
    given = _settled(_given(parser_of(name, room), rest))
    had = read(folder)["options"]
    for digest, now in _digests(had).items():
        if now != had.get(digest):
            option = digest.removesuffix("_sha256")
            words = f"{had[option]} is not what it was when the run began"
            raise RunError(f"--{option}: {words}: put it back, or begin a new run")
    run = Run.resume(folder, given, kind=name, may_change=getattr(room, "MAY_CHANGE", frozenset()))
    vars(args).update({key: value for key, value in run.options.items() if key in vars(args)})
    return run


def _given(parser: argparse.ArgumentParser, rest: list[str]) -> dict[str, Any]:
    """The options that the command line names, without any defaults."""
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    parser._defaults.clear()
    return vars(parser.parse_args(rest))


def _settled(options: dict[str, Any]) -> dict[str, Any]:
    """The same with whole paths, so that a run can be gone on with from another folder."""
    found = dict(options)
    for name in ("prompts", "config", "target", "draft"):
        value = found.get(name)
        if isinstance(value, str) and Path(value).expanduser().exists():
            found[name] = str(Path(value).expanduser().absolute())
    file, at, minutes = _then(found)
    if file and Path(file).expanduser().exists():
        found["then"] = f"{Path(file).expanduser().absolute()}{at}{minutes}"
    return found


def _then(options: Mapping[str, Any]) -> tuple[str, str, str]:
    """The soak's FILE@MINUTES in its parts."""
    return (options.get("then") or "").rpartition("@")


def _digests(options: Mapping[str, Any]) -> dict[str, str | None]:
    """Of the files of prompts, which are told apart by their ids, so that another file would mix two."""
    files = {"prompts": options.get("prompts"), "then": _then(options)[0]}
    return {f"{option}_sha256": _digest(file) for option, file in files.items() if file}


def _digest(name: str) -> str | None:
    """None where there is no such file."""
    path = Path(name)
    if not path.is_file():
        return None
    with suppress(OSError), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return None  # who reads the prompts says why


# ---- command line


def _room(name: str) -> ModuleType:
    # Only the one that is asked for: another's absence, or its weight, is nothing to this one.
    return importlib.import_module(COMMANDS[name][0], __package__)


def parser_of(name: str, room: ModuleType) -> argparse.ArgumentParser:
    """The command line of one command. What the room adds stands above what is shared."""
    parser = argparse.ArgumentParser(
        prog=f"specwatch {name}", description=f"{name}: {COMMANDS[name][1]}.", conflict_handler="resolve"
    )
    if name in MEASURING:
        stand.add_arguments(parser)
        _add_shared(parser)
    room.add_arguments(parser)
    return parser


def _add_shared(parser: argparse.ArgumentParser) -> None:
    """Defaults are of types that JSON has, as they go to run.json."""
    asked = parser.add_argument_group("what is asked")
    asked.add_argument(
        "--prompts",
        type=stand.url,
        metavar="FILE",
        help="JSONL, OpenAI batch, ShareGPT; or http://… of a sidecar's admin port",
    )
    asked.add_argument("--number", type=positive, default=DEFAULT_NUMBER, help="prompts (default: %(default)s)")
    asked.add_argument("--seed", type=int, default=0, help="decides which, and their order (default: %(default)s)")
    asked.add_argument(
        "--max-tokens",
        type=positive,
        default=DEFAULT_MAX_TOKENS,
        help="longest reply where a prompt names none (default: %(default)s)",
    )
    asked.add_argument("--greedy", action="store_true", help="temperature 0, whatever the prompts say")
    asked.add_argument(
        "--concurrency", type=positives, default=[1, 4], metavar="1,4", help="requests in flight (default: 1,4)"
    )
    told = parser.add_argument_group("the run")
    told.add_argument("--out", metavar="DIR", help="its folder (default: one below .run/lab)")
    told.add_argument("--resume", metavar="DIR", help="go on with the run of this folder")
    told.add_argument("--json", action="store_true", help="print run.json at the end")


def _overview() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:<11} {words}" for name, (_, words) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m specwatch_engine.lab",
        usage="%(prog)s COMMAND …",
        description="The commands that measure drafts; each has a --help of its own.",
        epilog=f"commands:\n{commands}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND")
    return parser


if __name__ == "__main__":
    sys.exit(main())
