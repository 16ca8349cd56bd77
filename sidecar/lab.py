"""`specwatch qualify` and its like: the lab's own process beside this one, and a row of its run in the database.

The lab measures, and knows no database; whoever starts it here keeps the row, from the run's beginning to its end. A
database that is away is worth a line, and never the run.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from .children import die_with_parent
from .settings import Settings, SettingsError, load
from .store.lab import LabError, put

MODULE = "specwatch_engine.lab"
#: Where its runs are by default, what tells of one, and the file that holds the id of the process that runs it.
ROOT, RUN, LOCK = Path(".run/lab"), "run.json", ".lock"
#: How often the folder of the run is looked for, and how often its row is written anew, which shows that it lives, s.
_LOOK_S, _RECORD_S = 0.5, 60.0
#: Longest run.json that is recorded, bytes.
_MOST_BYTES = 33_554_432

_Child: TypeAlias = "subprocess.Popen[bytes]"
#: The id of a process, and when it took the lock, ns.
_Held: TypeAlias = tuple[int, int]

_HELP = """
the record:
  --settings FILE       the sidecar's settings, which name the database that keeps a row of the run (default: the file
                        that SPECWATCH_CONFIG names, or variables as SPECWATCH_DATABASE_URL; where neither names a
                        database: specwatch.db, if it is there)
"""


def run(kind: str, arguments: Sequence[str], settings_file: Path | None = None) -> int:
    """Have the lab do it, on this terminal; returns its exit status. `arguments` are its own.

    Raises SettingsError where `settings_file` cannot be used.
    """
    if {"-h", "--help"} & set(arguments):
        code = subprocess.call([sys.executable, "-m", MODULE, kind, "--help"])
        if code == 0:
            print(_HELP.rstrip())
        return code
    settings = _settings(settings_file)
    complaints: set[str] = set()
    # Whichever option names its folder.
    named = [Path(part) for each in arguments for part in (each, each.partition("=")[2]) if part]
    before = {folder: _held(folder) for folder in [*named, *_children(ROOT)]}
    with _outliving() as children:
        # A group of its own: Ctrl-C would reach it twice, and a signal to this process alone never.
        child = subprocess.Popen(
            [sys.executable, "-m", MODULE, kind, *arguments],
            process_group=0,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
        children.append(child)
        folder = _folder_of(child, named, before) if settings is not None else None
        while settings is not None and folder is not None:
            if (told := _read(folder)) is not None:
                _record(settings, folder, told, complaints)
            if _is_over(child, _RECORD_S):
                break
        code = child.wait()
        if settings is not None and folder is not None and (told := _read(folder)) is not None:
            _record(settings, folder, _ended(told, code), complaints)
    return code if code >= 0 else 128 - code


def _settings(file: Path | None) -> Settings | None:
    """None where runs are not recorded. Raises SettingsError where `file` cannot be used."""
    try:
        settings = load(file)
    except SettingsError as error:
        if file is not None:
            raise
        # What the environment has wrong is the sidecar's affair.
        _warn(f"the run is not recorded: {error}")
        return None
    default = Settings.model_fields["database_url"].default
    if "database_url" in settings.model_fields_set or settings.database_url != default:
        return settings
    return settings if Path(default.removeprefix("sqlite:///")).is_file() else None


@contextmanager
def _outliving() -> Iterator[list[_Child]]:
    """Outlive the signals that end the processes that are put into the list, which get them from here: they have a run
    to close, and this one its row.
    """
    children: list[_Child] = []
    # A script's `&` starts all with SIGINT ignored, children too: it is for them to be ended by another one.
    deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    def end(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(signal.SIGTERM if deaf else number)

    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # nohup has the terminal's end ignored.
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield children
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _folder_of(child: _Child, named: Sequence[Path], before: Mapping[Path, _Held | None]) -> Path | None:
    """The folder of the run that the child holds, once it does; None where it ends without one.

    `before`: who held which before it began. In containers a process has the id that the last run's had.
    """
    while True:
        ended = _is_over(child, _LOOK_S)
        for folder in [*named, *_children(ROOT)]:
            held = _held(folder)
            if held is not None and held[0] == child.pid and held != before.get(folder):
                return folder.absolute()
        if ended:
            return None


def _is_over(child: _Child, limit_s: float) -> bool:
    try:
        child.wait(limit_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _children(folder: Path) -> Iterable[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return ()


def _held(folder: Path) -> _Held | None:
    """By which process a run is held there, or was last, and since when."""
    try:
        if not (folder / RUN).is_file():
            return None
        with (folder / LOCK).open("rb") as file:
            text, since = file.read(20).strip(), os.fstat(file.fileno()).st_mtime_ns
    except (OSError, ValueError):
        return None
    return (int(text), since) if text.isdigit() else None


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        with (folder / RUN).open("rb") as file:
            told = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _ended(told: dict[str, Any], code: int) -> dict[str, Any]:
    """One that was killed could not say so."""
    if told.get("state") != "running":
        return told
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    return told | {"state": "interrupted" if code < 0 else "failed", "ended_at": at}


def _record(settings: Settings, folder: Path, told: dict[str, Any], complaints: set[str]) -> None:
    """`complaints`: those that were made, each of which is made once."""
    try:
        put(settings.database_url, told | {"instance": settings.instance, "folder": str(folder)})
        return
    except LabError as error:
        words = f"the run is not recorded: {error}"
    except Exception as error:
        words = f"the run is not recorded: {type(error).__name__}"
    if words not in complaints:
        complaints.add(words)
        _warn(words)


def _warn(message: str) -> None:
    # Where a bar of progress stands, it is put on a line of its own.
    begin = "\r" if sys.stderr.isatty() else ""
    print(f"{begin}specwatch: {message}", file=sys.stderr, flush=True)
