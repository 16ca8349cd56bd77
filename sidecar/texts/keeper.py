"""Keeps the bytes of exchanges until their texts are read and redacted, and hands these on. Nothing waits for it."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from ..probes.child import ChildError
from ..record import Record
from ..store.rows import TextRow
from .process import Exchanged, Redaction, Text

_log = logging.getLogger(__name__)

#: Bytes kept of one reply; a stream is some fifty times as long as its text.
MOST_REPLY = 4 * 1024 * 1024
#: And of all exchanges, those under way included.
MOST_BYTES = 64 * 1024 * 1024
#: Exchanges read at a time, and their bytes but for the last one's: to hand them on takes Python's lock.
_BATCH, _BATCH_BYTES = 8, 1024 * 1024
#: Until the next try, s, after the process died; doubled where that is in vain.
_PAUSE_S, _MOST_PAUSE_S = 1.0, 60.0
#: How long the end of the process is put off for what waits, s.
_SETTLE_S = 3.0

Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class _Waiting(NamedTuple):
    record: Record
    request: bytes | None
    reply: list[bytes]
    size: int
    streamed: bool
    whole: bool

    def exchanged(self) -> Exchanged:
        return Exchanged(self.request, b"".join(self.reply), self.streamed, self.whole)


class Transcripts:
    """Makes the transcript of each request. One per process; for use in the event loop."""

    def __init__(
        self,
        patterns: list[str],
        *,
        instance: str,
        spawn: Spawn,
        told: Callable[[TextRow], None],
        lost: Callable[[], None],
    ) -> None:
        """`patterns`: what is redacted beyond what is known; `told` hears of each text, `lost` of each exchange whose
        texts are not stored, as there was no room, or as they could not be read.
        """
        self._redaction = Redaction(patterns)
        self._instance = instance
        self._spawn = spawn
        self._told = told
        self.lost = lost
        self._waiting: deque[_Waiting] = deque()
        self._working = False
        self._pause_s = 0.0
        self._closed = False
        #: Bytes kept now.
        self.held = 0

    def __call__(self) -> "_Transcript":
        return _Transcript(self)

    def put(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        if not self._working:
            self._working = True
            self._spawn(self._work(), "texts")

    async def close(self) -> None:
        """Read what waits, for some seconds, and end the process."""
        time = asyncio.get_running_loop().time
        end = time() + _SETTLE_S
        while self._working and not self._pause_s and time() < end:
            await asyncio.sleep(0.01)
        self._closed = True
        self._redaction.close()
        while self._waiting:
            self.held -= self._waiting.popleft().size
            self.lost()
        # What is being read cannot be any more, which is still to be counted.
        while self.held and time() < end + 1:
            await asyncio.sleep(0.01)

    async def _work(self) -> None:
        """Until nothing waits."""
        try:
            while self._waiting:
                batch = self._next()
                try:
                    # The process may have died before, and one that cannot be read must not take others with it.
                    if not await self._read(batch):
                        for each in batch:
                            if not await self._read([each]):
                                self.lost()
                finally:
                    self.held -= sum(each.size for each in batch)
                if self._pause_s:
                    await asyncio.sleep(self._pause_s)
                    self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
        finally:
            self._working = False

    def _next(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < _BATCH and sum(each.size for each in batch) < _BATCH_BYTES:
            batch.append(self._waiting.popleft())
        return batch

    async def _read(self, batch: list[_Waiting]) -> bool:
        """False where the process died of it."""
        try:
            found = await asyncio.to_thread(lambda: self._redaction.read([each.exchanged() for each in batch]))
        except ChildError as error:
            self._pause_s = max(_PAUSE_S, self._pause_s)
            if not self._closed:
                _log.warning("the process that redacts texts %s; it is started again", error)
            return False
        self._pause_s = 0.0
        for waiting, reading in zip(batch, found, strict=True):
            if reading is None:
                self.lost()
                continue
            for kind, text in (("prompt", reading.prompt), ("reply", reading.reply)):
                if text is not None:
                    self._told(self._row(waiting.record, kind, text))
        return True

    def _row(self, record: Record, kind: str, text: Text) -> TextRow:
        return TextRow(record.started_at, self._instance, record.request_id, kind, record.scenario, text.text, text.cut)


class _Transcript:
    """What one exchange has said so far. See `tap.Transcript`."""

    __slots__ = ("_all", "_reply", "_request", "_size", "_whole")

    def __init__(self, all_: Transcripts) -> None:
        self._all = all_
        self._request: bytes | None = None
        self._reply: list[bytes] = []
        self._size = 0
        self._whole = True

    def _room(self, size: int) -> bool:
        if self._all.held + size > MOST_BYTES:
            return False
        self._all.held += size
        self._size += size
        return True

    def request(self, body: bytes) -> None:
        if self._room(len(body)):
            self._request = body
        else:
            self._whole = False

    def reply(self, payload: bytes) -> None:
        if self._whole:
            self._whole = self._size + len(payload) <= MOST_REPLY and self._room(len(payload))
            if self._whole:
                self._reply.append(payload)

    def end(self, record: Record, *, streamed: bool, whole: bool) -> None:
        if self._request is None and not self._reply:
            if not self._whole:
                self._all.lost()
            return
        self._all.put(_Waiting(record, self._request, self._reply, self._size, streamed, whole and self._whole))
