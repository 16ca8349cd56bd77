"""Inserting rows as cheaply as each driver allows, and telling refused rows from a database in trouble.

The writer shares its process, and Python's lock, with the proxy. SQLite's driver gives the lock up and asks
for it back at each statement, which takes long while the proxy is busy: so a statement takes many rows. Not all,
and rows are asked for only as they are needed, for the proxy stands still from one statement to the next.
PostgreSQL gets a JSON text per column, which the server takes apart: that costs Python a third less than an object per
row, and a tenth of what arrays would.
"""

import sqlite3
import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from msgspec import json
from sqlalchemy import Connection, Dialect, Engine, Table
from sqlalchemy.exc import DBAPIError, StatementError

from .partitions import ensure
from .rows import TABLE_COLUMNS, Row
from .schema import metadata

#: SQLSTATE classes that name the data of a statement: cardinality, data, integrity, program limits.
_DATA_CLASSES = ("21", "22", "23", "54")
#: No partition takes the row: one whose clock is far ahead has dropped a day that is known as there. No table checks
#: anything else.
_NO_PARTITION = "23514"
_SQLITE_DATA = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError)

#: Rows that are made and inserted at a time, for which the proxy stands still: 0.2 ms on SQLite, 1 ms on PostgreSQL,
#: where each time is a round trip.
_SQLITE_ROWS = 32
_POSTGRESQL_ROWS = 128
#: The same of rows that may be of 65,536 characters.
_LONG_ROWS = 4
_LONG_TABLES = ("texts",)
#: Rows at a time where the thread waits for Python's lock, once a statement and once more after it.
_SQLITE_ROWS_IF_BUSY = 128
_BUSY_S = 0.004
#: Long enough for the proxy's thread to wake up and take the lock.
PAUSE_S = 50e-6
#: Rows a statement on SQLite takes. Few sizes, so that the driver keeps each statement prepared.
_SIZES = (128, 32, 16, 8, 4, 2, 1)

#: Of tables that have rollups, where a row has its time and its instance.
_PLACES = {
    table: (TABLE_COLUMNS[table].index(time), TABLE_COLUMNS[table].index("instance"))
    for table, time in (("requests", "started_at"), ("similarities", "at"))
}
_MARK = (
    "INSERT INTO rollups_due (family, span_s, at, instance, stamp) VALUES ({}, 60, {}, {}, {}) "
    "ON CONFLICT (family, span_s, at, instance) DO UPDATE SET stamp = excluded.stamp"
)
_MARK_OF_POSTGRESQL = ("%s", "%s::timestamp AT TIME ZONE 'UTC'", "%s", "%s")


class Inserts:
    """The insert statements of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._sqlite = engine.dialect.name == "sqlite"
        build = _sqlite_statements if self._sqlite else _postgresql_statement
        self._statements = {
            name: build(metadata.tables[name], columns, engine.dialect) for name, columns in TABLE_COLUMNS.items()
        }
        self._mark = _MARK.format(*("?" * 4 if self._sqlite else _MARK_OF_POSTGRESQL))

    def insert(self, table: str, connection: Connection, rows: Iterable[Row]) -> None:
        """Add rows of the row function of `table`, in their order. A row that is there already is left alone.

        Minutes whose rollups the rows change are marked as due, as the last thing that is done.
        """
        statements, places = self._statements[table], _PLACES.get(table)
        #: With the names of those who made the rows.
        minutes: set[tuple[Any, Any]] = set()
        for part in (_sqlite_parts if self._sqlite else _postgresql_parts)(rows, at_a_time(table)):
            if places is not None:
                at, instance = places
                here = {(row[at][:16], row[instance]) for row in part}  # type: ignore[index]
                if table == "requests" and not here <= minutes:
                    ensure(connection, {minute[:10] for minute, _ in here})
                minutes |= here
            if self._sqlite:
                _insert_sqlite(connection, statements, part)
            else:
                _insert_postgresql(connection, statements[0], part)
        if minutes:
            stamp = time.time_ns()
            # Sorted, so that two processes of one name do not wait for each other's marks crosswise.
            marks = [(table, f"{minute}:00.000000", name, stamp) for minute, name in sorted(minutes)]
            connection.exec_driver_sql(self._mark, marks)


def at_a_time(table: str) -> int:
    """How many rows of `table` may be handled in one go, for which the proxy stands still."""
    return _LONG_ROWS if table in _LONG_TABLES else _POSTGRESQL_ROWS


def _sqlite_parts(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
    waiting, number = iter(rows), min(_SQLITE_ROWS, most)
    while part := list(islice(waiting, number)):
        begun = time.monotonic()
        yield part
        # The statement gave Python's lock up, but mostly has it back before a thread that waits for it is awake.
        time.sleep(PAUSE_S)
        number = min(_SQLITE_ROWS_IF_BUSY if time.monotonic() - begun > _BUSY_S else _SQLITE_ROWS, most)


def _postgresql_parts(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
    waiting = iter(rows)
    while part := list(islice(waiting, most)):
        yield part


def _insert_sqlite(connection: Connection, statements: dict[int, str], rows: list[Row]) -> None:
    done = 0
    while left := len(rows) - done:
        size = next(size for size in _SIZES if size <= left)
        connection.exec_driver_sql(statements[size], tuple(chain.from_iterable(rows[done : done + size])))
        done += size


def _insert_postgresql(connection: Connection, statement: str, rows: list[Row]) -> None:
    columns = zip(*rows, strict=True)
    connection.exec_driver_sql(statement, tuple([json.encode(values).decode() for values in columns]))


def refused_as_data(error: Exception) -> bool:
    """Whether an insert failed over what its rows hold, so that waiting will not help."""
    if not isinstance(error, DBAPIError):
        # Raised on this side while values were bound: out of range, not encodable, of a wrong type.
        return isinstance(error, StatementError | OverflowError | ValueError | TypeError)
    if error.connection_invalidated:
        return False
    if (state := getattr(error.orig, "sqlstate", None)) is not None:
        return str(state).startswith(_DATA_CLASSES) and state != _NO_PARTITION
    return isinstance(error.orig, _SQLITE_DATA) or type(error.orig).__name__ == "DataError"


def _sqlite_statements(table: Table, names: tuple[str, ...], _dialect: Dialect) -> dict[int, str]:
    row = f"({', '.join('?' * len(names))})"
    return {size: _statement(table, names, "VALUES " + ", ".join([row] * size)) for size in _SIZES}


def _postgresql_statement(table: Table, names: tuple[str, ...], dialect: Dialect) -> dict[int, str]:
    values = []
    for name in names:
        kind = table.c[name].type.compile(dialect)
        if kind == "TIMESTAMP WITH TIME ZONE":
            # Rows give UTC without a zone; the session's zone must not be taken for it.
            values.append(f"{name}::TIMESTAMP AT TIME ZONE 'UTC'")
        elif kind == "BOOLEAN":
            values.append(f"{name}::INTEGER::BOOLEAN")
        else:
            values.append(f"{name}::{kind}")
    batch = ", ".join(["json_array_elements_text(%s::json)"] * len(names))
    source = ["SELECT", ", ".join(values), f"FROM ROWS FROM ({batch}) AS x ({', '.join(names)})"]
    return {0: _statement(table, names, " ".join(source))}


def _statement(table: Table, names: tuple[str, ...], source: str) -> str:
    columns = ", ".join(names)
    return f"INSERT INTO {table.name} ({columns}) {source} ON CONFLICT ({_key(table)}) DO NOTHING"


def _key(table: Table) -> str:
    (index,) = (index for index in table.indexes if index.unique)
    return ", ".join(column.name for column in index.columns)
