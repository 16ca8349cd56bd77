"""Rows of requests as CSV and as Parquet. Pure.

Both have the columns of `shapes.RequestRow`. Parquet: whole numbers are int64, times timestamps in UTC (us), lists are
lists, what is not known is null.

CSV: lists are JSON, times ISO 8601 in UTC, every text stands in quotes and what is not known is an empty cell without.
Clients choose names and ids, and a spreadsheet would take a text that begins like a formula for one. Such a text has an
apostrophe before it, as has one that begins with an apostrophe: taking one away gives the text as it was.
"""

import io
import types
import typing
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import csv, parquet

from dashboard import shapes
from dashboard.frames.base import utc

#: A file is for looking at; `specwatch db export` has all.
MOST_ROWS = 10_000

#: What a spreadsheet takes for the beginning of a formula, wide forms too, and what it skips before one.
#: Source: OWASP, CSV Injection.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_SKIPPED = " \t\r\n\u00a0\u3000"
_ESCAPE = "'"

_TIME = pa.timestamp("us", "UTC")
_TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: _TIME,
    list[int]: pa.list_(pa.int64()),
}


def _type(annotation: Any) -> pa.DataType:
    if isinstance(annotation, types.UnionType):
        (annotation,) = (each for each in typing.get_args(annotation) if each is not type(None))
    return _TYPES[annotation]


SCHEMA = pa.schema([(field.name, _type(field.type)) for field in msgspec.structs.fields(shapes.RequestRow)])


def table(rows: Sequence[shapes.RequestRow]) -> pa.Table:
    values: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names}
    values["started_at"] = [utc(at) for at in values["started_at"]]
    return pa.table(values, schema=SCHEMA)


def to_parquet(made: pa.Table) -> bytes:
    target = io.BytesIO()
    parquet.write_table(made, target, compression="zstd")
    return target.getvalue()


def to_csv(made: pa.Table) -> bytes:
    columns = [_cells(made[field.name], field.type) for field in made.schema]
    target = io.BytesIO()
    csv.write_csv(pa.table(columns, names=made.schema.names), target)
    return target.getvalue()


def _cells(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        values = column.to_pylist()
        return pa.array([None if each is None else msgspec.json.encode(each).decode() for each in values], pa.string())
    if pa.types.is_timestamp(kind):
        return pa.array([each.isoformat().replace("+00:00", "Z") for each in column.to_pylist()], pa.string())
    if pa.types.is_string(kind):
        return pa.array([None if each is None else guarded(each) for each in column.to_pylist()], pa.string())
    return column


def guarded(text: str) -> str:
    """The text as a spreadsheet shows it, and does not run it."""
    first = text.lstrip(_SKIPPED)[:1]
    risky = text[:1] in ("\t", "\r", "\n") or first in _FORMULA or text.startswith(_ESCAPE)
    return _ESCAPE + text if text and risky else text
