"""What cores tell of their requests, without a socket: what is joined, what is incomplete, and what is let go."""

import tracemalloc
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scripted_engine import GREETING, ROWS, encode, step, whole

from sidecar.engine_feed import ledger as bounds
from sidecar.engine_feed.ledger import SHARED, Core, Finished, Ledger
from sidecar.engine_feed.wire import Steps, decode
from sidecar.engine_request import EngineRequest

A, B = "chatcmpl-a-00000001", "chatcmpl-a-00000002"


class Engine:
    """A core of `ledger`, told as its packets would."""

    def __init__(self, ledger: Ledger) -> None:
        self.core = Core(GREETING, ledger)
        self.first = 1
        self.dropped = 0

    def tell(self, *steps: object, now: float = 0.0) -> None:
        packet = decode(encode(["steps", self.first, self.dropped, steps]))
        assert isinstance(packet, Steps)
        self.first += len(steps)
        self.core.begin(packet, now)
        for each in packet.steps:
            self.core.step(each, now)


def made() -> tuple[Ledger, Engine, list[EngineRequest]]:
    ledger, seen = Ledger(), list[EngineRequest]()
    ledger.finished.append(seen.append)
    return ledger, Engine(ledger), seen


def taken(ledger: Ledger, reply_id: str = "chatcmpl-a", replies: int = 1) -> list[Finished]:
    found = ledger.take(reply_id, replies)
    assert isinstance(found, list), found
    return found


def test_a_request_is_given_once_and_not_before_its_finish() -> None:
    ledger, engine, seen = made()
    *steps, last = whole(A, ROWS)
    assert ledger.take("chatcmpl-a", 1) is None
    engine.tell(*steps)
    assert ledger.take("chatcmpl-a", 1) is None
    engine.tell(last)
    (found,) = taken(ledger)
    assert (found.prompt_tokens, found.output_tokens, found.num_speculative_tokens) == (5, 10, 4)
    assert found.counts == {(4, 2): 1, (4, 4): 1, (4, 0): 1}
    assert ledger.take("chatcmpl-a", 1) is None
    assert (ledger.joined, ledger.unjoined, ledger.incomplete, ledger.unclaimed) == (1, 0, 0, 0)
    assert [request.engine_id for request in seen] == [A]


def test_prefill_and_steps_without_a_draft_are_no_verify_steps() -> None:
    ledger, engine, seen = made()
    engine.tell(*whole(A, [((), ()), ((), ()), ((), (7,)), ((1, 2), (1, 3)), ((), (4,))]))
    assert taken(ledger)[0].counts == {(2, 1): 1}
    assert seen[0].steps == [([], [7]), ([1, 2], [1, 3]), ([], [4])]


def test_drafts_that_a_grammar_made_void_were_not_drafted() -> None:
    ledger, engine, seen = made()
    engine.tell(
        step({A: ((1, 2, -1, -1), (1, 2, 5))}, started=[(A, 5)], invalid={A: 2, "other": 1}),
        step({A: ((-1, -1), (6,))}, invalid={A: 2}, finished=[(A, 4, "stop")]),
    )
    assert taken(ledger)[0].counts == {(2, 2): 1, (0, 0): 1}
    assert seen[0].steps == [([1, 2], [1, 2, 5]), ([], [6])]


def test_ids_the_engine_could_not_see_count() -> None:
    ledger, engine, seen = made()
    engine.tell(*whole(A, [((-1, -1, -1), (4, 5))]))
    assert taken(ledger)[0].counts == {(3, 1): 1}
    assert seen[0].steps == [([-1, -1, -1], [4, 5])]


def test_more_accepted_than_drafted_is_not_believed() -> None:
    ledger, engine, seen = made()
    engine.tell(*whole(A, [((1,), (1, 2, 3))]))
    assert "accepted more tokens than it drafted" in str(ledger.take("chatcmpl-a", 1))
    assert not seen


@pytest.mark.parametrize("jump", [1, 40, -3])
def test_a_gap_leaves_what_was_open_incomplete(jump: int) -> None:
    ledger, engine, seen = made()
    before, after = whole(A, ROWS), whole("chatcmpl-b-00000001", ROWS)
    engine.tell(*before[:2])
    engine.first += jump
    engine.dropped += max(jump, 0)
    engine.tell(*before[2:])
    engine.tell(*after)
    assert "events between the engine and the sidecar were lost" in str(ledger.take("chatcmpl-a", 1))
    assert len(taken(ledger, "chatcmpl-b")) == 1
    assert [request.reply_id for request in seen] == ["chatcmpl-b"]
    assert (ledger.steps_dropped, ledger.incomplete, ledger.joined) == (max(jump, 0), 1, 1)


def test_a_lost_connection_and_the_core_that_connects_again() -> None:
    ledger, engine, seen = made()
    steps = whole(A, ROWS)
    engine.tell(*steps[:2])
    engine.core.lost(1.0)
    again = Engine(ledger)
    again.first, again.dropped = 12, 9
    again.tell(*steps[2:], now=2.0)
    assert ledger.take("chatcmpl-a", 1) == "the engine's connection for events was lost"
    assert (ledger.steps_dropped, ledger.incomplete, ledger.unclaimed, len(seen)) == (0, 1, 0, 0)
    again.tell(*whole(A, ROWS))
    assert len(taken(ledger)) == 1


def test_a_sidecar_that_starts_late_knows_what_it_has_not_seen() -> None:
    ledger, engine, seen = made()
    engine.first, engine.dropped = 1_000, 999
    engine.tell(*whole(A, ROWS)[2:])
    assert "before the sidecar saw its events" in str(ledger.take("chatcmpl-a", 1))
    assert (ledger.incomplete, ledger.steps_dropped, seen) == (1, 0, [])


def several(*engine_ids: str, prompt: int = 5) -> list[object]:
    """The same rows for several requests, in the same steps."""
    steps: list[Any] = [step(dict.fromkeys(engine_ids, row)) for row in ROWS]
    steps[0][0] = [[engine_id, prompt + number] for number, engine_id in enumerate(engine_ids)]
    steps[-1][5] = [[engine_id, 10, "stop"] for engine_id in engine_ids]
    return steps


@pytest.mark.parametrize(
    ("reply_id", "engine_ids", "replies", "parents"),
    [
        ("chatcmpl-x", ["0_chatcmpl-x-0000000a", "1_chatcmpl-x-0000000a"], 2, 1),
        ("cmpl-x", ["cmpl-x-0-0000000a", "cmpl-x-1-0000000b", "cmpl-x-2-0000000c"], 3, 3),
        ("cmpl-x", [f"{n}_cmpl-x-{p}-0000000{p}" for n in range(2) for p in range(2)], 4, 2),
        ("resp_x", ["resp_x_0-0000000a"], 1, 1),
        ("resp_x", ["resp_x_0-0000000a", "resp_x_1-0000000b"], 1, 2),
    ],
)
def test_a_reply_of_several_requests(reply_id: str, engine_ids: list[str], replies: int, parents: int) -> None:
    ledger, engine, seen = made()
    *steps, last = several(*engine_ids)
    engine.tell(*steps)
    assert ledger.take(reply_id, replies) is None
    engine.tell(last)
    found = taken(ledger, reply_id, replies)
    assert [request.engine_id for request in found] == engine_ids
    assert len({request.parent for request in found}) == parents
    assert {request.reply_id for request in seen} == {reply_id}


def test_a_reply_of_several_is_waited_for_until_all_have_begun() -> None:
    ledger, engine, _ = made()
    engine.tell(*several("0_chatcmpl-x-0000000a"))
    assert ledger.take("chatcmpl-x", 2) is None
    engine.tell(*several("1_chatcmpl-x-0000000a"))
    assert len(taken(ledger, "chatcmpl-x", 2)) == 2


@pytest.mark.parametrize("ended", [True, False])
def test_an_id_that_two_clients_use_at_once_gives_no_figures(ended: bool) -> None:
    ledger, engine, _ = made()
    if ended:
        engine.tell(*several(A, B))
        assert ledger.take("chatcmpl-a", 1) == SHARED
    else:
        engine.tell(step(started=[(B, 5)]), *whole(A, ROWS))
        assert ledger.take("chatcmpl-a", 1) == SHARED
        engine.tell(step({B: ROWS[1]}, finished=[(B, 3, "length")]))
    assert ledger.take("chatcmpl-a", 1) == SHARED
    # And when both are gone, the id is as good as any other.
    assert (ledger.unclaimed, ledger.unjoined, ledger.knows("chatcmpl-a")) == (0, 2, False)
    engine.tell(*whole(A, ROWS))
    assert len(taken(ledger)) == 1


def test_what_nobody_claims_is_let_go() -> None:
    ledger, engine, _ = made()
    engine.tell(*whole(A, ROWS), now=10.0)
    engine.tell(*whole("chatcmpl-b-00000001", ROWS)[1:], now=11.0)
    ledger.expire(10.0 + bounds.MAX_AGE_S - 0.1)
    assert ledger.unclaimed == 2
    ledger.expire(10.0 + bounds.MAX_AGE_S)
    assert (ledger.unclaimed, ledger.unjoined, ledger.take("chatcmpl-a", 1)) == (1, 1, None)
    ledger.expire(11.0 + bounds.MAX_AGE_S)
    assert (ledger.unclaimed, ledger.unjoined, ledger.incomplete) == (0, 1, 1)
    assert not ledger._groups


def test_ten_thousand_requests_that_nobody_claims_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_UNCLAIMED", 1_000)
    ledger = Ledger()
    engine = Engine(ledger)
    sizes = []
    tracemalloc.start()
    try:
        for number in range(10_000):
            engine.tell(*whole(f"chatcmpl-{number}-00000001", ROWS))
            if number in (2_000, 9_999):
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert (ledger.unclaimed, ledger.unjoined, len(ledger._groups)) == (1_000, 9_000, 1_000)
    assert sizes[1] < 1.2 * sizes[0] < 3_000_000


def test_a_very_long_reply_keeps_its_figures_and_its_first_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_IDS", 100)
    ledger, engine, seen = made()
    engine.tell(*whole(A, [((1, 2, 3, 4), (1, 2, 5))] * 500))
    assert taken(ledger)[0].counts == {(4, 2): 500}
    assert not seen[0].ids_complete
    assert 5 < len(seen[0].steps) < 20
    assert seen[0].steps[-1] == ([1, 2, 3, 4], [1, 2, 5])


def test_open_requests_and_long_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_OPEN", 10)
    ledger, engine, _ = made()
    long = "chatcmpl-" + "x" * 1_000 + "-00000001"
    engine.tell(step(started=[(long, 5)], finished=[(long, 5, "stop")]))
    engine.tell(step(started=[(f"chatcmpl-{number}-00000001", 5) for number in range(20)]))
    assert (len(engine.core._open), len(ledger._groups)) == (10, 10)


def test_a_failure_of_who_looks_is_told_once_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ledger, engine, _ = made()
    ledger.finished.insert(0, lambda request: 1 / 0)  # type: ignore[arg-type, return-value]
    for number in range(3):
        engine.tell(*whole(f"chatcmpl-{number}-00000001", ROWS))
        assert len(taken(ledger, f"chatcmpl-{number}")) == 1
    assert len(caplog.records) == 1


ROW = st.tuples(st.lists(st.integers(0, 9), max_size=4), st.integers(0, 4), st.integers(0, 4)).map(
    lambda row: (
        row[0],
        [7] * (min(row[1], len(row[0])) + 1),
        min(row[2], max(len(row[0]) - min(row[1], len(row[0])), 0)),
    )
)
#: Of some requests, the rows of each: drafted, emitted, invalid.
TRAFFIC = st.lists(st.lists(ROW, min_size=1, max_size=6), min_size=1, max_size=6)


@given(TRAFFIC, st.data())
def test_figures_are_those_of_a_naive_count_however_steps_are_packed(
    traffic: list[list[tuple[list[int], list[int], int]]], data: st.DataObject
) -> None:
    # Each request's rows in steps that it may share with others.
    steps: list[Any] = []
    for number, rows in enumerate(traffic):
        engine_id, at = f"chatcmpl-{number}-00000001", data.draw(st.integers(0, 4))
        for index, (drafted, emitted, invalid) in enumerate(rows):
            while len(steps) <= at:
                steps.append([[], [], [], {}, None, []])
            each = steps[at]
            if index == 0:
                each[0].append([engine_id, number])
            each[1].append(engine_id)
            each[2].append(emitted)
            if drafted:
                each[3][engine_id] = drafted
            if invalid:
                each[4] = {**(each[4] or {}), engine_id: invalid}
            if index == len(rows) - 1:
                each[5].append([engine_id, sum(len(row[1]) for row in rows), "stop"])
            at += 1
    ledger, engine, seen = made()
    while steps:
        size = data.draw(st.integers(1, len(steps)))
        engine.tell(*steps[:size])
        steps = steps[size:]
    by_reply = {request.reply_id: request for request in seen}
    for number, rows in enumerate(traffic):
        naive = Counter((len(drafted) - invalid, len(emitted) - 1) for drafted, emitted, invalid in rows if drafted)
        (found,) = taken(ledger, f"chatcmpl-{number}")
        assert found.counts == naive
        assert (found.prompt_tokens, found.output_tokens) == (number, sum(len(row[1]) for row in rows))
        assert by_reply[f"chatcmpl-{number}"].steps == [
            (drafted[: len(drafted) - invalid], emitted) for drafted, emitted, invalid in rows
        ]
    assert not ledger._groups
    assert not ledger.unclaimed
