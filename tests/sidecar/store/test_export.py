"""`specwatch db export`: the file holds the rows of both databases, is whole or not there, and takes no memory."""

import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import json
from pyarrow import parquet
from sqlalchemy import insert, select, text
from support.postgres import Cluster
from support.records import NOW, record, records

from sidecar.record import Record
from sidecar.store.engine import reading_engine, writing_engine
from sidecar.store.export import ExportError, OptionError, export
from sidecar.store.rows import Transition
from sidecar.store.schema import metadata, requests, rollups
from sidecar.store.upgrade import HEAD, upgrade
from sidecar.store.writer import Writer

START = datetime.fromtimestamp(NOW - 3600, UTC)


def write(url: str, *items: Record | Transition) -> None:
    writer = Writer(url)
    for item in items:
        (writer.put if isinstance(item, Record) else writer.put_transition)(item)  # type: ignore[operator]
    writer.start()
    writer.close(30)
    assert not writer.dropped


def stored(url: str, table: str) -> list[dict[str, Any]]:
    engine = reading_engine(url)
    with engine.begin() as connection:
        found = [dict(row) for row in connection.execute(select(metadata.tables[table])).mappings()]
    engine.dispose()
    return found


def exported(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    return found


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.lists(records, max_size=20))
def test_the_file_holds_the_rows(database_url: str, tmp_path: Path, batch: list[Record]) -> None:
    """Of each example, and of those before it."""
    write(database_url, *batch)
    file = tmp_path / "requests.parquet"
    report = export(database_url, "requests", file, force=True)
    rows = stored(database_url, "requests")
    found = exported(file)
    assert by_id(found) == by_id(rows)
    assert [row["started_at"] for row in found] == sorted(row["started_at"] for row in rows)
    assert (report.rows, report.bytes) == (len(rows), file.stat().st_size)
    assert os.listdir(tmp_path).count("requests.parquet") == 1
    assert not list(tmp_path.glob(".*"))


def test_types_and_what_the_file_tells_of_itself(database_url: str, tmp_path: Path) -> None:
    write(database_url, record(), Transition(NOW, "i", "auto", "a", "b", "why", evidence={"p": 0.5, "of": ["小"]}))
    file = tmp_path / "r.parquet"
    export(database_url, "requests", file, since=START)
    schema = parquet.read_schema(file)
    kinds = {name: schema.field(name).type for name in schema.names}
    assert kinds["started_at"] == pa.timestamp("us", "UTC")
    assert kinds["rejected_at"] == pa.list_(pa.int64())
    assert (kinds["stream"], kinds["latency_ms"], kinds["status"]) == (pa.bool_(), pa.float64(), pa.int64())
    told = {key.decode(): value.decode() for key, value in schema.metadata.items() if key.startswith(b"specwatch.")}
    assert told.pop("specwatch.version")
    assert told == {
        "specwatch.schema": HEAD,
        "specwatch.table": "requests",
        "specwatch.since": START.isoformat(),
        "specwatch.until": "",
    }
    group = parquet.read_metadata(file).row_group(0)
    assert {group.column(number).compression for number in range(group.num_columns)} == {"ZSTD"}
    export(database_url, "transitions", tmp_path / "t.parquet")
    (row,) = exported(tmp_path / "t.parquet")
    assert json.decode(row["evidence"]) == {"p": 0.5, "of": ["小"]}


def test_sketches_and_nulls(database_url: str, tmp_path: Path) -> None:
    upgrade(database_url)
    engine = writing_engine(database_url)
    zeros = {column.name: 0 for column in rollups.columns if not column.nullable and column.name != "id"}
    row = zeros | {"span_s": 60, "at": START, "dimension": "whole", "latency": b"\0\xff", "rejected_at": [1, None]}
    with engine.begin() as connection:
        connection.execute(insert(rollups), row | {"missing": {"no block": 2}})
        connection.execute(insert(rollups), row | {"at": START + timedelta(minutes=1), "latency": None})
    engine.dispose()
    export(database_url, "rollups", tmp_path / "r.parquet")
    first, second = exported(tmp_path / "r.parquet")
    assert (first["latency"], first["rejected_at"], first["bucket"]) == (b"\0\xff", [1, None], None)
    assert json.decode(first["missing"]) == {"no block": 2}
    assert (second["latency"], second["missing"]) == (None, None)


@pytest.mark.parametrize("table", metadata.tables)
def test_every_table_without_a_row(database_url: str, tmp_path: Path, table: str) -> None:
    upgrade(database_url)
    report = export(database_url, table, tmp_path / "t.parquet")
    assert report.rows == 0
    assert parquet.read_table(tmp_path / "t.parquet").column_names == metadata.tables[table].columns.keys()


def test_the_window(database_url: str, tmp_path: Path) -> None:
    write(database_url, *(record(started_at=NOW - 3600 + 10 * number) for number in range(10)))
    until = START + timedelta(seconds=50)
    export(database_url, "requests", tmp_path / "r.parquet", since=START + timedelta(seconds=20), until=until)
    found = [(row["started_at"] - START).total_seconds() for row in exported(tmp_path / "r.parquet")]
    assert found == [20, 30, 40]


def test_pandas_reads_it(database_url: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    write(database_url, record(scenario="小说"), record(temperature=None))
    export(database_url, "requests", tmp_path / "r.parquet")
    frame = pandas.read_parquet(tmp_path / "r.parquet")
    assert list(frame["scenario"]) == ["小说", "default"]
    assert str(frame["started_at"].dtype) == "datetime64[us, UTC]"
    assert [list(each) for each in frame["rejected_at"]] == [[10, 5, 5]] * 2


#: Copies the one row; the index keeps ids apart.
_MANY = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})",
    "postgresql": "WITH n AS (SELECT generate_series(1, {count}) AS i)",
}


def fill(url: str, count: int) -> None:
    """`count` rows beside one."""
    write(url, record())
    engine = writing_engine(url)
    names = [column.name for column in requests.columns if column.name not in ("id", "request_id")]
    copied = ", ".join(names)
    rows = f"SELECT CAST(i AS TEXT), {copied} FROM n, requests WHERE id = (SELECT min(id) FROM requests)"
    into = f"INSERT INTO requests (request_id, {copied})"
    with engine.begin() as connection:
        many = _MANY[connection.dialect.name].format(count=count)
        sqlite = connection.dialect.name == "sqlite"
        connection.execute(text(f"{into} {many} {rows}" if sqlite else f"{many} {into} {rows}"))
    engine.dispose()


def test_rows_do_not_add_up_in_memory(database_url: str, tmp_path: Path) -> None:
    """In a process of its own, whose peak is told apart from this one's."""
    fill(database_url, 200_000)
    code = """
import resource, sys
from pathlib import Path
from sidecar.store.export import export
export(sys.argv[1], "transitions", Path(sys.argv[2], "warm.parquet"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = export(sys.argv[1], "requests", Path(sys.argv[2], "r.parquet"))
print(report.rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    command = [sys.executable, "-c", code, database_url, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=os.getcwd())
    rows, grown_mb = map(int, done.stdout.split())
    assert rows == 200_001
    # All of them would be 200 MB as columns, and above 1 GB as Python objects.
    assert grown_mb < 150, grown_mb
    groups = parquet.read_metadata(tmp_path / "r.parquet")
    assert groups.num_row_groups == 5
    assert groups.row_group(0).num_rows == 50_000


def test_texts_make_smaller_groups(database_url: str, tmp_path: Path) -> None:
    upgrade(database_url)
    engine = writing_engine(database_url)
    table = metadata.tables["texts"]
    row = {"instance": "i", "kind": "reply", "scenario": "s", "text": "x" * 60_000, "cut": False}
    rows = [row | {"at": START, "request_id": str(number)} for number in range(2500)]
    with engine.begin() as connection:
        connection.execute(insert(table), rows)
    engine.dispose()
    export(database_url, "texts", tmp_path / "t.parquet")
    found = parquet.read_metadata(tmp_path / "t.parquet")
    assert (found.num_rows, found.num_row_groups > 1) == (2500, True)


def test_one_state_of_the_database(database_url: str, tmp_path: Path) -> None:
    """Rows that come, and go, meanwhile are not seen to."""
    fill(database_url, 60_000)
    seen = []

    def meanwhile(rows: int) -> None:
        seen.append(rows)
        if len(seen) == 1:
            engine = writing_engine(database_url)
            with engine.begin() as connection:
                connection.execute(text("DELETE FROM requests"))
                connection.execute(insert(requests), [asdict_(record(started_at=NOW + 60))])
            engine.dispose()

    report = export(database_url, "requests", tmp_path / "r.parquet", progress=meanwhile)
    assert seen == [50_000, 60_001]
    assert report.rows == 60_001
    assert len(stored(database_url, "requests")) == 1


def asdict_(made: Record) -> dict[str, Any]:
    """A row of what must not be null."""
    needed = {column.name for column in requests.columns if not column.nullable and column.name != "id"}
    values: dict[str, Any] = {name: getattr(made, name, "x") for name in needed}
    return values | {"started_at": datetime.fromtimestamp(made.started_at, UTC), "bytes_in": 0, "bytes_out": 0}


# ---- what goes wrong


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path}/specwatch.db"
    write(found, record())
    return found


@pytest.mark.parametrize(
    ("name", "table", "file", "error", "words"),
    [
        ("unknown table", "request", "r.parquet", OptionError, "--table: .* did you mean requests?"),
        ("no table at all", "x", "r.parquet", OptionError, "--table: .* use one of requests, "),
        ("standard output", "requests", "-", OptionError, "--out: - is not supported"),
        ("no folder", "requests", "none/r.parquet", OptionError, "--out: there is no folder .*none: make it"),
        ("a folder", "requests", "folder", OptionError, "--out: .*folder is a folder"),
        ("there already", "requests", "there.parquet", OptionError, "--out: .* add --force"),
        ("a name too long", "requests", "x" * 300, ExportError, "--out: .*cannot be written .File name too long"),
    ],
)
def test_errors_name_option_and_remedy(
    name: str, table: str, file: str, error: type[Exception], words: str, url: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "there.parquet").write_bytes(b"mine")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=words):
        export(url, table, Path(file) if file == "-" else tmp_path / file)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "there.parquet").read_bytes() == b"mine"


def test_what_force_replaces_is_a_file(url: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "device")
    with pytest.raises(OptionError, match=r"--out: .*device is no file that could be replaced"):
        export(url, "requests", tmp_path / "device", force=True)
    assert stat.S_ISFIFO((tmp_path / "device").stat().st_mode)
    link, target = tmp_path / "latest.parquet", tmp_path / "monday.parquet"
    link.symlink_to(target)
    assert export(url, "requests", link).rows == 1
    assert (link.readlink(), len(parquet.read_table(target))) == (target, 1)
    with pytest.raises(OptionError, match=r"monday\.parquet is there already"):
        export(url, "requests", link)


def test_an_empty_window_is_a_mistake(url: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--until: is not after --since"):
        export(url, "requests", tmp_path / "r.parquet", since=START, until=START)


def test_a_database_that_cannot_serve(tmp_path: Path, postgres: Cluster) -> None:
    file = tmp_path / "r.parquet"
    for url, error, words in (
        (f"sqlite:///{tmp_path}/none.db", ExportError, "--database-url: .*unable to open"),
        ("postgresql://u:secret@127.0.0.1:9/none", ExportError, "--database-url: the database gave no answer"),
        ("mysql://u:secret@h/none", OptionError, "database_url: 'mysql' is not supported"),
        (postgres.new_url(), ExportError, "holds no tables of Specwatch"),
    ):
        with pytest.raises(error, match=words) as raised:
            export(url, "requests", file)
        assert "secret" not in str(raised.value)
    for at, words in (("0001", "revision 0001, of an older.*db upgrade"), ("9999", "of a newer Specwatch")):
        url = postgres.new_url()
        upgrade(url)
        engine = writing_engine(url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :at"), {"at": at})
        engine.dispose()
        with pytest.raises(ExportError, match=words):
            export(url, "requests", file)
    assert not list(tmp_path.iterdir())


def test_a_database_that_goes_away_meanwhile(tmp_path: Path, postgres: Cluster) -> None:
    url = postgres.new_url()
    fill(url, 60_000)
    file = tmp_path / "r.parquet"

    def leave(_: int) -> None:
        postgres.stop()

    try:
        with pytest.raises(ExportError, match="--database-url: the database gave no answer"):
            export(url, "requests", file, progress=leave)
    finally:
        postgres.start()
    assert not list(tmp_path.iterdir())


@contextmanager
def small_files(most: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_for_the_file(postgres: Cluster, tmp_path: Path) -> None:
    """A limit of the process, as that of a full disk, makes writing fail half-way; what was there before stays."""
    url = postgres.new_url()
    fill(url, 60_000)
    folder = tmp_path / "out"
    folder.mkdir()
    file = folder / "r.parquet"
    file.write_bytes(b"the last one")
    with small_files(20_000), pytest.raises(ExportError, match=r"--out: .*cannot be written .*free space"):
        export(url, "requests", file, force=True)
    assert [each.name for each in folder.iterdir()] == ["r.parquet"]
    assert file.read_bytes() == b"the last one"


def command(*arguments: str, **environment: str) -> list[str]:
    return [sys.executable, "-m", "sidecar.cli", "db", "export", *arguments]


def test_the_command(url: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command("--database-url", url, *arguments), capture_output=True, text=True, check=False)

    file = str(tmp_path / "r.parquet")
    done = run("--table", "requests", "--out", file, "--json", "--until", "2100-01-01")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.decode(done.stdout)
    assert told.pop("seconds") >= 0
    assert told == {"table": "requests", "file": file, "rows": 1, "bytes": Path(file).stat().st_size}
    done = run("--table", "requests", "--out", file)
    assert (done.returncode, "--force" in done.stderr) == (2, True)
    done = run("--table", "requests", "--out", file, "--force", "--since", "2100-01-01")
    assert (done.returncode, done.stdout.startswith(f"0 rows of requests in {file}")) == (0, True)
    done = run("--table", "requests", "--out", file, "--since", "soon")
    assert (done.returncode, "--since: 'soon' is not a time" in done.stderr) == (2, True)
    done = run("--table", "requests", "--out", file, "--database-url", f"sqlite:///{tmp_path}/none.db", "--force")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    done = run("--out", file)
    assert done.returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(url: str, tmp_path: Path, number: signal.Signals) -> None:
    fill(url, 300_000)
    # One that has all its rows before the signal comes is none that was interrupted.
    for attempt in range(5):
        folder = tmp_path / f"out{attempt}"
        folder.mkdir()
        process = subprocess.Popen(
            command("--database-url", url, "--table", "requests", "--out", str(folder / "r.parquet")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + 60
        while process.poll() is None and not any(each.stat().st_size for each in folder.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        if process.returncode != 0:
            break
    assert (process.returncode, b"Traceback" in said) == (130, False), said
    assert not list(folder.iterdir())
