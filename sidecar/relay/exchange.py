"""One request and its reply: the bytes of each read go on at once, whoever watches sees a copy."""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..record import Outcome
from .body import Body, body_of
from .errors import error_reply
from .framing import Reframing, reframing
from .http1 import HOP_BY_HOP, MAX_HEAD, UNTIL_CLOSE, ProtocolError, RequestHead, ResponseHead
from .tunnel import Tunnel
from .upstream import UPSTREAM, Choice, ConnectError, UpstreamConnection
from .watch import CODED_FRAMING, FRAMING, REFUSALS

if TYPE_CHECKING:
    from .client import ClientConnection

_log = logging.getLogger(__name__)

#: Request bytes held while a connection to the upstream is being made, before the client is left unread.
MAX_PENDING = 262_144

#: Request bytes still to come after an early reply, up to which they are read and thrown away, so that the client
#: keeps its connection. Many clients send a head and a small body apart.
MAX_DISCARDED = 1_048_576

_EXPECT = frozenset((b"expect",))


class _Sink(Protocol):
    def write(self, data: bytes) -> None: ...


class _Nowhere:
    """Where a reply goes whose client has left."""

    def write(self, data: bytes) -> None:
        pass


class Exchange:
    """Life of one request. Ends exactly once, by `_finish`."""

    # Defaults here and not in __init__: most exchanges need few of them, and one is made for each request.
    #: Bytes of request body, as the client framed it.
    bytes_in = 0
    #: Bytes written to the client, the head included.
    bytes_out = 0
    #: The request's end has come.
    request_done = False

    _request_body: Body | None = None
    #: Request bytes as they came, and their payload, while the watcher is to see the body before it goes on.
    _held: list[bytes] | None = None
    _held_payload: list[bytes]
    #: The request as the client framed it, kept while a changed one may still be refused.
    _original: bytes | None = None
    #: Bytes for the upstream while there is no connection yet.
    _pending: list[bytes] | None = None
    _pending_size = 0
    #: The client takes no more, so the upstream is left unread.
    _paused = False
    _choice: Choice | None = None
    _connection: UpstreamConnection | None = None
    _task: asyncio.Task[None] | None = None
    _idle: asyncio.TimerHandle | None = None
    #: Set once the client has left a reply that is read on for its figures.
    _grace: asyncio.TimerHandle | None = None
    #: Of `bytes_out`, what was written before it left.
    _seen_out = 0
    _touched = 0.0
    #: The beginning of a reply head.
    _partial = b""
    _status: int | None = None
    _reply: ResponseHead | None = None
    _reply_body: Body | None = None
    _reframing: Reframing | None = None
    #: Whether the client's connection goes on after the reply; settled with the reply's head.
    _stays = False
    _over = False

    def __init__(self, client: "ClientConnection", head: RequestHead, now: float) -> None:
        self._client = client
        self._relay = client.relay
        self._head = head
        self._sink: _Sink = client.transport
        self._watch = client.relay.watcher(head, now)

    # ---- from the client

    def begin(self, data: bytes, start: int, at: int) -> int:
        """The head is `data[start:at]`. Returns the index after the request's end in `data`, or -1 if it goes on."""
        length = self._head.length
        watch = self._watch
        end = at + length
        if length >= 0 and end <= len(data):
            self.request_done = True
            self.bytes_in = length
            if watch is not None:
                watch.request(data[at:end] if length <= watch.hold else None)
            choices = self._relay.choose(watch)
            changed = None if watch is None else watch.change(opt_out=choices[0].opt_out)
            if changed is None and self._goes_as_it_is():
                self._dispatch(data[start:end], choices)
            else:
                self._send(data[at:end], changed, choices)
            return end
        self._request_body = body_of(length)
        if watch is not None and length <= watch.hold:
            self._held = []
            self._held_payload = []
        else:
            self._choose(b"", None)
        return self.from_client(data, at) if at < len(data) else -1

    def from_client(self, data: bytes, at: int) -> int:
        """Body bytes. Returns the index after the request's end in `data`, or -1 if it goes on."""
        body = self._request_body
        if body is None:
            return at
        end = body.feed(data, at)
        raw = data[at:end] if end >= 0 else (data[at:] if at else data)
        self.bytes_in += len(raw)
        self.request_done = end >= 0
        if self._over:
            if self.request_done:
                self._client.next(keep_alive=True)
            return end
        held, watch = self._held, self._watch
        if held is None or watch is None:
            self._write_upstream(raw)
            return end
        held.append(raw)
        self._held_payload += body.parts
        if self.request_done:
            self._held = None
            self._choose(b"".join(held), b"".join(self._held_payload))
            self._held_payload = []
        elif self.bytes_in > watch.hold:
            self._held = None
            self._held_payload = []
            self._choose(b"".join(held), None)
        return end

    def client_broke(self, status: int, message: str) -> None:
        """The client's bytes are no HTTP: nothing more of them is forwarded."""
        if not self._over:
            self._relay.refused += 1
        if self._status is None:
            self._fail(status, message, "bad_request", Outcome.CLIENT_ABORT)
        else:
            self._cut(Outcome.CLIENT_ABORT)

    def client_lost(self) -> None:
        """The client left. Its reply ends, or is read on for a while where its figures are wanted."""
        grace, watch = self._relay.abort_grace_s, self._watch
        under_way = self.request_done and self._connection is not None
        if grace is None or watch is None or not under_way or self._relay.draining:
            self.abandon()
            return
        self._seen_out = self.bytes_out
        watch.left()
        self._sink = _Nowhere()
        self._grace = asyncio.get_running_loop().call_later(grace, self.abandon)
        self._relay.abandoned.add(self)
        if self._paused:
            self.resume_upstream()

    def abandon(self) -> None:
        """End it for a client that has left."""
        self._drop_upstream()
        self._finish(Outcome.CLIENT_ABORT)

    # ---- to the upstream

    def _goes_as_it_is(self) -> bool:
        head = self._head
        return head.plain and self._relay.hidden.isdisjoint(head.names)

    def _request_head(self, length: int | None) -> bytes:
        """The head to forward; `length` is that of a changed body."""
        head = self._head
        drop = self._relay.not_forwarded | _EXPECT
        if length is not None:
            drop |= CODED_FRAMING if self._watch is not None and self._watch.uncoded else FRAMING
        lines = [head.start, *head.forwarded(drop)]
        if length is not None:
            lines.append(b"Content-Length: %d" % length)
        if head.upgrade:
            lines.append(b"Connection: upgrade")
            lines += head.lines(b"upgrade")
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _choose(self, raw: bytes, body: bytes | None) -> None:
        """Forward the head and `raw`, the body so far as the client framed it; `body` is its payload, if whole."""
        watch = self._watch
        if watch is not None:
            watch.request(body)
        choices = self._relay.choose(watch)
        self._send(raw, None if watch is None else watch.change(opt_out=choices[0].opt_out), choices)

    def _send(self, raw: bytes, changed: bytes | None, choices: Sequence[Choice]) -> None:
        """Forward the head and the body so far: `raw` as the client framed it, or whole and `changed`."""
        if changed is None:
            wire = self._request_head(None) + raw
        else:
            self._original = raw
            wire = self._request_head(len(changed)) + changed
        self._dispatch(wire, choices)

    def _dispatch(self, wire: bytes, candidates: Sequence[Choice], *, fresh: bool = False) -> None:
        """Send `wire`, what there is of the request, to the first of `candidates` that can be reached."""
        now = self._relay.time()
        if candidates[0].upstream.down and len(candidates) > 1:
            # No request shall wait for what another one has waited for in vain.
            candidates = [*candidates[1:], candidates[0]]
        choice = candidates[0]
        connection = None if fresh else choice.upstream.take(now)
        if connection is not None:
            self._assign(choice)
            self._connected(connection, wire)
        else:
            self._pending = [wire]
            self._pending_size = len(wire)
            self._task = self._relay.spawn(self._connect(candidates))

    def _assign(self, choice: Choice) -> None:
        self._release()
        self._choice = choice
        upstream = choice.upstream
        upstream.in_flight += 1
        if self._watch is not None:
            self._watch.sent(upstream.name, choice.arm, upstream.in_flight)

    def _release(self) -> None:
        if self._choice is not None:
            self._choice.upstream.in_flight -= 1
            self._choice = None

    async def _connect(self, candidates: Sequence[Choice]) -> None:
        failure = "there is no upstream"
        for choice in candidates:
            self._assign(choice)
            try:
                connection = await choice.upstream.connect()
            except ConnectError as error:
                failure = str(error)
                self._relay.spawn(choice.upstream.seek())
                continue
            pending = self._pending
            if self._over or pending is None:
                connection.transport.abort()
                return
            self._pending = None
            self._client.resume_reading(UPSTREAM)
            self._connected(connection, b"".join(pending))
            return
        self._fail(502, failure, "upstream_unreachable", Outcome.BAD_GATEWAY)

    def _connected(self, connection: UpstreamConnection, wire: bytes) -> None:
        self._connection = connection
        connection.exchange = self
        connection.used += 1
        connection.transport.write(wire)
        if self._paused:
            connection.transport.pause_reading()
        if self._relay.idle_timeout_s is not None:
            if self._idle is not None:
                self._idle.cancel()
            self._touched = self._relay.time()
            self._watch_idle()

    def _write_upstream(self, raw: bytes) -> None:
        if self._connection is not None:
            self._touched = self._relay.time()
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
        self._touched = self._relay.time()
        if self._connection is not None:
            self._connection.transport.resume_reading()

    # ---- from the upstream

    def from_upstream(self, connection: UpstreamConnection, data: bytes) -> None:
        body = self._reply_body
        try:
            if body is None:
                self._reply_head(connection, data)
                return
            end = body.feed(data)
            if end >= 0 or self._reframing is not None:
                self._reply_bytes(body.parts, data, 0, end, b"")
                return
        except ProtocolError as error:
            self._upstream_broke(str(error))
            return
        # What is left is by far the commonest: a read that goes on as it is, and after it more will come.
        self.bytes_out += len(data)
        self._sink.write(data)
        now = self._touched = self._relay.time()
        parts = body.parts
        if parts and self._watch is not None:
            self._watch.feed(parts[0] if len(parts) == 1 else b"".join(parts), now)

    def _reply_head(self, connection: UpstreamConnection, data: bytes) -> None:
        if self._partial:
            data = self._partial + data
        at = 0
        while True:
            end = data.find(b"\r\n\r\n", at)
            if (end if end >= 0 else len(data)) - at > MAX_HEAD:
                raise ProtocolError("reply head too long")
            if end < 0:
                self._partial = data[at:]
                return
            end += 4
            head = connection.read_head(data[at:end], self._head.method)
            if head.status >= 200:
                break
            if head.status == 101:
                self._tunnel(data[at:])
                return
            if head.status != 100 and self._head.version == b"HTTP/1.1":
                self._write(data[at:end])
            at = end
        self._partial = b""
        if self._original is not None and head.status in REFUSALS:
            self._resend_original()
            return
        self._original = None
        body = body_of(head.length)
        stop = body.feed(data, end)  # before the client is told anything: if it raises, there is still a 502
        self._reply = head
        self._reply_body = body
        self._status = head.status
        self._reply_bytes(body.parts, data, end, stop, self._reply_start(head, data[at:end]))

    def _reply_start(self, head: ResponseHead, raw: bytes) -> bytes:
        """The head for the client."""
        watch = self._watch
        filters, added = False, b""
        if watch is not None:
            filters, added = watch.response(head, self._relay.time())
        self._reframing = anew = reframing(self._head, head, watch if filters else None)
        self._stays = self._client_stays(head)
        if anew is None and head.plain and self._stays:
            return raw[:-2] + added + b"\r\n" if added else raw
        if anew is None:
            lines = [head.start, *head.forwarded(HOP_BY_HOP)]
        else:
            lines = [head.start, *head.forwarded(anew.dropped), *anew.added]
        end = b"\r\n" if self._stays else b"Connection: close\r\n\r\n"
        return b"%b\r\n%b%b" % (b"\r\n".join(lines), added, end)

    def _client_stays(self, head: ResponseHead) -> bool:
        # HTTP/1.0 keep-alive is not offered.
        return (
            (self.request_done or 0 <= self._head.length - self.bytes_in <= MAX_DISCARDED)
            and head.length != UNTIL_CLOSE
            and self._head.keep_alive
            and self._head.version == b"HTTP/1.1"
            and (self._reframing is None or self._reframing.chunks)
            and not self._relay.draining
        )

    def _reply_bytes(self, parts: list[bytes], data: bytes, at: int, end: int, start: bytes) -> None:
        """Body bytes `data[at:end]`, whose payload is `parts`, behind the not yet written head `start`."""
        now = self._touched = self._relay.time()
        anew = self._reframing
        if anew is not None:
            out = start + anew.feed(parts, now, last=end >= 0)
        else:
            out = start + (data[at:end] if end >= 0 else data[at:])
        if out:
            self._write(out)
        if parts and self._watch is not None and (anew is None or not anew.filters):
            self._watch.feed(parts[0] if len(parts) == 1 else b"".join(parts), now)
        if end >= 0:
            self._reply_done(surplus=end < len(data))

    def _write(self, data: bytes) -> None:
        """To the client."""
        self.bytes_out += len(data)
        self._sink.write(data)

    def _resend_original(self) -> None:
        """The upstream did not like the changed body: send the one the client wrote, once."""
        original, choice = self._original, self._choice
        self._original = None
        if original is None or choice is None:
            return
        if self._watch is not None:
            self._watch.restored()
        self._drop_upstream()
        self._dispatch(self._request_head(None) + original, [choice])

    def _reply_done(self, *, surplus: bool) -> None:
        connection = self._connection
        reply = self._reply
        if connection is not None:
            connection.exchange = None
            self._connection = None
            # A connection on which something is under way, whichever way, is not safe to use again.
            if not self.request_done or connection.transport.get_write_buffer_size():
                connection.transport.abort()
            elif surplus or reply is None or not reply.keep_alive or self._head.upgrade:
                connection.transport.close()
            else:
                if self._paused:
                    connection.transport.resume_reading()
                connection.upstream.give_back(connection, self._touched)
        self._finish(Outcome.OK if self._status is not None and self._status < 400 else Outcome.UPSTREAM_ERROR)
        if self.request_done or not self._stays:
            self._client.next(keep_alive=self._stays)
        else:
            self.resume_client()  # for the rest of the request, which nobody waits for

    def upstream_lost(self, exc: Exception | None) -> None:
        """The upstream connection is gone while its reply was not complete."""
        connection = self._connection
        self._connection = None
        reply = self._reply
        if reply is not None and reply.length == UNTIL_CLOSE and exc is None:
            if self._reframing is not None:
                self._write(self._reframing.rest())
            self._reply_done(surplus=False)
        elif reply is not None:
            self._cut(Outcome.TRUNCATED)
        elif self._choice is not None and self._may_repeat(connection):
            self._dispatch(self._request_head(None), [self._choice], fresh=True)
        else:
            self._fail(502, "the upstream closed the connection before it replied", "bad_gateway", Outcome.BAD_GATEWAY)

    def _may_repeat(self, connection: UpstreamConnection | None) -> bool:
        """Only what changes nothing, and only if the connection may have been stale (RFC 9110, 9.2.2)."""
        safe = self._head.method in (b"GET", b"HEAD", b"OPTIONS") and self._head.length == 0
        return safe and connection is not None and connection.used > 1 and not self._partial

    def _upstream_broke(self, reason: str) -> None:
        _log.warning("upstream %s: %s", self._choice.upstream.name if self._choice else "?", reason)
        if self._status is None:
            self._fail(502, f"the upstream's reply is no valid HTTP/1.1: {reason}", "bad_gateway", Outcome.BAD_GATEWAY)
        else:
            self._cut(Outcome.TRUNCATED)

    def _tunnel(self, data: bytes) -> None:
        """The upstream switched protocols: from now on bytes both ways, unread."""
        if not self._head.upgrade:
            raise ProtocolError("101 to a request that offered no other protocol")
        connection = self._connection
        client = self._client
        self._status = 101
        self._write(data)
        if connection is not None:
            connection.exchange = None
            self._connection = None
            Tunnel(connection, client)
            client.upgraded(connection.transport)
        self._finish(Outcome.OK)

    # ---- the end

    def _watch_idle(self) -> None:
        limit = self._relay.idle_timeout_s
        if limit is None or self._over:
            return
        now = self._relay.time()
        if self._paused or not (self.request_done or self._client.waits_for_upstream):
            self._touched = now  # the silence is ours, or the client's
        left = self._touched + limit - now
        if left > 0:
            self._idle = asyncio.get_running_loop().call_later(left, self._watch_idle)
        elif self._status is None:
            self._fail(504, f"the upstream sent nothing for {limit:g} s", "timeout", Outcome.TIMEOUT)
        else:
            self._cut(Outcome.TIMEOUT)

    def shut(self) -> None:
        """The relay is shutting down and waits no longer."""
        if self._status is None:
            self._fail(503, "the sidecar is shutting down", "shutting_down", Outcome.BAD_GATEWAY)
        else:
            self._cut(Outcome.TRUNCATED)

    def _fail(self, status: int, message: str, code: str, outcome: Outcome) -> None:
        """No byte of a reply was sent yet: answer in the relay's own name."""
        if self._over:
            return
        self._drop_upstream()
        self._status = status
        self._write(error_reply(status, message, code))
        self._finish(outcome)
        self._client.next(keep_alive=False)

    def _cut(self, outcome: Outcome) -> None:
        """A reply that was begun cannot be completed: it must look cut to the client too."""
        self._drop_upstream()
        anew = self._reframing
        if anew is not None:
            self._write(anew.rest())
        if (anew is not None and not anew.chunks) or (
            self._reply_body is not None and self._reply_body.ends_with_connection
        ):
            self._client.cut()
        self._finish(outcome)
        self._client.next(keep_alive=False)

    def _drop_upstream(self) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            connection.exchange = None
            connection.transport.abort()
        self._release()

    def _finish(self, outcome: Outcome) -> None:
        if self._over:
            return
        self._over = True
        if self._idle is not None:
            self._idle.cancel()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._release()
        relay = self._relay
        if self._grace is not None:
            self._grace.cancel()
            relay.abandoned.discard(self)
            outcome = Outcome.CLIENT_ABORT
            self.bytes_out = self._seen_out
        relay.outcomes[outcome] += 1
        if self._watch is not None:
            self._watch.end(outcome, self._status, self.bytes_in, self.bytes_out, relay.time())
