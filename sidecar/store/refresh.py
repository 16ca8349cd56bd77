"""Works through what is due: marks are read, then rows, then the rollups are exchanged, by minutes or longer spans."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from typing import TypeVar

from sqlalchemy import Connection, Engine, text

from . import longer, rollups
from .cover import MINUTE
from .due import NEXT, Due, due_longer, due_minutes, write
from .engine import reading_engine
from .rollups import Spans, TooManyGroups

T = TypeVar("T")

_PARTS = {longer_s: span_s for span_s, longer_s in NEXT.items()}
_MINUTES = {"requests": rollups.requests_of, "similarities": rollups.similarities_of}
_LONGER = {"requests": longer.requests_of, "similarities": longer.similarities_of}

#: Any fixed number: the keepers of a fleet take turns on it.
_LOCK = 5_287_301_847
#: Long enough for the largest minute: what a reader of the API may take is too short.
READ_TIMEOUT_S = 600
#: What one exchange should take, and how many minutes it is of at most.
_TARGET_S = 0.3
MOST_MINUTES = 60
#: How long others come first where a span could not be refreshed.
_ASIDE_S = 10.0


class Refresher:
    """Refreshes rollups through `engine`, of `writing_engine`. For use from one thread; several may work at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: What rows are read through.
        self.reading = engine
        if engine.dialect.name == "sqlite":
            # Where groups are made, a writer must not wait.
            self.reading = reading_engine(engine.url.render_as_string(hide_password=False), READ_TIMEOUT_S)
        self._at_once = 1
        #: With which kind of work `refresh` begins: with the one behind that in which it was cut short. For where much
        #: comes in, the minute under way alone takes a whole turn, each time.
        self._turn = 0
        self._aside: dict[tuple[str, int, int], float] = {}

    def close(self) -> None:
        """The engine that was given stays open."""
        if self.reading is not self._engine:
            self.reading.dispose()

    def read(self, question: Callable[[Connection], T]) -> T:
        with self.reading.begin() as connection:
            return question(connection)

    def refresh(self, now: float, until: float = inf, stopped: Callable[[], bool] = lambda: False) -> int:
        """Refresh what is due until it is `until`, by the monotonic clock, or `stopped`; how many spans that were.

        0: nothing can be refreshed, or another one is about it. `now`, Unix s, tells which spans are over. Raises
        SQLAlchemyError; what it was about comes last then for a while.
        """
        done = 0
        kinds = self._jobs(now)
        for turn in range(self._turn, self._turn + len(kinds)):
            for spans in kinds[turn % len(kinds)]:
                if not self._exchange(spans):
                    return done
                done += len(spans)
                if stopped() or time.monotonic() >= until:
                    self._turn = (turn + 1) % len(kinds)
                    return done
        self._turn = 0
        return done

    def _jobs(self, now: float) -> tuple[Iterator[list[Due]], ...]:
        """The newest minutes, longer spans, and all other minutes."""
        waiting = self._ready(due_minutes)
        newest = self._together(waiting) if waiting else None

        def longer() -> Iterator[list[Due]]:
            for span in self._ready(partial(due_longer, now=now)):
                yield [span]

        def others() -> Iterator[list[Due]]:
            while waiting:
                yield self._together(waiting)

        return iter([newest] if newest else []), longer(), others()

    def _ready(self, question: Callable[[Connection], list[Due]]) -> list[Due]:
        passed = time.monotonic()
        self._aside = {key: until for key, until in self._aside.items() if until > passed}
        return [span for span in self.read(question) if _key(span) not in self._aside]

    def _together(self, waiting: list[Due]) -> list[Due]:
        """Takes from `waiting` the first minutes that follow one another, as many as one exchange should be of."""
        size = 1
        while size < min(self._at_once, len(waiting)) and follow(waiting[size - 1], waiting[size]):
            size += 1
        taken, waiting[:size] = waiting[:size], []
        return taken

    def _exchange(self, spans: list[Due]) -> bool:
        """False where another one is about it."""
        begun = time.monotonic()
        try:
            mine = self._once(spans)
        except TooManyGroups:
            self._at_once = len(spans) // 2
            return self._exchange(spans[: self._at_once]) and self._exchange(spans[self._at_once :])
        except Exception:
            self._at_once = 1
            self._aside |= {_key(span): time.monotonic() + _ASIDE_S for span in spans}
            raise
        took = max(time.monotonic() - begun, 1e-3)
        if spans[0].span_s == MINUTE:
            fitting = int(len(spans) * _TARGET_S / took)
            self._at_once = max(1, min(fitting, 2 * self._at_once, MOST_MINUTES))
        return mine

    def _once(self, spans: Sequence[Due]) -> bool:
        if self._engine.dialect.name == "sqlite":
            found = self.read(partial(found_of, spans=spans))
            exchange(self._engine, spans, found)
            return True
        with self._engine.begin() as connection:
            if not connection.scalar(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": _LOCK}):
                return False
            write(connection, spans, found_of(connection, spans))
        return True


def refresh_all(engine: Engine, now: float) -> int:
    """Refresh all that is due, and return how many spans that were."""
    refresher = Refresher(engine)
    try:
        total = 0
        while done := refresher.refresh(now):
            total += done
        return total
    finally:
        refresher.close()


def found_of(connection: Connection, spans: Sequence[Due]) -> Spans:
    """The rollups of minutes that follow one another, newest first, or of one longer span."""
    family, span_s, oldest = spans[0].family, spans[0].span_s, spans[-1].at
    if span_s == MINUTE:
        return _MINUTES[family](connection, oldest, spans[0].at + MINUTE)
    return _LONGER[family](connection, oldest, span_s, _PARTS[span_s])


def exchange(engine: Engine, spans: Sequence[Due], found: Spans) -> None:
    """Write what was read before, when nobody else does."""
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        write(connection, spans, found)


def follow(later: Due, earlier: Due) -> bool:
    return later.family == earlier.family and later.at - earlier.at == MINUTE


def _key(span: Due) -> tuple[str, int, int]:
    return span.family, span.span_s, span.at
