"""Records that wait for their figures: what they become, and that each goes on once, however the events come."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import figures, record
from support.scripted_engine import GREETING, ROWS, until
from support.upstream import BLOCK

from sidecar.engine_feed import join
from sidecar.engine_feed.join import Joiner, pooled
from sidecar.engine_feed.ledger import SHARED, Core, Finished, Ledger
from sidecar.engine_feed.wire import Step
from sidecar.engine_request import Hello
from sidecar.record import Acceptance, AcceptanceQuality, AcceptanceSource, Arm, Outcome, Record
from sidecar.tap import acceptance
from sidecar.tap.acceptance import NOT_SPECULATED, NOTHING_DRAFTED, Block, missing

A = "chatcmpl-a-00000001"


def finished(counts: dict[tuple[int, int], int], k: int | None = 4, engine_id: str = A, **fields: Any) -> Finished:
    plain = Finished(engine_id, engine_id, 5, 10, k, counts, None, 0.0)
    return replace(plain, **fields)


@dataclass
class Room:
    """A joiner, its ledger, and what came out."""

    records: list[Record] = field(default_factory=list)
    cores: int = 1
    #: Of requests that were to go without speculation, whether they were drafted for.
    opt_outs: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger()
        self.core = Core(GREETING, self.ledger)
        self.joiner = Joiner(
            self.ledger, lambda: self.cores, self.records.append, self._opted_out, "draft of {}".format
        )

    def _opted_out(self, drafted: bool) -> None:
        self.opt_outs.append(drafted)

    def begin(self, *engine_ids: str) -> None:
        self.core.step(Step([(each, 5) for each in engine_ids], [], [], {}, None, []), 0.0)

    def end(self, *engine_ids: str, rows: Any = ROWS) -> None:
        for engine_id in engine_ids:
            for drafted, emitted in rows:
                made = {engine_id: list(drafted)} if drafted else {}
                self.core.step(Step([], [engine_id], [list(emitted)], made, None, []), 0.0)
            self.core.step(Step([], [], [], {}, None, [(engine_id, 10, "stop")]), 0.0)

    def put(self, reply_id: str | None = "chatcmpl-a", **fields: Any) -> None:
        self.joiner.put(record(**{"acceptance": Acceptance(reason="none in it"), "reply_id": reply_id, **fields}))


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "WAIT_S", 0.05)


# ---- figures


def test_figures_are_those_of_the_reply_s_own_block() -> None:
    found = pooled([finished({(4, 2): 1, (4, 4): 1, (4, 0): 1})])
    assert found is not None
    block = {name: value for name, value in BLOCK.items() if name in Block.__struct_fields__}
    own = acceptance.figures(Block(**block))  # type: ignore[arg-type]
    # The reply's block has the order of its steps, and these events have not.
    assert replace(found, source=AcceptanceSource.RESPONSE) == replace(own, steps=None)


STEP = st.integers(0, 5).flatmap(lambda made: st.tuples(st.just(made), st.integers(0, made)))


@given(st.lists(st.lists(STEP, max_size=12), min_size=1, max_size=4), st.sampled_from((None, 3, 5, 7)))
def test_figures_are_those_of_a_naive_count(requests: list[list[tuple[int, int]]], k: int | None) -> None:
    steps = [step for request in requests for step in request]
    found = pooled([finished({step: request.count(step) for step in request}, k) for request in requests])
    drafted = sum(made for made, _ in steps)
    if not drafted:
        assert found is None
        return
    assert found is not None
    size = max([k or 0, *(made for made, _ in steps)])
    assert found == Acceptance(
        source=AcceptanceSource.ENGINE,
        quality=AcceptanceQuality.OK,
        num_speculative_tokens=k,
        verify_steps=len(steps),
        draft_tokens=drafted,
        accepted_tokens=sum(accepted for _, accepted in steps),
        histogram=tuple(sum(accepted == j for _, accepted in steps) for j in range(size + 1)),
        rejected_at=tuple(sum(accepted == i < made for made, accepted in steps) for i in range(size)),
        reached=tuple(sum(accepted >= i < made for made, accepted in steps) for i in range(size)),
    )
    if k is None or size == k:
        block = Block(
            len(steps),
            drafted,
            found.accepted_tokens or 0,
            k,
            list(found.histogram or ()),
            [accepted for _, accepted in steps],
            [made for made, _ in steps],
        )
        assert replace(found, source=AcceptanceSource.RESPONSE) == replace(acceptance.figures(block), steps=None)


# ---- what a record becomes


async def test_a_record_takes_on_what_the_reply_did_not_tell() -> None:
    room = Room()
    room.begin(A)
    room.end(A)
    room.put(outcome=Outcome.OK, prompt_tokens=None, completion_tokens=None, content_ms=90.0)
    (found,) = room.records
    assert (found.acceptance.source, found.acceptance.accepted_tokens) == (AcceptanceSource.ENGINE, 6)
    assert (found.prompt_tokens, found.completion_tokens, found.tpot_ms) == (5, 10, 10.0)
    assert (found.reply_id, found.acceptance.steps) == ("chatcmpl-a", "00424440")


@pytest.mark.parametrize(
    ("steps", "told"), [(("0042",), "0042"), ((None,), None), (("0042", "0041"), None), (("42", None), None)]
)
def test_steps_are_those_of_one_request(steps: tuple[str | None, ...], told: str | None) -> None:
    found = pooled([finished({(4, 2): 1}, steps=each) for each in steps])
    assert found is not None
    assert found.steps == told


async def test_what_the_reply_told_stays_but_for_its_figures(caplog: pytest.LogCaptureFixture) -> None:
    room = Room()
    for number in range(3):
        room.begin(A)
        room.end(A)
        own = figures((1, 0, 1, 0, 1)) if number == 0 else figures((1, 1, 1))
        room.put(prompt_tokens=7, completion_tokens=8, tpot_ms=3.0, content_ms=90.0, acceptance=own)
    for found in room.records:
        assert (found.prompt_tokens, found.completion_tokens, found.tpot_ms) == (7, 8, 3.0)
        assert (found.acceptance.source, found.acceptance.draft_tokens) == (AcceptanceSource.ENGINE, 12)
    assert room.joiner.disagreements == 2
    warnings = [line for line in caplog.messages if "which count" in line]
    assert len(warnings) == 1
    assert "(3, 6, 3), the engine's events (3, 12, 6)" in warnings[0]


@pytest.mark.parametrize("outcome", [Outcome.CLIENT_ABORT, Outcome.TRUNCATED])
async def test_a_reply_that_was_cut_has_figures_and_no_time_per_token(outcome: Outcome) -> None:
    room = Room()
    room.begin(A)
    room.end(A)
    room.put(outcome=outcome, completion_tokens=None, content_ms=90.0, acceptance=missing("no figures: x"))
    (found,) = room.records
    assert (found.outcome, found.acceptance.verify_steps) == (outcome, 3)
    assert (found.completion_tokens, found.tpot_ms) == (10, None)


async def test_prompts_count_once_and_replies_add_up() -> None:
    room = Room()
    ids = [f"{n}_cmpl-a-{p}-0000000{p}" for n in range(3) for p in range(2)]
    room.begin(*ids)
    room.end(*ids)
    room.put("cmpl-a", replies=6)
    (found,) = room.records
    assert (found.prompt_tokens, found.completion_tokens) == (10, 60)
    assert (found.acceptance.verify_steps, found.acceptance.histogram) == (18, (6, 0, 6, 0, 6))


@pytest.mark.parametrize(
    ("own", "k", "reason"),
    [
        (missing("the usage event has no block"), 4, NOTHING_DRAFTED),
        (missing(NOT_SPECULATED), 4, NOT_SPECULATED),
        (missing("no usage was asked for"), None, NOT_SPECULATED),
        (figures((1, 1)), 4, NOTHING_DRAFTED),
    ],
)
async def test_nothing_drafted_is_unknown_with_its_reason(own: Acceptance, k: int | None, reason: str) -> None:
    room = Room()
    room.core.hello = Hello(1, 0, num_speculative_tokens=k)
    room.begin(A)
    room.end(A, rows=[((), (1,)), ((), (2,))])
    room.put(acceptance=own)
    (found,) = room.records
    assert found.acceptance == Acceptance(reason=reason)
    assert found.completion_tokens == 10
    assert room.joiner.disagreements == (own.source is AcceptanceSource.RESPONSE)


@pytest.mark.parametrize(
    ("rows", "arm", "draft_model", "told"),
    [(ROWS, Arm.SPECULATIVE, "draft of speculative", [True]), ([((), (1,))], Arm.BASELINE, None, [False])],
)
async def test_what_was_drafted_for_is_no_baseline(
    rows: Any, arm: Arm, draft_model: str | None, told: list[bool]
) -> None:
    room = Room()
    room.begin(A)
    room.end(A, rows=rows)
    room.put(arm=Arm.BASELINE, draft_model=None, acceptance=missing(NOT_SPECULATED))
    (found,) = room.records
    assert (found.arm, found.draft_model, room.opt_outs) == (arm, draft_model, told)


async def test_what_was_drafted_for_once_a_cap_of_nought_was_lifted_is_no_failed_opt_out() -> None:
    room = Room()
    room.begin(A)
    room.end(A)
    room.put(arm=Arm.AUTOREGRESSIVE, capped=True, acceptance=missing(NOT_SPECULATED))
    assert (room.records[0].arm, room.opt_outs) == (Arm.SPECULATIVE, [])


# ---- waiting


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("begun", [True, False])
async def test_events_may_come_after_the_reply_s_end(begun: bool) -> None:
    room = Room()
    if begun:
        room.begin(A)
    room.put()
    assert (room.records, room.joiner.waiting) == ([], 1)
    if not begun:
        room.begin(A)
    room.end(A)
    assert [found.acceptance.draft_tokens for found in room.records] == [12]
    await asyncio.sleep(0.1)
    assert (len(room.records), room.joiner.waiting) == (1, 0)


@pytest.mark.usefixtures("_quick")
async def test_events_that_never_come_leave_the_reply_s_own_figures() -> None:
    room = Room()
    room.put(acceptance=figures((1, 2)))
    room.put(acceptance=missing("none in it"))
    room.put(acceptance=missing(NOT_SPECULATED))
    room.put(outcome=Outcome.CLIENT_ABORT, acceptance=missing("no figures: client_abort"))
    assert room.records == []
    await until(lambda: len(room.records) == 4)
    own, *reasons = [found.acceptance for found in room.records]
    assert own == figures((1, 2))
    assert [each.reason for each in reasons] == [
        "the engine's events for this request did not come",
        NOT_SPECULATED,
        "no figures: client_abort",
    ]
    assert room.joiner.waiting == 0


@pytest.mark.usefixtures("_quick")
async def test_a_request_that_goes_on_in_the_engine_is_not_waited_for_without_end() -> None:
    room = Room()
    room.begin(A)
    room.put()
    await until(lambda: room.records)
    room.end(A)
    assert len(room.records) == 1


async def test_who_never_gives_events_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "WAIT_S", 0.01)
    room = Room()
    for number in range(join.MAX_MISSES):
        room.put(f"chatcmpl-{number}", upstream="other")
    await until(lambda: len(room.records) == join.MAX_MISSES)
    room.put(upstream="other")
    assert len(room.records) == join.MAX_MISSES + 1
    assert room.records[-1].acceptance.reason == "none in it"
    # Others are, and this one for what is seen, and after a core has come anew.
    room.put("chatcmpl-b")
    room.begin(A)
    room.put(upstream="other")
    assert room.joiner.waiting == 2
    room.joiner.flush()
    Core(GREETING, room.ledger)
    room.put("chatcmpl-c", upstream="other")
    assert room.joiner.waiting == 1


async def test_one_that_joins_makes_up_for_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "WAIT_S", 0.01)
    room = Room()
    for number in range(join.MAX_MISSES):
        room.put(f"chatcmpl-{number}")
    await until(lambda: len(room.records) == join.MAX_MISSES)
    room.begin(A)
    room.end(A)
    room.put()
    room.put("chatcmpl-x")
    assert room.joiner.waiting == 1


async def test_nobody_waits_where_it_is_of_no_use() -> None:
    room = Room()
    room.put(None)
    room.cores = 0
    room.put()
    assert len(room.records) == 2
    room.cores = 1
    for number in range(join.MAX_WAITING + 5):
        room.put(f"chatcmpl-{number}")
    assert (len(room.records), room.joiner.waiting) == (7, join.MAX_WAITING)


@pytest.mark.usefixtures("_quick")
async def test_a_lost_connection_ends_the_wait_with_its_reason() -> None:
    room = Room()
    room.begin(A)
    room.put()
    room.core.lost(0.0)
    assert [found.acceptance.reason for found in room.records] == ["the engine's connection for events was lost"]
    await asyncio.sleep(0.1)
    assert len(room.records) == 1


async def test_two_clients_with_one_id_at_once_have_no_figures() -> None:
    room = Room()
    other = "chatcmpl-a-00000002"
    room.begin(A, other)
    room.put()
    room.end(A, other)
    room.put(acceptance=figures((1, 2)))
    assert [found.acceptance.reason for found in room.records] == [SHARED, None]
    assert room.records[1].acceptance.source is AcceptanceSource.RESPONSE
    assert not room.ledger._groups


async def test_two_that_wait_for_one_id_go_on_once_each() -> None:
    room = Room()
    room.put()
    room.put()
    room.begin(A)
    room.end(A)
    assert len(room.records) == 1
    room.begin("chatcmpl-a-00000002")
    room.end("chatcmpl-a-00000002")
    assert (len(room.records), room.joiner.waiting) == (2, 0)


async def test_at_the_end_all_go_on_once() -> None:
    room = Room()
    for number in range(5):
        room.put(f"chatcmpl-{number}")
    room.begin("chatcmpl-3-00000001")
    room.end("chatcmpl-3-00000001")
    room.joiner.flush()
    assert sorted(str(found.reply_id) for found in room.records) == [f"chatcmpl-{number}" for number in range(5)]
    assert [found.acceptance.draft_tokens for found in room.records].count(12) == 1
    others = [found.acceptance.reason for found in room.records if found.acceptance.draft_tokens is None]
    assert others == ["the engine's events for this request did not come"] * 4


async def test_settling_gives_events_that_are_on_their_way_a_moment() -> None:
    room = Room()
    room.begin(A)
    room.put()
    asyncio.get_running_loop().call_later(0.05, room.end, A)
    await room.joiner.settle()
    assert [found.acceptance.draft_tokens for found in room.records] == [12]


@pytest.mark.usefixtures("_quick")
async def test_a_sink_that_fails_costs_its_own_record_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "asyncio")
    room = Room()
    given = room.joiner._sink

    def fails_for_b(each: Record) -> None:
        if each.reply_id == "chatcmpl-b":
            raise RuntimeError("full")
        given(each)

    room.joiner._sink = fails_for_b
    for name in "abc":
        room.put(f"chatcmpl-{name}")
    room.begin("chatcmpl-b-00000001")
    room.end("chatcmpl-b-00000001")
    await until(lambda: len(room.records) == 2)
    assert room.joiner.waiting == 0
