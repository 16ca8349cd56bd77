"""Inserting rows as cheaply as each driver allows, and telling refused rows from a database in trouble.

The writer shares its process, and Python's lock, with the proxy. SQLite's driver gives the lock up and asks
for it back at each statement, which takes long while the proxy is busy: so a statement takes many rows. Not too
many, and they are asked for only then, as the proxy stands still from one statement to the next.
PostgreSQL gets JSON texts, which the server takes apart.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from msgspec import json
from sqlalchemy import Connection, Dialect, Engine, Table
from sqlalchemy.exc import DBAPIError, StatementError

from .rows import COLUMNS, TRANSITION_COLUMNS, Row
from .schema import requests, transitions

#: SQLSTATE classes that name the data of a statement: cardinality, data, integrity, program limits.
_DATA_CLASSES = ("21", "22", "23", "54")
_SQLITE_DATA = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


#: Rows a statement on SQLite takes. Few sizes, so that the driver keeps each statement prepared.
_SIZES = (64, 16, 4, 1)


class Inserts:
    """The insert statements of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._insert = _insert_sqlite if engine.dialect.name == "sqlite" else _insert_postgresql
        build = _sqlite_statements if engine.dialect.name == "sqlite" else _postgresql_statement
        self._requests = build(requests, COLUMNS, engine.dialect)
        self._transitions = build(transitions, TRANSITION_COLUMNS, engine.dialect)

    def requests(self, connection: Connection, rows: Iterable[Row]) -> None:
        """Add rows of `request_row`. A row that is there already is left alone."""
        self._insert(connection, self._requests, COLUMNS, rows)

    def transitions(self, connection: Connection, rows: Iterable[Row]) -> None:
        """Add rows of `transition_row`, in their order. A row that is there already is left alone."""
        self._insert(connection, self._transitions, TRANSITION_COLUMNS, rows)


def _insert_sqlite(
    connection: Connection, statements: dict[int, str], _names: tuple[str, ...], rows: Iterable[Row]
) -> None:
    for part in _parts(rows):
        done = 0
        for size, statement in statements.items():
            while len(part) - done >= size:
                values = tuple(chain.from_iterable(part[done : done + size]))
                connection.exec_driver_sql(statement, values)
                done += size


def _insert_postgresql(
    connection: Connection, statements: dict[int, str], names: tuple[str, ...], rows: Iterable[Row]
) -> None:
    for part in _parts(rows):
        objects = [dict(zip(names, row, strict=True)) for row in part]
        connection.exec_driver_sql(statements[0], {"rows": json.encode(objects).decode()})


def _parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    waiting = iter(rows)
    while part := list(islice(waiting, _SIZES[0])):
        yield part


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
