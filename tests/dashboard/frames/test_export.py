"""Rows as CSV and Parquet: what is read back is what was there, and no spreadsheet runs a name."""

import csv
import io
import json
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv as arrow
from pyarrow import parquet
from support import board
from support.payloads import law, over_the_wire

from dashboard import shapes
from dashboard.frames import export
from sidecar.api import models

NAMES = [field.name for field in msgspec.structs.fields(shapes.RequestRow)]
LISTS = ("acceptance_histogram", "rejected_at", "reached")
TEXTS = [name for name in NAMES if export.SCHEMA.field(name).type == pa.string()]


def row(**changes):
    return msgspec.convert(board.row(**changes), shapes.RequestRow)


ROWS = [
    row(started_at="2026-11-29T18:27:00.123456Z", ttft_ms=0.1 + 0.2),
    row(number=1, **board.PLAIN),
    row(number=2, scenario="", model='a "b", c\nd', steps="00" * 1024),
]


def from_csv(data):
    """As the docstring of `export` says it is read."""
    kept = {name: pa.string() for name in (*TEXTS, *LISTS, "started_at")}
    kept |= {name: kind for name, kind in zip(NAMES, export.SCHEMA.types, strict=True) if name not in kept}
    options = arrow.ConvertOptions(
        column_types=kept, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
    )
    table = arrow.read_csv(
        io.BytesIO(data), parse_options=arrow.ParseOptions(newlines_in_values=True), convert_options=options
    )
    found = []
    for cells in table.to_pylist():
        for name in LISTS:
            cells[name] = None if cells[name] is None else json.loads(cells[name])
        for name in TEXTS:
            cells[name] = None if cells[name] is None else cells[name].removeprefix("'")
        cells["started_at"] = datetime.fromisoformat(cells["started_at"])
        found.append(shapes.RequestRow(**cells))
    return found


def test_csv_reads_back_as_it_was():
    assert from_csv(export.to_csv(export.table(ROWS))) == ROWS


def test_csv_is_read_by_anything():
    head, first, *_ = csv.reader(io.StringIO(export.to_csv(export.table(ROWS)).decode()))
    assert head == NAMES
    cells = dict(zip(head, first, strict=True))
    assert cells["started_at"] == "2026-11-29T18:27:00.123456Z"
    assert cells["rejected_at"] == "[1,0,1,0]"
    assert cells["draft_tokens"] == "15"
    assert cells["stream"] == "true"


def test_unknown_is_an_empty_cell_and_no_text():
    _, _, plain, named = export.to_csv(export.table([row(), ROWS[1], row(scenario="")])).decode().splitlines()
    assert ',"demo-target",,"translate",' in plain
    assert ',"demo-draft","","/v1/chat' in named


@pytest.mark.parametrize(
    "name",
    [
        *("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\tx", " =1", "＝1", "＠x"),
        *("=cmd|' /C calc'!A0", "'=1", "'", "''x"),
    ],
)
def test_a_name_is_no_formula(name):
    rows = [row(scenario=name, model=name, request_id=name, finish_reason=name)]
    data = export.to_csv(export.table(rows))
    _, cells = csv.reader(io.StringIO(data.decode(), newline=""))
    named = dict(zip(NAMES, cells, strict=True))
    assert [named[each] for each in ("scenario", "model", "request_id", "finish_reason")] == [f"'{name}"] * 4
    assert from_csv(data) == rows


@pytest.mark.parametrize("name", ["chat", "a=1", "x-y", "1-2", "2026-01-01", "你好", '"=1"'])
def test_other_names_are_as_they_were(name):
    assert export.guarded(name) == name


def test_parquet_has_types():
    found = parquet.read_table(io.BytesIO(export.to_parquet(export.table(ROWS))))
    assert found.schema.field("started_at").type == pa.timestamp("us", "UTC")
    assert found.schema.field("draft_tokens").type == pa.int64()
    assert found.schema.field("latency_ms").type == pa.float64()
    assert found.schema.field("reached").type == pa.list_(pa.int64())
    assert found["draft_tokens"].null_count == 1
    assert [shapes.RequestRow(**cells) for cells in found.to_pylist()] == ROWS
    frame = found.to_pandas()
    assert frame["started_at"].iloc[0].to_pydatetime() == datetime(2026, 11, 29, 18, 27, 0, 123456, tzinfo=UTC)


def test_no_rows_are_a_file_with_its_columns():
    empty = export.table([])
    assert export.to_csv(empty).decode().strip() == ",".join(f'"{name}"' for name in NAMES)
    assert parquet.read_table(io.BytesIO(export.to_parquet(empty))).column_names == NAMES


@law
@given(st.builds(models.RequestPage))
def test_any_page_reads_back(model):
    rows = over_the_wire(model, shapes.RequestPage).requests
    table = export.table(rows)
    assert from_csv(export.to_csv(table)) == rows
    found = parquet.read_table(io.BytesIO(export.to_parquet(table)))
    assert [shapes.RequestRow(**cells) for cells in found.to_pylist()] == rows
