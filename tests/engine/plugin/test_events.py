"""Events over real SEQPACKET sockets: what goes over the wire, and that the engine never waits."""

import contextlib
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.plugin import events as room
from specwatch_engine.plugin.events import NO_ROWS, Events, encode_rows

from sidecar.engine_feed.wire import Steps, decode

HELLO = {"engine": 0, "pid": 1, "vllm": "0.32.0", "method": "draft_model", "draft_model": None}
ROWS = encode_rows(["a-1"], [[5, 6]], {"a-1": [5, 9]})
STEP = [[], ["a-1"], [[5, 6]], {"a-1": [5, 9]}, None, []]
#: Wall time of thousands of steps, s: far more than a busy machine needs, far less than any waiting would take.
AT_ONCE = 5.0

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


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Reader:
    """A listener that takes one connection after the other; a read packet is a list."""

    def __init__(self, path: str, backlog: int = 8) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(backlog)
        self._listener.setblocking(False)
        self.connection: socket.socket | None = None

    def raw(self) -> list[bytes]:
        """All packets that are there."""
        found: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            if self.connection is None:
                self.connection, _ = self._listener.accept()
                self.connection.setblocking(False)
            while packet := self.connection.recv(1 << 20):
                found.append(packet)
        return found

    def packets(self) -> list[Any]:
        return [msgspec.msgpack.decode(each) for each in self.raw()]

    def steps(self) -> dict[int, Any]:
        """Every step that is there, by its number."""
        return {
            first + at: step
            for kind, first, *rest in (each for each in self.packets() if each[0] == "steps")
            for at, step in enumerate(rest[1])
        }

    def close(self) -> None:
        self._listener.close()
        if self.connection is not None:
            self.connection.close()


@pytest.fixture
def path() -> Iterator[str]:
    # The folders of pytest can be longer than a socket's address.
    with tempfile.TemporaryDirectory(prefix="sw") as folder:
        yield f"{folder}/events"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(path: str) -> Iterator[Reader]:
    made = Reader(path)
    yield made
    made.close()


def step(events: Events, times: int = 1, rows: bytes = ROWS) -> None:
    for _ in range(times):
        events.add((), rows, None, ())


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


# ---- nobody takes it


def _plain_file(folder: Path) -> str:
    (folder / "plain").write_text("x")
    return str(folder / "plain")


def _stream_socket(folder: Path) -> str:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
    return str(folder / "s")


NOWHERE = {
    "no path": lambda folder: "",
    "nothing there": lambda folder: str(folder / "missing"),
    "no folder there": lambda folder: str(folder / "missing" / "events"),
    "a path too long": lambda folder: str(folder / ("x" * 200)),
    "a plain file": _plain_file,
    "a folder": str,
    "another kind of socket, and nobody behind it": _stream_socket,
}


@pytest.mark.parametrize("name", NOWHERE)
def test_where_nobody_listens_steps_are_counted_as_dropped(name: str, clock: Clock) -> None:
    with tempfile.TemporaryDirectory(prefix="sw") as folder:
        events = Events(NOWHERE[name](Path(folder)), HELLO, clock)
        began = time.monotonic()
        for _ in range(3_000):
            clock.now += 0.5
            if events.wanted():
                step(events)
            else:
                events.skip()
        step(events, 1_000)
        events.flush()
        assert time.monotonic() - began < AT_ONCE
    assert (events.steps, events.sent, events.dropped, events.connected) == (4_000, 0, 4_000, False)


def test_no_file_descriptor_left_is_no_error(path: str, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(room.socket, "socket", none_left)
    events = Events(path, HELLO)
    assert not events.wanted()
    step(events, room.BATCH_STEPS)
    assert (events.sent, events.dropped) == (0, room.BATCH_STEPS)


def test_connecting_is_tried_every_two_seconds(path: str, clock: Clock) -> None:
    events = Events(path, HELLO, clock)
    assert not events.wanted()
    reader = Reader(path)
    clock.now += room.RETRY_S - 0.1
    assert not events.wanted()
    clock.now += 0.2
    assert events.wanted()
    assert reader.packets() == [["hello", {"version": 1, **HELLO}]]
    reader.close()


def test_a_listener_whose_queue_is_full_is_not_waited_for(path: str, clock: Clock) -> None:
    reader = Reader(path, backlog=0)
    waiting = []
    with contextlib.suppress(BlockingIOError):
        while len(waiting) < 50:
            each = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            waiting.append(each)
            each.setblocking(False)
            each.connect(path)
    events = Events(path, HELLO, clock)
    began = time.monotonic()
    for _ in range(2_000):
        clock.now += 3
        step(events)
    assert time.monotonic() - began < AT_ONCE
    assert (events.sent, events.connected) == (0, False)
    for each in waiting:
        each.close()
    reader.close()


# ---- somebody takes some of it


def test_a_listener_that_never_reads_costs_steps_and_no_time(path: str, reader: Reader, clock: Clock) -> None:
    events = Events(path, HELLO, clock)
    began = time.monotonic()
    step(events, 20_000)
    assert time.monotonic() - began < AT_ONCE
    assert events.connected
    assert events.dropped > 10_000
    read = reader.steps()
    assert len(read) == events.sent > 0
    # It reads again: the jump of the numbers is what was dropped.
    step(events, room.BATCH_STEPS)
    assert [each[:3] for each in reader.packets()] == [["steps", 20_001, events.dropped]]
    assert len(read) + events.dropped == 20_000


def test_a_listener_that_is_killed_and_started_again(path: str, reader: Reader, clock: Clock) -> None:
    events = Events(path, HELLO, clock)
    step(events, 32)
    assert len(reader.steps()) == 32
    reader.close()
    began = time.monotonic()
    step(events, 3_200)
    assert time.monotonic() - began < AT_ONCE
    assert (events.steps, events.sent, events.dropped, events.connected) == (3_232, 32, 3_200, False)
    Path(path).unlink()
    again = Reader(path)
    clock.now += room.RETRY_S + 0.1
    step(events, 16)
    assert [each[:3] for each in again.packets()] == [["hello", {"version": 1, **HELLO}], ["steps", 3_233, 3_200]]
    assert (events.sent, events.dropped) == (48, 3_200)
    again.close()


def test_a_packet_too_large_is_dropped_and_the_connection_stays(path: str, reader: Reader, clock: Clock) -> None:
    events = Events(path, HELLO, clock)
    step(events, rows=encode_rows(["a-1"], [[70_000] * 100_000], {}))
    step(events, room.BATCH_STEPS)
    assert [each[:3] for each in reader.packets()[1:]] == [["steps", 2, 1]]
    assert (events.sent, events.dropped, events.connected) == (16, 1, True)


def test_a_step_that_is_skipped_goes_after_those_that_wait(path: str, reader: Reader, clock: Clock) -> None:
    events = Events(path, HELLO, clock)
    step(events, 3)
    events.skip()
    step(events, 2)
    events.flush()
    assert reader.packets()[1:] == [["steps", 1, 0, [STEP] * 3], ["steps", 5, 1, [STEP] * 2]]


@given(
    st.lists(
        st.sampled_from(["add", "add", "add", "finish", "skip", "large", "later", "read", "kill", "listen"]),
        max_size=60,
    )
)
def test_whatever_happens_a_number_names_one_step_and_every_step_is_sent_dropped_or_waits(acts: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="sw") as folder:
        path, clock = f"{folder}/s", Clock()
        reader: Reader | None = Reader(path)
        events, read, made = Events(path, HELLO, clock), {}, 0
        large = encode_rows((), [[70_000] * 60_000], {})
        for act in [*acts, "read"]:
            if act in ("add", "finish", "large"):
                made += 1
                finished = [("x", made, "stop")] if act == "finish" else ()
                events.add([("a", made)], large if act == "large" else NO_ROWS, None, finished)
            elif act == "skip":
                made += 1
                events.skip()
            elif act == "later":
                clock.now += 0.7
            elif act == "read" and reader is not None:
                fresh = reader.steps()
                assert not fresh.keys() & read.keys()
                read |= fresh
            elif act == "kill" and reader is not None:
                reader.close()
                Path(path).unlink()
                reader = None
            elif act == "listen" and reader is None:
                reader = Reader(path)
        events.flush()
        assert events.steps == made == events.sent + events.dropped
        assert len(read) <= events.sent
        assert all(each[0] == [["a", number]] for number, each in read.items())
        events.close()
        if reader is not None:
            reader.close()
