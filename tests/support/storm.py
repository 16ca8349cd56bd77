"""A real sidecar at level DEBUG, everything that can happen to it, and all that it wrote meanwhile."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from specwatch_engine.demo.weights import CHECKPOINTS

from .canaries import Canaries, files
from .plays import Fault, Play, request_of
from .receiver import Receiver
from .upstream import Upstream, json_reply

ROOT = Path(__file__).parents[2]
IDLE_S = 1.0
TOKENIZER = CHECKPOINTS / "target" / "tokenizer.json"


@dataclass
class Storm:
    """A sidecar, the servers around it, and what was found of all that it wrote."""

    folder: Path
    settings: dict[str, Any]
    hook: Receiver
    #: What nobody may keep, and what may be shown.
    canaries: Canaries = field(default_factory=Canaries)
    shown: Canaries = field(default_factory=Canaries)
    plays: dict[str, Play] = field(default_factory=dict)
    #: Bytes by place.
    places: dict[str, bytes] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None

    def __post_init__(self) -> None:
        self.scenario, self.model = self.shown("scenario"), self.shown("model")

    def keep(self, place: str, *contents: bytes) -> None:
        self.places[place] = b"\n".join([self.places.get(place, b""), *contents])

    # ---- the sidecar

    async def start(self) -> None:
        file = self.folder / "specwatch.yaml"
        file.write_text(json.dumps(self.settings))
        paths = map(str, (ROOT, ROOT / "tests"))
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "support.quoting_sidecar", "sidecar", "-c", str(file)),
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )
        await self.until(lambda: self.get("/readyz"))

    async def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(self.process.wait(), 60) == 0

    def end(self) -> None:
        """Where it was not stopped."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()

    async def get(self, path: str) -> httpx.Response | None:
        with suppress(httpx.HTTPError):
            async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
                return await client.get(f"http://{self.settings['admin']}{path}")
        return None

    async def until(self, holds: Callable[[], Awaitable[object]], within: float = 60) -> None:
        deadline = asyncio.get_running_loop().time() + within
        while not await holds():
            assert self.process is not None
            assert self.process.returncode is None, (self.folder / "log").read_text()[-4000:]
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)

    # ---- requests

    async def run(self, *made: Play) -> None:
        for play in made:
            play.number, play.canaries, play.model = len(self.plays), self.canaries, self.model
            play.scenario = play.scenario or self.scenario
            self.plays[play.key] = play
        at_a_time = asyncio.Semaphore(4)

        async def one(play: Play) -> None:
            async with at_a_time:
                await self.ask(play)

        await asyncio.gather(*map(one, made))

    async def replay(self, play: Play) -> None:
        """Until the sidecar has asked again by itself."""
        await self.run(play)
        asked = 1

        async def asked_more() -> bool:
            nonlocal asked
            if play.answered > asked:
                return True
            asked += 1
            await self.ask(play)
            return False

        await self.until(asked_more)

    async def ask(self, play: Play) -> None:
        await self.send(request_of(play), play.leaves_after)

    async def send(self, request: bytes, leaves_after: int | None = None, address: str = "listen") -> bytes:
        port = int(self.settings[address].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = b""
        with suppress(ConnectionError):
            if leaves_after is None:
                answer = await asyncio.wait_for(reader.read(), 30)
            else:
                answer = await asyncio.wait_for(reader.readexactly(leaves_after), 30)
        writer.close()
        return answer

    async def serve(self, upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await upstream.read_request(reader)
            sent = upstream.heads[-1] + body
            play = next((play for key, play in self.plays.items() if key.encode() in sent), None)
            if play is not None:
                play.answered += 1
            if play is None:
                writer.write(json_reply({"data": []}))
            elif isinstance(play.reply, Fault):
                writer.write(play.reply.start(play))
                await writer.drain()
                if play.reply.hangs:
                    await reader.read()
                return
            else:
                writer.write(play.reply(play))
            await writer.drain()

    # ---- what was written

    async def ask_admin(self) -> None:
        """Every answer of the admin port that is not documented to show texts."""
        schema = await self.get("/openapi.json")
        assert schema is not None
        shown = [path for path, methods in schema.json()["paths"].items() if "get" in methods]
        answered = 0
        for path in shown:
            if path in ("/api/v1/drafts", "/metrics"):
                continue
            for query in ("", "?window=1h&by=scenario", "?limit=500"):
                answer = await self.get(path.replace("{request_id}", self.request_id) + query)
                assert answer is not None
                answered += answer.status_code == 200
                self.keep("admin port", answer.content, str(answer.headers).encode())
        assert answered > len(shown)
        metrics = await self.get("/metrics")
        assert metrics is not None
        self.keep("metrics", metrics.content)

    request_id = "play-0-"

    def look(self) -> None:
        """At the files."""
        for path, content in files(self.folder):
            name = Path(path).name
            match name:
                case "specwatch.yaml" | "alerts.yaml":
                    continue
                case "log":
                    place = "log"
                case _:
                    place = "spool" if "spool" in path else "database"
            place = "quarantine" if name == "quarantine.jsonl" else place
            self.keep(place, path.encode(), content)
        for request in self.hook.requests:
            self.keep("notifications", request.path.encode(), str(request.headers).encode(), request.body)
