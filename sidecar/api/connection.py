"""Connections to the admin port: how many, and how long one may take over a request.

uvicorn bounds neither, but for how many there are in all; sockets are shared with the proxy, whose clients must always
get one. Whoever holds connections must not keep others out, an orchestrator's probes above all: it would end the
process. So a new one takes the place of the one that has been asking for nothing the longest.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from .limit import network

#: In all, from which on uvicorn answers 503, and from one address, from which on a new one is closed at once: where
#: none can go in its place.
MOST = 200
MOST_OF_ONE = 50
#: Bytes of a request line and its fields.
MAX_HEAD = 16_384
#: Seconds from a connection's start, or its last answer, to the end of the next request's fields.
HEAD_S = 10.0
#: Seconds in which nothing of an answer is taken, after which it is given up.
TAKE_S = 20.0
#: Seconds that it may idle between two requests.
IDLE_S = 5

#: What uvicorn would warn of anybody can bring about, as often as they like.
_quiet = logging.getLogger(f"{__name__}.quiet")
_quiet.setLevel(logging.ERROR)


class Connection(H11Protocol):
    _late: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _from = ""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger = _quiet
        # Lines of it hold queries, where somebody may have put a token. uvicorn looks at its loggers alone.
        self.access_log = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._from = network(self.client[0]) if self.client else ""
        others = [each for each in self.connections if isinstance(each, Connection) and each is not self]
        same = [each for each in others if each._from == self._from]
        if len(same) >= MOST_OF_ONE:
            if not _make_room(same):
                self._give_up()
        elif len(others) >= MOST - 1:
            _make_room(others)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._late, self._stalled):
            if timer is not None:
                timer.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_taking()

    @property
    def waits(self) -> bool:
        """Nothing is being answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def waits_until(self) -> float:
        return 0.0 if self._late is None else self._late.when()

    def _wait(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(HEAD_S, self._is_late)

    def _is_late(self) -> None:
        # While a request is answered, whatever that takes, the next one is not waited for.
        if self.waits:
            self.transport.close()
            self._expect_taking()  # which is when it closes

    def _expect_taking(self) -> None:
        """Give it up unless some of what was sent is taken, again and again until all is."""
        if self._stalled is not None:
            self._stalled.cancel()
        if left := self.transport.get_write_buffer_size():
            self._stalled = self.loop.call_later(TAKE_S, self._look, left)

    def _look(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._expect_taking()
        else:
            self._give_up()

    def _give_up(self) -> None:
        self.transport.abort()
        self.connections.discard(self)


def _make_room(among: Iterable[Connection]) -> bool:
    """Give up the one that has waited the longest; False where none waits."""
    oldest = min((each for each in among if each.waits), key=lambda each: each.waits_until, default=None)
    if oldest is not None:
        oldest._give_up()
    return oldest is not None


#: For uvicorn.Config. Forwarded addresses are anybody's word; nothing here speaks websocket.
OPTIONS: dict[str, Any] = {
    "http": Connection,
    "ws": "none",
    "proxy_headers": False,
    "limit_concurrency": MOST,
    "h11_max_incomplete_event_size": MAX_HEAD,
    "timeout_keep_alive": IDLE_S,
}
