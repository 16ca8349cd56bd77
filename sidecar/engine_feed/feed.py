"""The socket on which engine cores tell what they do: SOCK_SEQPACKET, so that one read is one packet.

The event loop also moves the clients' bytes. So a turn of it takes in a few hundred requests' steps at most, and what
is wrong with a packet ends its connection and nothing else.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
import time
from collections import deque
from pathlib import Path

from ..engine_request import Hello
from .ledger import Core, Ledger
from .wire import VERSION, Greeting, MalformedPacket, Step, Steps, decode

_log = logging.getLogger(__name__)

#: Longest packet, bytes.
MAX_PACKET = 256 * 1024
#: Rows (a request in a step) taken in per turn of the event loop: less than a millisecond.
ROWS_A_TURN = 256
_ACCEPTS_A_TURN = 16
#: Until the next try to accept, s, where the process is out of file descriptors.
_PAUSE_S = 1.0
_MAX_CONNECTIONS = 256
#: What a socket's address has room for, bytes.
MAX_PATH = 107


class FeedError(Exception):
    """The socket cannot be had; the message names the setting and the remedy."""


class EngineFeed:
    """Listens on `path` between `start` and `stop`; `ledger` has what the engine cores told."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.ledger = Ledger()
        #: Called in the event loop for every engine request that was seen from start to finish.
        self.finished = self.ledger.finished
        #: Packets that were none of the format.
        self.malformed = 0
        self._listener: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: The socket's file, to tell it from another's of the same name.
        self._file: tuple[int, int] | None = None
        self._connections: set[_Connection] = set()
        #: What a packet is read into; nothing of it is kept.
        self.buffer = memoryview(bytearray(MAX_PACKET + 1))

    def start(self) -> None:
        """Listen. Must run in the event loop. Raises FeedError."""
        self._listener = _listen(self._path)
        self._file = _file_of(self._path)
        self._watch(self._listener)

    def stop(self) -> None:
        """Let go of everything, the socket's file included."""
        if self._listener is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self._listener = None
        for connection in list(self._connections):
            connection.close()
        if _file_of(self._path) == self._file:
            with contextlib.suppress(OSError):
                self._path.unlink()

    @property
    def cores(self) -> list[Hello]:
        """What the connected engine cores say of themselves."""
        return [connection.core.hello for connection in self._connections if connection.core is not None]

    @property
    def connected(self) -> int:
        """Engine cores that are connected."""
        return sum(connection.core is not None for connection in self._connections)

    def _watch(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                made, _ = listener.accept()
            except (BlockingIOError, ConnectionError):
                return  # none waits, or it has gone again
            except OSError:
                # Who waits stays in the queue, and would keep the event loop turning.
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                self._timer = loop.call_later(_PAUSE_S, self._watch, listener)
                return
            if len(self._connections) >= _MAX_CONNECTIONS:
                made.close()
                continue
            made.setblocking(False)
            self._connections.add(_Connection(self, made))

    def ended(self, connection: "_Connection") -> None:
        self._connections.discard(connection)


class _Connection:
    """One engine core's connection. It reads the next packet when the one before is taken in."""

    def __init__(self, feed: EngineFeed, made: socket.socket) -> None:
        self._feed = feed
        self._socket = made
        self._loop = asyncio.get_running_loop()
        self.core: Core | None = None
        #: Steps that have come and were not yet taken in.
        self._steps: deque[Step] = deque()
        self._paused = False
        self._closed = False
        self._loop.add_reader(made, self._readable)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._feed.ended(self)
        if self.core is not None:
            self.core.lost(time.monotonic())
            _log.info("engine core %d: its events have ended", self.core.hello.engine)

    def _readable(self) -> None:
        buffer = self._feed.buffer
        try:
            size = self._socket.recv_into(buffer)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self.close()
            return
        try:
            if size > MAX_PACKET:
                raise MalformedPacket(f"it is longer than {MAX_PACKET} bytes")
            self._take(decode(buffer[:size]))
        except MalformedPacket as error:
            self._feed.malformed += 1
            _log.error("engine events: a connection is closed, for a malformed packet: %s", error)
            self.close()

    def _take(self, packet: Greeting | Steps) -> None:
        """Raises MalformedPacket for a packet out of place."""
        if isinstance(packet, Greeting):
            if self.core is not None:
                raise MalformedPacket("a second hello")
            hello = packet.hello
            if hello.version != VERSION:
                raise MalformedPacket(f"version {hello.version} of the format is spoken, not {VERSION}")
            self.core = Core(hello, self._feed.ledger)
            _log.info("engine core %d sends its events (vllm %s, %s)", hello.engine, hello.vllm, hello.method)
            return
        if self.core is None:
            raise MalformedPacket("steps before a hello")
        self.core.begin(packet, time.monotonic())
        self._steps.extend(packet.steps)
        self._go_on()

    def _go_on(self) -> None:
        """Take in what has come, a turn's worth, and then read on."""
        if self._closed or self.core is None:
            return
        rows, now = 0, time.monotonic()
        while self._steps and rows < ROWS_A_TURN:
            step = self._steps.popleft()
            rows += 1 + len(step.ids)
            self.core.step(step, now)
        if self._steps:
            self._loop.call_soon(self._go_on)
        if self._paused != bool(self._steps):
            self._paused = not self._paused
            if self._paused:
                self._loop.remove_reader(self._socket)
            else:
                self._loop.add_reader(self._socket, self._readable)


def _listen(path: Path) -> socket.socket:
    """A socket that listens on `path`, for this user alone. Raises FeedError."""
    name = os.fsencode(path)
    if len(name) > MAX_PATH:
        raise FeedError(
            f"engine_events: {path}: is {len(name)} bytes long, and sockets take {MAX_PATH}; choose a shorter path"
        )
    listener = None
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.setblocking(False)
        if _is_stale(path):
            path.unlink()
        listener.bind(name)
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)  # before anybody can connect
        listener.listen(128)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise FeedError(
            f"engine_events: {path}: {error.strerror or error}; name a file in a folder that this user may write to, "
            "used by no other sidecar"
        ) from None
    return listener


def _is_stale(path: Path) -> bool:
    """A socket on which nobody listens any more."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fsencode(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _file_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
