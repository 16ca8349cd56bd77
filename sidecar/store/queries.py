"""Reading. Answers are plain dicts with the field names of `sidecar.api.models`.

Every figure comes from sums or raw rows in SQL: the database works outside Python's lock, which the proxy
needs. Quantiles are by nearest rank (percentile_disc): of n sorted values the one at rank ceil(q n).
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from . import alerts, audit, events, lab, pages, pairs, summary, texts
from .distribution import distribution
from .engine import READ_TIMEOUT_S, reading_engine, silence_ends
from .expressions import Filters
from .latency import latency_series
from .rows import clean
from .schema import transitions
from .series import acceptance_series, truncation_series
from .similarity import similarity_series
from .source import ANY, REQUESTS, SIMILARITIES, Asked, Family, Source, choose
from .traffic import traffic_series

#: Windows of at most so many rows are answered from these, larger ones from rollups.
EXACT_ROWS = 20_000
MAX_TRANSITIONS = 100
MAX_ALERTS = 100
#: Questions that are asked at a time, and how long another one waits, s.
_READERS, _WAIT_S = 4, 5

_TRANSITION = [column for column in transitions.columns if column.name != "id"]


class DatabaseUnavailable(Exception):
    """The database gave no answer: it is away, not set up yet, locked or slow. One line."""


class Reader:
    """Reads; may be used from several threads. `now` is Unix time in seconds; windows and steps are seconds.

    Each method raises DatabaseUnavailable when the database gives no answer, and ValueError for an argument
    that cannot be served. A window holds the rows that started in [now - window_s, now). Of many rows, figures come
    from rollups: then it begins with a whole minute, steps are of whole minutes or longer, and quantiles are nearly
    those of the rows; all else is exact. The answer says so (`Answered`).
    """

    def __init__(self, database_url: str) -> None:
        """Opens nothing yet. Raises DatabaseUrlError for a URL that cannot work."""
        self._engine = reading_engine(database_url)
        self._places = threading.BoundedSemaphore(_READERS)

    def close(self) -> None:
        self._engine.dispose()

    def summary(self, window_s: int, now: float, filters: Filters = ANY) -> dict[str, Any]:
        """The parts of `Summary` that the database knows: last_100, acceptance, truncation, latency, slo,
        traffic, coverage, versions but for Specwatch's own, and `Answered`."""
        with self._connect() as connection:
            source = self._choose(connection, Asked(window_s, now, filters=filters))
            return summary.summary(connection, source, now)

    def traffic(
        self, window_s: int, step_s: int | None, by: str | None, filters: Filters, now: float
    ) -> dict[str, Any]:
        """`TrafficSeries`: all requests of each point."""
        with self._connect() as connection:
            return traffic_series(connection, self._choose(connection, Asked(window_s, now, step_s, by, filters)))

    def last_100(self, now: float) -> dict[str, Any]:
        """`AcceptanceFigures` of the last 100 requests that speculated, however long ago."""
        with self._connect() as connection:
            return summary.last_100(connection, now)

    def acceptance(
        self, window_s: int, step_s: int | None, by: str | None, filters: Filters, now: float
    ) -> dict[str, Any]:
        """`AcceptanceSeries`: pooled sums. One point when neither `step_s` nor `by` splits the window."""
        with self._connect() as connection:
            return acceptance_series(connection, self._choose(connection, Asked(window_s, now, step_s, by, filters)))

    def truncation(
        self, window_s: int, step_s: int | None, by: str | None, filters: Filters, now: float
    ) -> dict[str, Any]:
        """`TruncationSeries`: the lists of the rows added up element by element."""
        with self._connect() as connection:
            return truncation_series(connection, self._choose(connection, Asked(window_s, now, step_s, by, filters)))

    def latency(
        self, window_s: int, step_s: int | None, by: str | None, filters: Filters, now: float
    ) -> dict[str, Any]:
        """`LatencySeries`: quantiles of the ok requests of each point."""
        with self._connect() as connection:
            return latency_series(connection, self._choose(connection, Asked(window_s, now, step_s, by, filters)))

    def distribution(self, window_s: int, filters: Filters, now: float) -> dict[str, Any]:
        """`LatencyDistribution`: values of ok requests at some hundred ranks."""
        with self._connect() as connection:
            return distribution(connection, self._choose(connection, Asked(window_s, now, filters=filters)))

    def similarity(
        self, window_s: int, step_s: int | None, now: float, by: str | None = None, filters: Filters = ANY
    ) -> dict[str, Any]:
        """`SimilaritySeries`, but for its `last_100`: a point per kind, step and group. `by`: only scenario."""
        with self._connect() as connection:
            asked = Asked(window_s, now, step_s, by, filters)
            return similarity_series(connection, self._choose(connection, asked, SIMILARITIES))

    def similarity_histogram(self, window_s: int, filters: Filters, now: float) -> dict[str, Any]:
        """`SimilarityHistogram`; of rollups, from sketches."""
        with self._connect() as connection:
            asked = Asked(window_s, now, filters=filters)
            return pairs.histogram(connection, self._choose(connection, asked, SIMILARITIES))

    def similarity_pairs(
        self, window_s: int, kind: str | None, limit: int, filters: Filters, now: float
    ) -> dict[str, Any]:
        """`SimilarityPairs`: at most `limit`, the lowest score first."""
        with self._connect() as connection:
            asked = Asked(window_s, now, filters=filters, only_rows="single pairs")
            return pairs.lowest(connection, self._choose(connection, asked, SIMILARITIES), kind, limit)

    def requests(
        self,
        filters: Filters,
        limit: int = 100,
        cursor: str | None = None,
        now: float | None = None,
        only: pages.Only = pages.ALL,
    ) -> dict[str, Any]:
        """`RequestPage`: at most `limit` (up to MAX_PAGE) rows, newest first. Raises BadCursor.

        Where few rows match, it may be fewer before the last page, or none. `now`: hours up to two before it are looked
        through without asking their rollups.
        """
        with self._connect() as connection:
            return pages.page(connection, filters, only, limit, cursor, time.time() if now is None else now)

    def request(self, request_id: str, until: datetime | None = None) -> tuple[dict[str, Any] | None, datetime | None]:
        """`RequestRow` of an id; of the newest request before `until`, if clients used an id more than once.

        Where none of the newest 500,000 has it: None, and the time before which there are more, or None.
        """
        with self._connect() as connection:
            return pages.find(connection, request_id, until)

    def texts(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """`StoredText`s of a `RequestRow`."""
        with self._connect() as connection:
            return texts.of_request(connection, row)

    def transitions(self, limit: int = MAX_TRANSITIONS, instance: str | None = None) -> list[dict[str, Any]]:
        """`Transition` rows, newest first; of all instances unless one is named."""
        query = select(*_TRANSITION).order_by(transitions.c.at.desc(), transitions.c.id.desc())
        if instance is not None:
            query = query.where(transitions.c.instance == clean(instance))
        with self._connect() as connection:
            rows = connection.execute(query.limit(max(1, min(limit, MAX_TRANSITIONS)))).mappings()
            return [dict(row) for row in rows]

    def last_decisions(self, instance: str) -> list[dict[str, Any]]:
        """`Transition` rows: the newest order of an operator, and the newest decision of each slice and of the whole.

        In the order in which they were made.
        """
        t = transitions.c
        decided = t.trigger.not_in(("engine", "effect"))
        newest = (
            select(func.max(t.id))
            .where(t.instance == clean(instance), decided)
            .group_by(t.slice, t.trigger == "operator")
        )
        query = select(*_TRANSITION).where(t.id.in_(newest)).order_by(t.at, t.id)
        with self._connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def alerts(self, limit: int = MAX_ALERTS) -> list[dict[str, Any]]:
        """`AlertEvent` rows of all instances, newest first."""
        with self._connect() as connection:
            return alerts.newest(connection, max(1, min(limit, MAX_ALERTS)))

    def events(
        self,
        since: datetime,
        until: datetime | None = None,
        kinds: frozenset[events.Kind] = frozenset(),
        limit: int = 100,
        cursor: str | None = None,
    ) -> tuple[list[events.Happened], str | None]:
        """What happened in [since, until), of all instances, newest first; and the next page's cursor.

        At most `limit`, up to MAX_EVENTS; `kinds`: empty, all. Raises BadCursor.
        """
        with self._connect() as connection:
            return events.page(connection, since, until, kinds, limit, cursor)

    def lab_runs(self, kind: str | None = None, limit: int = 50, cursor: str | None = None) -> dict[str, Any]:
        """`LabPage`: at most `limit` (up to lab.MAX_PAGE) runs of a kind or of all, newest first. Raises BadCursor."""
        with self._connect() as connection:
            return lab.page(connection, kind, limit, cursor)

    def lab_run(self, run_id: str) -> dict[str, Any] | None:
        """`LabRun` of an id; None where none has it."""
        with self._connect() as connection:
            return lab.find(connection, run_id)

    def audit(self, limit: int) -> list[dict[str, Any]]:
        """`AuditEntry` rows of all instances, newest first."""
        with self._connect() as connection:
            return audit.newest(connection, limit)

    def last_alerts(self, instance: str, since: float) -> list[dict[str, Any]]:
        """`AlertEvent` rows of the alerts of `instance` that fire, or were resolved at `since` or later.

        In the order in which they were written: the newest of each alert, for each receiver the newest that says that
        it was told of the alert, and the newest that it was told at all.
        """
        with self._connect() as connection:
            return alerts.unfinished(connection, instance, since)

    def _choose(self, connection: Connection, asked: Asked, family: Family = REQUESTS) -> Source:
        return choose(connection, asked, EXACT_ROWS, family)

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        if not self._places.acquire(timeout=_WAIT_S):
            raise DatabaseUnavailable("the database gave no answer: others wait for it already")
        try:
            with self._engine.begin() as connection, silence_ends(connection, READ_TIMEOUT_S + _WAIT_S):
                yield connection
        except SQLAlchemyError as error:
            words = " ".join(str(getattr(error, "orig", None) or error).split())
            if "interrupted" in words or "statement timeout" in words:
                raise DatabaseUnavailable(
                    f"the database took longer than {READ_TIMEOUT_S} s: ask for a shorter window"
                ) from error
            raise DatabaseUnavailable(f"the database gave no answer: {words[:300]}") from error
        finally:
            self._places.release()
