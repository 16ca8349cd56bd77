"""The database in trouble, and the disk or the process too: each row is there once, in order, or counted (C28, C29)."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError
from support.postgres import Cluster, cluster
from support.records import record
from support.stored import count, request_ids, wait_for, writing

from sidecar.record import Record
from sidecar.store import spool as spool_module
from sidecar.store import writer as writer_module
from sidecar.store.engine import writing_engine
from sidecar.store.spool import Spool
from sidecar.store.upgrade import upgrade
from sidecar.store.writer import Writer

#: More than the rows of any test take.
ROOM = 100_000_000


def numbered(number: int) -> Record:
    return record(request_id=f"r-{number}")


def ids(first: int, behind: int) -> list[str]:
    return [f"r-{number}" for number in range(first, behind)]


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Another process holds the write lock; it is let go after `seconds` of it, or at the end."""
    code = (
        "import select, sqlite3, sys\n"
        "lock = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "lock.execute('BEGIN IMMEDIATE')\n"
        "print('locked', flush=True)\n"
        "select.select([sys.stdin], [], [], float(sys.argv[2]))\n"
        "lock.execute('ROLLBACK')\n"
    )
    command = [sys.executable, "-c", code, str(path), str(seconds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield
    finally:
        process.communicate()


def test_c28_a_lock_of_eight_seconds_under_fifty_streams(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    url = f"sqlite:///{path}"
    # An attempt at a locked file takes a second, for which rows are in memory alone: room for four, and not for eight.
    with writing(url, capacity=2000, spool=Spool(tmp_path / "spool", ROOM, url)) as writer:
        wait_for(lambda: writer.healthy)
        put, slowest, waiting = 0, 0.0, 0
        with locked(path, 8):
            begun = time.monotonic()
            while (now := time.monotonic() - begun) < 9:
                while put < 500 * now:
                    before = time.perf_counter()
                    writer.put(numbered(put))
                    slowest = max(slowest, time.perf_counter() - before)
                    put += 1
                waiting = max(waiting, writer.queue_length)
                time.sleep(0.02)
        wait_for(lambda: writer.queue_length == 0)
        assert (writer.written, writer.dropped, writer.refused) == (put, 0, 0)
        assert writer.spooled == (0, 0)
        assert waiting > 2500
    # A processor that other tests have taken, not the lock.
    assert slowest < 2
    assert request_ids(url) == ids(0, put)


def test_c29_absent_at_start_and_at_the_end_and_there_after_a_restart(tmp_path: Path) -> None:
    with cluster() as server:
        url = server.new_url()
        server.stop()
        for run in range(2):
            writer = Writer(url, max_age_s=0.02, spool=Spool(tmp_path, ROOM, url))
            writer.start()
            for number in range(500 * run, 500 * run + 500):
                writer.put(numbered(number))
            begun = time.monotonic()
            writer.close(20)
            # SIGTERM waits for no database that is away.
            assert time.monotonic() - begun < 15
            assert (writer.written, writer.dropped) == (0, 0)
        server.start()
        with writing(url, spool=Spool(tmp_path, ROOM, url)) as writer:
            writer.put(numbered(1000))
            wait_for(lambda: writer.written == 1001)
        assert request_ids(url) == ids(0, 1001)


def test_c29_postgresql_stops_and_starts_in_mid_load(tmp_path: Path) -> None:
    with cluster() as server:
        url = server.new_url()
        put = 0
        stop = threading.Event()
        with writing(url, capacity=300, spool=Spool(tmp_path, ROOM, url)) as writer:

            def load() -> None:
                nonlocal put
                while not stop.wait(0.002):
                    writer.put(numbered(put))
                    put += 1

            thread = threading.Thread(target=load)
            thread.start()
            for _ in range(3):
                before = writer.written
                wait_for(lambda before=before: writer.written > before + 50)  # type: ignore[misc]
                server.stop()
                wait_for(lambda: writer.spooled[0] > 400)
                server.start()
                wait_for(lambda: writer.healthy and writer.spooled == (0, 0))
            stop.set()
            thread.join()
        assert (writer.written, writer.dropped, writer.refused) == (put, 0, 0)
        assert request_ids(url) == ids(0, put)


class Between:
    """Stands before a server. `armed`: cuts a connection between a commit and the word that it was done. `silent`:
    passes nothing on, as a server that hangs.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.armed = self.silent = False
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._to))
        cutting = threading.Event()

        def back() -> None:
            with suppress(OSError):
                while data := server.recv(65536):
                    if cutting.is_set():
                        self.cuts += 1
                        break
                    if not self.silent:
                        client.sendall(data)
            _shut(client)
            _shut(server)

        threading.Thread(target=back, daemon=True).start()
        with suppress(OSError):
            while data := client.recv(65536):
                if self.armed and b"COMMIT" in data:
                    self.armed = False
                    cutting.set()
                server.sendall(data)
        _shut(server)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("with_spool", [True, False])
def test_c29_a_connection_cut_at_the_commit_doubles_nothing(
    postgres: Cluster, tmp_path: Path, with_spool: bool
) -> None:
    url = postgres.new_url()
    between = Between(postgres.port)
    try:
        through = url.replace(f":{postgres.port}/", f":{between.port}/")
        spool = Spool(tmp_path, ROOM, url) if with_spool else None
        with writing(through, spool=spool) as writer:
            wait_for(lambda: writer.healthy)
            for part in range(5):
                between.armed = True
                for number in range(100 * part, 100 * part + 100):
                    writer.put(numbered(number))
                wait_for(lambda part=part: writer.written == 100 * part + 100)  # type: ignore[misc]
        assert between.cuts == 5
        assert (writer.written, writer.dropped, writer.refused) == (500, 0, 0)
        assert sorted(request_ids(url)) == sorted(ids(0, 500))
    finally:
        between.close()


def test_c29_a_server_that_hangs_is_away(postgres: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.store.writer._SILENT_S", 0.5)
    url = postgres.new_url()
    between = Between(postgres.port)
    through = url.replace(f":{postgres.port}/", f":{between.port}/")
    try:
        with writing(through, capacity=100, spool=Spool(tmp_path, ROOM, url)) as writer:
            wait_for(lambda: writer.healthy)
            between.silent = True
            for number in range(100):
                writer.put(numbered(number))
            wait_for(lambda: writer.spooled[0] == 100)
            for number in range(100, 200):
                writer.put(numbered(number))
            wait_for(lambda: writer.spooled[0] == 200)
            between.silent = False
            wait_for(lambda: writer.written == 200)
        assert (writer.dropped, writer.refused) == (0, 0)
        assert request_ids(url) == ids(0, 200)
    finally:
        between.close()


def test_rows_go_to_disk_while_tables_are_brought_up_to_date(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many rows that takes minutes, for this sidecar and for those that wait for it."""
    begun, go_on = threading.Event(), threading.Event()

    def slowly(engine: Any) -> str | None:
        begun.set()
        assert go_on.wait(30)
        return upgrade(engine)

    monkeypatch.setattr(writer_module, "upgrade", slowly)
    monkeypatch.setattr(writer_module, "_MEANWHILE_S", 0.02)
    with writing(database_url, capacity=50, spool=Spool(tmp_path / "spool", ROOM, database_url)) as writer:
        assert begun.wait(30)
        for number in range(200):
            writer.put(numbered(number))
            if number % 40 == 39:
                wait_for(lambda: not writer._in_memory())
        assert writer.spooled[0] == 200
        go_on.set()
        wait_for(lambda: writer.written == 200)
        assert writer.dropped == 0
    assert request_ids(database_url) == ids(0, 200)


def test_a_slow_server_is_not_cut_off_for_ever(
    postgres: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.store.writer._SILENT_S", 0.5)
    url = postgres.new_url()
    writer = Writer(url, max_age_s=0.02, spool=Spool(tmp_path, ROOM, url))
    insert = writer._inserts.insert

    def slowly(table: str, connection: Any, rows: Any) -> None:
        found = list(rows)
        # Some 700 rows a second: a whole batch takes longer than it may.
        connection.exec_driver_sql(f"SELECT pg_sleep({len(found) / 700})")
        insert(table, connection, found)

    monkeypatch.setattr(writer._inserts, "insert", slowly)
    for number in range(1500):
        writer.put(numbered(number))
    writer.start()
    wait_for(lambda: writer.written == 1500, 120)
    writer.close(10)
    assert writer.dropped == 0
    assert request_ids(url) == ids(0, 1500)


def test_a_word_lost_after_the_commit_doubles_nothing(database_url: str, tmp_path: Path) -> None:
    with writing(database_url, spool=Spool(tmp_path / "spool", ROOM, database_url)) as writer:
        wait_for(lambda: writer.healthy)
        lost = iter([True, False, True, True, False, True])
        begin = writer._engine.begin

        @contextmanager
        def forgetful() -> Iterator[Any]:
            with begin() as connection:
                yield connection
            if next(lost, False):
                raise OperationalError("COMMIT", None, Exception("gone"))

        with patch.object(writer._engine, "begin", forgetful):
            for number in range(300):
                writer.put(numbered(number))
                time.sleep(0.002)
            wait_for(lambda: writer.written == 300)
            assert next(lost, None) is None
    assert request_ids(database_url) == ids(0, 300)


_WRITE_FOR_EVER = """
import sys, time
from pathlib import Path
from support.records import record
from sidecar.store.spool import Spool
from sidecar.store.writer import Writer

url, folder = sys.argv[1:]
writer = Writer(url, spool=Spool(Path(folder), 100_000_000, url))
writer.start()
number, begun = 0, time.monotonic()
while True:
    while number < 2000 * (time.monotonic() - begun):
        writer.put(record(request_id=f"r-{number}"))
        number += 1
    print(number, writer.written, writer.spooled[0], flush=True)
    time.sleep(0.02)
"""
#: Records of that process that are in memory alone: of the 0.2 s that a batch may wait, and of a process that is slow.
_IN_MEMORY = 2000 * 2


@contextmanager
def killed(url: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    tests = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITE_FOR_EVER, url, str(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}"},
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def told(process: subprocess.Popen[str]) -> tuple[int, int, int]:
    """How many it has put, written and spooled."""
    assert process.stdout is not None
    put, written, spooled = map(int, process.stdout.readline().split())
    return put, written, spooled


def test_a_process_killed_in_mid_load_leaves_a_sound_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    url = f"sqlite:///{path}"
    put = written = 0
    with killed(url, tmp_path / "spool") as process:
        while written < 3000:
            put, written, _ = told(process)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    found = request_ids(url)
    # None twice, and none missing but the last ones.
    assert found == ids(0, len(found))
    assert written <= len(found)
    assert put - len(found) < _IN_MEMORY
    with writing(url) as writer:
        writer.put(record(request_id="after"))
    assert count(url) == len(found) + 1


def test_c29_a_process_killed_in_an_outage_leaves_its_spool(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    url = f"sqlite:///{path}"
    with writing(url):
        pass
    with locked(path, 60):
        put = spooled = 0
        with killed(url, tmp_path / "spool") as process:
            while spooled < 5000:
                put, _, spooled = told(process)
        assert put - spooled < _IN_MEMORY
        assert count(url) == 0
    with writing(url, spool=Spool(tmp_path / "spool", ROOM, url)) as writer:
        wait_for(lambda: writer.written >= spooled and writer.queue_length == 0)
    assert writer.dropped == 0
    assert request_ids(url) == ids(0, writer.written)


def test_a_writer_stuck_in_the_driver_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.store.writer._GRACE_S", 0.1)
    url = f"sqlite:///{tmp_path}/a.db"
    writer = Writer(url, max_age_s=0.02, spool=Spool(tmp_path / "spool", ROOM, url))
    release = threading.Event()
    insert = writer._inserts.insert

    def stuck(table: str, connection: Any, rows: Any) -> None:
        insert(table, connection, rows)
        release.wait(30)
        raise OperationalError("", None, Exception("gone"))

    writer._inserts.insert = stuck  # type: ignore[method-assign]
    writer.start()
    wait_for(lambda: writer.healthy)
    writer.put(numbered(0))
    wait_for(lambda: bool(writer._records.rows))
    writer.put(numbered(1))
    writer.close(0.1)
    assert (writer.dropped, writer.spooled[0]) == (0, 2)
    release.set()
    writer._thread.join(30)
    with writing(url, spool=Spool(tmp_path / "spool", ROOM, url)) as after:
        wait_for(lambda: after.written == 2)
    assert request_ids(url) == ids(0, 2)


def test_a_disk_that_refuses_leaves_rows_in_memory_up_to_the_limit(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/absent/a.db"
    with writing(url, capacity=100, spool=Spool(tmp_path / "spool", ROOM, url)) as writer:
        wait_for(lambda: writer._pause_s > 0)
        with patch.object(spool_module.os, "write", side_effect=OSError(28, "No space left on device")):
            for number in range(1000):
                writer.put(numbered(number))
            time.sleep(0.2)
            for number in range(1000, 1300):
                writer.put(numbered(number))
            assert writer.spooled[0] == 0
            assert writer.dropped_by == {"queue": 1300 - writer.queue_length, "spool": 0}
            # Those in hand, and those queued.
            assert 100 <= writer.queue_length <= 100 + 128
        (tmp_path / "absent").mkdir()
        wait_for(lambda: writer.queue_length == 0)
        assert writer.written + writer.dropped == 1300
    found = request_ids(url)
    assert found[-100:] == ids(1200, 1300)
    assert len(found) == writer.written


def test_what_is_on_disk_goes_before_what_is_in_memory(database_url: str, tmp_path: Path) -> None:
    writer = Writer(database_url, capacity=100, batch_size=128, spool=Spool(tmp_path / "spool", ROOM, database_url))
    for number in range(700):
        writer.put(numbered(number))
        if number % 50 == 49:
            writer._to_spool()
    for number in range(700, 710):
        writer.put(numbered(number))
    writer._work()
    assert writer.written == 150
    assert writer.queue_length == 560
    # More than half of what may wait in memory: it queues up on disk.
    for number in range(710, 770):
        writer.put(numbered(number))
    writer._work()
    assert writer._in_memory() == 0
    writer.start()
    wait_for(lambda: writer.queue_length == 0)
    writer.close(10)
    assert writer.dropped == 0
    assert request_ids(database_url) == ids(0, 770)


def test_without_a_spool_the_oldest_go(tmp_path: Path) -> None:
    writer = Writer(f"sqlite:///{tmp_path}/absent/a.db", capacity=10)
    for number in range(30):
        writer.put(numbered(number))
    writer.close(0)
    assert writer.dropped_by == {"queue": 30, "spool": 0}


class Flaky:
    """A database that is there, away, or takes a batch and does not say so."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.mode = "there"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def begin(self) -> Iterator[Any]:
        if self.mode == "away":
            raise OperationalError("", None, Exception("away"))
        with self._engine.begin() as connection:
            yield connection
        if self.mode == "forgetful":
            raise OperationalError("", None, Exception("gone"))


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 40)),
        st.tuples(st.just("poison"), st.integers(1, 3)),
        st.tuples(st.just("database"), st.sampled_from(("there", "there", "away", "forgetful"))),
        st.tuples(st.just("disk"), st.booleans()),
        st.tuples(st.just("work"), st.integers(1, 4)),
        st.tuples(st.just("restart"), st.sampled_from(("closed", "killed"))),
    ),
    max_size=40,
)


@given(_STEPS, st.integers(2_000, 40_000), st.integers(5, 60), st.integers(1, 30))
def test_every_record_ends_in_one_count(
    steps: list[tuple[str, Any]], limit: int, capacity: int, batch_size: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder}/a.db"
        database = Flaky(writing_engine(url))
        number, lost, put, adopted = 0, False, 0, 0

        def started() -> Writer:
            writer = Writer(url, capacity=capacity, batch_size=batch_size, spool=Spool(folder / "spool", limit, url))
            writer._engine.dispose()
            writer._engine = database  # type: ignore[assignment]
            writer._spool.adopt()  # type: ignore[union-attr]
            return writer

        def work(writer: Writer) -> None:
            try:
                writer._work()
            except Exception as error:
                writer._failed(error)

        def check(writer: Writer) -> None:
            assert put + adopted == writer.written + writer.dropped + writer.refused + writer.queue_length

        writer = started()
        disk = patch.object(spool_module.os, "write", side_effect=OSError(28, "No space left on device"))
        full = False
        with patch.object(spool_module, "_AGAIN_S", 0.0):
            try:
                for step, how in [*steps, ("disk", True), ("database", "there"), ("work", 500)]:
                    match step:
                        case "put":
                            for _ in range(how):
                                writer.put(numbered(number))
                                number += 1
                            put += how
                        case "poison":
                            for _ in range(how):
                                writer.put(record(bytes_out=2**63, request_id="poison"))
                            put += how
                        case "database":
                            database.mode = how
                        case "disk":
                            if full == how:
                                full = not how
                                disk.start() if full else disk.stop()
                        case "work":
                            for _ in range(how):
                                work(writer)
                        case "restart":
                            if how == "closed":
                                writer.close(0)
                            else:
                                # What is in memory is lost with the process.
                                lost = lost or bool(writer._in_memory())
                                writer._spool.close()  # type: ignore[union-attr]
                            lost = lost or bool(writer.dropped)
                            writer = started()
                            put, adopted = 0, writer.queue_length + writer.dropped
                    check(writer)
            finally:
                if full:
                    disk.stop()
        assert writer.queue_length == 0
        found = request_ids(url)
        database.dispose()
        writer.close(0)
    assert len(found) == len(set(found))
    assert "poison" not in found
    in_order = [int(each.removeprefix("r-")) for each in found]
    assert in_order == sorted(in_order)
    if not lost and not writer.dropped:
        assert in_order == [*range(number)]
