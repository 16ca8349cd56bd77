"""A throw-away PostgreSQL on loopback. Skips, with the reason, where none is installed."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
import pytest

from .chain import free_ports

# Commits stay synchronous: `stop` plays a crash, which must not lose what was confirmed.
_NOT_DURABLE = ("fsync=off", "full_page_writes=off")
_numbers = count(1)


@dataclass
class Cluster:
    """A running server. `stop` and `start` play an outage, `freeze` and `thaw` another kind."""

    programs: Path
    folder: Path
    port: int

    def start(self) -> None:
        settings = ("listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", *_NOT_DURABLE)
        options = " ".join([f"-p {self.port}", *(f"-c {setting}" for setting in settings)])
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-w", "-l", f"{self.folder}/log", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-m", "immediate", "-w", "stop")

    def freeze(self) -> None:
        """From now on the server takes connections, and answers nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        first = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(first, number)
        for child in Path(f"/proc/{first}/task/{first}/children").read_text().split():
            # Workers come and go.
            with suppress(ProcessLookupError):
                os.kill(int(child), number)

    def new_url(self) -> str:
        """The `database_url` of a new, empty database."""
        name = f"test_{next(_numbers)}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._url(name)

    def _url(self, name: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def _run(self, program: str, *arguments: str) -> None:
        # The server refuses to run as root.
        as_postgres = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        command = [*as_postgres, str(self.programs / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/")


@contextmanager
def cluster() -> Iterator[Cluster]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed: there is no /usr/lib/postgresql/*/bin/initdb")
    folder = Path(tempfile.mkdtemp(prefix="specwatch-postgres-"))
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
    server = Cluster(found[-1].parent, folder, *free_ports(1))
    try:
        setup = ("-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
        server._run("initdb", "-D", f"{folder}/data", *setup)
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
