"""The keeper: one thread that makes rollups of what the writer has written, prunes, and makes partitions ahead.

It has connections of its own, works a small part of the time, and in small pieces, so that neither the writer nor the
proxy, with which it shares Python's lock, waits for it. Where the database is away it tries again, ever less often.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Engine

from .backlog import LONG, work_off
from .due import closed
from .engine import writing_engine
from .partitions import ahead
from .refresh import Refresher
from .retention import Pruner
from .upgrade import HEAD, revision
from .writer import one_line

log = logging.getLogger(__name__)

#: Pause between two passes, and how much longer than the pass itself it is at least.
_PAUSE_S = 5.0
_TIMES_LONGER = 9.0
#: What a pass takes of each kind of work, but for a piece that was begun.
_REFRESH_S = 1.0
_PRUNE_S = 0.5
#: Of spans that are due, how many of each kind are counted in each pass: those of a year take a second and more.
_MOST_PENDING = 10_000
#: How often it is looked whether there is something to prune, and whether partitions are missing.
_LOOK_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
#: Without any progress, and nobody else's, catching up ends.
_PATIENCE_S = 30.0


class Keeper:
    """`start()`, and at the end `close(...)`. Never raises; what went wrong is in `last_error`."""

    def __init__(self, database_url: str, retention: Mapping[str, float | None]) -> None:
        """`retention`: days by setting, as `Settings.retention`. Opens nothing. Raises DatabaseUrlError."""
        self._engine = writing_engine(database_url)
        self._refresher = Refresher(self._engine)
        self._pruner = Pruner(self._engine, self._refresher.reading, retention)
        self._thread = threading.Thread(target=self._run, name="specwatch-keeper", daemon=True)
        self._stop = threading.Event()
        self._looked = float("-inf")
        self._error_pause_s = 0.0
        #: Since the start.
        self.passes = 0
        #: Spans that are over and whose rollups are due (of each kind 10,000 at most), and how long a pass took, s; as
        #: of the last pass.
        self.pending = 0
        self.last_s = 0.0
        #: None: the last pass went well.
        self.last_error: str | None = None

    @property
    def pruned(self) -> Mapping[str, int]:
        """Rows that were deleted since the start, by setting of `retention_days`."""
        return self._pruner.pruned

    def start(self) -> None:
        self._thread.start()

    def close(self, deadline_s: float = 2.0) -> None:
        """Stop; what it has not committed is done again later. Blocks for `deadline_s` at most."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(deadline_s)
        if self._thread.is_alive():
            # In a statement; a daemon thread, it ends with the process.
            log.info("the keeper of the record was in the middle of a piece of work, which is done again later")
            return
        self._refresher.close()
        self._engine.dispose()

    def _run(self) -> None:
        # The writer makes the tables, and in the first moments there is nothing to keep.
        self._stop.wait(_FIRST_PAUSE_S)
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                self._pass()
            except Exception as error:
                self._failed(error)
            else:
                self._error_pause_s, self.last_error = 0.0, None
            self.last_s = time.monotonic() - begun
            self._stop.wait(self._error_pause_s or max(_PAUSE_S, _TIMES_LONGER * self.last_s))

    def _pass(self) -> None:
        now = time.time()
        if self._refresher.read(revision) != HEAD:
            # The writer brings it there.
            return
        begun = time.monotonic()
        look = begun - self._looked > _LOOK_S
        if look:
            with self._engine.begin() as connection:
                ahead(connection, now)
        try:
            self._refresher.refresh(now, begun + _REFRESH_S, self._stop.is_set)
        finally:
            # Also where something cannot be refreshed, as else the disk fills up. What there is left to prune is gone
            # on with in the next pass.
            if look and self._pruner.prune(now, time.monotonic() + _PRUNE_S, self._stop.wait):
                self._looked = begun
        self.pending = self._refresher.read(partial(closed, now=now, most=_MOST_PENDING))
        self.passes += 1

    def _failed(self, error: Exception) -> None:
        if self.last_error is None:
            log.warning("the record is not kept up: %s", one_line(error))
        self.last_error = one_line(error)
        self._error_pause_s = min(max(_FIRST_PAUSE_S, 2 * self._error_pause_s), _LONGEST_PAUSE_S)
        self._refresher.reading.dispose()
        self._engine.dispose()


@dataclass(frozen=True, slots=True)
class Pruned:
    """By setting of `retention_days`, the rows that were deleted, and those that are still to go."""

    deleted: dict[str, int]
    left: dict[str, int]
    #: Whether there was time for all, and nobody held anything.
    done: bool


def prune(database_url: str, retention: Mapping[str, float | None], budget_s: float) -> Pruned:
    """Delete what is older than `retention`, days by setting, for about `budget_s`; 0: only look.

    Raises DatabaseUrlError, SQLAlchemyError, or LookupError where the tables are not this version's.
    """
    now, engine = time.time(), writing_engine(database_url)
    refresher = Refresher(engine)
    try:
        if (found := refresher.read(revision)) != HEAD:
            raise LookupError(f"the database is at revision {found}, not {HEAD}: run specwatch db upgrade")
        pruner = Pruner(engine, refresher.reading, retention)
        done = budget_s > 0 and pruner.prune(now, time.monotonic() + budget_s)
        return Pruned(dict(pruner.pruned), pruner.old(now), done)
    finally:
        refresher.close()
        engine.dispose()


def catch_up(database_url: str, progress: Callable[[int, int], object] = lambda done, left: None) -> tuple[int, int]:
    """Make the rollups that are due of spans that are over. Returns of how many that was, and how many are left.

    `progress` is told the same in between. Other keepers may work meanwhile; what cannot be made is left after a while.
    Raises DatabaseUrlError or SQLAlchemyError.
    """
    engine = writing_engine(database_url)
    refresher = Refresher(engine)
    try:
        return _caught_up(engine, refresher, progress)
    finally:
        refresher.close()
        engine.dispose()


def _caught_up(engine: Engine, refresher: Refresher, progress: Callable[[int, int], object]) -> tuple[int, int]:
    total, moved, trouble = 0, time.monotonic(), None
    left = refresher.read(partial(closed, now=time.time()))
    if left >= LONG:
        made = 0

        def more(spans: int) -> None:
            nonlocal made
            made += spans
            progress(made, max(left - made, 0))

        try:
            work_off(engine, time.time(), more)
        except BrokenExecutor as error:
            # As where there was no memory for them.
            log.warning("rollups: the processes that work them out have ended; this one goes on: %s", error)
        total, left, moved = made, refresher.read(partial(closed, now=time.time())), time.monotonic()
    while left:
        done = 0
        try:
            done = refresher.refresh(time.time(), time.monotonic() + _REFRESH_S)
        except Exception as error:
            # Others come first the next time.
            trouble = error
        total += done
        before, left = left, refresher.read(partial(closed, now=time.time()))
        progress(total, left)
        if done or left < before:
            moved = time.monotonic()
        elif time.monotonic() - moved > _PATIENCE_S:
            if trouble is not None:
                log.warning("rollups: %s", one_line(trouble))
            break
        else:
            # A writer or another keeper is about it.
            time.sleep(0.1)
    return total, left
