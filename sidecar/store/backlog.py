"""Rollups of a long backlog, as after an upgrade: processes work them out, this one writes them."""

import logging
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache

from sqlalchemy import Engine

from .due import Due, due_longer, due_minutes
from .engine import reading_engine
from .refresh import MOST_MINUTES, READ_TIMEOUT_S, exchange, follow, found_of
from .rollups import Spans

log = logging.getLogger(__name__)

#: Spans from which on processes are worth their start, which takes seconds.
LONG = 1500
_MOST_PROCESSES = 4
#: Marks of a year of minutes, of some sidecars.
_MOST_MARKS = 2_000_000


def work_off(engine: Engine, now: float, done: Callable[[int], object]) -> None:
    """Refresh all minutes that are due, then hours, then days; `done` is told of each few how many they were.

    Once: what could not be worked out or written, or was marked meanwhile, stays due. Raises SQLAlchemyError.
    """
    url = engine.url.render_as_string(hide_password=False)
    processes = min(os.cpu_count() or 1, _MOST_PROCESSES)
    # Not forked: the terminal's progress has a thread.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for jobs in _rounds(engine, now):
            waiting: deque[tuple[list[Due], Future[Spans]]] = deque()
            for spans in jobs:
                waiting.append((spans, pool.submit(_worked_out, url, spans)))
                if len(waiting) > 2 * processes:
                    _finish(engine, *waiting.popleft(), done)
            while waiting:
                _finish(engine, *waiting.popleft(), done)


def _rounds(engine: Engine, now: float) -> Iterator[list[list[Due]]]:
    with engine.begin() as connection:
        minutes = due_minutes(connection, _MOST_MARKS)
    yield _runs(minutes)
    for _ in ("hours", "days"):
        with engine.begin() as connection:
            longer = due_longer(connection, now, _MOST_MARKS)
        yield [[span] for span in longer]


def _runs(minutes: Sequence[Due]) -> list[list[Due]]:
    """Minutes that follow one another, some at a time."""
    runs: list[list[Due]] = []
    for minute in minutes:
        if runs and len(runs[-1]) < MOST_MINUTES and follow(runs[-1][-1], minute):
            runs[-1].append(minute)
        else:
            runs.append([minute])
    return runs


def _finish(engine: Engine, spans: list[Due], future: "Future[Spans]", done: Callable[[int], object]) -> None:
    try:
        exchange(engine, spans, future.result())
    except Exception as error:
        # Too many groups, a database that is locked: it is gone on with later, less at a time.
        log.debug("rollups: %s", type(error).__name__)
    else:
        done(len(spans))


def _worked_out(url: str, spans: list[Due]) -> Spans:
    with _engine(url).begin() as connection:
        return dict(found_of(connection, spans))


@cache
def _engine(url: str) -> Engine:
    """That of this process."""
    return reading_engine(url, READ_TIMEOUT_S)
