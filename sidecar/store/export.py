"""A table of the record as a Parquet file: of one state of the database, whole or not there at all.

Times are timestamps in UTC (us), lists of numbers are lists, objects are JSON text, sketches are binary. Rows come in
the order of an index, so that neither side sorts, and a part at a time, so that memory does not grow with them.
"""

import difflib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import parquet
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Double,
    Integer,
    LargeBinary,
    Select,
    Table,
    Text,
    cast,
    select,
)
from sqlalchemy.exc import SQLAlchemyError

from .engine import DatabaseUrlError, reading_engine
from .schema import UtcDateTime, metadata
from .upgrade import HEAD, revision

TABLES = tuple(metadata.tables)

#: A row group ends where it has one of these; texts make the one, figures the other.
GROUP_ROWS = 50_000
GROUP_BYTES = 64 * 2**20
#: Rows that are Python objects at a time. A text has up to 64 KiB.
_PART_ROWS = 1000

#: Columns of JSON that hold lists of whole numbers; others hold objects.
_LISTS = ("acceptance_histogram", "rejected_at", "reached", "accepted_per_position")
_lists = msgspec.json.Decoder(list[list[int | None] | None])


class ExportError(Exception):
    """There is no file; the message names the option and the remedy."""


class OptionError(ExportError):
    """So with what was asked for, and always will be."""


@dataclass(frozen=True, slots=True)
class Report:
    table: str
    file: str
    rows: int
    bytes: int
    seconds: float


def export(
    database_url: str,
    table_name: str,
    file: Path,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    force: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Report:
    """Write the rows of [since, until), aware times, to `file`; `force`: in place of what is there.

    `progress` is called with the rows so far. Raises ExportError.
    """
    began = time.monotonic()
    if table_name not in TABLES:
        near = difflib.get_close_matches(table_name, TABLES, 1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(TABLES)}"
        raise OptionError(f"--table: there is no table {table_name!r}; {hint}")
    if since is not None and until is not None and until <= since:
        raise OptionError("--until: is not after --since, so that no row can lie between them")
    table = metadata.tables[table_name]
    about = {
        "version": version("specwatch"),
        "schema": HEAD,
        "table": table_name,
        "since": since.isoformat() if since else "",
        "until": until.isoformat() if until else "",
    }
    schema = _schema(table).with_metadata({f"specwatch.{name}": value for name, value in about.items()})
    rows = 0
    with (
        _whole_or_not(file, force=force) as target,
        _snapshot(database_url) as connection,
        parquet.ParquetWriter(target, schema, compression="zstd") as writer,
    ):
        for group in _groups(connection, _query(table, since, until), schema):
            writer.write_table(group)
            rows += len(group)
            progress(rows)
    return Report(table_name, str(file), rows, file.stat().st_size, round(time.monotonic() - began, 3))


def _time(table: Table) -> Column[Any]:
    return table.c.started_at if "started_at" in table.c else table.c.at


def _kind(column: Column[Any]) -> pa.DataType:
    """Whole numbers are all of 64 bit: on SQLite any may be."""
    match column.type:
        case UtcDateTime():
            return pa.timestamp("us", "UTC")
        case JSON():
            return pa.list_(pa.int64()) if column.name in _LISTS else pa.string()
        case Boolean():
            return pa.bool_()
        case Integer():
            return pa.int64()
        case Double():
            return pa.float64()
        case LargeBinary():
            return pa.binary()
        case Text():
            return pa.string()
    raise TypeError(f"{column} is of no type that is known here")


def _schema(table: Table) -> pa.Schema:
    return pa.schema([pa.field(column.name, _kind(column), column.nullable) for column in table.columns])


def _query(table: Table, since: datetime | None, until: datetime | None) -> Select[Any]:
    columns = [
        cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column for column in table.columns
    ]
    at = _time(table)
    # An index of a part of the rows is of no use here.
    whole = [
        each for each in table.indexes if at.name in each.columns and each.dialect_options["sqlite"]["where"] is None
    ]
    whole.sort(key=lambda index: (not index.unique, str(index.name)))
    order = [*whole[0].columns] if whole else [at]
    query = select(*columns).order_by(*order, *(table.c[name] for name in ("id",) if name in table.c))
    if since is not None:
        query = query.where(at >= since)
    if until is not None:
        query = query.where(at < until)
    return query


def _groups(connection: Connection, query: Select[Any], schema: pa.Schema) -> Iterator[pa.Table]:
    options = {"stream_results": True, "yield_per": _PART_ROWS}
    parts: list[pa.RecordBatch] = []
    count = size = 0
    for rows in connection.execute(query, execution_options=options).partitions():
        columns = zip(*rows, strict=True)
        part = pa.record_batch([_array(*each) for each in zip(columns, schema, strict=True)], schema=schema)
        parts.append(part)
        count, size = count + len(part), size + part.nbytes
        if count >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.Table.from_batches(parts)
            parts.clear()
            count = size = 0
    if parts:
        yield pa.Table.from_batches(parts)


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        if field.name in _LISTS:
            # As one text, which is read ten times as fast as one text a row.
            values = _lists.decode(f"[{','.join(['null' if each is None else each for each in values])}]")
        return pa.array(values, field.type)
    except (pa.ArrowException, msgspec.DecodeError, OverflowError, ValueError, TypeError) as error:
        raise ExportError(f"a row's {field.name} is no {field.type}: {' '.join(str(error).split())[:200]}") from None


@contextmanager
def _snapshot(database_url: str) -> Iterator[Connection]:
    """A transaction that sees one state of the database for as long as it takes. Raises ExportError."""
    try:
        engine = reading_engine(database_url)
    except DatabaseUrlError as error:
        raise OptionError(str(error)) from None
    try:
        with engine.begin() as connection:
            _take_time(connection)
            _check_revision(revision(connection))
            yield connection
    except SQLAlchemyError as error:
        words = " ".join(str(getattr(error, "orig", None) or error).split())
        raise ExportError(
            f"--database-url: the database gave no answer: {words[:300]}; see that it runs, and that the URL is right"
        ) from None
    finally:
        engine.dispose()


def _take_time(connection: Connection) -> None:
    """Without the bounds that keep an answer from taking long."""
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(None, 0)
        # What is mapped of the file would seem to be memory that it takes.
        driver.execute("PRAGMA mmap_size = 0")
    else:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")


def _check_revision(found: str | None) -> None:
    if found is None:
        raise ExportError("--database-url: this database holds no tables of Specwatch; name the one of the sidecar")
    if found < HEAD:
        raise ExportError(f"the database is at revision {found}, of an older Specwatch: run `specwatch db upgrade`")
    if found > HEAD:
        raise ExportError(f"the database is at revision {found}, of a newer Specwatch: export with that one")


@contextmanager
def _whole_or_not(file: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """A file that has its name only once it is whole, and is on the disk then. Raises ExportError."""
    if str(file) == "-":
        raise OptionError("--out: - is not supported, as Parquet is no stream: name a file")
    file = Path(os.path.realpath(file))  # a link stays one
    part = None
    try:
        _check_place(file, force=force)
        part = file.with_name(f".{file.name}.{os.getpid()}.part")
        with part.open("xb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        part.replace(file)
    except OSError as error:
        raise ExportError(
            f"--out: {file} cannot be written ({error.strerror or error}): free space there, or name another file"
        ) from None
    finally:
        if part is not None:
            with suppress(OSError):
                part.unlink()


def _check_place(file: Path, *, force: bool) -> None:
    if file.is_dir():
        raise OptionError(f"--out: {file} is a folder: name a file in it")
    if file.exists() and not file.is_file():
        raise OptionError(f"--out: {file} is no file that could be replaced: name another")
    if not file.parent.is_dir():
        raise OptionError(f"--out: there is no folder {file.parent}: make it, or name another")
    if file.exists() and not force:
        raise OptionError(f"--out: {file} is there already: name another file, or add --force")
