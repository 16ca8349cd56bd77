"""How a run is told while it goes on: bars on a terminal, lines of a log elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

#: Between two lines about the same bar where there is no terminal, s.
EVERY_S = 15.0


class Bar:
    """Something that goes on step by step."""

    def __init__(self, say: Say, title: str, total: float, done: float, progress: Progress | None) -> None:
        self.title = title
        self.total = total
        self.done = self._before = done
        self._say = say
        self._progress = progress
        self._task: TaskID | None = None
        if progress is not None:
            self._task = progress.add_task(title, total=total, words="", left="")
            progress.update(self._task, completed=done)
        self._words = ""
        self._left_s: float | None = None
        self._began = self._told = time.monotonic()

    def advance(self, steps: float = 1, words: str | None = None, *, left_s: float | None = None) -> None:
        """`steps` more are done; `words` say how it stands, as `p 0.71 so far`; `left_s`: seconds that the rest takes
        at most, where who calls knows better than the pace so far does.
        """
        self.done += steps
        if words is not None:
            self._words = words
        if left_s is not None:
            self._left_s = left_s
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self.done, words=self._words, left=self.left)
            return
        now = time.monotonic()
        if now - self._told >= self._say.every_s and self.done < self.total:
            self._told = now
            self.tell()

    def tell(self) -> None:
        """A line about it, where there is no terminal."""
        if self._progress is None:
            about = f"; {self._words}" if self._words else ""
            seconds = time.monotonic() - self._began
            left = f", {self.left}" if self.left else ""
            self._say(f"{self.title}: {self.done:g} of {self.total:g} ({seconds:.0f} s{left}){about}")

    @property
    def left(self) -> str:
        """As `about 4 minutes left`; empty before a step of this process is done, and after the last."""
        own = self.done - self._before
        if self.done >= self.total:
            return ""
        if self._left_s is not None:
            return f"at most {span(self._left_s)} left"
        if own <= 0:
            return ""
        return f"about {span((time.monotonic() - self._began) / own * (self.total - self.done))} left"


def span(seconds: float) -> str:
    """As `40 s`, `12 minutes`, `2.5 hours`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 90 * 60 else f"{seconds / 3600:.1f} hours"


class Say:
    """Called with a sentence, prints it as a line that stays."""

    def __init__(self, stream: TextIO | None = None, *, every_s: float = EVERY_S) -> None:
        self._console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self.every_s = every_s
        self._bars: Progress | None = None

    @property
    def on_terminal(self) -> bool:
        return self._console.is_terminal

    def __call__(self, sentence: str) -> None:
        self._console.print(sentence, markup=False)

    @contextmanager
    def bar(self, title: str, total: float, done: float = 0) -> Iterator[Bar]:
        """A bar while the block runs; bars may stand in each other. `done`: of an earlier process."""
        outermost = self._bars is None
        if outermost and self.on_terminal:
            self._bars = self._made()
            self._bars.start()
        bar = Bar(self, title, total, done, self._bars)
        try:
            yield bar
            bar.tell()
        finally:
            if outermost and self._bars is not None:
                self._bars.stop()
                self._bars = None

    @contextmanager
    def waiting(self, words: str) -> Iterator[Callable[[str], object]]:
        """Something that takes a while, of unknown length. What is yielded is called with other words for it."""
        if not self.on_terminal or self._bars is not None:
            self(words)
            yield self
            return
        with self._console.status(words) as status:
            yield status.update

    def _made(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            # Not the library's own: it forgets steps that are half a minute ago, and a block takes longer.
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[words]}"),
            console=self._console,
        )
