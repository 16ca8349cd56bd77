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
from tokenizers import Tokenizer

from .canaries import Canaries, files
from .chain import free_ports
from .plays import (
    HOLD,
    Fault,
    Play,
    cut,
    no_http,
    plain_reply,
    plays,
    refusing,
    request_of,
    strange_words,
    stream_reply,
)
from .proxy import post
from .receiver import Receiver
from .scripted_engine import ScriptedEngine, encode, whole
from .upstream import Upstream, json_reply, running

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


RULES = {
    "interval": "1s",
    "rules": [{"alert": "Seen", "by": "scenario", "expr": "window_requests >= 1", "severity": "warning"}],
    "route": {"receiver": "hook", "group_wait": "0s", "group_interval": "1s"},
}


def settings_of(folder: Path, **more: Any) -> dict[str, Any]:
    listen, admin = free_ports(2)
    return {
        "listen": f"127.0.0.1:{listen}",
        "admin": f"127.0.0.1:{admin}",
        "engine_events": str(folder / "events"),
        "spool": str(folder / "spool"),
        "alerts": str(folder / "alerts.yaml"),
        "hold_bytes": HOLD,
        "idle_timeout_s": IDLE_S,
        "drain_s": 0.3,
        "counters_every_s": 0.5,
        "baseline_share": 0,
        "similarity_share": 1,
        "similarity_per_minute": 6000,
        "replay_share": 1,
        "replay_per_minute": 60_000,
        "recent_drafts": 5,
        "fallback_triggers": [],
        "admin_per_second": 10_000,
        **more,
    }


async def storm_over(storm: Storm, away: Callable[[bool], None]) -> None:
    """All that can happen; `away` takes the database away, and gives it back."""
    storm.settings["scenarios"] = [storm.scenario]
    rules = RULES | {"receivers": [{"name": "hook", "type": "webhook", "url": storm.hook.url}]}
    (storm.folder / "alerts.yaml").write_text(json.dumps(rules))
    async with running(storm.serve) as upstream, running(storm.serve) as plain:
        storm.settings["upstream"] = upstream.url
        if storm.settings.pop("apart"):
            storm.settings["fallback_upstream"] = plain.url
        await storm.start()
        engine = engine_tells(storm)
        for reply in (plain_reply, no_http, strange_words):
            await storm.replay(Play(f"replayed, {reply.__name__}", reply))
        await storm.replay(Play("replayed, failing", plain_reply, word="fail-embedder"))
        # After these, as replays wait two minutes for an upstream that says nothing.
        await storm.run(*plays())
        await order(storm, "autoregressive")
        await storm.run(
            Play("fallen back", plain_reply),
            Play("fallen back, streaming", stream_reply, stream=True),
            Play("fallen back, refused", refusing(b"400")),
        )
        await order(storm, "auto")
        engine.close()
        await strange_requests(storm)
        await storm.until(lambda: noticed(storm))
        await storm.ask_admin()
        storm.look()
        away(True)
        await storm.until(lambda: database_is(storm, "unavailable"))
        await storm.run(Play("spooled", plain_reply), Play("spooled, refused", plain_reply, word="fail-refused"))
        last = Play("cut at the end", Fault(cut(stream_reply), hangs=True), stream=True)
        cut_off = asyncio.ensure_future(storm.run(last))
        await storm.until(lambda: answers(last, 1))
        await storm.stop()
        await cut_off
        storm.look()
        away(False)
        await storm.start()
        await storm.until(lambda: database_is(storm, "ok"))
        await storm.ask_admin()
        await storm.stop()
        storm.look()


async def answers(play: Play, count: int) -> bool:
    return play.answered >= count


async def noticed(storm: Storm) -> bool:
    """The receiver was told of the scenario, and the rows are in the database."""
    answer = await storm.get("/api/v1/requests?limit=500")
    rows = answer.json()["requests"] if answer is not None and answer.status_code == 200 else []
    if rows:
        storm.request_id = rows[0]["request_id"]
    told = b"".join(request.body for request in storm.hook.requests)
    return len(rows) >= len(storm.plays) - 5 and storm.scenario.encode() in told


async def database_is(storm: Storm, state: str) -> bool:
    answer = await storm.get("/readyz")
    return answer is not None and answer.json()["database"] == state


async def order(storm: Storm, mode: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.put(f"http://{storm.settings['admin']}/api/v1/fallback", json={"mode": mode})
        assert answer.status_code == 200, answer.text


def engine_tells(storm: Storm) -> ScriptedEngine:
    """Drafts and replies as tokens, the first of which no embedder takes; and packets that are none."""
    text, other, tokenizer = storm.canaries.text, storm.canaries.text, Tokenizer.from_file(str(TOKENIZER))
    folder = str(CHECKPOINTS / "target")
    models = {"target_model": folder, "target_tokenizer": folder, "draft_model": folder, "draft_tokenizer": folder}
    engine = ScriptedEngine(storm.folder / "events", **models)
    for number, word in enumerate(("fail-embedder", "", "")):
        drafted = tokenizer.encode(f"{word} {text('engine', 'draft')}").ids
        emitted = tokenizer.encode(f"{word} {other('engine', 'reply')}").ids
        steps = [((one,), (two,)) for one, two in zip(drafted, emitted, strict=False)]
        engine.send(*whole(f"chatcmpl-engine-{number}-0000000{number}", steps))
    packets = ([text("engine", "tag"), 1], ["hello", {"version": text("engine", "version")}])
    for packet in (*map(encode, packets), text("engine", "no MessagePack").encode()):
        broken = ScriptedEngine(storm.folder / "events")
        broken.send_raw(packet)
        broken.close()
    return engine


async def strange_requests(storm: Storm) -> None:
    mark = lambda part: storm.canaries("strange request", part).encode()  # noqa: E731
    body = json.dumps({"input": storm.canaries.text("embeddings", "input")}).encode()
    for request in (
        post(body, b"/v1/embeddings?q=" + mark("query")),
        b"GET /v1/files/%b?q=%b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" % (mark("path"), mark("query")),
        b"POST /v1/chat/completions HTTP/3 %b\r\n\r\n" % mark("request line"),
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n%b\r\n\r\n" % mark("no field"),
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %b\r\n\r\n" % mark("length"),
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%b\r\n" % mark("chunk"),
        b"CONNECT %b:443 HTTP/1.1\r\nHost: h\r\n\r\n" % mark("CONNECT"),
    ):
        await storm.send(request)
    # What was meant for the other port.
    play = Play("to the admin port", plain_reply)
    play.canaries = storm.canaries
    await storm.send(request_of(play), address="admin")
