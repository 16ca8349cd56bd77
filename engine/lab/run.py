"""The folder of one run: `run.json`, which tells how it went, and what was measured, row by row.

Nothing that was measured is lost where a run is interrupted: rows are appended as they come, and `resume` goes on
from them. A row that the end of the process cut is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

#: Where runs go by default, below the working directory.
ROOT = Path(".run/lab")
FILE = "run.json"
#: A process that holds a run has this file locked; its id stands in it.
_LOCK = ".lock"
#: Rows reach the disk this often, s: what a power failure may cost.
_SYNC_S = 2.0
#: What `save` may change.
_FIELDS = frozenset(("state", "ended_at", "verdict", "summary", "fingerprint"))
#: Options that say how a run is told, not what it measures.
_FREE = frozenset(("resume", "json", "out"))


class State(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    #: Ended before its time; it can go on.
    INTERRUPTED = "interrupted"


class RunError(Exception):
    """A run that cannot be made or gone on with: a sentence with the remedy."""


class Run:
    """Made by `create` or `resume`, and held by one process until `close`."""

    def __init__(self, folder: Path, told: dict[str, Any], lock: BinaryIO) -> None:
        self.folder = folder
        self.id: str = told["id"]
        self.kind: str = told["kind"]
        self._told = told
        self._lock = lock
        self._open: dict[str, BinaryIO] = {}
        self._synced = time.monotonic()

    # ---- beginning and end

    @classmethod
    def create(cls, kind: str, options: Mapping[str, Any], folder: Path | None = None) -> Run:
        """A new run; `options` are JSON values by name, `folder` None: one of its own below `.run/lab`.

        Raises RunError where the folder holds a run already, or cannot be written.
        """
        now = datetime.now(UTC)
        name = f"{kind}-{now:%Y%m%d-%H%M%S}"
        folder = (folder or _unused(ROOT / name)).absolute()
        if (folder / FILE).exists():
            raise RunError(f"--out: {folder} holds a run already: go on with it by --resume, or name another folder")
        told = {
            "id": f"{name}-{secrets.token_hex(3)}",
            "kind": kind,
            "state": State.RUNNING,
            "started_at": _stamp(now),
            "ended_at": None,
            "verdict": None,
            "summary": None,
            "options": as_json({k: v for k, v in options.items() if k not in _FREE}),
            "fingerprint": None,
            "version": metadata.version("specwatch"),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            run = cls(folder, told, _locked(folder))
            run.save()
        except OSError as error:
            raise RunError(f"--out: {folder} cannot be written: {error.strerror or error}") from error
        return run

    @classmethod
    def resume(
        cls,
        folder: Path,
        options: Mapping[str, Any] | None = None,
        *,
        kind: str | None = None,
        may_change: frozenset[str] = frozenset(),
    ) -> Run:
        """Go on with the run in `folder`.

        `options` are those that were given now: each must be as the run has it, unless `may_change` names it. Raises
        RunError, which names the first that differs.
        """
        told = read(folder)
        if kind is not None and told["kind"] != kind:
            raise RunError(f"--resume: {folder} holds a run of {told['kind']}: go on with it by that command")
        had = told["options"]
        for name, value in as_json(dict(options or {})).items():
            if name in _FREE or had.get(name) == value:
                continue
            if name not in may_change:
                words = f"the run has {_shown(had.get(name))}, not {_shown(value)}"
                raise RunError(f"--{name.replace('_', '-')}: {words}: leave it out, or begin a new run")
            had[name] = value
        try:
            run = cls(folder.absolute(), told, _locked(folder))
            # One that is done is only looked at, or signed: whoever goes on measuring says so.
            if told["state"] == State.DONE:
                run.save()
            else:
                run.reopen()
        except OSError as error:
            raise RunError(f"--resume: {folder} cannot be written: {error.strerror or error}") from error
        return run

    def close(self) -> None:
        try:
            for file in self._open.values():
                _sync(file)
                file.close()
        finally:
            self._open.clear()
            self._lock.close()

    # ---- run.json

    @property
    def told(self) -> dict[str, Any]:
        """What `run.json` says; not to be changed."""
        return self._told

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = self._told["options"]
        return options

    def save(self, **changes: Any) -> None:
        """Write `run.json` as it is with `changes`, at once and whole. Numbers that are none become null.

        A state but `running` ends the run now, unless `ended_at` says when.
        """
        if unknown := set(changes) - _FIELDS:
            raise TypeError(f"run.json has no {', '.join(sorted(unknown))}")
        self._told |= as_json(changes)
        if changes.get("state") not in (None, State.RUNNING) and "ended_at" not in changes:
            self._told["ended_at"] = _stamp(datetime.now(UTC))
        self.write(FILE, json.dumps(self._told, ensure_ascii=False, indent=2) + "\n")

    def reopen(self) -> None:
        """Measuring goes on: how the run ended before is no news of now."""
        self.save(state=State.RUNNING, ended_at=None, verdict=None, summary=None)

    def write(self, name: str, text: str) -> Path:
        """A file of the run, which is there whole or as it was before; returns its path."""
        path = self.folder / name
        part = path.with_name(f".{path.name}.part")
        with part.open("wb") as file:
            file.write(text.encode("utf-8", "replace"))
            _sync(file)
        part.replace(path)
        return path

    # ---- rows

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Add a row to `NAME.jsonl`."""
        file = self._open.get(name)
        if file is None:
            file = self._open[name] = _for_rows(self._path(name))
        file.write(_encoded(row) + b"\n")
        now = time.monotonic()
        if now - self._synced >= _SYNC_S:
            self._synced = now
            for each in self._open.values():
                _sync(each)

    @property
    def measured(self) -> bool:
        """Whether there are rows, of which a run that goes on would have the use."""
        return bool(self._open) or any(self.folder.glob("*.jsonl"))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of `NAME.jsonl`, in order; none where there is no such file.

        Raises RunError for a row that is no JSON object, other than a last one that was cut.
        """
        if name in self._open:
            self._open[name].flush()
        path = self._path(name)
        try:
            *lines, _ = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise RunError(f"{path}:{number}: is no JSON object: delete the line, or begin a new run")
            rows.append(row)
        return rows

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"


def read(folder: Path) -> dict[str, Any]:
    """What `run.json` of a folder says. Raises RunError."""
    path = folder / FILE
    try:
        told = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"--resume: there is no run in {folder} (no {FILE}): name the folder of a run") from None
    except OSError as error:
        raise RunError(f"--resume: {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        told = None
    good = isinstance(told, dict) and all(isinstance(told.get(name), str) for name in ("id", "kind", "state"))
    if not good or not isinstance(told.get("options"), dict):
        raise RunError(f"--resume: {path} is not what the lab writes: begin a new run")
    found: dict[str, Any] = told
    return found


def as_json(value: Any) -> Any:
    """`value` in the types of JSON: structs and dataclasses become objects, paths texts, NaN and infinities null."""
    return json.loads(_encoded(value))


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except (UnicodeEncodeError, OverflowError):
        # Half a surrogate pair, as a name of a file that is no UTF-8 has, or a number beyond 64 bits.
        plain = msgspec.to_builtins(value, enc_hook=str)
        return json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")


def _for_rows(path: Path) -> BinaryIO:
    """The file opened for more rows, less a last one that was cut."""
    file = path.open("a+b")
    file.seek(0)
    whole = file.read()
    end = whole.rfind(b"\n") + 1
    if end != len(whole):
        file.truncate(end)
    return file


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _locked(folder: Path) -> BinaryIO:
    """The run's lock, which the system opens again when the process ends, however it does."""
    file = (folder / _LOCK).open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().decode("ascii", "replace").strip()
        file.close()
        raise RunError(f"{folder} is being run by process {holder}: wait for its end, or end it first") from None
    file.truncate(0)
    file.write(b"%d\n" % os.getpid())
    file.flush()
    return file


def _unused(folder: Path) -> Path:
    """`folder`, or one with a number where two runs begin in the same second."""
    found, number = folder, 1
    while found.exists():
        number += 1
        found = folder.with_name(f"{folder.name}-{number}")
    return found


def _stamp(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
