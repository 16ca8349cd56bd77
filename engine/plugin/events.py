"""What an engine core did, step by step, to whoever listens on a unix socket.

One packet (SOCK_SEQPACKET, so whole or not at all) is one msgpack array:

    ["hello", {"version": 1, "engine": int, ...}]       first on every connection
    ["steps", first, dropped, [step, ...]]              steps first, first + 1, ... of this core's life
    step: [started, ids, emitted, drafted, invalid, finished]

`started` is [[request id, prompt tokens], ...]; `ids` and `emitted` are parallel lists of request ids and token
ids; `drafted` maps request ids to draft token ids, `invalid` to the number of them that a grammar made void (or
is nil); `finished` is [[request id, reply tokens, reason], ...].

The engine never waits: nobody there, a full socket or a packet too large means dropped, and `dropped` counts steps.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

VERSION = 1

#: Steps that are sent together, and how long the first of them may wait for the next step, s. A packet of 16 steps
#: costs the engine a twelfth of what 16 packets cost; 50 ms is below what a person sees.
BATCH_STEPS = 16
BATCH_S = 0.05
#: Bytes after which a packet is sent. Linux allows a packet, by default, 208 KiB less its own overhead.
BATCH_BYTES = 65_536
#: Longest packet sent: what the sidecar reads at a time, less something.
MAX_PACKET = 250_000
#: Between two tries to connect, s.
RETRY_S = 2.0

_encode = msgspec.msgpack.Encoder().encode


def encode_rows(ids: Sequence[str], emitted: Sequence[Sequence[int]], drafted: Mapping[str, Sequence[int]]) -> bytes:
    """The middle of a step, as it is now: the engine changes these lists afterwards."""
    return _encode(ids) + _encode(emitted) + _encode(drafted)


NO_ROWS = encode_rows((), (), {})
_NIL = _encode(None)


class Events:
    """The sending end. `add` once a step; nothing here waits or raises."""

    def __init__(self, path: str, hello: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        """`path` of the socket, empty: nobody ever listens. `clock` gives seconds."""
        self._path = path
        self.introduce(hello)
        self._clock = clock
        self._socket: socket.socket | None = None
        self._retry_at = 0.0
        self._batch: list[bytes] = []
        self._size = 0
        self._since = 0.0
        #: Steps so far, those that reached the socket, and those that did not.
        self.steps = 0
        self.sent = 0
        self.dropped = 0

    def introduce(self, hello: Mapping[str, Any]) -> None:
        """What whoever listens is told first, from the next connection on."""
        self._hello = _encode(["hello", {"version": VERSION, **hello}])

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def wanted(self) -> bool:
        """Whether somebody listens: else a step need not even be encoded, only counted by `skip`."""
        return self._socket is not None or (bool(self._path) and self._connect())

    def skip(self) -> None:
        """A step that was not recorded."""
        self.flush()
        self.steps += 1
        self.dropped += 1

    def add(
        self,
        started: Sequence[Sequence[Any]],
        rows: bytes,
        invalid: Mapping[str, int] | None,
        finished: Sequence[Sequence[Any]],
    ) -> None:
        """Record a step, `rows` from `encode_rows`; sent at once where requests finished, else in a batch."""
        now = self._clock()
        if not self._batch:
            self._since = now
        self.steps += 1
        step = b"\x96" + _encode(started) + rows + (_encode(invalid) if invalid else _NIL) + _encode(finished)
        self._batch.append(step)
        self._size += len(step)
        if finished or len(self._batch) >= BATCH_STEPS or self._size >= BATCH_BYTES or now - self._since >= BATCH_S:
            self.flush()

    def flush(self) -> None:
        batch = self._batch
        if not batch:
            return
        self._batch, self._size = [], 0
        first = self.steps - len(batch) + 1
        packet = b"".join(
            (b"\x94", _encode("steps"), _encode(first), _encode(self.dropped), _array_head(len(batch)), *batch)
        )
        if len(packet) <= MAX_PACKET and self._send(packet):
            self.sent += len(batch)
        else:
            self.dropped += len(batch)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, packet: bytes) -> bool:
        # Twice: a listener that has started anew gets what the one before did not.
        for _ in range(2):
            if self._socket is None and not self._connect():
                return False
            assert self._socket is not None
            try:
                self._socket.send(packet)
            except BlockingIOError:
                return False
            except OSError as error:
                # A packet too large (EMSGSIZE) is no fault of the connection.
                if not isinstance(error, ConnectionError) and self._alive():
                    return False
                self.close()
            else:
                return True
        return False

    def _alive(self) -> bool:
        assert self._socket is not None
        try:
            self._socket.getpeername()
        except OSError:
            return False
        return True

    def _connect(self) -> bool:
        now = self._clock()
        if now < self._retry_at:
            return False
        self._retry_at = now + RETRY_S
        with contextlib.ExitStack() as undo, contextlib.suppress(OSError):
            fresh = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            # Before connecting, which would wait where the listener's queue is full.
            fresh.setblocking(False)
            # Room for some more packets; the system grants what it allows.
            fresh.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
            fresh.connect(self._path)
            fresh.send(self._hello)
            undo.pop_all()
            self._socket = fresh
        return self._socket is not None


def _array_head(length: int) -> bytes:
    """Head of a msgpack array of up to 65,535 items."""
    return b"\xdc" + length.to_bytes(2, "big")
