"""Spans whose rollups are due: their marks, and how rollups and marks are exchanged so that no mark is lost.

A mark goes only if it is still the one that was read before the rows were: what was marked again meanwhile stays due.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from msgspec import json
from sqlalchemy import JSON, Connection, Select, Table, delete, exists, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from .cover import DAY, HOUR, MINUTE, SETTLED_S
from .expressions import utc
from .groups import DIMENSIONS, gently
from .rollups import Spans
from .rows import utc_text
from .schema import rollups, rollups_due, similarity_rollups

#: The span that the rollups of a span are added up to.
NEXT = {MINUTE: HOUR, HOUR: DAY}

TABLES: Mapping[str, Table] = {"requests": rollups, "similarities": similarity_rollups}

#: Rows a statement on SQLite takes: after each the driver waits for Python's lock, and a writer for the transaction.
_SQLITE_ROWS = 64

_KEY = [column.name for column in rollups_due.primary_key.columns]
_TAKE_AWAY = (
    "DELETE FROM rollups_due WHERE rowid IN "  # noqa: S608 - names of the schema
    "(SELECT d.rowid FROM json_each(?) AS m CROSS JOIN rollups_due AS d ON "
    + " AND ".join(f"d.{name} = json_extract(m.value, '$[{i}]')" for i, name in enumerate([*_KEY, "stamp"]))
    + ")"
)

_d = rollups_due.c
#: Marks that are looked at in one go; others wait for the next.
MOST_MARKS = 500


@dataclass(frozen=True, slots=True)
class Due:
    """A span that is due; `marks` are the stamps by instance that it was marked with."""

    family: str
    span_s: int
    #: Where it begins, Unix s.
    at: int
    marks: dict[str, int] = field(default_factory=dict)


def due_minutes(connection: Connection, most: int = MOST_MARKS) -> list[Due]:
    """The newest ones of each family that are due, newest first, by `most` marks of each."""
    return [span for family in TABLES for span in _marked(connection, _newest(family, MINUTE).limit(most))]


def due_longer(connection: Connection, now: float, most: int = MOST_MARKS) -> list[Due]:
    """Hours, then days, that are over and whose shorter spans are not due, newest first."""
    found = []
    for family in TABLES:
        for span_s in (HOUR, DAY):
            over = _newest(family, span_s).where(_d.at <= utc(now - span_s - SETTLED_S))
            found += [span for span in _marked(connection, over.limit(most)) if not _parts_due(connection, span)]
    return found


def closed(connection: Connection, now: float, most: int = 2**62) -> int:
    """Spans that are over and due; of each family and length counted no further than to `most`."""
    spans = select(_d.at).distinct().limit(most)
    counts = [
        select(func.count()).select_from(
            spans.where(_d.family == family, _d.span_s == span_s, _d.at <= utc(now - span_s - SETTLED_S)).subquery()
        )
        for family in TABLES
        for span_s in (MINUTE, HOUR, DAY)
    ]
    return sum(connection.scalars(count).one() for count in counts)


def write(connection: Connection, spans: Sequence[Due], found: Spans) -> None:
    """Exchange the rollups of `spans`, of one family and length, for `found`, and take their marks away.

    To be run by one at a time. Spans whose marks another one has taken are left alone. So are rollups of more than was
    found: rows are only ever added, so that those missing have been pruned.
    """
    family, span_s = spans[0].family, spans[0].span_s
    there = _present(connection, family, span_s, spans)
    mine = [span for span in spans if span.marks.keys() <= there[span.at]]
    before = _recorded(connection, family, span_s, [span.at for span in mine])
    fresh = [span.at for span in mine if found.get(span.at) and _size(family, found[span.at]) >= before.get(span.at, 0)]
    if fresh:
        _exchange(connection, family, span_s, fresh, found)
        if (longer := NEXT.get(span_s)) is not None:
            mark(connection, family, longer, {at - at % longer for at in fresh})
    _unmark(connection, mine)


def mark(connection: Connection, family: str, span_s: int, starts: Iterable[int], instance: str = "") -> None:
    """Mark the spans that begin at `starts` as due."""
    stamp = time.time_ns()
    rows = [
        {"family": family, "span_s": span_s, "at": utc(at), "instance": instance, "stamp": stamp}
        for at in sorted(starts)
    ]
    made = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(rollups_due)
    connection.execute(made.on_conflict_do_update(index_elements=_KEY, set_={"stamp": made.excluded.stamp}), rows)


def _newest(family: str, span_s: int) -> Select[Any]:
    query = select(rollups_due).where(_d.family == family, _d.span_s == span_s)
    return query.order_by(_d.at.desc())


def _marked(connection: Connection, query: Select[Any]) -> list[Due]:
    found: dict[int, Due] = {}
    for family, span_s, at, instance, stamp in connection.execute(query):
        start = int(at.timestamp())
        found.setdefault(start, Due(family, span_s, start)).marks[instance] = stamp
    return list(found.values())


def _parts_due(connection: Connection, span: Due) -> bool:
    inside = [_d.at >= utc(span.at), _d.at < utc(span.at + span.span_s)]
    parts = exists().where(_d.family == span.family, _d.span_s < span.span_s, *inside)
    return bool(connection.scalar(select(parts)))


def _present(connection: Connection, family: str, span_s: int, spans: Sequence[Due]) -> Mapping[int, set[str]]:
    """By start, the instances whose marks are there now."""
    starts = [utc(span.at) for span in spans]
    query = select(_d.at, _d.instance).where(_d.family == family, _d.span_s == span_s, _d.at.in_(starts))
    found: dict[int, set[str]] = defaultdict(set)
    for at, instance in connection.execute(query):
        found[int(at.timestamp())].add(instance)
    return found


def _recorded(connection: Connection, family: str, span_s: int, starts: Collection[int]) -> dict[int, int]:
    """By start, how many rows the rollups that are there are of."""
    if family == "requests":
        t = rollups.c
        query = select(t.at, t.requests).where(t.dimension == "whole")
    else:
        t = similarity_rollups.c
        query = select(t.at, func.sum(t.pairs + t.unknown)).group_by(t.at)
    rows = connection.execute(query.where(t.span_s == span_s, t.at.in_([utc(at) for at in starts])))
    return {int(at.timestamp()): int(size) for at, size in rows}


def _size(family: str, rows: Sequence[dict[str, Any]]) -> int:
    if family == "requests":
        return sum(row["requests"] for row in rows if row["dimension"] == "whole")
    return sum(row["pairs"] + row["unknown"] for row in rows)


def _exchange(connection: Connection, family: str, span_s: int, starts: Collection[int], found: Spans) -> None:
    table = TABLES[family]
    old = delete(table).where(table.c.span_s == span_s, table.c.at.in_([utc(at) for at in starts]))
    if family == "requests":
        # As the index goes.
        old = old.where(table.c.dimension.in_(DIMENSIONS))
    connection.execute(old)
    _insert(connection, table, gently(row for at in starts for row in found[at]))


def _insert(connection: Connection, table: Table, rows: Iterable[dict[str, Any]]) -> None:
    """As cheaply as each driver allows: SQLAlchemy's own way takes as long as all else that is done in Python."""
    columns = [column.name for column in table.columns if column.name != "id"]
    lists = [column.name for column in table.columns if isinstance(column.type, JSON)]
    copies = connection.dialect.name == "postgresql"

    def tuples() -> Iterator[tuple[Any, ...]]:
        for row in rows:
            values = row | {name: json.encode(row[name]).decode() for name in lists if row[name] is not None}
            if not copies:
                values["at"] = utc_text(row["at"].timestamp())
            yield tuple([values[name] for name in columns])

    into = f"{table.name} ({', '.join(columns)})"
    if copies:
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(f"COPY {into} FROM STDIN") as copy:
            for values in tuples():
                copy.write_row(values)
        return
    waiting, places = tuples(), f"({', '.join('?' * len(columns))})"
    while part := list(islice(waiting, _SQLITE_ROWS)):
        statement = f"INSERT INTO {into} VALUES {', '.join([places] * len(part))}"  # noqa: S608 - names of the schema
        connection.exec_driver_sql(statement, tuple(chain.from_iterable(part)))


def _unmark(connection: Connection, spans: Iterable[Due]) -> None:
    marks = [
        (span.family, span.span_s, utc(span.at), instance, stamp)
        for span in spans
        for instance, stamp in span.marks.items()
    ]
    if not marks:
        return
    if connection.dialect.name == "sqlite":
        # From each mark to its row: SQLite would look through all rows for any of a list of keys.
        given = [(family, span_s, utc_text(at.timestamp()), *rest) for family, span_s, at, *rest in marks]
        connection.exec_driver_sql(_TAKE_AWAY, (json.encode(given).decode(),))
        return
    columns = tuple_(_d.family, _d.span_s, _d.at, _d.instance, _d.stamp)
    # A mark that a writer holds is about to be another one. To wait for it might be to wait for each other.
    free = select(rollups_due).where(columns.in_(marks)).with_for_update(skip_locked=True).cte("free")
    connection.execute(delete(rollups_due).where(*(_d[name] == free.c[name] for name in _KEY)))
