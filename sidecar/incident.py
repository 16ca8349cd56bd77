"""When the demo's incident is to be staged: so many seconds after the start, or at a word in the terminal."""

import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

WORD = "incident"


class Incident:
    """Asked again and again whether it is due; is so once. Nothing here waits."""

    def __init__(self, after_s: int | None, say: Callable[[str], None]) -> None:
        self._after_s = after_s
        self._say = say
        self._begins: float | None = None
        self._terminal = _terminal() if after_s is None else None
        self._staged = ""

    def offer(self) -> str:
        """Starts the clock, and gives the line that says how to have one."""
        if self._after_s is not None:
            self._begins = time.monotonic() + self._after_s
            return f"is staged in {self._after_s} s"
        if self._terminal is not None:
            return f"type {WORD} and Enter to stage one"
        return f"specwatch up --{WORD} SECONDS stages one"

    def due(self) -> bool:
        """Whether to stage it at this moment."""
        wanted = self._begins is not None and time.monotonic() >= self._begins
        line = self._typed()
        if line and line.lower() != WORD:
            rest = "Ctrl-C stops everything" if self._staged else f"{self.offer()}, Ctrl-C to stop everything"
            self._say(f"{line[:40]!r} means nothing here: {rest}")
        elif line and self._staged:
            self._say(f"incident staged already: {self._staged}")
        elif line or wanted:
            self._begins, self._staged = None, f"{datetime.now(UTC):%H:%M:%S} UTC"
            self._say(f"incident staged: {self._staged}")
            return True
        return False

    def _typed(self) -> str:
        """The next line that was typed, if there is one: a terminal gives one at a time."""
        if self._terminal is None or _in_background(self._terminal):
            return ""
        # Ctrl-D reads as nothing; a terminal that is gone does too, or fails.
        with suppress(OSError):
            if select.select([self._terminal], [], [], 0)[0]:
                return os.read(self._terminal, 4096).decode(errors="replace").strip()
        return ""


def _terminal() -> int | None:
    # Without a standard input it is None, and a closed one has no number.
    with suppress(AttributeError, OSError, ValueError):
        number = sys.stdin.fileno()
        return number if os.isatty(number) else None
    return None


def _in_background(terminal: int) -> bool:
    """Whether who reads from the terminal would be stopped by it (SIGTTIN)."""
    with suppress(OSError):
        return os.tcgetpgrp(terminal) != os.getpgrp()
    return False
