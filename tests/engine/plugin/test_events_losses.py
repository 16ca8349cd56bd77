"""The engine never waits for whoever listens: what is lost is counted, and the numbers of the steps tell it."""

import contextlib
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.plugin import events as room
from specwatch_engine.plugin.events import NO_ROWS, Events, encode_rows
from support.event_reader import HELLO, ROWS, STEP, Clock, Reader, step

#: Wall time of thousands of steps, s: far more than a busy machine needs, far less than any waiting would take.
AT_ONCE = 5.0


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
    step(events, 200_000)  # the system may grant room for many
    assert time.monotonic() - began < AT_ONCE
    assert events.connected
    assert events.dropped > 10_000
    read = reader.steps()
    assert len(read) == events.sent > 0
    # It reads again: the jump of the numbers is what was dropped.
    step(events, room.BATCH_STEPS)
    assert [each[:3] for each in reader.packets()] == [["steps", 200_001, events.dropped]]
    assert len(read) + events.dropped == 200_000


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


def test_what_an_idle_engine_does_first_reaches_a_listener_that_was_started_again(
    path: str, reader: Reader, clock: Clock
) -> None:
    events = Events(path, HELLO, clock)
    step(events, room.BATCH_STEPS)
    reader.close()
    Path(path).unlink()
    again = Reader(path)
    clock.now += 60
    events.add([("a-1", 7)], ROWS, None, [("a-1", 2, "stop")])
    assert [each[:3] for each in again.packets()] == [["hello", {"version": 1, **HELLO}], ["steps", 17, 0]]
    assert (events.sent, events.dropped, events.connected) == (17, 0, True)
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
