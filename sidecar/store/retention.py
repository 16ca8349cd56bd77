"""Retention: rows that are older than they are to be kept go, a bounded part at a time.

Rows of which rollups are due stay until these are made, unless they are older than twice the limit. On PostgreSQL whole
days of `requests` are dropped. Of decisions and alerts stays what a sidecar must know that starts again.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, Table, delete, func, select, text, tuple_, union
from sqlalchemy.exc import OperationalError

from .cover import DAY, HOUR, MINUTE
from .expressions import utc
from .groups import DIMENSIONS
from .partitions import Partition, drop, partitions
from .schema import alerts, metadata, requests, rollups, rollups_due, similarity_rollups, transitions

#: By setting, the spans of rollups that it is about.
_SPANS = {"minutes": MINUTE, "hours": HOUR, "days": DAY}
#: By setting, the families and the span of the rollups that are made of its rows.
_MADE_OF = {
    "requests": (("requests",), MINUTE),
    "similarities": (("similarities",), MINUTE),
    "minutes": (("requests", "similarities"), HOUR),
    "hours": (("requests", "similarities"), DAY),
}

#: Rows a slice begins with and is of at most, and what it should take, as a writer on SQLite waits for it.
_FIRST_ROWS, _MOST_ROWS = 200, 5000
_TARGET_S = 0.05
#: What a slice is followed by at least, so that others get their turn.
_PAUSE_S = 0.05
#: How long a partition's readers are waited for: who comes meanwhile waits too.
_LOCK_TIMEOUT_MS = 100
#: Any fixed number: the keepers of a fleet take turns on it.
_LOCK = 5_287_301_849

#: SQLSTATE of a lock that was waited for in vain.
_LOCKED = "55P03"
_ALL = 2**62


@dataclass(frozen=True, slots=True)
class Part:
    """Old rows of one table, or of a part of it."""

    setting: str
    #: How many there are, counted no further than to the number given.
    count: Callable[[Connection, int], int]
    #: Deletes so many at most and tells how many it did.
    delete: Callable[[Connection, int], int]
    #: Whether all go at once, whatever `delete` is told.
    whole: bool = False


class Pruner:
    """Deletes through `engine`, of `writing_engine`, and looks through `reading`. For use from one thread."""

    def __init__(self, engine: Engine, reading: Engine, retention: Mapping[str, float | None]) -> None:
        """`retention`: days by setting, as `Settings.retention`."""
        self._engine = engine
        self._reading = reading
        self._retention = {setting: days for setting, days in retention.items() if days is not None}
        self._rows = _FIRST_ROWS
        #: Rows that were deleted, by setting.
        self.pruned: Counter[str] = Counter(dict.fromkeys(retention, 0))

    def old(self, now: float) -> dict[str, int]:
        """By setting, how many rows are to go. `now` is Unix time in seconds."""
        with self._reading.begin() as connection:
            found: Counter[str] = Counter(dict.fromkeys(self._retention, 0))
            for part in self._parts(connection, now):
                found[part.setting] += part.count(connection, _ALL)
            return dict(found)

    def prune(self, now: float, until: float, pause: Callable[[float], object] = time.sleep) -> bool:
        """Delete what is to go, in slices with pauses, until it is `until` by the monotonic clock.

        Whether all is gone; not so what others hold, or are deleting themselves. Raises SQLAlchemyError.
        """
        with self._reading.begin() as connection:
            waiting = deque(part for part in self._parts(connection, now) if part.whole or part.count(connection, 1))
        held = False
        while waiting:
            if time.monotonic() >= until:
                return False
            part = waiting.popleft()
            begun, asked = time.monotonic(), self._rows
            deleted = self._slice(part, asked)
            took = time.monotonic() - begun
            if deleted is None:
                held = True
                continue
            self.pruned[part.setting] += deleted
            if not part.whole and deleted >= asked:
                waiting.append(part)
            self._rows = max(_FIRST_ROWS, min(int(asked * _TARGET_S / max(took, 1e-3)), 2 * asked, _MOST_ROWS))
            if waiting:
                pause(max(took, _PAUSE_S))
        return not held

    def _slice(self, part: Part, rows: int) -> int | None:
        """How many rows it deleted; None where others hold them."""
        try:
            with self._engine.begin() as connection:
                if connection.dialect.name == "postgresql":
                    if not connection.scalar(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": _LOCK}):
                        return None
                    connection.execute(text(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}"))
                return part.delete(connection, rows)
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != _LOCKED:
                raise
            return None

    def _parts(self, connection: Connection, now: float) -> Iterator[Part]:
        for setting, days in self._retention.items():
            yield from _parts(connection, setting, _before(connection, setting, now, days * DAY))


def _before(connection: Connection, setting: str, now: float, limit_s: float) -> float:
    """Before when rows of a setting are to go, Unix s."""
    limit = now - limit_s
    if (made_of := _MADE_OF.get(setting)) is None:
        return limit
    families, span_s = made_of
    d = rollups_due.c
    oldest = connection.scalar(select(func.min(d.at)).where(d.family.in_(families), d.span_s == span_s))
    return limit if oldest is None else max(min(limit, oldest.timestamp()), limit - limit_s)


def _parts(connection: Connection, setting: str, before: float) -> Iterator[Part]:
    if before <= 0:
        return
    if (span_s := _SPANS.get(setting)) is not None:
        t, s = rollups.c, similarity_rollups.c
        for name in DIMENSIONS:
            # By dimension, as the index goes.
            yield _rows(setting, rollups, t.at, before, t.span_s == span_s, t.dimension == name)
        yield _rows(setting, similarity_rollups, s.at, before, s.span_s == span_s)
    elif setting == "requests":
        if connection.dialect.name == "postgresql":
            yield from map(partial(_partition, before=before), _over(connection, before))
        else:
            yield _rows(setting, requests, requests.c.started_at, before)
    else:
        table = metadata.tables[setting]
        kept = {"transitions": _last_decisions, "alerts": _unfinished}.get(setting)
        where = [] if kept is None else [table.c.id.not_in(kept())]
        yield _rows(setting, table, table.c.at if "at" in table.c else table.c.started_at, before, *where)


def _rows(setting: str, table: Table, at: ColumnElement[Any], before: float, *where: ColumnElement[bool]) -> Part:
    old = select(table.c.id).where(at < utc(before), *where)

    def count(connection: Connection, most: int) -> int:
        return connection.scalars(select(func.count()).select_from(old.limit(most).subquery())).one()

    def delete_oldest(connection: Connection, most: int) -> int:
        return connection.execute(delete(table).where(table.c.id.in_(old.order_by(at).limit(most)))).rowcount

    return Part(setting, count, delete_oldest)


def _over(connection: Connection, before: float) -> list[Partition]:
    """Partitions with nothing newer than `before`, and the one of all before some day."""
    day = utc(before).date().isoformat()
    return [each for each in partitions(connection) if each.since is None or each.ends_by(day)]


def _partition(partition: Partition, before: float) -> Part:
    name, over = partition.name, partition.ends_by(utc(before).date().isoformat())
    given = {"before": utc(before)}

    def count(connection: Connection, most: int) -> int:
        old = f"SELECT 1 FROM {name} WHERE started_at < :before LIMIT :most"  # noqa: S608 - a name of `partitions`
        counted = text(f"SELECT count(*) FROM ({old}) AS old")  # noqa: S608 - the same
        return int(connection.scalar(counted, given | {"most": most}) or 0)

    def delete_oldest(connection: Connection, most: int) -> int:
        if not over:
            oldest = f"SELECT ctid FROM {name} WHERE started_at < :before ORDER BY started_at LIMIT :most"  # noqa: S608
            rows = text(f"DELETE FROM {name} WHERE ctid = ANY(ARRAY({oldest}))")  # noqa: S608 - the same
            return connection.execute(rows, given | {"most": most}).rowcount
        number = count(connection, _ALL)
        drop(connection, partition)
        return number

    return Part("requests", count, delete_oldest, whole=over)


def _last_decisions() -> Select[Any]:
    """Rows that `Reader.last_decisions` tells of any instance, and the last of each instance and slice."""
    t = transitions.c
    newest = select(func.max(t.id))
    decided = newest.where(t.trigger.not_in(("engine", "effect")))
    return select(
        union(
            decided.group_by(t.instance, t.slice, t.trigger == "operator"), newest.group_by(t.instance, t.slice)
        ).subquery()
    )


def _unfinished() -> Select[Any]:
    """Rows of alerts that fire, as `alerts.unfinished` tells them of any instance."""
    a = alerts.c
    states = select(func.max(a.id)).where(a.event.in_(("firing", "resolved"))).group_by(a.instance, a.fingerprint)
    firing = [a.id.in_(states), a.event == "firing"]
    told = select(func.max(a.id)).where(a.event == "notified")
    of_firing = tuple_(a.instance, a.fingerprint).in_(select(a.instance, a.fingerprint).where(*firing))
    return select(
        union(
            select(a.id).where(*firing),
            told.where(of_firing).group_by(a.instance, a.fingerprint, a.receiver),
            told.group_by(a.instance, a.receiver),
        ).subquery()
    )
