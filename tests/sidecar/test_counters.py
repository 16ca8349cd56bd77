"""Upstreams' own counters, read over HTTP: rows, coverage, what the admin port tells. C02, C04, C08."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from support.chain import free_ports
from support.counting import Counting
from support.records import figures, record
from support.scripted_engine import until
from support.steered_engine import TOKEN, SteeredEngine
from support.upstream import Handler, Upstream, json_reply, replying, running

from sidecar import counters
from sidecar.counters import Counters
from sidecar.probes import coverage
from sidecar.record import Acceptance, Record
from sidecar.recorder import Recorder
from sidecar.settings import load
from sidecar.store.rows import CountersRow

from .test_recorder import NO_TRAFFIC

#: Sixteen draft tokens, of which nine were accepted.
TOLD = figures((1, 0, 1, 1, 1))
STEPS = [0, 2, 3, 4]


def serving(counting: Counting) -> Handler:
    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await upstream.read_request(reader)
            assert upstream.heads[-1].startswith(b"GET /metrics ")
            writer.write(counting.reply)
            await writer.drain()

    return handler


@asynccontextmanager
async def watching(
    *handlers: Handler, row_s: float = 0.0, inside: bool = False
) -> AsyncIterator[tuple[Counters, list[CountersRow], Callable[[], Awaitable[None]]]]:
    """Counters of the servers `a` and `b`, the rows they put, and a look at all of them."""
    rows: list[CountersRow] = []
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
        async with running(handlers[0]) as first, running(handlers[-1]) as second:
            urls = dict(zip("ab", [first.url, second.url][: len(handlers)], strict=False))
            made = Counters(client, urls, "test", rows.append, inside=inside)

            async def look() -> None:
                await asyncio.gather(*map(made.look, urls))

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(counters, "_ROW_S", row_s)
                patch.setattr(coverage, "SETTLE_S", 0.05)
                yield made, rows, look


def ended(**fields: Any) -> Record:
    """A request of this moment."""
    return record(**{"upstream": "a", "started_at": time.time(), "latency_ms": 0.0, "acceptance": TOLD} | fields)


async def settled() -> None:
    await asyncio.sleep(0.1)


async def test_rows_tell_what_each_upstream_counted() -> None:
    one, two = Counting(engines=2), Counting()
    two.speculates = False
    async with watching(serving(one), serving(two)) as (made, rows, look):
        await look()
        one.step(STEPS, engine=1)
        two.step([0, 0])
        made.add(ended())
        await look()
        await settled()
        await look()
    first, second, third = (row for row in rows if row.upstream == "a")
    assert (first.draft_tokens, first.reason) == (None, "its counters were not read twice yet")
    assert (second.instance, second.engines, second.scope, second.request_id) == ("test", 2, "server", None)
    assert (second.drafts, second.draft_tokens, second.accepted_tokens) == (4, 16, 9)
    assert second.accepted_per_position == (3, 3, 2, 1)
    assert (second.generation_tokens, second.reset, second.span_s > 0) == (13, False, True)
    assert (third.draft_tokens, third.coverage, third.reason) == (0, 1.0, None)
    *_, plain = (row for row in rows if row.upstream == "b")
    assert (plain.drafts, plain.draft_tokens, plain.coverage) == (None, None, None)
    assert plain.reason == "it does not speculate: it has no vllm:spec_decode counters"


async def test_a_row_adds_up_the_looks_of_a_minute() -> None:
    counting = Counting()
    async with watching(serving(counting), row_s=1000) as (made, rows, look):
        for _ in range(3):
            counting.step(STEPS)
            await look()
        assert rows == []
        counters._ROW_S = 0.0
        counting.restart()
        counting.step(STEPS)
        await look()
    (row,) = rows
    assert (row.draft_tokens, row.reset) == (16 + 16 + 16, True)
    assert made.resets == {"a": 1}


async def test_c02_a_request_without_figures_gets_a_row_if_it_was_alone() -> None:
    counting = Counting()
    async with watching(serving(counting), row_s=1000) as (made, rows, look):
        await look()
        counting.step(STEPS)
        counting.engines[0].finished += 1
        alone = ended(acceptance=Acceptance())
        made.add(alone)
        await look()
        # The next one tells its own.
        counting.step(STEPS)
        counting.engines[0].finished += 1
        made.add(ended())
        await look()
        await settled()
        await look()
    (row,) = rows
    assert (row.scope, row.request_id, row.draft_tokens, row.accepted_tokens) == ("request", alone.request_id, 16, 9)
    assert (row.coverage, row.reason) == (None, None)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (replying(json_reply({}, b"404 Not Found")), "its /metrics answers 404"),
        (
            replying(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", close=True),
            "its /metrics cannot be read: peer clo",
        ),
        (replying(b"\0\n"), "its /metrics cannot be read: "),
        (replying(json_reply("vllm:")), "it has no vllm: counters: its statistics are"),
        (replying(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n" + 9_000_000 * b"\n"), "its /metrics is longer"),
    ],
    ids=["missing", "cut off", "no HTTP", "no counters", "endless"],
)
async def test_c04_why_there_are_no_figures(handler: Handler, reason: str) -> None:
    async with watching(handler) as (made, rows, look):
        await look()
    (state,) = made.state()
    assert state["reason"].startswith(reason)
    assert {state[name] for name in ("span_s", "draft_tokens", "p", "rows_draft_tokens", "coverage")} == {None}
    assert rows[0].reason == state["reason"]
    assert made.ratios == {}


async def test_an_upstream_that_is_away_is_told_and_found_again() -> None:
    counting = Counting()
    up = True

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_request(reader)
        writer.write(counting.reply if up else json_reply({}, b"503 Service Unavailable"))
        await writer.drain()

    async with watching(handler) as (made, rows, look):
        await look()
        up = False
        await look()
        assert made.state()[0]["reason"] == "its /metrics answers 503"
        counting.step(STEPS)
        up = True
        await look()
    assert rows[-1].draft_tokens == 16


async def test_of_several_api_servers_none_knows_all_requests() -> None:
    counting = Counting()
    counting.started = None
    async with watching(serving(counting), inside=True) as (made, _, look):
        await look()
        counting.step(STEPS)
        await look()
        await settled()
        (state,) = made.state()
    assert (state["draft_tokens"], state["coverage"]) == (16, None)
    assert state["reason"].startswith("several API servers count together")


async def test_counters_that_disagree_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """C03."""
    counting = Counting()
    async with watching(serving(counting)) as (made, _, look):
        await look()
        for _ in range(2):
            counting.step(STEPS)
            counting.engines[0].places[0] += 5
            await look()
        await settled()
        assert made.disagreements == {"a": 2}
        assert made.state()[0]["reason"] == "18 tokens accepted, but 28 by position"
    assert caplog.text.count("upstream a: its counters disagree: 9 tokens accepted, but 14 by position") == 1


async def test_records_of_unknown_upstreams_are_left_out() -> None:
    async with watching(serving(Counting())) as (made, _, look):
        await look()
        made.add(ended(upstream=""))
        made.add(replace(ended(), latency_ms=None))


async def test_c08_an_engine_that_goes_on_drafting_shows_everywhere(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    engine = SteeredEngine()
    engine.obeys = False
    asked = b'{"model":"m","vllm_xargs":{"speculative":false}}'
    settings = load(
        database_url=f"sqlite:///{tmp_path}/specwatch.db",
        admin=f"127.0.0.1:{port}",
        engine_token=TOKEN,
        counters_every_s=0.05,
    )
    async with running(engine.handler) as server:
        made = Recorder(settings, {"speculative": server.url}, lambda: NO_TRAFFIC)
        made.start()
        made.start_admin()
        counted = made.counters
        moment = time.monotonic()
        await until(lambda: counted.drafted_since("speculative", moment) == 0)
        async with httpx.AsyncClient(trust_env=False, base_url=server.url) as client:
            await client.post("/v1/completions", content=asked)
        await until(lambda: counted.drafted_since("speculative", moment) == 12)
        engine.obeys = True
        moment = time.monotonic()
        async with httpx.AsyncClient(trust_env=False, base_url=server.url) as client:
            await client.post("/v1/completions", content=asked)
        await until(lambda: counted.drafted_since("speculative", moment) == 0)
        made.tap.sink(record(started_at=time.time(), acceptance=figures((1, 0, 0, 1))))
        await until(lambda: counted.ratios.get("speculative") == 0.5 and made.writer.healthy, 30)
        async with httpx.AsyncClient(trust_env=False, base_url=f"http://127.0.0.1:{port}") as client:
            (told,) = (await client.get("/api/v1/summary")).json()["coverage"]["engines"]
            text = (await client.get("/metrics")).text
        await made.stop()
    assert (told["upstream"], told["scope"], told["draft_tokens"], told["p"]) == ("speculative", "server", 12, 0.5)
    assert 'specwatch_coverage_ratio{upstream="speculative"} 0.' in text
    assert 'specwatch_engine_counter_resets_total{upstream="speculative"} 0.0' in text
    assert 'specwatch_engine_counter_disagreements_total{upstream="speculative"} 0.0' in text
