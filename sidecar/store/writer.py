"""The one writer: bounded queues in front of one thread that owns the writing connection.

Recording never slows or fails a request. `put` only appends to a deque; the thread looks at it every
fifth of a second, so that no request pays for waking it. A batch is kept until the database has taken it:
while the database is locked or away, what is queued goes to the spool on disk, and from there, oldest first, to the
database when it is back. Without a spool, or where its disk takes nothing, the queue fills up, and then the oldest
records go, each of them counted. The oldest, because after an outage the question is how things are now.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, text

from alerts.model import Event
from sidecar.faults import place
from sidecar.record import Record

from .engine import silence_ends, writing_engine
from .inserts import PAUSE_S, Inserts, at_a_time, refused_as_data
from .items import Items, by_halves
from .quarantine import Quarantine
from .rows import (
    TABLE_COLUMNS,
    AuditRow,
    CountersRow,
    MovedToken,
    Row,
    SimilarityRow,
    TextRow,
    Transition,
    VersionRow,
    alert_row,
    alignment_row,
    audit_row,
    counters_row,
    request_row,
    similarity_row,
    text_row,
    transition_row,
    version_row,
)
from .spool import Frame, Spool
from .upgrade import upgrade

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
#: How often the thread asks whether the database is still there, traffic or not.
_CHECK_S = 5.0
#: Events of alerts that wait: one notification may be of hundreds of alerts, each an event.
_MAX_ALERTS = 10_000
#: How long a batch may take on PostgreSQL. A server that hangs, or is behind a network that has gone, says nothing; as
#: long as it is waited for, rows are in memory alone, where by default there is room for 500 a second.
_SILENT_S = 20.0
#: How often rows go to the spool while tables are brought up to date, which takes minutes where there are many rows,
#: and as long where another sidecar is about it.
_MEANWHILE_S = 1.0
#: Rows of a batch until one is taken, so that a slow server is not cut off each time.
_FIRST_BATCH = 128
#: How long past its deadline `close` waits for a statement under way.
_GRACE_S = 1.5


class Writer:
    """Writes records and all else. `start()`, then `put(...)` from one thread, at the end `close(...)`.

    Each record ends in exactly one count: `written` (the database has it), `dropped` (lost to overflow, in memory or
    on disk, or left over at the end) or `refused` (no database takes it as data). The others count as dropped and
    refused too. `healthy`: the last attempt to reach the database worked; False until the first did.
    """

    def __init__(
        self,
        database_url: str,
        *,
        capacity: int = 10_000,
        batch_size: int = 2000,
        max_age_s: float = 0.2,
        spool: Spool | None = None,
    ) -> None:
        """Opens nothing: the thread does. `spool` is closed with the writer. Raises DatabaseUrlError for a URL that
        cannot work.
        """
        self._engine = writing_engine(database_url)
        self._inserts = Inserts(self._engine)
        self._spool = spool
        self._quarantine = None if spool is None else Quarantine(spool.root)
        self._batch_size = batch_size
        self._max_age_s = max_age_s
        self._records: Items[Record] = Items("requests", request_row, capacity)
        self._transitions: Items[Transition] = Items("transitions", transition_row)
        self._alerts: Items[Event] = Items("alerts", alert_row, _MAX_ALERTS)
        self._moved: Items[MovedToken] = Items("alignments", alignment_row)
        self._similarities: Items[SimilarityRow] = Items("similarities", similarity_row)
        self._counters: Items[CountersRow] = Items("counters", counters_row)
        self._texts: Items[TextRow] = Items("texts", text_row, characters=_length)
        self._audit: Items[AuditRow] = Items("audit", audit_row)
        self._versions: Items[VersionRow] = Items("versions", version_row)
        self._all: tuple[Items[Any], ...] = (
            self._transitions,
            self._audit,
            self._versions,
            self._alerts,
            self._moved,
            self._similarities,
            self._counters,
            self._records,
            self._texts,
        )
        self._thread = threading.Thread(target=self._run, name="specwatch-writer", daemon=True)
        #: Held by who moves rows to the spool: the thread, or `close` where the thread is stuck.
        self._spooling = threading.Lock()
        self._stop = threading.Event()
        self._deadline = float("inf")
        self._ready = False
        self._checked = 0.0
        self._pause_s = 0.0
        self._left_over = 0
        self.refused = 0
        self.healthy = False

    def start(self) -> None:
        """Start the thread; it brings the schema up to date as soon as the database is there."""
        self._thread.start()

    def put(self, record: Record) -> None:
        """Queue a record. Takes a fraction of a microsecond, never blocks, never raises."""
        self._records.put(record)

    def put_transition(self, transition: Transition) -> None:
        """Queue a transition, with the guarantees of `put`. Written in the order they were put in."""
        self._transitions.put(transition)

    def put_alert(self, event: Event) -> None:
        """Queue an event of an alert, with the guarantees of `put`. Written in the order they were put in."""
        self._alerts.put(event)

    def put_moved(self, token: MovedToken) -> None:
        """Queue a moved token, with the guarantees of `put`."""
        self._moved.put(token)

    def put_similarity(self, pair: SimilarityRow) -> None:
        """Queue a pair of texts that was compared, with the guarantees of `put`."""
        self._similarities.put(pair)

    def put_counters(self, span: CountersRow) -> None:
        """Queue a span of counters, with the guarantees of `put`."""
        self._counters.put(span)

    def put_text(self, kept: TextRow) -> None:
        """Queue a prompt or a reply, with the guarantees of `put`."""
        self._texts.put(kept)

    def lose_text(self) -> None:
        """Count one that was lost before it could be put."""
        self._texts.dropped += 1

    def put_audit(self, order: AuditRow) -> None:
        """Queue an order to the admin port, with the guarantees of `put`."""
        self._audit.put(order)

    def put_version(self, version: VersionRow) -> None:
        """Queue what runs, with the guarantees of `put`. Written in the order they were put in."""
        self._versions.put(version)

    @property
    def written(self) -> int:
        return self._records.stored

    @property
    def dropped_by(self) -> dict[str, int]:
        """What was lost, by where: from memory (`queue`) or from the disk (`spool`)."""
        queue = self._left_over + sum([items.dropped for items in self._all])
        return {"queue": queue, "spool": 0 if self._spool is None else self._spool.dropped}

    @property
    def dropped(self) -> int:
        return sum(self.dropped_by.values())

    @property
    def spooled(self) -> tuple[int, int]:
        """Rows that wait on disk, and their bytes."""
        return (0, 0) if self._spool is None else (self._spool.records, self._spool.bytes)

    @property
    def queue_length(self) -> int:
        """What is waiting, an unfinished batch and the spool included."""
        return self._in_memory() + self.spooled[0]

    def close(self, deadline_s: float = 5.0) -> None:
        """Write what is queued, for about `deadline_s` seconds; the rest is left in the spool, or counts as dropped.

        Blocks.
        """
        self._deadline = time.monotonic() + deadline_s
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(deadline_s + _GRACE_S)
        if self._thread.is_alive():
            # Stuck in the driver; a daemon thread, it ends with the process.
            log.warning("the database writer did not stop in %.1f s", deadline_s)
        else:
            self._engine.dispose()
        self._to_spool()
        if lost := self._in_memory():
            self._left_over += lost
            log.warning("%d records were still waiting for the database and are lost", lost)
        if self._spool is not None:
            self._spool.close()

    @property
    def _most(self) -> int:
        """Rows that the next batch may have."""
        return self._batch_size if self.healthy else min(self._batch_size, _FIRST_BATCH)

    def _in_memory(self) -> int:
        return sum(map(len, self._all))

    def _run(self) -> None:
        if self._spool is not None:
            self._spool.adopt()
        while not self._stop.is_set() or self._must_go_on():
            try:
                self._work()
            except Exception as error:
                self._failed(error)
            self._rest()

    def _must_go_on(self) -> bool:
        """Whether there is something left to do at the end."""
        if self._pause_s:
            self._to_spool()
        return bool(self._in_memory()) and time.monotonic() < self._deadline

    def _work(self) -> None:
        """Write what waits, and see to the database."""
        now = time.monotonic()
        if not self._ready:
            with self._spooling_meanwhile():
                upgrade(self._engine)
            self._ready = True
        elif now - self._checked > _CHECK_S:
            self._check()
        else:
            now = self._checked
        self._checked = now
        if self._spool is not None and self._spool.bytes:
            self._write_spooled(self._spool)
        else:
            for items in self._all:
                self._write(items)
        self._pause_s = 0.0
        if not self.healthy:
            self.healthy = True
            log.info("the database takes rows")

    @contextmanager
    def _spooling_meanwhile(self) -> Iterator[None]:
        """What waits in memory goes to the spool from time to time, as long as the block keeps the thread busy."""
        done = threading.Event()

        def move() -> None:
            while not done.wait(_MEANWHILE_S) and not self._stop.is_set():
                self._to_spool()

        mover = threading.Thread(target=move, name="specwatch-spooler", daemon=True)
        mover.start()
        try:
            yield
        finally:
            done.set()
            mover.join()

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        """A transaction, which ends with an error where the server does not say a word for long."""
        with self._engine.begin() as connection, silence_ends(connection, _SILENT_S):
            yield connection

    def _write(self, items: Items[Any]) -> None:
        """Store a batch. Whatever goes wrong, `items` keeps what is not stored."""
        if not items:
            return
        try:
            with self._begin() as connection:
                rows = items.take(self._most, partial(self._refuse, items.table))
                self._inserts.insert(items.table, connection, rows)
        except Exception as error:
            if not refused_as_data(error):
                raise

            def store(rows: list[Row]) -> int:
                items.stored += self._insert(items.table, rows)
                return len(rows)

            by_halves(items.rows, len(items.rows), store, partial(self._refuse_row, items.table))
        else:
            items.stored += len(items.rows)
            items.rows.clear()

    def _insert(self, table: str, rows: list[Row]) -> int:
        with self._begin() as connection:
            self._inserts.insert(table, connection, rows)
        return len(rows)

    def _write_spooled(self, spool: Spool) -> None:
        """Store the oldest frames of the spool, a batch of them. They stay there until they are stored."""
        stored: Counter[str] = Counter()
        refused: list[tuple[str, Row, Exception]] = []

        def rows_of(table: str, frames: Iterable[Frame]) -> Iterator[Row]:
            for frame in frames:
                stored[table] += len(frame.rows)
                yield from frame.rows

        try:
            with self._begin() as connection:
                for table, frames in groupby(spool.read(self._most), attrgetter("table")):
                    self._inserts.insert(table, connection, rows_of(table, frames))
        except Exception as error:
            if not refused_as_data(error):
                raise
            stored.clear()
            for table, rows in islice(spool.read(1), 1):
                stored[table] = len(rows)
                by_halves(
                    rows, len(rows), partial(self._insert, table), lambda *why, of=table: refused.append((of, *why))
                )
                stored[table] -= len(refused)
        # Counted at the end, as a database that goes meanwhile has all of it sent again.
        for items in self._all:
            items.stored += stored[items.table]
        for each in refused:
            self._refuse_row(*each)
        spool.advance()
        if spool.bytes and (self._stop.is_set() or any(items.crowded for items in self._all)):
            # In its turn, and before it overflows.
            self._to_spool()

    def _to_spool(self) -> None:
        """Move what waits in memory to the spool, in order, for as long as its disk takes it."""
        # Waited for by `close` only, where the thread is stuck.
        if self._spool is None or not self._spooling.acquire(timeout=_GRACE_S):
            return
        try:
            for items in self._all:
                most = at_a_time(items.table)
                while items:
                    deque(items.take(most, partial(self._refuse, items.table)), maxlen=0)
                    append = partial(self._append, self._spool, items.table)
                    by_halves(items.rows, most, append, partial(self._refuse_row, items.table))
                    if items.rows:
                        return
        finally:
            self._spooling.release()

    def _append(self, spool: Spool, table: str, rows: list[Row]) -> int:
        # For the proxy's thread: it is not awake before the write has given Python's lock up and has it back.
        time.sleep(PAUSE_S)
        return spool.append(table, rows)

    def _check(self) -> None:
        with self._begin() as connection:
            connection.execute(text("SELECT 1 FROM requests LIMIT 1"))

    def _refuse_row(self, table: str, row: Row, error: Exception) -> None:
        self._refuse(table, dict(zip(TABLE_COLUMNS[table], row, strict=True)), error)

    def _refuse(self, table: str, columns: dict[str, object], error: Exception) -> None:
        self.refused += 1
        reason = one_line(error)
        log.warning("a row of %s cannot be stored and is left out: %s", table, reason)
        if self._quarantine is not None:
            self._quarantine.add(table, reason, columns)

    def _failed(self, error: Exception) -> None:
        if self.healthy or not self._pause_s:
            log.warning("the database takes no rows; they wait: %s", one_line(error))
        self.healthy = False
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
        self._ready = False
        self._engine.dispose()
        self._to_spool()

    def _rest(self) -> None:
        if self._stop.is_set():
            # Nearing the deadline there is no time for long pauses.
            time.sleep(min(self._pause_s, 0.1))
        elif self._pause_s:
            end = time.monotonic() + self._pause_s
            while (left := end - time.monotonic()) > 0 and not self._stop.wait(min(left, self._max_age_s)):
                self._to_spool()
        elif not self.spooled[1] and self._records.queued < self._batch_size:
            self._stop.wait(self._max_age_s)


def _length(kept: TextRow) -> int:
    # `put` never raises, whatever it is given; what is no text is refused later.
    return len(kept.text) if isinstance(getattr(kept, "text", None), str) else 0


#: Whose words are of no request, but for what PostgreSQL quotes of a row that it refuses.
_TELLING = ("sqlite3", "psycopg", "sqlalchemy", "alembic", "sidecar")


def one_line(error: Exception) -> str:
    """What the driver said, without the statement and its values; of other errors the kind alone."""
    cause = getattr(error, "orig", None) or error
    if type(cause).__module__.partition(".")[0] not in _TELLING and not isinstance(cause, OSError | OverflowError):
        return place(error)
    # The values are in the details.
    words = " ".join(str(getattr(getattr(cause, "diag", None), "message_primary", None) or cause).split())
    if refused_as_data(error):
        words = words.partition('"')[0]
    return f"{type(error).__name__}: {words[:300]}"
