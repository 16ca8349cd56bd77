"""`specwatch sidecar` at level DEBUG, whose parts fail where a request says so, each time in the words of the request.

A body that holds the word `fail-PART` makes PART fail; see FAILURES.
"""

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from typing import Any

from sidecar import recorder, tasks
from sidecar.cli import app
from sidecar.probes.child import Child
from sidecar.probes.embedder import Embedder
from sidecar.record import Record
from sidecar.store import writer
from sidecar.store.rows import COLUMNS
from sidecar.tap import tap

FAILURES = (
    *("request", "reader", "sink", "row", "refused"),
    *("callback", "task", "side-task", "thread", "unraisable", "other"),
)
_word = re.compile(rb"fail-([a-z-]+)")
_tasks: list[tasks.Tasks] = []
#: The words of the last request that is to fail when it is recorded, by what is to fail; its scenario says the same.
_remembered: dict[str, str] = {}


class Quoting(Exception):
    pass


def fail(words: str) -> None:
    try:
        raise KeyError(words)
    except KeyError as error:
        error.add_note(words)
        raise Quoting(f"{words}\n{words}") from error


async def fail_later(words: str) -> None:
    await asyncio.sleep(0)
    fail(words)


class _Garbage:
    def __init__(self, words: str) -> None:
        self.words = words

    def __del__(self) -> None:
        fail(self.words)


def _wanted(data: bytes) -> set[str]:
    return {name.decode() for name in _word.findall(data)}


def _request(body: bytes, read: Callable[[bytes], Any] = tap.read_request) -> Any:
    words, wanted = body.decode("utf-8", "replace"), _wanted(body)
    loop = asyncio.get_running_loop()
    if "callback" in wanted:
        loop.call_soon(fail, words)
    if "task" in wanted:
        # Nobody waits for it.
        loop.create_task(fail_later(words))  # noqa: RUF006
    if "side-task" in wanted:
        _tasks[0].spawn(fail_later(words), "side task")
    if "thread" in wanted:
        threading.Thread(target=fail, args=(words,)).start()
    if "unraisable" in wanted:
        _Garbage(words)
    if "other" in wanted:
        try:
            fail(words)
        except Quoting:
            # As others than the sidecar do it.
            logging.getLogger("uvicorn.error").exception("what another library says")
    if "request" in wanted:
        fail(words)
    for part in wanted & {"row", "refused", "sink"}:
        _remembered[part] = words
    return read(body)


def _reader(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def reading(data: bytes) -> Any:
        if "reader" in _wanted(data):
            fail(data.decode("utf-8", "replace"))
        return read(data)

    return reading


def _tasks_made(self: tasks.Tasks, made: Callable[[tasks.Tasks], None] = tasks.Tasks.__init__) -> None:
    made(self)
    _tasks.append(self)


def _put(self: writer.Writer, record: Record, put: Callable[..., None] = writer.Writer.put) -> None:
    if record.scenario == "fails-sink":
        fail(_remembered["sink"])
    put(self, record)


def _row(record: Record, convert: Callable[[Record], Any] = writer.request_row) -> Any:
    if record.scenario == "fails-row":
        fail(_remembered["row"])
    row = convert(record)
    # No database takes this number.
    if record.scenario == "fails-refused":
        at = COLUMNS.index("bytes_out")
        return (*row[:at], 2**80, *row[at + 1 :])
    return row


class _Embedder(Embedder):
    def __init__(self, *_: object) -> None:
        self.model = "quoting"
        self._child = Child("support.quoting_embedder", patience_s=20)


def _at_debug(configure: Callable[..., None] = logging.basicConfig, **options: Any) -> None:
    configure(**options | {"level": logging.DEBUG})
    logging.getLogger("support").debug("what is told at this level is seen")


if __name__ == "__main__":
    tap.read_request = _request
    tap._READERS.update({name: _reader(read) for name, read in tap._READERS.items()})
    tasks.Tasks.__init__ = _tasks_made  # type: ignore[method-assign]
    writer.Writer.put = _put  # type: ignore[method-assign]
    writer.request_row = _row
    recorder.Embedder = _Embedder  # type: ignore[misc]
    logging.basicConfig = _at_debug
    app()
