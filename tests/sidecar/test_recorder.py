"""What records: parts that start, fail visibly, and stop."""

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from support.chain import free_ports
from support.records import record

from sidecar.recorder import Recorder, StartError
from sidecar.settings import SettingsError, load


def recorder(folder: Path, **settings: Any) -> Recorder:
    given = {"database_url": f"sqlite:///{folder}/specwatch.db", "admin": "127.0.0.1:0", **settings}
    return Recorder(load(**given), {"speculative": "http://127.0.0.1:9"}, SimpleNamespace)


async def test_what_is_queued_is_in_the_database_after_the_end(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    made.start()
    for _ in range(3):
        made.tap.sink(record())
    await made.stop()
    assert made.writer.written == 3
    assert len(made.window) == 3


async def test_the_admin_port_names_its_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        made = recorder(tmp_path, admin=address)
        with pytest.raises(StartError, match=f"admin: {address}: Address already in use.*; free the port"):
            made.start_admin()
    made = recorder(tmp_path, admin="nowhere.invalid:1", admin_token="hush")
    with pytest.raises(StartError, match=r"admin: nowhere\.invalid:1: "):
        made.start_admin()
    with pytest.raises(SettingsError, match="database_url"):
        recorder(tmp_path, database_url="mysql://h/d")


async def test_a_dead_side_task_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    made = recorder(tmp_path, admin=f"127.0.0.1:{port}")
    made.start()
    made.start_admin()

    async def dies() -> None:
        raise RuntimeError("broken")

    made.tasks.spawn(dies(), "facts")
    async with httpx.AsyncClient(trust_env=False) as client:
        ready = await client.get(f"http://127.0.0.1:{port}/readyz")
        assert ready.json()["failed_tasks"] == ["facts"]

        async def breaks(server: uvicorn.Server, counter: int) -> bool:
            raise RuntimeError("broken")

        monkeypatch.setattr(uvicorn.Server, "on_tick", breaks)
        await asyncio.sleep(0.3)
        assert made.tasks.failed == ["facts", "admin"]
    await made.stop()
