"""Connections to the servers behind the relay."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from ..record import Arm
from .http1 import Heads, ResponseHead
from .watch import Watch

if TYPE_CHECKING:
    from .exchange import Exchange

_log = logging.getLogger(__name__)

#: uvicorn, and so vLLM, closes a connection idle for 5 s; one that old may be closing while it is used.
MAX_IDLE_S = 4.0

#: Pause between attempts to reach an upstream again, s.
RETRY_S = 1.0

#: Pause between looks whether it can be reached, s.
LOOK_S = 5.0

#: Why a client is left unread.
UPSTREAM = "the upstream does not take more"


class ConnectError(Exception):
    """No connection to an upstream could be made; the message says to which, and why."""


class Upstream:
    """One server and the connections to it that wait for their next request.

    `url` is `http[s]://host[:port]`; raises ValueError for anything else.
    """

    def __init__(self, name: str, url: str, *, connect_timeout_s: float = 5.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f"{url!r} is no http://host:port URL")
        self.name = name
        self.url = url
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.in_flight = 0
        #: It could not be reached when that was last tried; then requests go elsewhere, where they can.
        self.down = False
        #: It could be reached once.
        self.reached = False
        #: It is being tried, in the background, until it can be reached again.
        self._sought = False
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[UpstreamConnection] = []

    def take(self, now: float) -> "UpstreamConnection | None":
        """A connection that is safe to use again, or None: then `connect`."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if now - connection.idle_since < MAX_IDLE_S and not connection.transport.is_closing():
                return connection
            connection.transport.close()
        return None

    async def connect(self) -> "UpstreamConnection":
        """A new connection. Raises ConnectError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self), self.host, self.port, ssl=self._tls
                )
        except (OSError, TimeoutError, UnicodeError) as error:
            reason = "did not accept a connection in time" if isinstance(error, TimeoutError) else str(error)
            if not self.down:
                _log.warning("upstream %s (%s) cannot be reached: %s", self.name, self.url, reason)
            self.down = True
            raise ConnectError(f"the upstream {self.name!r} cannot be reached: {reason}") from None
        self.reached = True
        if self.down:
            self.down = False
            _log.warning("upstream %s (%s) is reached again", self.name, self.url)
        return connection

    async def seek(self) -> None:
        """Try until it can be reached, so that no client has to wait for that; a second call returns at once."""
        if self._sought:
            return
        self._sought = True
        try:
            while self.down:
                await asyncio.sleep(RETRY_S)
                with suppress(ConnectError):
                    (await self.connect()).transport.close()
        finally:
            self._sought = False

    async def watch(self) -> None:
        """Know whether it can be reached while no request asks. Ends when cancelled."""
        while True:
            await self.seek()
            with suppress(ConnectError):
                (await self.connect()).transport.close()
            await asyncio.sleep(LOOK_S)

    def give_back(self, connection: "UpstreamConnection", now: float) -> None:
        connection.idle_since = now
        self._idle.append(connection)

    def forget(self, connection: "UpstreamConnection") -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def close_idle(self) -> None:
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()


def keep_alive(transport: asyncio.Transport) -> None:
    """Have the system notice a peer that vanished without a word."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class UpstreamConnection(asyncio.Protocol):
    __slots__ = ("_heads", "exchange", "idle_since", "transport", "upstream", "used")

    transport: asyncio.Transport

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.exchange: Exchange | None = None
        self.idle_since = 0.0
        #: Requests sent on it so far.
        self.used = 0
        self._heads = Heads(ResponseHead)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        keep_alive(self.transport)

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:  # bytes that no request asked for
            self.upstream.forget(self)
            self.transport.abort()
        else:
            exchange.from_upstream(self, data)

    def read_head(self, raw: bytes, method: bytes) -> ResponseHead:
        """Parse the head of the reply to a request with `method`. Raises ProtocolError."""
        return ResponseHead(raw, method) if method == b"HEAD" else self._heads.read(raw)

    def eof_received(self) -> None:
        # It has said all it will; bytes it does not read any more must not hold its end back.
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.upstream.forget(self)
        if self.exchange is not None:
            self.exchange.upstream_lost(exc)

    def pause_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.pause_client()

    def resume_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.resume_client()


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes, and why it is served that way."""

    upstream: Upstream
    arm: Arm
    #: The upstream speculates unless the request's body asks it not to.
    opt_out: bool = False


#: Candidates for one request, best first; a later one is used only if an earlier refuses the connection. It is given
#: the request's watcher, which has seen the body as far as it ever will.
Choose = Callable[[Watch | None], Sequence[Choice]]
