"""A sidecar process under load while its database, or its spool, is in trouble: what becomes of each request.

Each play gives a `Count` of the requests that clients were answered and of their rows.
"""

import contextlib
import http.client
import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import psycopg

from .engine import Engine
from .model import Model, model
from .postgres import Cluster
from .sidecar import Sidecar

_BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}]}).encode()
_CLIENTS = 4
_LOCK = (
    "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None); "
    "c.execute('BEGIN IMMEDIATE'); print('locked', flush=True); time.sleep(float(sys.argv[2])); c.execute('ROLLBACK')"
)


@dataclass(frozen=True)
class Count:
    #: Requests that were answered 200, and the others.
    answered: int
    failed: int
    #: Of the requests answered: without a row, and with more than one.
    lost: int
    doubled: int
    #: As the sidecar itself counts them, by stage.
    dropped: dict[str, int]
    #: The slowest reply, ms.
    slowest_ms: float
    #: From the end of the trouble until no record waited any more, s.
    drained_s: float

    def __str__(self) -> str:
        return (
            f"{self.answered} answered, {self.failed} failed, {self.lost} lost, {self.doubled} doubled, counted "
            f"{self.dropped}, slowest {self.slowest_ms:.0f} ms, drained in {self.drained_s:.1f} s"
        )


class Load:
    """Requests with ids of their own, one after the other on each connection, until it is stopped."""

    def __init__(self, proxy: str) -> None:
        self.answered: list[str] = []
        self.failed: list[str] = []
        self.slowest_s = 0.0
        self._address = proxy.removeprefix("http://")
        self._numbers = count(1)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(_CLIENTS)]
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(30)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=30)
        while not self._stop.is_set():
            name = f"load-{next(self._numbers)}"
            begun = time.monotonic()
            try:
                headers = {"content-type": "application/json", "x-request-id": name}
                connection.request("POST", "/v1/chat/completions", _BODY, headers)
                reply = connection.getresponse()
                reply.read()
                ok = reply.status == 200
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                ok, name = False, f"{name} {error!r}"
                self._stop.wait(0.05)
            self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            (self.answered if ok else self.failed).append(name)
            self._stop.wait(0.005)


class Play:
    """A sidecar, the model behind it, and how to count rows."""

    def __init__(self, sidecar: Sidecar, rows: Callable[[], list[str]]) -> None:
        self.sidecar = sidecar
        self._rows = rows

    def waiting(self) -> int:
        """Records that have not reached the database yet, in memory and in the spool."""
        values = self.metrics("specwatch_writer_queue_length")
        return int(sum(value for _, value in values))

    def metrics(self, name: str) -> list[tuple[str, float]]:
        text = httpx.get(f"{self.sidecar.admin}/metrics", timeout=30).text
        return [(labels, float(value)) for labels, value in re.findall(rf"^{name}(\S*) (\S+)$", text, re.MULTILINE)]

    def settle(self, deadline_s: float = 300) -> float:
        """Wait until no record waits any more; how long that took, s."""
        begun = time.monotonic()
        while self.waiting():
            assert time.monotonic() - begun < deadline_s, f"{self.waiting()} records still wait\n{self.sidecar.log}"
            time.sleep(0.1)
        return time.monotonic() - begun

    def count(self, load: Load, drained_s: float) -> Count:
        found = Counter(self._rows())
        stages = self.metrics("specwatch_records_dropped_total")
        return Count(
            answered=len(load.answered),
            failed=len(load.failed),
            lost=sum(name not in found for name in load.answered),
            doubled=sum(number > 1 for number in found.values()),
            dropped={re.findall('"(.*)"', labels)[0]: int(value) for labels, value in stages},
            slowest_ms=1000 * load.slowest_s,
            drained_s=drained_s,
        )


@contextmanager
def play(folder: Path, database_url: str, **settings: Any) -> Iterator[Play]:
    with model() as served, _sidecar(folder, served, database_url, settings) as sidecar:

        def rows() -> list[str]:
            query = "SELECT request_id FROM requests"
            if database_url.startswith("sqlite"):
                with contextlib.closing(sqlite3.connect(folder / "specwatch.db")) as file:
                    assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                    assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
                    return [name for (name,) in file.execute(query)]
            with psycopg.connect(database_url) as server:
                return [name for (name,) in server.execute(query)]

        yield Play(sidecar, rows)


@contextmanager
def _sidecar(folder: Path, served: Model, database_url: str, settings: dict[str, Any]) -> Iterator[Sidecar]:
    engine = cast(Engine, SimpleNamespace(url=served.url, events=None))
    given = {"engine_events": None, "database_url": database_url}
    sidecar = Sidecar(folder, engine, **given | settings)
    try:
        yield sidecar
    finally:
        sidecar.stop()


def postgres_away(folder: Path, server: Cluster, seconds: float, **settings: Any) -> Count:
    """PostgreSQL is killed under load, and comes back after so many seconds."""
    with play(folder, server.new_url(), **settings) as it:
        load = Load(it.sidecar.proxy)
        try:
            time.sleep(3)
            server.stop()
            try:
                time.sleep(seconds)
            finally:
                server.start()
            time.sleep(3)
        finally:
            load.stop()
        return it.count(load, it.settle())


def postgres_absent(folder: Path, server: Cluster, seconds: float) -> Count:
    """PostgreSQL is not there when the sidecar starts, nor for so many seconds of load."""
    url = server.new_url()
    server.stop()
    try:
        context = play(folder, url)
        it = context.__enter__()
        load = Load(it.sidecar.proxy)
        time.sleep(seconds)
    finally:
        server.start()
    try:
        load.stop()
        return it.count(load, it.settle())
    finally:
        context.__exit__(None, None, None)


def postgres_frozen(folder: Path, server: Cluster, seconds: float) -> Count:
    """PostgreSQL keeps its connections and answers nothing for so many seconds of load."""
    with play(folder, server.new_url()) as it:
        load = Load(it.sidecar.proxy)
        try:
            time.sleep(2)
            server.freeze()
            try:
                ordered = httpx.put(f"{it.sidecar.admin}/api/v1/fallback", json={"mode": "speculative"}, timeout=10)
                assert ordered.json()["mode"] == "speculative", ordered.text
                time.sleep(seconds)
            finally:
                server.thaw()
            time.sleep(1)
        finally:
            load.stop()
        return it.count(load, it.settle())


def sqlite_locked(folder: Path, seconds: float) -> Count:
    """Another process holds SQLite's write lock for so many seconds of load."""
    with play(folder, f"sqlite:///{folder}/specwatch.db") as it:
        load = Load(it.sidecar.proxy)
        try:
            time.sleep(2)
            command = [sys.executable, "-c", _LOCK, str(folder / "specwatch.db"), str(seconds)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
                assert other.stdout is not None
                assert other.stdout.readline() == "locked\n"
                other.wait(seconds + 30)
            ended = time.monotonic()
            time.sleep(1)
        finally:
            load.stop()
        it.settle()
        return it.count(load, time.monotonic() - ended)


def killed(folder: Path, database_url: str, seconds: float) -> Count:
    """The sidecar is killed by SIGKILL under load, and started again; requests then fail as there is no proxy."""
    with play(folder, database_url) as it:
        load = Load(it.sidecar.proxy)
        try:
            time.sleep(seconds)
            it.sidecar.stop(signal.SIGKILL)
        finally:
            load.stop()
        it.sidecar.start()
        return it.count(load, it.settle())


def killed_in_outage(folder: Path, server: Cluster, seconds: float) -> Count:
    """The same while PostgreSQL is away."""
    with play(folder, server.new_url()) as it:
        load = Load(it.sidecar.proxy)
        try:
            time.sleep(2)
            server.stop()
            time.sleep(seconds)
            it.sidecar.stop(signal.SIGKILL)
        finally:
            load.stop()
            server.start()
        it.sidecar.start()
        return it.count(load, it.settle())


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own. Raises CalledProcessError where one may not be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
