"""A running `specwatch up`, and what the tests ask it."""

import itertools
import os
import socket
import sqlite3
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

#: Connections of this machine take ports from here on.
_TAKEN_FROM = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
#: Begins elsewhere in each process of the tests.
_FIRST = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) * 5_000
_ports = (10_000 + at % (_TAKEN_FROM - 10_000) for at in itertools.count(_FIRST + os.getpid() % 4_000))


@dataclass
class Chain:
    proxy: str
    admin: str
    engine: str
    plain_engine: str
    dashboard: str
    #: Admin port of the recorder inside the engine; it sees what the proxy sends there.
    inside: str
    database: Path
    config: Path
    process: subprocess.Popen[str]
    output: list[str]

    def api(self, path: str, **query: Any) -> Any:
        answer = httpx.get(f"{self.admin}/api/v1/{path}", params=query, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        with sqlite3.connect(self.database) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, values)]

    def count_rows(self) -> int:
        return int(self.rows("select count(*) n from requests")[0]["n"])

    def wait_rows(self, count: int) -> None:
        """Until the writer has written `count` rows in all."""
        deadline = time.monotonic() + 20
        while self.count_rows() < count:
            assert time.monotonic() < deadline, f"{self.count_rows()} of {count} rows"
            time.sleep(0.05)

    def counters(self, url: str | None = None) -> tuple[int, int, int]:
        """(verify steps, drafted, accepted) of the engine's own counters, once they stand still."""
        return counters(url or self.engine)


def counters(url: str) -> tuple[int, int, int]:
    """(verify steps, drafted, accepted) as the engine at `url` counts them, once they stand still."""
    before: tuple[int, int, int] | None = None
    while (now := _scraped(url)) != before:
        before = now
        time.sleep(0.5)
    return now


def _scraped(url: str) -> tuple[int, int, int]:
    sums = dict.fromkeys(("drafts", "draft_tokens", "accepted_tokens"), 0)
    for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
        for name in sums:
            if line.startswith(f"vllm:spec_decode_num_{name}_total{{"):
                sums[name] += round(float(line.rsplit(" ", 1)[1]))
    return sums["drafts"], sums["draft_tokens"], sums["accepted_tokens"]


def free_ports(count: int) -> list[int]:
    """Below those that the kernel gives to connections, and none twice: whoever asked has time to bind them."""
    found: list[int] = []
    while len(found) < count:
        with suppress(OSError), socket.create_server(("127.0.0.1", next(_ports))) as free:
            found.append(free.getsockname()[1])
    return found
