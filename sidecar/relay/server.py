"""The listening side of the relay."""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from ..record import Outcome
from .client import ClientConnection
from .exchange import Exchange
from .http1 import HOP_BY_HOP
from .upstream import Choose
from .watch import Watcher

#: How often connections are looked at for clients that are gone or silent, s.
_LOOK_EVERY_S = 1.0


class Relay:
    """Accepts clients and passes their requests to the upstreams that `choose` names.

    `spawn` runs a coroutine as an owned task. `idle_timeout_s` bounds the silence of an upstream, from the
    request's sending on; None: no bound. `client_timeout_s` bounds how long a client does nothing before or inside
    a request, or takes nothing of its reply. `abort_grace_s`: how long a reply is read on after its client left;
    None: not at all. `hidden` names request fields, lower-case, that are for the sidecar alone.
    """

    def __init__(
        self,
        choose: Choose,
        watcher: Watcher,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        *,
        idle_timeout_s: float | None = None,
        client_timeout_s: float = 75.0,
        abort_grace_s: float | None = None,
        hidden: frozenset[bytes] = frozenset(),
    ) -> None:
        self.choose = choose
        self.watcher = watcher
        self.spawn = spawn
        self.idle_timeout_s = idle_timeout_s
        self.client_timeout_s = client_timeout_s
        self.abort_grace_s = abort_grace_s
        self.hidden = hidden
        self.not_forwarded = HOP_BY_HOP | hidden
        # uvloop's own clock stands still during a turn of the loop and counts whole milliseconds.
        self.time = time.monotonic
        self.connections: set[ClientConnection] = set()
        #: Exchanges whose client has left while their reply is read on.
        self.abandoned: set[Exchange] = set()
        self.draining = False
        #: Exchanges that ended, by outcome; every path counts here, watched or not.
        self.outcomes: Counter[Outcome] = Counter()
        #: Requests refused because they were no HTTP that may be forwarded.
        self.refused = 0
        self._server: asyncio.Server | None = None
        self._looking: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """Exchanges and upgraded connections under way."""
        return sum(connection.busy for connection in self.connections)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen; returns the port (useful when 0 was asked for). Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ClientConnection(self), host, port, backlog=4096, ssl=tls)
        self._look()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _look(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)
        now = self.time()
        for connection in list(self.connections):
            connection.look(now)

    async def drain(self, limit_s: float) -> int:
        """Stop accepting, let replies in flight reach their clients for up to `limit_s`.

        Returns how many exchanges were cut.
        """
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            if not connection.busy:
                connection.transport.close()
        deadline = self.time() + limit_s
        while self.connections and self.time() < deadline:
            await asyncio.sleep(0.05)
        left = self.in_flight
        for connection in list(self.connections):
            if connection.exchange is not None:
                connection.exchange.shut()
        await asyncio.sleep(0)  # the last words go out
        for connection in list(self.connections):
            connection.transport.abort()
        while self.connections:
            await asyncio.sleep(0.001)  # over TLS an end takes several turns
        for exchange in list(self.abandoned):
            exchange.abandon()
        if self._looking is not None:
            self._looking.cancel()
        return left
