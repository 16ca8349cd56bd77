"""One run of the engine: a process group of its own, a log, and an end without leftovers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import guard

LOGS_KEPT = 3


class Child:
    """A started engine and everything it starts. Linux and other POSIX systems only."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], log: Path, *, orphan_grace_s: float = 10.0
    ) -> None:
        """Start `command` with standard output and error going to the end of `log`.

        Raises OSError when the command or the log cannot be opened.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(orphan_grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        assert self._guard.stdout is not None
        # Until it ignores signals, one sent to the group would end the guard first.
        self._guard.stdout.read(1)
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    list(command),
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=self._guard.pid,
                )
        except BaseException:
            self.sweep()
            raise

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        """The engine's own process (vLLM's API server)."""
        return self._started.pid

    def poll(self) -> int | None:
        """None while it runs, else its exit status (negative: ended by that signal)."""
        return self._started.poll()

    def signal(self, number: int) -> None:
        """Send a signal to the engine and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard.pid, number)

    def stop(self, number: int, limit_s: float) -> int:
        """Send `number`, wait up to `limit_s` seconds, SIGKILL what is left; returns the exit status."""
        if self.poll() is None:
            self.signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._started.wait(limit_s)
        self.sweep()
        return self._started.wait()

    def sweep(self) -> None:
        """SIGKILL whatever is left of the group, the guard included."""
        self.signal(signal.SIGKILL)
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()
        self._guard.wait()
        if self._process is not None:
            self._process.wait()


def rotate(log: Path, kept: int = LOGS_KEPT) -> None:
    """Move `log` to `log.1`, that to `log.2`, …; a log that is not there is fine."""
    for number in range(kept, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        newer = log if number == 1 else log.with_name(f"{log.name}.{number - 1}")
        with contextlib.suppress(FileNotFoundError):
            newer.replace(older)


def trim(log: Path, limit_bytes: int) -> None:
    """Keep a log that is still being written under `limit_bytes`: its content moves to `log.1`."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > limit_bytes:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            # The engine writes in append mode, so its next line lands at the new end.
            os.truncate(log, 0)


def tail(log: Path, lines: int, limit_bytes: int = 262_144) -> list[str]:
    """The last `lines` lines of `log`, without those that are empty; [] when there is no log."""
    try:
        with log.open("rb") as source:
            size = source.seek(0, os.SEEK_END)
            source.seek(max(0, size - limit_bytes))
            text = source.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-lines:]
