"""The soak itself: requests go on, and each minute becomes a row of `minutes.jsonl`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..progress import Say
from ..run import Run
from ..stand import Engine
from . import memory
from .load import Load, Sent
from .private import Watched
from .series import Reader, SeriesError
from .verdict import Ended, judge

ROWS = "minutes"
MINUTE_S = 60
#: The sidecar writes within a second of a reply's end.
_WRITTEN_S = 2.0
#: A minute is read without the replies that take longer than so long behind it, s.
_PATIENCE_S = 120.0
#: A request of which nothing has come for so long, s, when the soak ends, has failed; and what its failure is called.
_HUNG_S, NO_ANSWER = 60.0, "no answer"
#: Minutes in which nothing was answered until the soak ends: nothing more is to be learned.
_SILENT = 5
#: Behind so many minutes the verdict so far is drawn every fifth one only: it takes longer the more there are.
_EVERY_MINUTE, _JUDGED_EVERY = 240, 5
_POLL_S = 0.5
_SAID = ("engine: cause:", "engine: seen:", "engine: remedy:")


@dataclass
class Soak:
    run: Run
    engine: Engine | None
    watched: Watched
    load: Load
    reader: Reader
    say: Say
    minutes: float
    #: Minutes that the run has behind it.
    done: float = 0.0
    death: str | None = None
    #: Shorter in tests.
    minute_s: int = MINUTE_S
    _told: set[str] = field(default_factory=set)
    _pids: frozenset[int] = frozenset()
    _silent: int = 0
    _root: int | None = None
    _words_seen: int = 0

    async def go(self) -> None:
        """To its end, or to that of what it watches: then `death` says of what."""
        start = time.time()
        since, until = start - self.done * self.minute_s, start + (self.minutes - self.done) * self.minute_s
        self._root = self._engine_root()
        self._words_seen = len(self._launcher())
        sending = asyncio.ensure_future(self.load.run(since, until))
        try:
            minute = int(start // self.minute_s) * self.minute_s
            while minute < until and self.death is None:
                end = min(minute + self.minute_s, until)
                await self._wait(end, sending)
                await self._row(minute, max(minute, start), end, since, last=end >= until)
                minute += self.minute_s
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending

    async def _wait(self, end: float, sending: asyncio.Future[None]) -> None:
        """Until all that began before `end` has been answered, and written."""
        while True:
            self.death = self.death or self.watched.death() or self._engine_death()
            if self.death is not None:
                return
            now = time.time()
            if sending.done() and now < end:
                # It does not end by itself before its time.
                sending.result()
            answered = self.load.oldest() >= end or now > end + _PATIENCE_S
            if now >= end and answered:
                await asyncio.sleep(_WRITTEN_S)
                return
            await asyncio.sleep(_POLL_S)

    async def _row(self, minute: int, begin: float, end: float, since: float, last: bool = False) -> None:
        sent = self.load.taken(minute)
        if last:
            self._end(sent, since)
        row: dict[str, Any] = {
            "minute": round((begin - since) / self.minute_s, 3),
            "at": minute,
            "seconds": round(end - begin, 3),
            "partial": end - begin < self.minute_s - 0.001,
            "sent": sent.requests,
            "failures": dict(sent.failures),
            "pass": self.load.passed,
            "engine": self._engine_memory(),
            "sidecar": _memory(self.watched.process),
            "database_mb": memory.database_mb(self.watched.database),
        }
        try:
            row |= await self._read(minute)
        except SeriesError as error:
            row["unread"] = str(error)
        self._hear(sent, row["minute"], end)
        if self.death is not None:
            row["death"] = self.death
        self.run.append(ROWS, row)
        self.say(line(row, self.minutes))
        number = int(row["minute"])
        if number <= _EVERY_MINUTE or number % _JUDGED_EVERY == 0:
            await self._judge()

    def _hear(self, sent: Sent, minute: float, end: float) -> None:
        """Whether anything is answered still."""
        if sent.requests > sent.failures.total():
            self._silent = 0
        elif sent.requests or self.load.oldest() < end:
            # A low rate leaves minutes in which nothing was asked: these tell nothing.
            self._silent += 1
        if self._silent >= _SILENT and self.death is None:
            self.death = f"Nothing was answered any more from minute {minute - _SILENT + 1:.0f} on."

    def _end(self, sent: Sent, since: float) -> None:
        """Take in what ended behind the last minute, and what will not end."""
        for later in list(self.load.sent):
            more = self.load.taken(later)
            sent.requests += more.requests
            sent.failures += more.failures
        silent_since = time.time() - _HUNG_S
        if silent := self.load.silent(silent_since):
            sent.requests += silent
            sent.failures[NO_ANSWER] += silent
        began = self.load.hangs(silent_since)
        if began is not None and self.death is None:
            self.death = f"Nothing was answered any more from minute {int((began - since) / self.minute_s)} on."

    async def _read(self, minute: int) -> dict[str, Any]:
        """Raises SeriesError, where a second and a third attempt have failed too."""
        for _ in range(2):
            with suppress(SeriesError):
                return await self.reader.minute(minute, minute + self.minute_s)
            await asyncio.sleep(_WRITTEN_S)
        return await self.reader.minute(minute, minute + self.minute_s)

    async def _judge(self) -> None:
        """So that who looks on the dashboard, or at the terminal, knows of a drift before the end."""
        rows = self.run.rows(ROWS)
        # Beside the requests, which must not wait for it.
        summary = await asyncio.to_thread(judge, rows, Ended(self.minutes))
        self.run.save(summary=summary.json())
        for gate in summary.gates:
            # Once: its figures are a little other each time.
            if gate.passed is False and gate.name not in self._told:
                self._told.add(gate.name)
                self.say(f"  {summary.verdict}: {gate.words}")

    # ---- the engine's processes

    def _engine_root(self) -> int | None:
        if self.engine is None:
            return None
        return self.engine.process or memory.listener(self.engine.url)

    def _engine_memory(self) -> dict[str, Any] | None:
        found = memory.tree(self._root)
        if found is None or self._root is None:
            return None
        below = found.pids - {self._root}
        if self._pids and below and not below & self._pids and self.death is None:
            self.say("  the engine was started again by its launcher")
        self._pids = below or self._pids
        # An engine that was started again has other processes below the same launcher.
        return {"mb": found.mb, "root": min(below, default=self._root)}

    def _engine_death(self) -> str | None:
        words = self._launcher()[self._words_seen :]
        if words:
            return "The engine ended: " + "; ".join(each.removeprefix("engine: ") for each in words[:3]) + "."
        if self._root is not None and memory.tree(self._root) is None:
            return f"The engine's process {self._root} ended."
        return None

    def _launcher(self) -> list[str]:
        """What the launcher says of an engine that ended: cause, what was seen, remedy."""
        if self.engine is None or self.engine.process is None:
            return []
        file = self.run.folder / "launch.log"
        if not file.exists():
            return []
        return [each for each in file.read_text("utf-8", "replace").splitlines() if each.startswith(_SAID)]


def _memory(process: int | None) -> dict[str, Any] | None:
    found = memory.tree(process)
    return None if found is None else {"mb": found.mb, "root": process}


def elapsed(rows: list[dict[str, Any]]) -> float:
    """Minutes that a run has behind it, less what it stood still."""
    return float(sum(row["seconds"] for row in rows if "gap_s" not in row)) / MINUTE_S


def line(row: Mapping[str, Any], minutes: float) -> str:
    """`minute 12 of 60: p 0.81 (billing 0.84, code 0.79), latency p95 412 ms, engine 1,530 MB, …`."""
    parts: list[str] = []
    if "unread" in row:
        parts.append(f"no figures ({row['unread']})")
    else:
        number: Callable[[float | None], str] = lambda p: "-" if p is None else f"{p:.2f}"  # noqa: E731
        scenarios = ", ".join(f"{name} {number(told['p'])}" for name, told in sorted(row["acceptance"].items())[:6])
        parts.append(f"p {number(row['mix']['p'])}" + (f" ({scenarios})" if len(row["acceptance"]) > 1 else ""))
        if row["speculative"]["p95_ms"] is not None:
            parts.append(f"latency p95 {row['speculative']['p95_ms']:,.0f} ms")
    parts += [f"{name} {row[name]['mb']:,.0f} MB" for name in ("engine", "sidecar") if row[name]]
    parts.append(f"{row['sent']} requests")
    if failed := sum(row["failures"].values()):
        parts.append(f"{failed} failed")
    return f"minute {row['minute'] + row['seconds'] / MINUTE_S:.0f} of {minutes:g}: {', '.join(parts)}"
