"""From the bytes of exchanges to rows: bounds, failures, and who waits for it."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator

import pytest
from support.records import record
from support.scripted_engine import until

from sidecar.store.rows import TextRow
from sidecar.tasks import Tasks
from sidecar.texts import keeper, process
from sidecar.texts.keeper import Transcripts
from sidecar.texts.process import MOST_CHARACTERS

KEPT = record()


class Made:
    def __init__(self, *patterns: str) -> None:
        self.tasks = Tasks()
        self.rows: list[TextRow] = []
        self.lost = 0
        self.transcripts = Transcripts(
            list(patterns), instance="here", spawn=self.tasks.spawn, told=self.rows.append, lost=self.lose
        )

    def lose(self) -> None:
        self.lost += 1

    def say(self, prompt: str, *reply: bytes, whole: bool = True, streamed: bool = False) -> None:
        transcript = self.transcripts()
        transcript.request(json.dumps({"prompt": prompt}).encode())
        for payload in reply:
            transcript.reply(payload)
        transcript.end(KEPT, streamed=streamed, whole=whole)

    async def told(self, count: int) -> list[TextRow]:
        await until(lambda: len(self.rows) >= count, 60)
        return self.rows


@pytest.fixture
async def made() -> AsyncIterator[Made]:
    found = Made("ACME-[0-9]+")
    yield found
    await found.transcripts.close()
    await found.tasks.close()
    assert found.tasks.failed == []


def completion(text: str) -> bytes:
    return json.dumps({"choices": [{"text": text}]}).encode()


async def test_prompt_and_reply_are_rows_and_redacted(made: Made) -> None:
    made.say("mail bob@example.com of ACME-17", completion("card 4111 1111 1111 1111")[:20], completion("")[20:])
    made.say("a", completion("card 4111 1111 1111 1111"))
    rows = await made.told(3)
    assert rows[0] == TextRow(
        at=KEPT.started_at,
        instance="here",
        request_id=KEPT.request_id,
        kind="prompt",
        scenario=KEPT.scenario,
        text="mail [email] of [redacted]",
        cut=False,
    )
    assert [(row.kind, row.text) for row in rows[1:]] == [("prompt", "a"), ("reply", "card [card]")]
    await until(lambda: made.transcripts.held == 0)
    assert made.lost == 0


async def test_a_secret_that_comes_in_pieces_is_found(made: Made) -> None:
    pieces = ["card 4111 11", "11 1111 ", "1111, thanks"]
    made.say("a", *(b"data: " + completion(piece) + b"\n\n" for piece in pieces), streamed=True)
    assert (await made.told(2))[1].text == "card [card], thanks"


@pytest.mark.parametrize("over", [-1, 0, 1, 3_000, 5_000, 500_000])
async def test_long_texts_are_cut_and_no_secret_with_them(made: Made, over: int) -> None:
    secret = "sk-proj-0123456789abcdefghij"
    made.say("é" * (MOST_CHARACTERS - 10) + " " + secret + "é" * max(over, 0), completion("x"), whole=over < 0)
    prompt, reply = await made.told(2)
    assert len(prompt.text) <= MOST_CHARACTERS
    # Shorter by what was redacted, it may fit.
    assert prompt.cut == (over > 1)
    assert "sk-" not in prompt.text
    assert reply.cut == (over >= 0)


async def test_what_is_held_is_bounded(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "MOST_REPLY", 1000)
    monkeypatch.setattr(keeper, "MOST_BYTES", 3000)
    transcript = made.transcripts()
    for _ in range(100):
        transcript.reply(b"data: " + completion("a") + b"\n\n")
    assert made.transcripts.held <= 1000
    transcript.end(KEPT, streamed=True, whole=True)
    (row,) = await made.told(1)
    assert row.cut
    assert set(row.text) == {"a"}
    await until(lambda: made.transcripts.held == 0)
    made.transcripts.held = 3000
    made.say("no room", completion("a"))
    assert made.lost == 1
    made.transcripts.held = 0


async def test_a_pattern_without_end_costs_its_own_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(keeper, "_PAUSE_S", 0.01)
    made = Made("(a+)+$")
    try:
        made.say("b")
        await made.told(1)
        made.say("a" * 40 + "!")
        made.say("c")
        rows = await made.told(2)
        assert [row.text for row in rows] == ["b", "c"]
        assert made.lost == 1
    finally:
        await made.transcripts.close()
        await made.tasks.close()


async def test_a_process_that_dies_is_started_again(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_PAUSE_S", 0.01)
    made.say("a")
    await made.told(1)
    child = made.transcripts._redaction._child._process
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    made.say("b")
    assert [row.text for row in await made.told(2)] == ["a", "b"]


async def test_half_a_surrogate_pair_costs_nothing(made: Made) -> None:
    made.say("a\ud83d", completion("b\ud83d"))
    made.say("c", completion("d"))
    assert [row.text for row in await made.told(4)] == ["a?", "b?", "c", "d"]
    assert made.lost == 0


async def test_what_is_read_at_a_time_is_bounded(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def read(exchanged: list[process.Exchanged]) -> list[process.Reading]:
        sizes.append([len(each.reply) for each in exchanged])
        return [process.Reading(None, None)] * len(exchanged)

    monkeypatch.setattr(made.transcripts._redaction, "read", read)
    for size in (700_000, 700_000, 700_000, *([10] * 10)):
        made.say("", b"x" * size)
    await until(lambda: made.transcripts.held == 0)
    assert sizes == [[700_000, 700_000], [700_000, *([10] * 7)], [10] * 3]


async def test_what_waits_at_the_end_is_lost_and_counted(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_SETTLE_S", 0.0)
    for _ in range(20):
        made.say("some words " * 6000)
    await made.told(8)
    await made.transcripts.close()
    await made.tasks.close()
    assert len(made.rows) + made.lost == 20


async def test_the_event_loop_goes_on_meanwhile(made: Made) -> None:
    """Turns of the loop while long texts are redacted, not their length."""
    for _ in range(5):
        made.say("some words " * 6000)
    turns = 0
    while len(made.rows) < 5:
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 20
