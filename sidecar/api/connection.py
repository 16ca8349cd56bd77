"""Connections to the admin port: how many, and how long one may take over a request.

uvicorn bounds neither, but for how many there are in all; sockets are shared with the proxy, whose clients must always
get one.
"""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from .limit import network

#: In all, from which on uvicorn answers 503, and from one address, from which on they are closed at once.
MOST = 200
MOST_OF_ONE = 50
#: Bytes of a request line and its fields.
MAX_HEAD = 16_384
#: Seconds from a connection's start, or its last answer, to the end of the next request's fields.
HEAD_S = 10.0
#: Seconds that it may idle between two requests.
IDLE_S = 5

#: What uvicorn would warn of anybody can bring about, as often as they like.
_quiet = logging.getLogger(f"{__name__}.quiet")
_quiet.setLevel(logging.ERROR)


class Connection(H11Protocol):
    _late: asyncio.TimerHandle | None = None
    _from = ""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger = _quiet
        # Lines of it hold queries, where somebody may have put a token. uvicorn looks at its loggers alone.
        self.access_log = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._from = network(self.client[0]) if self.client else ""
        same = [each for each in self.connections if isinstance(each, Connection) and each._from == self._from]
        if len(same) > MOST_OF_ONE:
            transport.abort()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def _wait(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(HEAD_S, self._is_late)

    def _is_late(self) -> None:
        # While a request is answered, whatever that takes, the next one is not waited for.
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


#: For uvicorn.Config. Forwarded addresses are anybody's word; nothing here speaks websocket.
OPTIONS: dict[str, Any] = {
    "http": Connection,
    "ws": "none",
    "proxy_headers": False,
    "limit_concurrency": MOST,
    "h11_max_incomplete_event_size": MAX_HEAD,
    "timeout_keep_alive": IDLE_S,
}
