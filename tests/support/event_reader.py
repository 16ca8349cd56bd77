"""The reading end of the plugin's events, driven by hand, and a clock that stands still."""

import contextlib
import socket
from typing import Any

import msgspec
from specwatch_engine.plugin.events import Events, encode_rows

HELLO = {"engine": 0, "pid": 1, "vllm": "0.32.0", "method": "draft_model", "draft_model": None}
ROWS = encode_rows(["a-1"], [[5, 6]], {"a-1": [5, 9]})
STEP = [[], ["a-1"], [[5, 6]], {"a-1": [5, 9]}, None, []]


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


def step(events: Events, times: int = 1, rows: bytes = ROWS) -> None:
    for _ in range(times):
        events.add((), rows, None, ())
