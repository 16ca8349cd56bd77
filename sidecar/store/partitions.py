"""Partitions of `requests` on PostgreSQL: one per day (UTC), so that a day that is over its time is dropped at once.

A database that was there before partitions has one more, for all up to a day shortly after it got them. The names tell
the bounds: `requests_20260131` is of that day, `requests_before_20260201` of all before that day.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Connection, text

#: How many days beyond today have partitions before rows come.
AHEAD = 3
# Any fixed number: who makes partitions takes turns on it.
_LOCK = 5_287_301_848
_NAME = re.compile(r"requests_(before_)?(\d{4,})(\d\d)(\d\d)")
_CHILDREN = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
    "WHERE i.inhparent = to_regclass('requests') AND NOT i.inhdetachpending"
)


@dataclass(frozen=True, slots=True)
class Partition:
    """Days are ISO texts."""

    name: str
    #: First day; None: no bound.
    since: str | None
    #: First day after it.
    until: str

    def has(self, day: str) -> bool:
        return (self.since is None or self.since <= day) and not self.ends_by(day)

    def ends_by(self, day: str) -> bool:
        """Whether all of it lies before `day`."""
        return _sortable(self.until) <= _sortable(day)


def partitions(connection: Connection) -> list[Partition]:
    """Those that are there, oldest first; none on SQLite."""
    if connection.dialect.name != "postgresql":
        return []
    found = [made for name in connection.scalars(_CHILDREN) if (made := _parsed(name)) is not None]
    return sorted(found, key=lambda each: _sortable(each.until))


def ensure(connection: Connection, days: Iterable[str]) -> None:
    """Make what partitions are missing for rows of `days`, ISO texts. In the transaction that inserts the rows.

    Costs nothing for days that are known. Those before today are looked up in each transaction, as they may be dropped.
    """
    if connection.dialect.name != "postgresql":
        return
    known: set[str] = connection.info.setdefault("days", set())
    # What this transaction has made is there for others, and for those after it, only if it is committed.
    transaction, here = connection.info.get("days_here", (None, set()))
    if transaction is not connection.get_transaction():
        here = set()
        connection.info["days_here"] = connection.get_transaction(), here
    wanted = sorted(set(days) - known - here)
    if not wanted:
        return
    there = partitions(connection)
    if not all(any(each.has(day) for each in there) for day in wanted):
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        there = partitions(connection)
    today = datetime.now(UTC).date().isoformat()
    for day in wanted:
        name = next((each.name for each in there if each.has(day)), None)
        if name is None:
            _make(connection, day)
        elif day >= today:
            known.add(day)
            continue
        else:
            # So that it is not dropped before the rows are in it; raises if it has just been.
            connection.execute(text(f"LOCK TABLE {name} IN ROW EXCLUSIVE MODE"))
        here.add(day)


def ahead(connection: Connection, now: float) -> None:
    """Make the partitions of the next days. `now` is Unix time in seconds."""
    today = datetime.fromtimestamp(now, UTC).date()
    ensure(connection, [(today + timedelta(days=i)).isoformat() for i in range(AHEAD + 1)])


def drop(connection: Connection, partition: Partition) -> None:
    """Drop it with all its rows. Waits for readers as long as lock_timeout allows."""
    connection.execute(text(f"DROP TABLE {partition.name}"))
    connection.info.pop("days", None)


def _make(connection: Connection, day: str) -> None:
    name, until = f"requests_{day.replace('-', '')}", _next(day)
    # Attached, as a table that is made as a partition locks out readers of all of them.
    connection.execute(text(f"CREATE TABLE {name} (LIKE requests INCLUDING ALL)"))
    bounds = f"FROM ('{day} 00:00:00+00') TO ('{until} 00:00:00+00')"
    connection.execute(text(f"ALTER TABLE requests ATTACH PARTITION {name} FOR VALUES {bounds}"))


def _next(day: str) -> str:
    given = date.fromisoformat(day)
    return "10000-01-01" if given == date.max else (given + timedelta(days=1)).isoformat()


def _parsed(name: str) -> Partition | None:
    if (found := _NAME.fullmatch(name)) is None:
        return None
    before, *parts = found.groups()
    day = "-".join(parts)
    return Partition(name, None, day) if before else Partition(name, day, _next(day))


def _sortable(day: str) -> tuple[int, str]:
    return len(day), day
