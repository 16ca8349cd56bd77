"""The table that sidecars of a fleet share, on real databases: one at a time, each fleet its own, never for long."""

import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError
from support.postgres import Cluster

from sidecar.store.shared import CAP, FORGOTTEN_S, MOST_PASSING, ORDER, SharedRow, SharedStates
from sidecar.store.upgrade import upgrade


def row(circuit: str = "", **fields: Any) -> SharedRow:
    made = SharedRow(
        circuit, 0, "here", "auto", "speculative", "autoregressive", "acceptance", "p fell", {"level": 0}, 0.0
    )
    return made._replace(**fields)


@pytest.fixture
def database(database_url: str) -> str:
    upgrade(database_url)
    return database_url


def test_rows_come_back_as_they_were_told(database: str) -> None:
    store, other = SharedStates(database, "f"), SharedStates(database, "f")
    assert store.exchange([], 0, None) == {}
    assert store.exchange([], 0, (0, 0)) is None
    evidence = {"p": 0.648, "k": None, "level": 3, "dwell_s": 60.0, "opened_by": "acceptance", "cap": 2}
    name = "scenario='; DROP TABLE x; -- 📈 é %s {} \\ \ufffd"
    told = store.exchange([row(name, age_s=90.0, evidence=evidence), row(reason="x" * 500)], 0, None)
    assert told is not None
    assert [each.version for each in told.values()] == [1, 2]
    read = other.exchange([], 0, None)
    assert read is not None
    assert {key: each._replace(age_s=0.0) for key, each in read.items()} == {
        key: each._replace(age_s=0.0) for key, each in told.items()
    }
    assert read[name].age_s == pytest.approx(90, abs=5)
    assert read[name].evidence == evidence
    assert other.exchange([], 0, (2, 2)) is None
    store.close()
    other.close()


@pytest.mark.parametrize("name", ["f2", "F", "flotte ä 🚢 'x' \"y\" %s", "nul\0", "f" * 100])
def test_c38_fleets_do_not_see_each_other(database: str, name: str) -> None:
    store, other = SharedStates(database, "f"), SharedStates(database, name)
    store.exchange([row(), row(ORDER, mode="auto")], 0, None)
    assert other.exchange([], 0, None) == {}
    other.exchange([row(reason="theirs")], 0, None)
    mine, theirs = store.exchange([], 0, None), other.exchange([], 0, None)
    assert mine is not None
    assert theirs is not None
    assert (len(mine), mine[""].reason) == (2, "p fell")
    assert (len(theirs), theirs[""].reason) == (1, "theirs")


def test_one_at_a_time_puts_its_own_to_the_others(database: str) -> None:
    """Eight sidecars decide at once, each on what it has seen: of each version there is one."""
    won: list[tuple[int, str]] = []

    def decide(name: str) -> None:
        store = SharedStates(database, "f")
        for _ in range(12):
            try:
                seen = store.exchange([], 0, None) or {}
                base = seen[""].version if seen else 0
                found = store.exchange([row(instance=name, version=base)], 0, None) or {}
            except DBAPIError:
                continue  # the one lock of SQLite was taken for a second
            if found[""].instance == name and found[""].version > base:
                won.append((found[""].version, name))
        store.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decide, [f"n{index}" for index in range(8)]))
    versions = sorted(version for version, _ in won)
    assert versions == [*range(1, len(won) + 1)]
    assert len(won) >= 12


def test_an_order_takes_away_what_circuits_decided(database: str) -> None:
    store = SharedStates(database, "f")
    store.exchange([row(), row("scenario=x"), row(CAP)], 0, None)
    found = store.exchange([row(ORDER, mode="speculative")], 0, None)
    assert found is not None
    assert [(name, each.version) for name, each in found.items()] == [(ORDER, 4)]
    # What was decided under none is void.
    found = store.exchange([row(version=1)], 0, None)
    assert found is not None
    assert [*found] == [ORDER]


def test_slices_that_returned_a_week_ago_are_pruned(database: str) -> None:
    store = SharedStates(database, "f")
    back = row("scenario=x", to_state="speculative", age_s=FORGOTTEN_S + 60)
    store.exchange([back, back._replace(circuit="", reason="all"), row("scenario=y", age_s=FORGOTTEN_S + 60)], 0, None)
    found = store.exchange([row("scenario=z")], 0, None)
    assert found is not None
    assert set(found) == {"", "scenario=y", "scenario=z"}


def test_slices_that_returned_are_few_rows_whoever_names_them(database: str) -> None:
    store = SharedStates(database, "f")
    store.exchange([row("scenario=open"), row("scenario=first", to_state="speculative", age_s=60.0)], 0, None)
    for part in range(0, 1000, 250):
        store.exchange([row(f"scenario={n}", to_state="speculative") for n in range(part, part + 250)], 0, None)
    rows = store.exchange([row(reason="another")], 0, None)
    store.close()
    assert rows is not None
    assert len(rows) <= MOST_PASSING + 2
    assert {"scenario=open", "", "scenario=999"} <= rows.keys()
    assert "scenario=first" not in rows


def test_without_tables_it_fails_and_then_works(database_url: str) -> None:
    store = SharedStates(database_url, "f")
    for mine in ([], [row()]):
        with pytest.raises(DBAPIError):
            store.exchange(mine, 0, None)
    upgrade(database_url)
    assert store.exchange([row()], 0, None)


def test_a_file_that_was_deleted_and_made_anew_is_the_one_that_is_shared(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    upgrade(url)
    one, other = SharedStates(url, "f"), SharedStates(url, "f")
    assert one.exchange([row()], 0, None)
    for file in tmp_path.iterdir():
        file.unlink()
    upgrade(url)
    assert one.exchange([row(version=1)], 0, None)
    assert list(other.exchange([], 0, None) or ()) == [""]
    one.close()
    other.close()


def test_a_lock_that_is_held_ends_it_soon(database: str) -> None:
    store = SharedStates(database, "f")
    store.exchange([row()], 0, None)
    with held(database):
        assert store.exchange([], 0, None)  # looking needs no lock
        began = time.monotonic()
        with pytest.raises(DBAPIError):
            store.exchange([row("scenario=x")], 0, None)
        assert time.monotonic() - began < 5
    assert store.exchange([row("scenario=x")], 0, None)


@contextmanager
def held(database: str) -> Iterator[None]:
    """Another sidecar that stands still while it writes."""
    if database.startswith("sqlite"):
        with closing(sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
    else:
        with psycopg.connect(database) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('f', 0))")
            yield


def test_one_that_stands_still_while_it_writes_lets_the_others_go_on(postgres: Cluster) -> None:
    url = postgres.new_url()
    upgrade(url)
    frozen, store = SharedStates(url, "f"), SharedStates(url, "f")
    gate, inside = threading.Event(), threading.Event()

    def freeze(*_: object) -> Any:
        inside.set()
        gate.wait(20)
        return {}

    frozen._rows = freeze  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(frozen.exchange, [row()], 0, None)
        assert inside.wait(10)
        deadline = time.monotonic() + 15
        while True:
            try:
                assert store.exchange([row()], 0, None)
                break
            except DBAPIError:
                assert time.monotonic() < deadline
        gate.set()
        with pytest.raises(DBAPIError):
            work.result(20)


def test_a_server_that_falls_silent_is_given_up(postgres: Cluster) -> None:
    url = postgres.new_url()
    upgrade(url)
    with silencer(postgres.port) as way:
        store = SharedStates(url.replace(f":{postgres.port}/", f":{way.port}/"), "f")
        store.exchange([row()], 0, None)
        way.silent.set()
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(store.exchange, [], 0, None)
            time.sleep(0.3)
            assert not work.done()
            store.abort()
            with pytest.raises(DBAPIError):
                work.result(10)
        way.silent.clear()
        assert store.exchange([], 0, None)
        store.close()
        store.abort()


class Silencer:
    def __init__(self, port: int) -> None:
        self.port = port
        #: Nothing is passed on, and nothing closed.
        self.silent = threading.Event()


@contextmanager
def silencer(server: int) -> Iterator[Silencer]:
    """A port before that of the server, which may hold back all that passes."""
    listener = socket.create_server(("127.0.0.1", 0))
    made = Silencer(listener.getsockname()[1])
    sockets = [listener]

    def pump(source: socket.socket, target: socket.socket) -> None:
        while data := _received(source):
            while made.silent.is_set():
                time.sleep(0.02)
            try:
                target.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            upstream = socket.create_connection(("127.0.0.1", server))
            sockets.extend((client, upstream))
            for ends in ((client, upstream), (upstream, client)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield made
    finally:
        made.silent.clear()
        for each in sockets:
            each.close()


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(65_536)
    except OSError:
        return b""


def test_looking_costs_little(database: str) -> None:
    """Twice a second in each sidecar, beside the requests."""
    store = SharedStates(database, "f")
    store.exchange([row(f"scenario={index}") for index in range(20)], 0, None)
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(200):
        assert store.exchange([], 0, (20, 20)) is None
    each, busy = (time.perf_counter() - began) / 200, (time.process_time() - cpu) / 200
    print(f"a look: {each * 1e3:.2f} ms, {busy * 1e3:.2f} ms of this process")
    assert busy < 0.05
