"""A sidecar of its own process beside a real engine."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from .chain import free_ports
from .engine import TOKEN, Engine


class Sidecar:
    """`specwatch sidecar` before an engine; can be killed and started again."""

    def __init__(self, folder: Path, engine: Engine, **settings: Any) -> None:
        """Unless `settings` say so it decides nothing by itself, and compares no texts."""
        self.folder = folder
        proxy, admin = free_ports(2)
        self.proxy, self.admin = f"http://127.0.0.1:{proxy}", f"http://127.0.0.1:{admin}"
        self.config = folder / "specwatch.yaml"
        self.config.write_text(
            json.dumps(
                {
                    "upstream": engine.url,
                    "listen": f"127.0.0.1:{proxy}",
                    "admin": f"127.0.0.1:{admin}",
                    "database_url": f"sqlite:///{folder}/specwatch.db",
                    "spool": f"{folder}/spool",
                    "engine_events": str(engine.events),
                    "baseline_share": 0,
                    "fallback_triggers": [],
                    "similarity": "none",
                }
                | settings
            )
        )
        self.start()

    def start(self) -> None:
        with (self.folder / "sidecar.log").open("ab") as log:
            command = [sys.executable, "-m", "sidecar.cli", "sidecar", "-c", str(self.config)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.admin}/readyz").status_code == 200:
                    return
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline
            time.sleep(0.1)

    @property
    def log(self) -> str:
        return (self.folder / "sidecar.log").read_text()

    def stop(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)
        self._process.wait(40)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sidecar.cli", *arguments, "-c", str(self.config)]
        return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)

    def api(self, path: str, **query: Any) -> Any:
        answer = httpx.get(f"{self.admin}/api/v1/{path}", params=query, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        with sqlite3.connect(self.folder / "specwatch.db") as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, values)]

    def fresh_rows(self, after: int, count: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 20
        while len(found := self.rows("select * from requests where id > ? order by id", after)) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} rows"
            time.sleep(0.05)
        return found

    def last_row(self) -> int:
        return int(self.rows("select coalesce(max(id), 0) n from requests")[0]["n"])


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SPECWATCH_")}
    return kept | {"SPECWATCH_ENGINE_TOKEN": TOKEN}
