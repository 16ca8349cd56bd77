"""Ten thousand failing requests: one notification that it is so, and one that it is over."""

import asyncio
import json
import time
from pathlib import Path

import pytest
import yaml
from support.model import Model
from support.proxy import post
from support.receiver import receiver
from support.scripted_engine import until
from support.upstream import Upstream, json_reply
from support.way import Way, way

REQUESTS, CONNECTIONS = 10_000, 50
FAILS = json_reply({"error": {"message": "out of memory"}}, b"500 Internal Server Error")
WORKS = json_reply(Model("").reply())


async def ask(made: Way, count: int) -> None:
    request = post(json.dumps({"model": "m", "messages": []}).encode(), close=False)

    async def some(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        for _ in range(number):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
        writer.close()

    before = len(made.records)
    async with asyncio.timeout(120):
        await asyncio.gather(*[some(count // CONNECTIONS) for _ in range(CONNECTIONS)])
    await until(lambda: len(made.records) == before + count)


async def test_a_storm_sends_one_notification_and_one_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails, passed, clock = True, 0.0, time.time
    monkeypatch.setattr(time, "time", lambda: clock() + passed)

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await upstream.read_request(reader)
            writer.write(FAILS if fails else WORKS)
            await writer.drain()

    with receiver() as hook:
        file = tmp_path / "alerts.yaml"
        # The test looks by itself, at times of its own.
        values = {"interval": "1h", "receivers": [{"name": "hook", "type": "webhook", "url": hook.url}]}
        file.write_text(yaml.safe_dump(values | {"route": {"receiver": "hook"}}))
        async with way(tmp_path, handler, alerts=file, fallback_triggers=[], counters_every_s=0) as made:
            alerting = made.sidecar.recorder.alerting

            async def pass_by(minutes: int) -> None:
                nonlocal passed
                for second in range(minutes * 60):
                    passed += 1
                    if second % 15 == 0:
                        alerting.look(time.time(), time.monotonic())
                    alerting.tick(time.time())
                    await asyncio.sleep(0)

            await until(lambda: made.sidecar.recorder.writer.healthy)
            await pass_by(2)
            await ask(made, REQUESTS // 2)
            await pass_by(1)
            await ask(made, REQUESTS // 2)
            await pass_by(1)
            await until(lambda: len(hook.requests) == 1)
            await pass_by(30)
            fails = False
            await ask(made, 1000)
            await pass_by(10)
            await until(lambda: len(hook.requests) == 2)
            await pass_by(60)
            assert sum(record.status == 500 for record in made.records) == REQUESTS
    told = [(body["status"], [each["labels"]["alertname"] for each in body["alerts"]]) for body in hook.bodies()]
    assert told == [("firing", ["SpecwatchErrors"]), ("resolved", ["SpecwatchErrors"])]
