"""The socket: who may connect, what is taken in, and what ends a connection."""

import asyncio
import os
import resource
import socket
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.scripted_engine import ROWS, ScriptedEngine, encode, step, until, whole

from sidecar.engine_feed import feed as room
from sidecar.engine_feed.feed import MAX_PACKET, EngineFeed, FeedError
from sidecar.engine_request import EngineRequest


@asynccontextmanager
async def feed(path: Path) -> AsyncIterator[EngineFeed]:
    made = EngineFeed(path)
    made.start()
    try:
        yield made
    finally:
        made.stop()


async def test_a_request_goes_from_the_engine_to_who_asks(tmp_path: Path) -> None:
    async with feed(tmp_path / "events") as made:
        seen: list[EngineRequest] = []
        made.finished.append(seen.append)
        assert made.connected == 0
        engine = ScriptedEngine(made._path, engine=2)
        await until(lambda: made.connected)
        assert [(core.engine, core.target_tokenizer) for core in made.cores] == [(2, "/models/target")]
        engine.send(*whole("chatcmpl-a-00000001", ROWS))
        await until(lambda: seen)
        (request,) = seen
        assert (request.engine_id, request.reply_id) == ("chatcmpl-a-00000001", "chatcmpl-a")
        assert (request.prompt_tokens, request.output_tokens, request.finish_reason) == (5, 10, "stop")
        assert request.steps == [(list(drafted), list(emitted)) for drafted, emitted in ROWS]
        assert request.counts == {(4, 2): 1, (4, 4): 1, (4, 0): 1}
        (found,) = made.ledger.take("chatcmpl-a", 1) or ()
        assert found.counts == request.counts  # type: ignore[union-attr]
        assert made.ledger.take("chatcmpl-a", 1) is None
        engine.close()
        await until(lambda: not made.connected)
        assert made.ledger.steps == 4


async def test_the_socket_is_for_one_user_and_gone_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "events"
    async with feed(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()
    # What another has put there meanwhile stays.
    async with feed(path):
        path.unlink()
        path.write_text("mine")
    assert path.read_text() == "mine"


async def test_a_core_that_cannot_be_accepted_waits_and_keeps_nobody_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_PAUSE_S", 0.2)
    async with feed(tmp_path / "events") as made:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        engine = ScriptedEngine(made._path)
        # Lower than the number the next one would have.
        resource.setrlimit(resource.RLIMIT_NOFILE, (engine.socket.fileno() + 1, limits[1]))
        try:
            began = time.process_time()
            await asyncio.sleep(0.5)
            assert time.process_time() - began < 0.1
            assert made.connected == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await until(lambda: made.connected)
        engine.close()


async def test_the_socket_of_a_dead_sidecar_is_taken_over_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    async with feed(path) as made:
        with pytest.raises(FeedError, match=r"engine_events: .*: Address already in use; name a file"):
            EngineFeed(path).start()
        engine = ScriptedEngine(path)
        await until(lambda: made.connected)
        engine.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x" * 108, r"engine_events: .* is \d+ bytes long, and sockets take 107; choose a shorter path"),
        ("none/events", "engine_events: .*/none/events: No such file or directory; name a file in a folder"),
        ("file", "engine_events: .*/file: Address already in use; name a file"),
        ("folder", "engine_events: .*/folder: Address already in use; name a file"),
    ],
)
async def test_what_cannot_be_had_names_setting_and_remedy(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(FeedError, match=words):
        EngineFeed(tmp_path / name).start()
    assert (tmp_path / "file").exists()


async def test_a_path_of_the_longest_length_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("x" * 107)
    async with feed(path) as made:
        engine = ScriptedEngine(path)
        await until(lambda: made.connected)
        engine.close()


@pytest.mark.parametrize(
    ("packets", "words"),
    [
        ([b"\xc1"], "malformed packet"),
        ([b"x" * (MAX_PACKET + 1)], "longer than"),
        ([b"x" * (MAX_PACKET + 50_000)], "longer than"),
        ([encode(["hello", {"version": 1, "engine": 0}])], "second hello"),
        ([encode(["steps", 1, 0, [[[], ["a"], [], {}, None, []]]])], "1 requests and tokens of 0"),
    ],
)
async def test_a_malformed_packet_ends_its_connection_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, packets: list[bytes], words: str
) -> None:
    async with feed(tmp_path / "events") as made:
        good, bad = ScriptedEngine(made._path), ScriptedEngine(made._path, engine=1)
        bad.send(step(started=[("chatcmpl-a-00000001", 5)]))
        await until(lambda: made.connected == 2)
        for packet in packets:
            bad.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            bad.send_raw(packet)
        await until(lambda: made.connected == 1)
        assert bad.closed_by_peer
        assert made.malformed == 1
        assert [words in line for line in caplog.messages if "malformed" in line] == [True]
        assert made.ledger.take("chatcmpl-a", 1) == "the engine's connection for events was lost"
        good.send(*whole("chatcmpl-b-00000001", ROWS))
        await until(lambda: made.ledger.unclaimed)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (encode(["hello", {"version": 2, "engine": 0}]), "version 2 of the format is spoken, not 1"),
        (encode(["steps", 1, 0, []]), "steps before a hello"),
    ],
)
async def test_who_does_not_say_hello_is_not_heard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: bytes, words: str
) -> None:
    async with feed(tmp_path / "events") as made:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as engine:
            engine.connect(str(made._path))
            engine.send(first)
            await until(lambda: made.malformed)
            assert [words in line for line in caplog.messages if "malformed" in line] == [True]
            assert made.connected == 0


async def test_a_core_that_connects_again_before_its_old_connection_is_dead(tmp_path: Path) -> None:
    async with feed(tmp_path / "events") as made:
        old = ScriptedEngine(made._path)
        old.send(step(started=[("chatcmpl-a-00000001", 5)]), step(started=[("chatcmpl-b-00000001", 5)]))
        await until(lambda: made.ledger.steps == 2)
        new = ScriptedEngine(made._path)
        new.first = 3
        new.send(step({"chatcmpl-a-00000001": ((), (1,))}, finished=[("chatcmpl-a-00000001", 1, "stop")]))
        new.send(*whole("chatcmpl-c-00000001", ROWS))
        await until(lambda: made.ledger.unclaimed == 2)
        assert made.connected == 2
        assert isinstance(made.ledger.take("chatcmpl-c", 1), list)
        assert "before the sidecar saw" in str(made.ledger.take("chatcmpl-a", 1))
        old.close()
        await until(lambda: made.connected == 1)
        assert "connection for events was lost" in str(made.ledger.take("chatcmpl-b", 1))


async def test_much_that_comes_at_once_leaves_turns_to_others(tmp_path: Path) -> None:
    rows = {f"chatcmpl-{number}-00000001": ((1, 2, 3, 4), (1, 2, 5)) for number in range(64)}
    async with feed(tmp_path / "events") as made:
        engine = ScriptedEngine(made._path)
        engine.send(step(started=[(engine_id, 5) for engine_id in rows]))
        turns = 0
        for _ in range(4):
            engine.send(*[step(rows) for _ in range(16)])
        while made.ledger.steps < 65:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 4 * 16 * 64 / 256 / 2
        assert made.ledger.steps == 65


async def test_any_number_of_cores(tmp_path: Path) -> None:
    async with feed(tmp_path / "events") as made:
        engines = [ScriptedEngine(made._path, engine=number) for number in range(32)]
        for number, engine in enumerate(engines):
            engine.send(*whole(f"chatcmpl-{number}-00000001", ROWS))
        await until(lambda: made.ledger.unclaimed == 32)
        assert sorted(core.engine for core in made.cores) == list(range(32))
        for engine in engines:
            engine.close()
        await until(lambda: not made.connected)
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            ScriptedEngine(made._path).close()
        # Closed in turns of their own.
        await asyncio.sleep(0.05)
        await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
