"""One client connection: requests one after the other, in the order they came."""

import asyncio
import re
import select
import socket
import struct
from typing import TYPE_CHECKING, cast

from .errors import error_reply
from .exchange import Exchange
from .http1 import MAX_HEAD, Heads, ProtocolError, RequestHead
from .upstream import UPSTREAM, keep_alive

if TYPE_CHECKING:
    from .server import Relay

#: How long a client that is still sending is listened to after its last reply, s. Closing on unread bytes
#: resets the connection, and the reply may be lost with it.
LINGER_S = 2.0

#: Bytes of later, pipelined requests held before the client's socket is left unread.
MAX_PIPELINED = 65_536


#: struct linger {on, 0 s}: closing resets the connection.
_NO_LINGER = struct.pack("ii", 1, 0)
_BARE_LF = re.compile(rb"(?<!\r)\n")

#: Why a client is left unread, beside UPSTREAM.
PIPELINED = "its later requests wait"


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_buffer",
        "_heads",
        "_later",
        "_leaving",
        "_pauses",
        "_since",
        "_unsent",
        "_writable",
        "exchange",
        "relay",
        "transport",
        "tunnel",
    )

    transport: asyncio.Transport

    def __init__(self, relay: "Relay") -> None:
        self.relay = relay
        self.exchange: Exchange | None = None
        #: Set once the connection was upgraded: then bytes are passed on as they are.
        self.tunnel: asyncio.Transport | None = None
        self._buffer = b""
        self._heads = Heads(RequestHead)
        self._later = b""
        self._pauses: set[str] = set()
        self._writable = True
        #: The last reply is written; what still comes is not read.
        self._leaving = False
        #: Since when the client has been expected to send something, or to take what is written for it.
        self._since = relay.time()
        #: Bytes it had not taken when it was last looked at.
        self._unsent = 0

    @property
    def busy(self) -> bool:
        return self.exchange is not None or self.tunnel is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        keep_alive(self.transport)
        self.relay.connections.add(self)
        if self.relay.draining:  # its handshake had begun before
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.relay.connections.discard(self)
        if self.tunnel is not None:
            self.tunnel.close()
            asyncio.get_running_loop().call_later(LINGER_S, self.tunnel.abort)  # if it takes nothing more
        self._lost()

    def eof_received(self) -> None:
        # A half-closed client cannot be told from one that left; as nginx does, it counts as gone. Its connection
        # may live on until it has taken what was written for it.
        self._lost()

    def _lost(self) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.client_lost()

    @property
    def waits_for_upstream(self) -> bool:
        """It is left unread because the upstream takes nothing."""
        return UPSTREAM in self._pauses

    def pause_reading(self, why: str) -> None:
        """Leave the client unread until every reason given is taken back."""
        if not self._pauses and not self.transport.is_closing():
            self.transport.pause_reading()
        self._pauses.add(why)

    def resume_reading(self, why: str) -> None:
        if why in self._pauses:
            self._pauses.discard(why)
            self._since = self.relay.time()
            if not self._pauses and not self.transport.is_closing():
                self.transport.resume_reading()

    def pause_writing(self) -> None:
        self._writable = False
        if self.tunnel is not None:
            self.tunnel.pause_reading()
        if self.exchange is not None:
            self.exchange.pause_upstream()

    def resume_writing(self) -> None:
        self._writable = True
        if self.tunnel is not None:
            self.tunnel.resume_reading()
        if self.exchange is not None:
            self.exchange.resume_upstream()
        elif self._later:
            self.resume_reading(PIPELINED)
            self._resume()

    def data_received(self, data: bytes) -> None:
        if self._leaving:
            return
        if self.tunnel is not None:
            self.tunnel.write(data)
            return
        if self.exchange is None and (self._later or not self._writable):
            data = self._later + data
            self._later = b""
            if not self._writable:  # a client that does not read its replies gets no more of them
                self._hold(data)
                return
        try:
            self._consume(data)
        except ProtocolError as error:
            self._refuse(error.status, str(error))

    def _consume(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not self._leaving and not self.transport.is_closing():
            exchange = self.exchange
            if exchange is None:
                at = self._head(data, at)
            elif not exchange.request_done:
                self._since = self.relay.time()
                at = exchange.from_client(data, at)
            else:
                self._hold(data[at:] if at else data)
                return
            if at < 0:
                return

    def _hold(self, data: bytes) -> None:
        self._later += data
        if len(self._later) > MAX_PIPELINED:
            self.pause_reading(PIPELINED)

    def _head(self, data: bytes, at: int) -> int:
        """Reads a request head and starts its exchange. Returns how far `data` was used, -1: all of it."""
        now = self.relay.time()
        known, shift = len(self._buffer), 0
        if known:
            data, at, shift = self._buffer + data[at:], 0, at - known
        else:
            self._since = now
        start = at
        # A client may send an empty line after a body (RFC 9112, 2.2).
        while data.startswith(b"\r\n", start):
            start += 2
        end = data.find(b"\r\n\r\n", max(start, at + known - 3))
        if (end if end >= 0 else len(data)) - start > MAX_HEAD:
            raise ProtocolError(f"request head longer than {MAX_HEAD} bytes", 431)
        if end < 0:
            if _BARE_LF.search(data, max(at + known - 1, start)):
                raise ProtocolError("bare LF in a request head")
            self._buffer = data[start:]
            return -1
        self._buffer = b""
        head = self._heads.read(data[start : end + 4])
        if head.method == b"CONNECT":
            raise ProtocolError("CONNECT is not served: this is no forward proxy", 501)
        if head.expect_continue and head.length and head.version == b"HTTP/1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        exchange = self.exchange = Exchange(self, head, now)
        used = exchange.begin(data, start, end + 4)
        return used + shift if used >= 0 else -1

    def _refuse(self, status: int, message: str) -> None:
        exchange = self.exchange
        if exchange is not None:
            exchange.client_broke(status, message)
        else:
            self.relay.refused += 1
            self.transport.write(error_reply(status, message, "bad_request"))
            self._leave()

    def next(self, *, keep_alive: bool) -> None:
        """The exchange is over: go on with the next request, or close."""
        exchange, self.exchange = self.exchange, None
        if self.transport.is_closing():
            return
        self._since = self.relay.time()
        if not keep_alive or self.relay.draining:
            if exchange is None or exchange.request_done:
                self.transport.close()
            else:
                self._leave()
            return
        if self._pauses:
            self.resume_reading(UPSTREAM)
            self.resume_reading(PIPELINED)
        if self._later:
            # Not at once: a client that pipelines thousands must not grow the stack.
            asyncio.get_running_loop().call_soon(self._resume)

    def look(self, now: float) -> None:
        """Called every second: ends a connection whose client has left unseen, or does nothing for too long."""
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            if unsent != self._unsent:
                self._since = now
            elif now - self._since > self.relay.client_timeout_s:
                self.transport.abort()
        self._unsent = unsent
        if unsent or self.transport.is_closing():
            return
        if self._pauses:
            # Unread, so its end does not show by itself.
            if _has_left(self.transport):
                self.transport.abort()
        elif self.tunnel is None and now - self._since > self.relay.client_timeout_s:
            exchange = self.exchange
            if exchange is not None and not exchange.request_done:
                exchange.client_broke(408, f"the rest of the request did not come within {self._limit} s")
            elif exchange is None and self._buffer:
                self._refuse(408, f"the rest of the request head did not come within {self._limit} s")
            elif exchange is None and not self._leaving and not self._later:
                self.transport.close()

    @property
    def _limit(self) -> str:
        return f"{self.relay.client_timeout_s:g}"

    def upgraded(self, tunnel: asyncio.Transport) -> None:
        """From now on bytes are passed on as they are, those already here first."""
        self.exchange = None
        self.tunnel = tunnel
        if self._later:
            tunnel.write(self._later)
            self._later = b""
        self._pauses.discard(PIPELINED)
        if not self._pauses:
            self.transport.resume_reading()
        if not self._writable:
            tunnel.pause_reading()

    def cut(self) -> None:
        """The reply was not complete, and only a reset can say so."""
        if self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        if self.transport.get_extra_info("ssl_object") is not None:
            self.transport.abort()  # an orderly end of TLS would say that the reply was complete

    def _leave(self) -> None:
        if self.transport.is_closing():
            return
        self._leaving = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._pauses:
            self._pauses.clear()
            self.transport.resume_reading()
        asyncio.get_running_loop().call_later(LINGER_S, self.transport.close)

    def _resume(self) -> None:
        if not self.transport.is_closing():
            self.data_received(b"")


def _has_left(transport: asyncio.Transport) -> bool:
    connection = transport.get_extra_info("socket")
    if connection is None:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), getattr(select, "POLLRDHUP", select.POLLHUP))
    return bool(poll.poll(0))
