"""The one writer: bounded queues in front of one thread that owns the writing connection.

Recording never slows or fails a request. `put` only appends to a deque; the thread looks at it every
fifth of a second, so that no request pays for waking it. A batch is kept until the database has taken it:
while the database is locked or away the queue fills up, and then the oldest records go, each of them
counted. The oldest, because after an outage the question is how things are now.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlalchemy import text

from alerts.model import Event
from sidecar.record import Record

from .engine import writing_engine
from .inserts import Inserts, refused_as_data
from .rows import (
    AuditRow,
    CountersRow,
    MovedToken,
    Row,
    SimilarityRow,
    TextRow,
    Transition,
    alert_row,
    alignment_row,
    audit_row,
    counters_row,
    request_row,
    similarity_row,
    text_row,
    transition_row,
)
from .upgrade import upgrade

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
#: How often the thread asks whether the database is still there, traffic or not.
_CHECK_S = 5.0
#: Items that wait, of each table but `requests`.
_MAX_PRECIOUS = 1000
#: Events of alerts that wait: one notification may be of hundreds of alerts, each an event.
_MAX_ALERTS = 10_000
#: Characters of the texts that wait: as a character is 1 to 4 bytes, 16 to 64 MB.
_MAX_CHARACTERS = 16_000_000
#: How long past its deadline `close` waits for a statement under way.
_GRACE_S = 1.5


@dataclass(slots=True)
class _Items(Generic[T]):
    """What is to be stored in one table."""

    table: str
    convert: Callable[[T], Row]
    #: Items that may wait.
    most: int = _MAX_PRECIOUS
    queue: deque[T] = field(default_factory=deque)
    #: The batch in hand: taken from the queue and not yet known to be stored.
    rows: list[Row] = field(default_factory=list)
    stored: int = 0

    def __len__(self) -> int:
        return len(self.queue) + len(self.rows)


class Writer:
    """Writes records and all else. `start()`, then `put(...)` from one thread, at the end `close(...)`.

    Each record ends in exactly one count: `written` (the database has it), `dropped` (lost to overflow, or
    left over at the end) or `refused` (no database takes it as data). The others count as dropped and
    refused too. `healthy`: the last attempt to reach the database worked; False until the first did.
    """

    def __init__(
        self,
        database_url: str,
        *,
        capacity: int = 10_000,
        batch_size: int = 2000,
        max_age_s: float = 0.2,
    ) -> None:
        """Opens nothing: the thread does. Raises DatabaseUrlError for a URL that cannot work."""
        self._engine = writing_engine(database_url)
        self._inserts = Inserts(self._engine)
        self._batch_size = batch_size
        self._max_age_s = max_age_s
        self._records: _Items[Record] = _Items("requests", request_row, capacity)
        # Few and precious: a flood of records must not push them out.
        self._transitions: _Items[Transition] = _Items("transitions", transition_row)
        self._alerts: _Items[Event] = _Items("alerts", alert_row, _MAX_ALERTS)
        self._moved: _Items[MovedToken] = _Items("alignments", alignment_row)
        self._similarities: _Items[SimilarityRow] = _Items("similarities", similarity_row)
        self._counters: _Items[CountersRow] = _Items("counters", counters_row)
        self._texts: _Items[TextRow] = _Items("texts", self._text_row)
        self._audit: _Items[AuditRow] = _Items("audit", audit_row)
        self._all: tuple[_Items[Any], ...] = (
            self._transitions,
            self._audit,
            self._alerts,
            self._moved,
            self._similarities,
            self._counters,
            self._records,
            self._texts,
        )
        #: Characters of texts, of those put and not dropped, and of those taken. A thread each, which adds up.
        self._characters_put = 0
        self._characters_taken = 0
        self._thread = threading.Thread(target=self._run, name="specwatch-writer", daemon=True)
        self._stop = threading.Event()
        self._deadline = float("inf")
        self._ready = False
        self._checked = 0.0
        self._pause_s = 0.0
        self.dropped = 0
        self.refused = 0
        self.healthy = False

    def start(self) -> None:
        """Start the thread; it brings the schema up to date as soon as the database is there."""
        self._thread.start()

    def put(self, record: Record) -> None:
        """Queue a record. Takes a fraction of a microsecond, never blocks, never raises."""
        self._put(self._records, record)

    def put_transition(self, transition: Transition) -> None:
        """Queue a transition, with the guarantees of `put`. Written in the order they were put in."""
        self._put(self._transitions, transition)

    def put_alert(self, event: Event) -> None:
        """Queue an event of an alert, with the guarantees of `put`. Written in the order they were put in."""
        self._put(self._alerts, event)

    def put_moved(self, token: MovedToken) -> None:
        """Queue a moved token, with the guarantees of `put`."""
        self._put(self._moved, token)

    def put_similarity(self, pair: SimilarityRow) -> None:
        """Queue a pair of texts that was compared, with the guarantees of `put`."""
        self._put(self._similarities, pair)

    def put_counters(self, span: CountersRow) -> None:
        """Queue a span of counters, with the guarantees of `put`."""
        self._put(self._counters, span)

    def put_audit(self, order: AuditRow) -> None:
        """Queue an order to the admin port, with the guarantees of `put`."""
        self._put(self._audit, order)

    def put_text(self, kept: TextRow) -> None:
        """Queue a prompt or a reply, with the guarantees of `put`. Texts are bounded by their characters, too."""
        self._characters_put += len(kept.text)
        self._put(self._texts, kept)
        while self._characters_put - self._characters_taken > _MAX_CHARACTERS and self._drop_oldest(self._texts):
            pass

    @property
    def written(self) -> int:
        return self._records.stored

    @property
    def queue_length(self) -> int:
        """What is waiting, an unfinished batch included."""
        return sum(map(len, self._all))

    def close(self, deadline_s: float = 5.0) -> None:
        """Write what is queued, for about `deadline_s` seconds; count the rest as dropped. Blocks."""
        self._deadline = time.monotonic() + deadline_s
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(deadline_s + _GRACE_S)
        if self._thread.is_alive():
            # Stuck in the driver; a daemon thread, it ends with the process.
            log.warning("the database writer did not stop in %.1f s", deadline_s)
        else:
            self._engine.dispose()
        if lost := self.queue_length:
            self.dropped += lost
            log.warning("%d records were still waiting for the database and are lost", lost)

    def _put(self, items: _Items[T], item: T) -> None:
        items.queue.append(item)
        if len(items.queue) > items.most:
            self._drop_oldest(items)

    def _drop_oldest(self, items: _Items[Any]) -> bool:
        try:
            dropped = items.queue.popleft()
        except IndexError:
            # The thread has just emptied it.
            return False
        if isinstance(dropped, TextRow):
            self._characters_put -= len(dropped.text)
        self.dropped += 1
        return True

    def _text_row(self, kept: TextRow) -> Row:
        self._characters_taken += len(kept.text)
        return text_row(kept)

    def _run(self) -> None:
        while not self._stop.is_set() or (self.queue_length and time.monotonic() < self._deadline):
            try:
                self._work()
            except Exception as error:
                self._failed(error)
            self._rest()

    def _work(self) -> None:
        """Write what waits, and see to the database."""
        now = time.monotonic()
        if not self._ready:
            upgrade(self._engine)
            self._ready = True
        elif now - self._checked > _CHECK_S:
            self._check()
        else:
            now = self._checked
        self._checked = now
        for items in self._all:
            self._write(items)
        self._pause_s = 0.0
        if not self.healthy:
            self.healthy = True
            log.info("the database takes rows")

    def _write(self, items: _Items[T]) -> None:
        """Store a batch. Whatever goes wrong, `items` keeps what is not stored."""
        if not items:
            return
        try:
            with self._engine.begin() as connection:
                self._inserts.insert(items.table, connection, self._take(items))
        except Exception as error:
            if not refused_as_data(error):
                raise
            self._write_by_halves(items)
        else:
            items.stored += len(items.rows)
            items.rows.clear()

    def _take(self, items: _Items[T]) -> Iterator[Row]:
        """The batch in hand, then what fills it up from the queue.

        Converted one by one as they are inserted: the proxy stands still for as long as this thread runs without
        a statement in between.
        """
        rows = items.rows
        yield from rows[:]
        while len(rows) < self._batch_size:
            try:
                item = items.queue.popleft()
            except IndexError:
                return
            try:
                row = items.convert(item)
            except Exception as error:
                self._refuse(error)
            else:
                rows.append(row)
                yield row

    def _write_by_halves(self, items: _Items[T]) -> None:
        """Store the batch in hand, in order and but for the rows refused."""
        rows, size = items.rows, len(items.rows)
        while rows:
            part = rows[:size]
            try:
                with self._engine.begin() as connection:
                    self._inserts.insert(items.table, connection, part)
            except Exception as error:
                if not refused_as_data(error):
                    raise
                if len(part) > 1:
                    size = len(part) // 2
                    continue
                self._refuse(error)
            else:
                items.stored += len(part)
            del rows[: len(part)]
            size = max(1, len(rows))

    def _check(self) -> None:
        # An open SQLite file takes rows even after it was deleted, and then loses them.
        if (path := self._engine.url.database) and self._engine.dialect.name == "sqlite":
            Path(path).stat()
        with self._engine.begin() as connection:
            connection.execute(text("SELECT 1 FROM requests LIMIT 1"))

    def _refuse(self, error: Exception) -> None:
        self.refused += 1
        log.warning("a record cannot be stored and is left out: %s", _one_line(error))

    def _failed(self, error: Exception) -> None:
        if self.healthy or not self._pause_s:
            log.warning("the database takes no rows; they wait: %s", _one_line(error))
        self.healthy = False
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
        self._ready = False
        self._engine.dispose()

    def _rest(self) -> None:
        if self._stop.is_set():
            # Nearing the deadline there is no time for long pauses.
            time.sleep(min(self._pause_s, 0.1))
        elif self._pause_s or len(self._records.queue) < self._batch_size:
            self._stop.wait(self._pause_s or self._max_age_s)


def _one_line(error: Exception) -> str:
    """What the driver said, without the statement and its values."""
    words = " ".join(str(getattr(error, "orig", None) or error).split())
    return f"{type(error).__name__}: {words[:300]}"
