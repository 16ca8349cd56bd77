"""Events over real SEQPACKET sockets: what goes over the wire, and when."""

import tempfile
from typing import Any, Literal

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.plugin import events as room
from specwatch_engine.plugin.events import NO_ROWS, Events, encode_rows
from support.event_reader import HELLO, STEP, Clock, Reader, step

from sidecar.engine_feed.wire import Steps, decode

# The docstring of the module, as types.
Step = tuple[
    list[tuple[str, int]],
    list[str],
    list[list[int]],
    dict[str, list[int]],
    dict[str, int] | None,
    list[tuple[str, int, str]],
]
StepsPacket = tuple[Literal["steps"], int, int, list[Step]]


# ---- the wire


def test_first_packet_says_who_sends_and_the_next_what_it_did(path: str, reader: Reader) -> None:
    events = Events(path, HELLO)
    events.add(
        [("b-2", 7)], encode_rows(["a-1", "b-2"], [[5, 6], []], {"a-1": [5, -1]}), {"a-1": 1}, [("a-1", 31, "stop")]
    )
    assert reader.packets() == [
        ["hello", {"version": 1, **HELLO}],
        [
            "steps",
            1,
            0,
            [[[["b-2", 7]], ["a-1", "b-2"], [[5, 6], []], {"a-1": [5, -1]}, {"a-1": 1}, [["a-1", 31, "stop"]]]],
        ],
    ]
    assert (events.steps, events.sent, events.dropped, events.connected) == (1, 1, 0, True)


def test_rows_are_those_of_the_moment_they_were_encoded(path: str, reader: Reader) -> None:
    """vLLM cuts the lists in place where a request stops."""
    events = Events(path, HELLO)
    emitted = [[5, 6, 7]]
    rows = encode_rows(["a-1"], emitted, {"a-1": [5, 6]})
    del emitted[0][1:]
    events.add((), rows, {}, [("a-1", 1, "stop")])
    assert reader.packets()[1][3][0][2:5] == [[[5, 6, 7]], {"a-1": [5, 6]}, None]


_ids = st.text(min_size=1, max_size=60)
_tokens = st.lists(st.integers(-1, 2**31 - 1), max_size=12)
_counts = st.integers(0, 2**40)


@st.composite
def _steps(draw: st.DrawFn) -> Any:
    ids = draw(st.lists(_ids, max_size=5, unique=True))
    return (
        draw(st.lists(st.tuples(_ids, _counts), max_size=3)),
        ids,
        [draw(_tokens) for _ in ids],
        draw(st.dictionaries(_ids, _tokens, max_size=5)),
        draw(st.none() | st.dictionaries(_ids, _counts, min_size=1, max_size=3)),
        draw(st.lists(st.tuples(_ids, _counts, st.sampled_from(["stop", "length", "abort"])), max_size=3)),
    )


@given(st.lists(_steps(), min_size=1, max_size=20))
def test_any_steps_arrive_as_they_were_and_the_sidecar_reads_them(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="sw") as folder:
        reader, clock = Reader(f"{folder}/s"), Clock()
        events = Events(f"{folder}/s", HELLO, clock)
        for started, ids, emitted, drafted, invalid, finished in steps:
            events.add(started, encode_rows(ids, emitted, drafted), invalid, finished)
        events.flush()
        packets = reader.raw()[1:]
        events.close()
        reader.close()
    assert [each for packet in packets for each in msgspec.msgpack.decode(packet, type=StepsPacket)[3]] == steps
    read = [decode(packet) for packet in packets]
    assert sum(len(each.steps) for each in read if isinstance(each, Steps)) == len(steps)


# ---- when a packet is sent


def test_sixteen_steps_are_sent_together(path: str, reader: Reader, clock: Clock) -> None:
    events = Events(path, HELLO, clock)
    step(events, room.BATCH_STEPS - 1)
    assert reader.packets() == []
    step(events, 2)
    assert [each[:3] for each in reader.packets()[1:]] == [["steps", 1, 0]]
    events.flush()
    assert reader.packets() == [["steps", 17, 0, [STEP]]]
    events.flush()
    assert reader.packets() == []


def test_a_step_waits_fifty_milliseconds_at_most_for_the_next(path: str, reader: Reader, clock: Clock) -> None:
    events = Events(path, HELLO, clock)
    step(events)
    clock.now += 0.049
    step(events)
    assert reader.packets() == []
    clock.now += 0.0011
    step(events)
    assert reader.packets()[1] == ["steps", 1, 0, [STEP] * 3]
    # The next batch has a time of its own.
    step(events)
    assert reader.packets() == []


def test_a_finish_is_sent_at_once(path: str, reader: Reader, clock: Clock) -> None:
    events = Events(path, HELLO, clock)
    step(events)
    events.add((), NO_ROWS, None, [("a-1", 2, "abort")])
    assert reader.packets()[1] == ["steps", 1, 0, [STEP, [[], [], [], {}, None, [["a-1", 2, "abort"]]]]]


def test_many_bytes_are_sent_at_once(path: str, reader: Reader, clock: Clock) -> None:
    events = Events(path, HELLO, clock)
    large = encode_rows(["a-1"], [[70_000] * 3_000], {})
    lengths = []
    for _ in range(50):
        step(events, rows=large)
        lengths += [len(each) for each in reader.raw() if len(each) > 1_000]
    assert len(lengths) == 50 // 5
    assert room.BATCH_BYTES <= min(lengths) <= max(lengths) < room.BATCH_BYTES + len(large) + 32
