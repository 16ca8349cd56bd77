"""The admin port as it is served: the application on uvicorn, on loopback, with what a recorder gives it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn

from sidecar.api import connection, models
from sidecar.api.app import create_app
from sidecar.api.deps import ApiDeps
from sidecar.store.queries import Reader
from sidecar.store.rows import AuditRow

from .records import NOW

NO_SCORES: dict[str, Any] = {"pairs": 0, "mean": None, "p10": None, "warning": 0, "critical": 0}


def fallback_state(**fields: Any) -> models.FallbackState:
    """Of a sidecar that has just started."""
    plain: dict[str, Any] = {
        "mode": "auto",
        "state": "speculative",
        "since": datetime.fromtimestamp(NOW, UTC),
        "reason": "started",
        "trigger": "operator",
        "evidence": None,
        "can_fall_back": True,
        "effective": None,
        "dry_run": False,
        "until": None,
        "slices": [],
        "fleet": None,
        "shared": None,
        "decided_by": "test",
    }
    return models.FallbackState(**plain | fields)


class Switch:
    """A fallback that obeys."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, str]] = []

    def state(self) -> models.FallbackState:
        return fallback_state()

    def set_mode(self, mode: models.Mode, reason: str) -> None:
        if reason == "break":
            raise RuntimeError("broken")
        self.orders.append((mode, reason))


class Admin:
    """A port that is served, and what came of what was sent there."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.port = 0
        self.switch = Switch()
        self.rows: list[AuditRow] = []
        self.deps = ApiDeps(
            **{
                "instance": "test",
                "version": "1.2.3",
                "reader": Reader(f"sqlite:///{folder}/specwatch.db"),
                "fallback": self.switch,
                "engines": None,
                "database_ok": lambda: True,
                "records_dropped": lambda: 0,
                "render_metrics": lambda: (b"specwatch_x 1\n", "text/plain"),
                "similarity": dict,
                "quality": dict,
                "audit": self.rows.append,
                "now": lambda: NOW,
            }
            | settings
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def raw(self, *parts: bytes, pause_s: float = 0.0) -> bytes:
        """What comes back for these bytes until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        try:
            return await asyncio.wait_for(reader.read(), 30)
        finally:
            writer.close()


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[Admin]:
    made = Admin(folder, **settings)
    listener = socket.create_server(("127.0.0.1", 0))
    made.port = listener.getsockname()[1]
    config = uvicorn.Config(create_app(made.deps), log_config=None, lifespan="off", **connection.OPTIONS)
    server = uvicorn.Server(config)
    task = asyncio.ensure_future(server._serve([listener]))
    try:
        yield made
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.wait_for(task, 20)
        made.deps.reader.close()
