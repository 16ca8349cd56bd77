"""Inserting rows as cheaply as each driver allows, and telling refused rows from a database in trouble.

The writer shares its process, and Python's lock, with the proxy. SQLite's driver gives the lock up and asks
for it back at each statement, which takes long while the proxy is busy: so a statement takes many rows. Not all,
and rows are asked for only as they are needed, for the proxy stands still from one statement to the next.
PostgreSQL gets JSON texts, which the server takes apart.
"""

import sqlite3
import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from msgspec import json
from sqlalchemy import Connection, Dialect, Engine, Table
from sqlalchemy.exc import DBAPIError, StatementError

from .partitions import ensure
from .rows import TABLE_COLUMNS, Row
from .schema import metadata

#: SQLSTATE classes that name the data of a statement: cardinality, data, integrity, program limits.
_DATA_CLASSES = ("21", "22", "23", "54")
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

_STARTED_AT = TABLE_COLUMNS["requests"].index("started_at")
#: Tables that have rollups, and the times of their rows.
_TIMES = {"requests": "started_at", "similarities": "at"}
_MARK = (
    "INSERT INTO rollups_due (family, span_s, at, instance, stamp) VALUES ({}, 60, {}, {}, {}) "
    "ON CONFLICT (family, span_s, at, instance) DO UPDATE SET stamp = excluded.stamp"
)
_MARK_OF_POSTGRESQL = ("%s", "%s::timestamp AT TIME ZONE 'UTC'", "%s", "%s")


class Inserts:
    """The insert statements of one engine."""

    def __init__(self, engine: Engine) -> None:
        sqlite = engine.dialect.name == "sqlite"
        self._insert = _insert_sqlite if sqlite else _insert_postgresql
        build = _sqlite_statements if sqlite else _postgresql_statement
        self._statements = {
            name: build(metadata.tables[name], columns, engine.dialect) for name, columns in TABLE_COLUMNS.items()
        }
        self._mark = _MARK.format(*("?" * 4 if sqlite else _MARK_OF_POSTGRESQL))

    def insert(self, table: str, connection: Connection, rows: Iterable[Row]) -> None:
        """Add rows of the row function of `table`, in their order. A row that is there already is left alone.

        Minutes whose rollups the rows change are marked as due, as the last thing that is done.
        """
        columns = TABLE_COLUMNS[table]
        if (time_column := _TIMES.get(table)) is None:
            self._insert(connection, self._statements[table], table, rows)
            return
        at, instance = columns.index(time_column), columns.index("instance")
        minutes: set[tuple[str, str]] = set()

        def marked() -> Iterator[Row]:
            for row in rows:
                minutes.add((str(row[at])[:16], str(row[instance])))
                yield row

        self._insert(connection, self._statements[table], table, marked())
        if minutes:
            stamp = time.time_ns()
            # Sorted, so that two processes of one name do not wait for each other's marks crosswise.
            marks = [(table, f"{minute}:00.000000", name, stamp) for minute, name in sorted(minutes)]
            connection.exec_driver_sql(self._mark, marks)


def at_a_time(table: str) -> int:
    """How many rows of `table` may be handled in one go, for which the proxy stands still."""
    return _LONG_ROWS if table in _LONG_TABLES else _POSTGRESQL_ROWS


def _insert_sqlite(connection: Connection, statements: dict[int, str], table: str, rows: Iterable[Row]) -> None:
    waiting, most = iter(rows), at_a_time(table)
    number = min(_SQLITE_ROWS, most)
    while part := list(islice(waiting, number)):
        begun = time.monotonic()
        while part:
            size = next(size for size in _SIZES if size <= len(part))
            connection.exec_driver_sql(statements[size], tuple(chain.from_iterable(part[:size])))
            del part[:size]
        # The statement gave Python's lock up, but mostly has it back before a thread that waits for it is awake.
        time.sleep(PAUSE_S)
        number = min(_SQLITE_ROWS_IF_BUSY if time.monotonic() - begun > _BUSY_S else _SQLITE_ROWS, most)


def _insert_postgresql(connection: Connection, statements: dict[int, str], table: str, rows: Iterable[Row]) -> None:
    waiting, names = iter(rows), TABLE_COLUMNS[table]
    while part := list(islice(waiting, at_a_time(table))):
        if table == "requests":
            ensure(connection, {str(row[_STARTED_AT])[:10] for row in part})
        objects = [dict(zip(names, row, strict=True)) for row in part]
        connection.exec_driver_sql(statements[0], {"rows": json.encode(objects).decode()})


def refused_as_data(error: Exception) -> bool:
    """Whether an insert failed over what its rows hold, so that waiting will not help."""
    if not isinstance(error, DBAPIError):
        # Raised on this side while values were bound: out of range, not encodable, of a wrong type.
        return isinstance(error, StatementError | OverflowError | ValueError | TypeError)
    if error.connection_invalidated:
        return False
    if (state := getattr(error.orig, "sqlstate", None)) is not None:
        return str(state).startswith(_DATA_CLASSES)
    return isinstance(error.orig, _SQLITE_DATA) or type(error.orig).__name__ == "DataError"


def _sqlite_statements(table: Table, names: tuple[str, ...], _dialect: Dialect) -> dict[int, str]:
    row = f"({', '.join('?' * len(names))})"
    return {size: _statement(table, names, "VALUES " + ", ".join([row] * size)) for size in _SIZES}


def _postgresql_statement(table: Table, names: tuple[str, ...], dialect: Dialect) -> dict[int, str]:
    types, values = [], []
    for name in names:
        kind, value = table.c[name].type.compile(dialect), name
        if kind == "TIMESTAMP WITH TIME ZONE":
            # Rows give UTC without a zone; the session's zone must not be taken for it.
            kind, value = "TIMESTAMP", f"{name} AT TIME ZONE 'UTC'"
        elif kind == "JSONB":
            # Lists are JSON text in a row, as SQLite takes them.
            kind, value = "TEXT", f"{name}::JSONB"
        types.append(f"{name} {kind}")
        values.append(value)
    batch = f"json_to_recordset(%(rows)s::json) AS x ({', '.join(types)})"
    return {0: _statement(table, names, " ".join(["SELECT", ", ".join(values), "FROM", batch]))}


def _statement(table: Table, names: tuple[str, ...], source: str) -> str:
    columns = ", ".join(names)
    return f"INSERT INTO {table.name} ({columns}) {source} ON CONFLICT ({_key(table)}) DO NOTHING"


def _key(table: Table) -> str:
    (index,) = (index for index in table.indexes if index.unique)
    return ", ".join(column.name for column in index.columns)
