"""Everything that can happen to a sidecar, for `Storm`."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from specwatch_engine.demo.weights import CHECKPOINTS
from tokenizers import Tokenizer

from .chain import free_ports
from .play_replies import cut, no_http, plain_reply, plays, refusing, strange_words, stream_reply
from .plays import HOLD, Fault, Play, request_of
from .proxy import post
from .scripted_engine import ScriptedEngine, encode, whole
from .storm import IDLE_S, TOKENIZER, Storm
from .upstream import running

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
    try:
        await _happens(storm, away)
    finally:
        storm.end()


async def _happens(storm: Storm, away: Callable[[bool], None]) -> None:
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
