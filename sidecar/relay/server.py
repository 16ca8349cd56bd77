"""The listening side of the relay."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from ..record import Outcome
from .client import ClientConnection
from .http1 import HOP_BY_HOP
from .upstream import Choose
from .watch import Watcher


class Relay:
    """Accepts clients and passes their requests to the upstreams that `choose` names.

    `spawn` runs a coroutine as an owned task. `idle_timeout_s` bounds the silence of an upstream, from the
    request's sending on; None: no bound. `hidden` names request fields, lower-case, that are for the sidecar
    alone.
    """

    def __init__(
        self,
        choose: Choose,
        watcher: Watcher,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        *,
        idle_timeout_s: float | None = None,
        hidden: frozenset[bytes] = frozenset(),
    ) -> None:
        self.choose = choose
        self.watcher = watcher
        self.spawn = spawn
        self.idle_timeout_s = idle_timeout_s
        self.not_forwarded = HOP_BY_HOP | hidden
        # uvloop's own clock stands still during a turn of the loop and counts whole milliseconds.
        self.time = time.monotonic
        self.connections: set[ClientConnection] = set()
        self.draining = False
        #: Exchanges that ended, by outcome; every path counts here, watched or not.
        self.outcomes: Counter[Outcome] = Counter()
        #: Requests refused because they were no HTTP that may be forwarded.
        self.refused = 0
        self._server: asyncio.Server | None = None

    def count(self, outcome: Outcome) -> None:
        self.outcomes[outcome] += 1

    @property
    def in_flight(self) -> int:
        """Exchanges and upgraded connections under way."""
        return sum(connection.busy for connection in self.connections)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (useful when 0 was asked for). Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ClientConnection(self), host, port, backlog=4096)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

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
            connection.transport.abort()
        await asyncio.sleep(0)
        return left
