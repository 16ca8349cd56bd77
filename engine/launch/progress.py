"""What the engine is doing, read off its log, and how that is told to whoever waits."""

from __future__ import annotations

import re
import sys
import time
from typing import TextIO

from rich.console import Console
from rich.status import Status

STAGES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("importing", r"Specwatch: importing vLLM"),
        ("reading the models' configuration", r"non-default args:|Resolved architecture"),
        ("starting the engine core", r"Initializing a V1 LLM engine|Waiting for \d+ local"),
        ("loading target", r"Starting to load model "),
        ("loading draft", r"Loading drafter model"),
        (
            "compiling",
            r"Dynamo bytecode transform|Compiling a graph|torch\.compile takes|Warming up model for",
        ),
        ("KV cache", r"KV cache layout|KV cache size|Available KV cache memory|for KV cache"),
        ("capturing CUDA graphs", r"Capturing CUDA graph|Graph capturing"),
        ("opening the server", r"Starting vLLM server|Available routes are|Application startup complete"),
    )
)
"""vLLM 0.32's own log lines, in the order in which they come."""


def stage_of(text: str, current: str = "") -> str:
    """The furthest stage that `text` (any number of log lines) shows, never before `current`."""
    names = [name for name, _ in STAGES]
    reached = names.index(current) if current in names else -1
    for number in range(len(STAGES) - 1, reached, -1):
        if STAGES[number][1].search(text):
            return names[number]
    return current


class Reporter:
    """Progress for a person: one live line on a terminal, plain lines elsewhere (on standard error)."""

    def __init__(self, stream: TextIO | None = None, *, every_s: float = 15.0) -> None:
        self._stream = stream or sys.stderr
        self._console = Console(file=self._stream, highlight=False, soft_wrap=True)
        self._every_s = every_s
        self._status: Status | None = None
        self._last = ("", 0.0)

    def say(self, text: str) -> None:
        """One line that stays."""
        self._console.print(text, markup=False)
        self._stream.flush()

    def stage(self, name: str, elapsed_s: float) -> None:
        """The current stage, `elapsed_s` seconds after the start; call as often as you like."""
        if self._console.is_terminal:
            text = f"{name or 'starting'}, {elapsed_s:.0f} s"
            if self._status is None:
                self._status = self._console.status(text)
                self._status.start()
            self._status.update(text)
            return
        now = time.monotonic()
        if name != self._last[0] or now - self._last[1] >= self._every_s:
            self._last = (name, now)
            self.say(f"engine: {name or 'starting'} ({elapsed_s:.0f} s)")

    def done(self) -> None:
        """End the live line."""
        if self._status is not None:
            self._status.stop()
        self._status, self._last = None, ("", 0.0)
