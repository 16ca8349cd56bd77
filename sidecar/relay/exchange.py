"""One request and its reply: the bytes of each read go on at once, whoever watches sees a copy."""

import asyncio
import logging
from enum import Enum, auto
from typing import TYPE_CHECKING

from ..record import Outcome
from .errors import error_reply
from .http1 import (
    CHUNKED,
    HOP_BY_HOP,
    MAX_HEAD,
    UNTIL_CLOSE,
    Body,
    ProtocolError,
    RequestHead,
    ResponseHead,
    parse_response,
)
from .upstream import UPSTREAM, Choice, UpstreamConnection

if TYPE_CHECKING:
    from .client import ClientConnection

_log = logging.getLogger(__name__)

#: Request bytes held while a connection to the upstream is being made, before the client is left unread.
MAX_PENDING = 262_144

#: Chunks of one read that keep their bounds when the reply is put into chunks anew.
MAX_PARTS = 64

_EXPECT = frozenset((b"expect",))
# A body that was changed has its own length; and only identity coding lets the added event be found again.
_REPLACED = frozenset((b"expect", b"content-length", b"transfer-encoding", b"accept-encoding"))


class _Framing(Enum):
    """How the reply's body reaches the client."""

    RAW = auto()
    #: Payload in new chunks: the watcher takes bytes out.
    CHUNKS = auto()
    #: Payload alone, until the connection closes.
    PLAIN = auto()


class Exchange:
    """Life of one request. Ends exactly once, by `_finish`."""

    __slots__ = (
        "_body",
        "_candidates",
        "_choice",
        "_client",
        "_connection",
        "_filtering",
        "_framing",
        "_head",
        "_held",
        "_holding",
        "_original",
        "_over",
        "_partial",
        "_paused",
        "_pending",
        "_pending_size",
        "_reply",
        "_reply_body",
        "_request_payload",
        "_started",
        "_status",
        "_stays",
        "_task",
        "_timer",
        "_touched",
        "_watch",
        "bytes_in",
        "bytes_out",
        "request_done",
    )

    def __init__(self, client: "ClientConnection", head: RequestHead) -> None:
        self._client = client
        self._head = head
        self._body = Body(head.length)
        self._started = client.relay.time()
        self._watch = client.relay.watcher(head, self._started)
        self._held: list[bytes] = []
        self._request_payload: list[bytes] = []
        self._holding = False
        #: The request as the client framed it, kept while a changed one may still be refused.
        self._original: list[bytes] | None = None
        #: Bytes for the upstream while there is no connection yet; None once there is.
        self._pending: list[bytes] | None = []
        self._pending_size = 0
        #: The client takes no more, so the upstream is left unread.
        self._paused = False
        self._candidates: list[Choice] = []
        self._choice: Choice | None = None
        self._connection: UpstreamConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._touched = self._started
        self._partial = b""
        self._reply: ResponseHead | None = None
        self._reply_body = Body(0)
        self._framing = _Framing.RAW
        self._filtering = False
        self._status: int | None = None
        #: Whether the client's connection goes on after the reply; settled with the reply's head.
        self._stays = False
        self._over = False
        self.request_done = head.length == 0
        self.bytes_in = 0
        self.bytes_out = 0

    # ---- from the client

    def begin(self) -> None:
        """The head is complete."""
        watch = self._watch
        if not self.request_done and watch is not None and self._head.length <= watch.hold:
            self._holding = True
        else:
            self._send(None if not self.request_done else b"")

    def from_client(self, data: bytes, at: int) -> int:
        """Body bytes. Returns the index after the request's end in `data`, or -1 if it goes on."""
        end = self._body.feed(data, at)
        raw = data[at:end] if end >= 0 else (data[at:] if at else data)
        self.bytes_in += len(raw)
        self.request_done = end >= 0
        if self._holding:
            self._held.append(raw)
            self._request_payload += self._body.payload
            if self.request_done:
                self._send(b"".join(self._request_payload))
            elif self._watch is None or self.bytes_in > self._watch.hold:
                self._send(None)
        else:
            self._write_upstream(raw)
        return end

    def client_broke(self, status: int, message: str) -> None:
        """The client's bytes are no HTTP: nothing more of them is forwarded."""
        self._client.relay.refused += 1
        if self._status is None:
            self._fail(status, message, "bad_request", Outcome.CLIENT_ABORT)
        else:
            self._cut(Outcome.CLIENT_ABORT)

    def client_lost(self) -> None:
        self._drop_upstream()
        self._finish(Outcome.CLIENT_ABORT)

    # ---- to the upstream

    def _send(self, body: bytes | None) -> None:
        """Forward the head and what was held; `body` is the whole payload if it is known."""
        watch = self._watch
        self._holding = False
        raw = self._held
        self._held = []
        changed = watch.request(body) if watch is not None else None
        self._request_payload = []
        if changed is not None:
            self._original = raw
            raw = [changed]
        self._begin_upstream(raw, len(changed) if changed is not None else None)

    def _begin_upstream(
        self, raw: list[bytes], length: int | None, choice: Choice | None = None, *, fresh: bool = False
    ) -> None:
        head = self._head
        drop = self._client.relay.not_forwarded | (_EXPECT if length is None else _REPLACED)
        lines = [head.start, *head.forwarded(drop)]
        if length is not None:
            lines.append(b"Content-Length: %d" % length)
        if head.upgrade:
            lines.append(b"Connection: upgrade")
            lines += [line for name, line in head.lines if name == b"upgrade"]
        self._pending = [b"\r\n".join(lines), b"\r\n\r\n", *raw]
        self._pending_size = sum(map(len, self._pending))
        self._candidates = [choice] if choice is not None else self._client.relay.choose()
        self._next_candidate(fresh=fresh)

    def _next_candidate(self, *, fresh: bool = False) -> None:
        relay = self._client.relay
        self._choice = choice = self._candidates.pop(0)
        choice.upstream.in_flight += 1
        if self._watch is not None:
            self._watch.sent(choice.upstream.name, choice.arm, choice.upstream.in_flight)
        connection = None if fresh else choice.upstream.take(relay.time())
        if connection is not None:
            self._connected(connection)
        else:
            self._task = relay.spawn(self._connect(choice))

    async def _connect(self, choice: Choice) -> None:
        try:
            connection = await choice.upstream.connect()
        except (OSError, TimeoutError) as error:
            if self._over:
                return
            reason = "did not accept a connection in time" if isinstance(error, TimeoutError) else str(error)
            if choice.upstream.reachable:
                choice.upstream.reachable = False
                _log.warning(
                    "upstream %s (%s) cannot be reached: %s", choice.upstream.name, choice.upstream.url, reason
                )
            if self._candidates:
                choice.upstream.in_flight -= 1
                self._choice = None
                self._next_candidate()
                return
            message = f"the upstream {choice.upstream.name!r} cannot be reached: {reason}"
            self._fail(502, message, "upstream_unreachable", Outcome.BAD_GATEWAY)
            return
        if not choice.upstream.reachable:
            choice.upstream.reachable = True
            _log.warning("upstream %s (%s) is reached again", choice.upstream.name, choice.upstream.url)
        if self._over:
            connection.transport.abort()
        else:
            self._connected(connection)

    def _connected(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        connection.exchange = self
        connection.used += 1
        pending = self._pending
        self._pending = None
        self.resume_client()
        if pending:
            connection.transport.write(b"".join(pending))
        if self._paused:
            connection.transport.pause_reading()
        self._touch()
        if self._timer is not None:
            self._timer.cancel()
        self._watch_idle()

    def _write_upstream(self, raw: bytes) -> None:
        if self._connection is not None:
            self._touch()
            self._connection.transport.write(raw)
        elif self._pending is not None:
            self._pending.append(raw)
            self._pending_size += len(raw)
            if self._pending_size > MAX_PENDING:
                self.pause_client()

    def pause_client(self) -> None:
        self._client.pause_reading(UPSTREAM)

    def resume_client(self) -> None:
        self._client.resume_reading(UPSTREAM)

    def pause_upstream(self) -> None:
        self._paused = True
        if self._connection is not None:
            self._connection.transport.pause_reading()

    def resume_upstream(self) -> None:
        self._paused = False
        self._touch()
        if self._connection is not None:
            self._connection.transport.resume_reading()

    # ---- from the upstream

    def from_upstream(self, data: bytes) -> None:
        try:
            if self._reply is None:
                self._reply_head(data)
            else:
                self._reply_bytes(data, 0, b"")
        except ProtocolError as error:
            self._upstream_broke(str(error))

    def _reply_head(self, data: bytes) -> None:
        data = self._partial + data
        client = self._client
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0 and len(data) <= MAX_HEAD:
                self._partial = data
                return
            if end < 0 or end > MAX_HEAD:
                raise ProtocolError("reply head too long")
            head = parse_response(data[: end + 4], self._head.method)
            if head.status == 101 and self._head.upgrade:
                self._tunnel(data)
                return
            if head.status == 101:
                raise ProtocolError("101 to a request that offered no other protocol")
            if head.status >= 200:
                break
            if head.status != 100 and self._head.version == b"HTTP/1.1":
                client.transport.write(data[: end + 4])
            data = data[end + 4 :]
        self._partial = b""
        if self._original is not None and head.status in (400, 422):
            self._resend_original()
            return
        self._original = None
        now = client.relay.time()
        added: list[bytes] = []
        if self._watch is not None:
            self._filtering, added = self._watch.response(head, now)
        lines = [head.start, *head.forwarded(self._choose_framing(head)), *added]
        if self._framing is _Framing.CHUNKS and head.length != CHUNKED:
            lines.append(b"Transfer-Encoding: chunked")
        self._stays = self._client_stays(head)
        if not self._stays:
            lines.append(b"Connection: close")
        self._reply = head
        self._status = head.status
        self._reply_body = Body(head.length)
        start = b"\r\n".join(lines) + b"\r\n\r\n"
        self._reply_bytes(data, end + 4, start)

    def _choose_framing(self, head: ResponseHead) -> frozenset[bytes]:
        """Sets how the body is framed for the client; returns the fields to leave out of the head."""
        if self._filtering and head.length != UNTIL_CLOSE and head.version == b"HTTP/1.1":
            self._framing = _Framing.CHUNKS
            return HOP_BY_HOP | {b"content-length"}
        if self._filtering or (head.length == CHUNKED and self._head.version == b"HTTP/1.0"):
            self._framing = _Framing.PLAIN
            return HOP_BY_HOP | {b"transfer-encoding", b"content-length"}
        return HOP_BY_HOP

    def _client_stays(self, head: ResponseHead) -> bool:
        # HTTP/1.0 keep-alive is not offered; a reply before the request's end leaves no safe place to go on.
        return (
            self._head.keep_alive
            and self._head.version == b"HTTP/1.1"
            and self.request_done
            and head.length != UNTIL_CLOSE
            and self._framing is not _Framing.PLAIN
            and not self._client.relay.draining
        )

    def _reply_bytes(self, data: bytes, at: int, start: bytes) -> None:
        """Body bytes `data[at:]`, behind the not yet written head `start`."""
        body = self._reply_body
        end = body.feed(data, at)
        if self._framing is _Framing.RAW:
            out = data if not at and end in (-1, len(data)) else data[at : end if end >= 0 else len(data)]
        else:
            out = self._reframed(body.payload, last=end >= 0)
        if start:
            out = start + out
        if out:
            self.bytes_out += len(out)
            self._client.transport.write(out)
        watch = self._watch
        now = self._client.relay.time()
        self._touched = now
        if watch is not None and not self._filtering and body.payload:
            watch.feed(body.payload, now)
        if end >= 0:
            self._reply_done(surplus=end < len(data))

    def _reframed(self, payload: list[bytes], *, last: bool) -> bytes:
        watch = self._watch
        parts = payload
        if self._filtering and watch is not None:
            now = self._client.relay.time()
            if len(payload) > MAX_PARTS:
                payload = [b"".join(payload)]
            parts = [watch.filter(part, now) for part in payload]
            if last:
                parts.append(watch.flush())
        parts = [part for part in parts if part]
        if self._framing is _Framing.PLAIN:
            return b"".join(parts)
        out = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        return out + b"0\r\n\r\n" if last else out

    def _resend_original(self) -> None:
        """The upstream did not like the changed body: send the one the client wrote, once."""
        original = self._original or []
        self._original = None
        if self._watch is not None:
            self._watch.restored()
        choice = self._choice
        self._drop_upstream()
        self._begin_upstream(original, None, choice)

    def _reply_done(self, *, surplus: bool) -> None:
        connection = self._connection
        reply = self._reply
        if connection is not None:
            connection.exchange = None
            self._connection = None
            # A connection on which something is under way, whichever way, is not safe to use again.
            all_sent = self.request_done and not connection.transport.get_write_buffer_size()
            if not all_sent:
                connection.transport.abort()
            elif surplus or reply is None or not reply.keep_alive or self._head.upgrade:
                connection.transport.close()
            else:
                if self._paused:
                    connection.transport.resume_reading()
                connection.upstream.give_back(connection, self._client.relay.time())
        self._finish(Outcome.OK if self._status is not None and self._status < 400 else Outcome.UPSTREAM_ERROR)
        self._client.next(keep_alive=self._stays)

    def upstream_lost(self, exc: Exception | None) -> None:
        """The upstream connection is gone while its reply was not complete."""
        connection = self._connection
        self._connection = None
        reply = self._reply
        if reply is not None and reply.length == UNTIL_CLOSE and exc is None:
            if self._filtering and self._watch is not None:
                self._client.transport.write(self._watch.flush())
            self._reply_done(surplus=False)
        elif reply is not None:
            self._cut(Outcome.TRUNCATED)
        elif self._may_repeat(connection):
            self._repeat()
        else:
            self._fail(502, "the upstream closed the connection before it replied", "bad_gateway", Outcome.BAD_GATEWAY)

    def _may_repeat(self, connection: UpstreamConnection | None) -> bool:
        """Only what changes nothing, and only if the connection may have been stale (RFC 9110, 9.2.2)."""
        safe = self._head.method in (b"GET", b"HEAD", b"OPTIONS") and self._head.length == 0
        return safe and connection is not None and connection.used > 1 and not self._partial

    def _repeat(self) -> None:
        choice = self._choice
        if choice is not None:
            choice.upstream.in_flight -= 1
            self._choice = None
            self._begin_upstream([], None, choice, fresh=True)

    def _upstream_broke(self, reason: str) -> None:
        _log.warning("upstream %s: %s", self._choice.upstream.name if self._choice else "?", reason)
        if self._status is None:
            self._fail(502, f"the upstream's reply is no valid HTTP/1.1: {reason}", "bad_gateway", Outcome.BAD_GATEWAY)
        else:
            self._cut(Outcome.TRUNCATED)

    def _tunnel(self, data: bytes) -> None:
        """The upstream switched protocols: from now on bytes both ways, unread."""
        connection = self._connection
        client = self._client
        self._status = 101
        client.transport.write(data)
        if connection is not None:
            connection.exchange = None
            self._connection = None
            Tunnel(connection, client)
            client.upgraded(connection.transport)
        self._finish(Outcome.OK)

    # ---- the end

    def _touch(self) -> None:
        self._touched = self._client.relay.time()

    def _watch_idle(self) -> None:
        limit = self._client.relay.idle_timeout_s
        if limit is None or self._over:
            return
        if self._paused or not self.request_done:
            self._touch()  # the silence is ours, or the client's
        left = self._touched + limit - self._client.relay.time()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._watch_idle)
        elif self._status is None:
            self._fail(504, f"the upstream sent nothing for {limit:g} s", "timeout", Outcome.TIMEOUT)
        else:
            self._cut(Outcome.TIMEOUT)

    def _fail(self, status: int, message: str, code: str, outcome: Outcome) -> None:
        """No byte of a reply was sent yet: answer in the relay's own name."""
        self._drop_upstream()
        client = self._client
        reply = error_reply(status, message, code)
        self._status = status
        self.bytes_out += len(reply)
        client.transport.write(reply)
        self._finish(outcome)
        client.next(keep_alive=False)

    def _cut(self, outcome: Outcome) -> None:
        """A reply that was begun cannot be completed: it must look cut to the client too."""
        self._drop_upstream()
        client = self._client
        if self._filtering and self._watch is not None:
            rest = self._watch.flush()
            if rest:
                client.transport.write(rest if self._framing is _Framing.PLAIN else b"%x\r\n%b\r\n" % (len(rest), rest))
        if self._framing is _Framing.PLAIN or self._reply_body.ends_with_connection:
            client.cut()
        self._finish(outcome)
        client.next(keep_alive=False)

    def _drop_upstream(self) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            connection.exchange = None
            connection.transport.abort()
        if self._choice is not None:
            self._choice.upstream.in_flight -= 1
            self._choice = None

    def _finish(self, outcome: Outcome) -> None:
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._choice is not None:
            self._choice.upstream.in_flight -= 1
            self._choice = None
        relay = self._client.relay
        relay.count(outcome)
        if self._watch is not None:
            self._watch.end(outcome, self._status, self.bytes_in, self.bytes_out, relay.time())


class Tunnel(asyncio.Protocol):
    """The upstream side of an upgraded connection; the client side writes to its transport."""

    def __init__(self, connection: UpstreamConnection, client: "ClientConnection") -> None:
        self._client = client
        connection.transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        self._client.transport.write(data)

    def pause_writing(self) -> None:
        self._client.pause_reading(UPSTREAM)

    def resume_writing(self) -> None:
        self._client.resume_reading(UPSTREAM)

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.transport.close()
