"""An engine core that tells exactly the events a test wants, over a real socket."""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sidecar.engine_request import Hello

HELLO: dict[str, Any] = {
    "version": 1,
    "engine": 0,
    "pid": 123,
    "vllm": "0.32.0",
    "method": "draft_model",
    "num_speculative_tokens": 4,
    "target_model": "/models/target",
    "target_tokenizer": "/models/target",
    "draft_model": "/models/draft",
    "draft_tokenizer": "/models/draft",
}
GREETING = Hello(**HELLO)

#: Drafted and emitted token ids of one request in one step.
Row = tuple[Sequence[int], Sequence[int]]

encode = msgspec.msgpack.encode


def step(
    rows: Mapping[str, Row] = {},  # not changed
    *,
    started: Sequence[tuple[str, int]] = (),
    finished: Sequence[tuple[str, int, str]] = (),
    invalid: Mapping[str, int] | None = None,
) -> list[object]:
    """One step as the wire has it."""
    return [
        [list(each) for each in started],
        list(rows),
        [list(emitted) for _, emitted in rows.values()],
        {engine_id: list(drafted) for engine_id, (drafted, _) in rows.items() if drafted},
        invalid,
        [list(each) for each in finished],
    ]


def whole(engine_id: str, rows: Sequence[Row], *, prompt: int = 5, output: int | None = None, reason: str = "stop"):  # type: ignore[no-untyped-def]
    """The steps of a request alone in its engine, from its start to its finish."""
    emitted = sum(len(emitted) for _, emitted in rows)
    steps = [step({engine_id: row}) for row in rows]
    steps[0][0] = [[engine_id, prompt]]
    steps[-1][5] = [[engine_id, emitted if output is None else output, reason]]
    return steps


#: Rows whose figures are those of `upstream.BLOCK`: 3 verify steps, 2 + 4 + 0 of 4 drafted tokens accepted.
ROWS: list[Row] = [
    ((), (9,)),
    ((1, 2, 3, 4), (1, 2, 5)),
    ((1, 2, 3, 4), (1, 2, 3, 4, 5)),
    ((1, 2, 3, 4), (7,)),
]


class ScriptedEngine:
    """Connects to the feed on `path`, says hello, and numbers its steps."""

    def __init__(self, path: Path, **hello: Any) -> None:
        self.hello = HELLO | hello
        self.first = 1
        self.dropped = 0
        self.path = path
        self.connect()

    def connect(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(self.path))
        self.send_raw(encode(["hello", self.hello]))

    def send(self, *steps: object) -> None:
        """In one packet."""
        self.send_raw(encode(["steps", self.first, self.dropped, steps]))
        self.first += len(steps)

    def drop(self, count: int) -> None:
        """Steps that the engine could not send."""
        self.first += count
        self.dropped += count

    def send_raw(self, packet: bytes) -> None:
        self.socket.send(packet)

    def close(self) -> None:
        self.socket.close()

    @property
    def closed_by_peer(self) -> bool:
        try:
            return self.socket.recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False


async def until(holds: Callable[[], object], seconds: float = 10) -> None:
    """Wait for it."""
    for _ in range(int(seconds * 200)):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to hold")
