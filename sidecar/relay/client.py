"""One client connection: requests one after the other, in the order they came."""

import asyncio
from typing import TYPE_CHECKING, cast

from .errors import error_reply
from .exchange import Exchange
from .http1 import MAX_HEAD, ProtocolError, parse_request

if TYPE_CHECKING:
    from .server import Relay

#: Bytes of later, pipelined requests held before the client's socket is left unread.
MAX_PIPELINED = 65_536


class ClientConnection(asyncio.Protocol):
    __slots__ = ("_buffer", "_later", "_paused", "_writable", "exchange", "relay", "transport", "tunnel")

    transport: asyncio.Transport

    def __init__(self, relay: "Relay") -> None:
        self.relay = relay
        self.exchange: Exchange | None = None
        #: Set once the connection was upgraded: then bytes are passed on as they are.
        self.tunnel: asyncio.Transport | None = None
        self._buffer = b""
        self._later = b""
        self._paused = False
        self._writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.relay.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.relay.connections.discard(self)
        if self.tunnel is not None:
            self.tunnel.close()
        if self.exchange is not None:
            self.exchange.client_lost()

    def eof_received(self) -> None:
        # A half-closed client cannot be told from one that left; as nginx does, it counts as gone.
        return None

    def pause_writing(self) -> None:
        self._writable = False
        if self.exchange is not None:
            self.exchange.pause_upstream()

    def resume_writing(self) -> None:
        self._writable = True
        if self.exchange is not None:
            self.exchange.resume_upstream()
        elif self._later:
            self._resume()

    def data_received(self, data: bytes) -> None:
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
        while at < len(data) and not self.transport.is_closing():
            exchange = self.exchange
            if exchange is None:
                at = self._head(data, at)
            elif not exchange.request_done:
                at = exchange.from_client(data, at)
                if at < 0:
                    return
            else:
                self._hold(data[at:] if at else data)
                return

    def _hold(self, data: bytes) -> None:
        self._later += data
        if len(self._later) > MAX_PIPELINED and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def _head(self, data: bytes, at: int) -> int:
        """Reads a request head and starts its exchange. Returns how far `data` was used."""
        buffer = self._buffer
        known = len(buffer)
        buffer += data[at:] if at else data
        # A client may send an empty line after a body (RFC 9112, 2.2).
        skip = 0
        while buffer.startswith(b"\r\n", skip):
            skip += 2
        end = buffer.find(b"\r\n\r\n", max(skip, known - 3))
        if end < 0:
            if len(buffer) - skip > MAX_HEAD:
                raise ProtocolError(f"request head longer than {MAX_HEAD} bytes", 431)
            if buffer.count(b"\n") != buffer.count(b"\r\n"):
                raise ProtocolError("bare LF in a request head")
            self._buffer = buffer[skip:]
            return len(data)
        if end - skip > MAX_HEAD:
            raise ProtocolError(f"request head longer than {MAX_HEAD} bytes", 431)
        self._buffer = b""
        head = parse_request(buffer[skip : end + 4])
        if head.method == b"CONNECT":
            raise ProtocolError("CONNECT is not served: this is no forward proxy", 501)
        if head.expect_continue and head.length and head.version == b"HTTP/1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.exchange = Exchange(self, head)
        self.exchange.begin()
        return at + end + 4 - known

    def _refuse(self, status: int, message: str) -> None:
        exchange = self.exchange
        if exchange is not None:
            exchange.client_broke(status, message)
        else:
            self.relay.refused += 1
            self.transport.write(error_reply(status, message, "bad_request"))
            self.transport.close()

    def next(self, *, keep_alive: bool) -> None:
        """The exchange is over: go on with the next request, or close."""
        self.exchange = None
        if not keep_alive or self.relay.draining:
            self.transport.close()
            return
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        if self._later:
            # Not at once: a client that pipelines thousands must not grow the stack.
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if not self.transport.is_closing():
            self.data_received(b"")
