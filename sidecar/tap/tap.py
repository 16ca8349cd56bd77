"""The watcher of one exchange: bytes in, exactly one `Record` out."""

import logging
import mimetypes
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Protocol

from ..faults import where
from ..record import Arm, Outcome, Record
from .acceptance import NOT_SPECULATED, missing
from .chat import read_chat
from .decode import CodingError, Decoder, decoder
from .messages import read_message
from .reply import Reader, Reply
from .request import Request, endpoint_of, read_request, with_usage, without_speculation
from .responses import read_response
from .sse import MAX_EVENT
from .stream import Stream
from .usage_filter import UsageFilter

_log = logging.getLogger(__name__)

#: Longest reply body of which a copy is kept for reading, bytes.
MAX_REPLY = 8 * 1024 * 1024
#: Lines of one read of a stream; more are no events, and would keep the event loop busy.
MAX_LINES = 32_768
#: Characters of a scenario, model or request name that are kept.
MAX_NAME = 200
#: The same of a reply's id, which is of no use when cut.
MAX_REPLY_ID = 512
#: Bytes of a body in which scenario rules are searched.
_RULE_BYTES = 4_096

# Code that comes round once a while costs several times what it costs in a loop (the processor has forgotten it by
# then), so that a few reads of a stream, and requests that end within a moment, are looked at together. Not many:
# the proxy stands still meanwhile, and they take memory.
_READ_TOGETHER = 8
_LONG_READ = 4_096
_END_TOGETHER = 64

_READERS: dict[str, Reader] = {
    "chat_completions": read_chat,
    "completions": read_chat,
    "responses": read_response,
    "messages": read_message,
}
#: APIs in whose replies vLLM (0.32) has no place for acceptance figures.
_WITHOUT_FIGURES = {"responses": "/v1/responses", "messages": "/v1/messages"}
#: What vLLM puts before a request's own X-Request-Id to call the reply.
_PREFIXES = {"chat_completions": "chatcmpl-", "completions": "cmpl-", "messages": "chatcmpl-"}


class RequestHead(Protocol):
    """What a tap reads of a request head."""

    method: bytes
    version: bytes

    path: bytes

    def value(self, name: bytes) -> bytes | None: ...


class ResponseHead(Protocol):
    """What a tap reads of a reply's head."""

    status: int

    def value(self, name: bytes) -> bytes | None: ...


class Transcript(Protocol):
    """Keeps the bytes of one exchange, so that its texts can be stored."""

    def request(self, body: bytes) -> None: ...

    def reply(self, payload: bytes) -> None:
        """Bytes without content coding."""

    def end(self, record: Record, *, streamed: bool, whole: bool) -> None:
        """The exchange is over; `whole`: all of the reply was given."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an upstream without asking it for every request."""

    draft_model: str | None = None
    num_speculative_tokens: int | None = None
    fingerprint: str | None = None
    #: Its draft tokens are capped at 0.
    drafts_nothing: bool = False


_NO_FACTS = Facts()
_NOTHING = Reply()


@dataclass(slots=True)
class TapContext:
    """What all taps of a process share."""

    instance: str
    sink: Callable[[Record], None]
    facts: Mapping[str, Facts]
    scenario_header: bytes = b"x-scenario"
    scenario_rules: list[tuple[str, re.Pattern[bytes]]] = field(default_factory=list)
    #: Request body bytes that may be held back to be read whole.
    hold: int = 1_048_576
    #: Ask for usage where a streaming client did not, and take the extra event out again.
    add_usage: bool = False
    #: Add x-specwatch-arm, and x-request-id where the upstream gave none.
    add_headers: bool = True
    #: Calls a function in a moment; None: requests are read as they end.
    later: Callable[[Callable[[], None]], object] | None = None
    #: Whether the engine serves a request without speculation whose body asks for that.
    can_opt_out: Callable[[], bool] = lambda: False
    #: Is told of requests that were to go without speculation whether they were drafted for.
    served_plain: Callable[[bool], None] = lambda drafted: None
    #: Is shown each request that was read: endpoint, head, what it says, body, scenario. It must not raise.
    sample: Callable[[str, RequestHead, Request, bytes, str], None] | None = None
    #: Makes what keeps the bytes of an exchange; None: no text is stored.
    transcript: Callable[[], Transcript] | None = None
    #: Taps that failed and turned themselves off.
    failures: int = 0
    #: Requests that were drafted for and should not have been.
    ineffective: int = 0
    #: Requests under way.
    live: set["Tap"] = field(default_factory=set)
    _ended: list[tuple["Tap", Outcome, int | None, int, int, float]] = field(default_factory=list)

    def watch(self, head: RequestHead, now: float) -> "Tap | None":
        """The watcher of a request, None if it asks for no generation."""
        if head.method != b"POST":
            return None
        endpoint = endpoint_of(head.path)
        return None if endpoint is None else Tap(self, head, endpoint, now)

    def ended(
        self, tap: "Tap", outcome: Outcome, status: int | None, bytes_in: int, bytes_out: int, now: float
    ) -> None:
        """A tap has seen all. With `later`, what ends within a moment is read together."""
        self.live.discard(tap)
        ended = self._ended
        ended.append((tap, outcome, status, bytes_in, bytes_out, now))
        if self.later is None or len(ended) >= _END_TOGETHER:
            self.finish()
        elif len(ended) == 1:
            self.later(self.finish)

    def waits(self, upstream: str, now: float) -> list[float]:
        """How long each stream that `upstream` is to draft for has been waiting for its first content, s; the TTFT of
        its record begins at the same moment.

        Not among them: those whose request was too long to be read.
        """
        waits = [tap.waits(now) for tap in self.live if tap.upstream == upstream and tap.speculates]
        return [wait for wait in waits if wait is not None]

    def speculates(self, upstream: str) -> bool:
        """Whether a request is under way at `upstream` that may be drafted for."""
        return any(tap.upstream == upstream and tap.speculates for tap in self.live)

    def opted_out(self, drafted: bool) -> None:
        """The engine has told of a request that was to go without speculation whether it was drafted for."""
        if drafted and not self.ineffective:
            _log.warning("the engine drafted for a request that was to be served without speculation; more are counted")
        self.ineffective += drafted
        self.served_plain(drafted)

    def finish(self) -> None:
        """Make the records of all taps that have seen all."""
        ended, self._ended = self._ended, []
        for tap, outcome, status, bytes_in, bytes_out, now in ended:
            tap.finish(outcome, status, bytes_in, bytes_out, now)


class Tap:
    """See `relay.watch.Watch`. A failure of its own is counted, ends its looking, and changes no byte."""

    __slots__ = (
        "_arm",
        "_body",
        "_body_size",
        "_concurrency",
        "_context",
        "_decoder",
        "_drafts_nothing",
        "_endpoint",
        "_failed",
        "_filter",
        "_head",
        "_last_at",
        "_left",
        "_max_gap",
        "_plain",
        "_reads",
        "_reason",
        "_request",
        "_request_id",
        "_scenario",
        "_started",
        "_started_wall",
        "_stream",
        "_streamed",
        "_transcript",
        "_unread",
        "_unsent",
        "_usage_added",
        "body_bytes",
        "hold",
        "upstream",
    )

    def __init__(self, context: TapContext, head: RequestHead, endpoint: str, now: float) -> None:
        self._context = context
        self._head = head
        self._endpoint = endpoint
        self._started = now
        self._started_wall = time.time()
        self.hold = context.hold
        self._request_id = _name(head.value(b"x-request-id"))
        self._scenario = _name(head.value(context.scenario_header))
        self._request: Request | None = None
        #: The request's body, until it is known what is sent.
        self._unsent: bytes | None = None
        #: Its length, where that is known before it is sent.
        self.body_bytes: int | None = None
        self.upstream = ""
        self._arm = Arm.SPECULATIVE
        self._drafts_nothing = False
        self._concurrency = 1
        self._usage_added = False
        #: Whether the body that was sent asks for no speculation; None: how it is served, the upstream tells.
        self._plain: bool | None = None
        self._filter: UsageFilter | None = None
        #: Undoes the content coding of the copy.
        self._decoder: Decoder | None = None
        self._streamed = False
        self._stream: Stream | None = None
        self._body: list[bytes] | None = None
        self._body_size = 0
        #: The reply was not read to its end, so that it is not known how that was.
        self._unread = False
        self._reason = "the reply was not read"
        self._last_at = now
        self._max_gap = -1.0
        #: The client left before the reply's terminal event.
        self._left = False
        #: Reads of the reply, and when they came, that were not yet looked at.
        self._reads: list[tuple[bytes, float]] = []
        self._failed = False
        self._transcript = None if context.transcript is None else context.transcript()

    # ---- the request

    @property
    def uncoded(self) -> bool:
        return self._usage_added

    def request(self, body: bytes | None) -> None:
        try:
            if body is None:
                length = self._head.value(b"content-length")
                self.body_bytes = int(length) if length is not None else None
            else:
                self._unsent = body
                self.body_bytes = len(body)
                if self._transcript is not None:
                    self._transcript.request(body)
                request = self._request = read_request(body)
                if request is not None and self._scenario is None:
                    self._scenario = self._scenario_of(request, body)
                if request is not None and self._context.sample is not None:
                    self._context.sample(self._endpoint, self._head, request, body, self.scenario)
        except Exception as error:
            self._fail(error)

    @property
    def scenario(self) -> str:
        return self._scenario or "default"

    @property
    def model(self) -> str | None:
        """As the request names it."""
        model = None if self._request is None else self._request.model
        return model[:MAX_NAME] if isinstance(model, str) else None

    @property
    def temperature(self) -> float | None:
        return None if self._request is None else _number(self._request.temperature)

    def change(self, *, opt_out: bool) -> bytes | None:
        body, self._unsent = self._unsent, None
        if opt_out:
            self._plain = False
        try:
            return None if body is None or self._request is None else self._changed(self._request, body, opt_out)
        except Exception as error:
            self._fail(error)
            return None

    def _changed(self, request: Request, body: bytes, opt_out: bool) -> bytes | None:
        with_more = plain = None
        if request.streaming and self._context.add_usage and self._head.version != b"HTTP/1.0":
            with_more = with_usage(self._endpoint, request, body)
        if request.plain:
            self._plain = opt_out or self._context.can_opt_out() or None
        elif opt_out:
            plain = without_speculation(request, with_more or body)
            self._plain = plain is not None
        self._usage_added = with_more is not None
        return plain or with_more

    def _scenario_of(self, request: Request, body: bytes) -> str | None:
        if isinstance(request.metadata, dict):
            named = request.metadata.get("scenario")
            if isinstance(named, str) and named.strip():
                return named.strip()[:MAX_NAME]
        for scenario, pattern in self._context.scenario_rules:
            if pattern.search(body, 0, _RULE_BYTES):
                return scenario
        return None

    def restored(self) -> None:
        self._usage_added = False
        if self._plain and self._request is not None and not self._request.plain:
            self._plain = False

    def sent(self, upstream: str, arm: Arm, concurrency: int) -> None:
        self.upstream = upstream
        self._arm = arm
        self._drafts_nothing = self._context.facts.get(upstream, _NO_FACTS).drafts_nothing
        self._concurrency = concurrency
        self._context.live.add(self)

    @property
    def speculates(self) -> bool:
        """Whether it was sent to be drafted for."""
        return self._ordered in (Arm.SPECULATIVE, Arm.PROBE)

    @property
    def _ordered(self) -> Arm:
        """How the request is to be served."""
        arm = Arm.SPECULATIVE if self._plain is False else self._arm
        return Arm.AUTOREGRESSIVE if arm is Arm.SPECULATIVE and self._plain else arm

    @property
    def _served(self) -> Arm:
        """How it is, as far as is known before the figures."""
        arm = self._ordered
        return Arm.AUTOREGRESSIVE if arm is Arm.SPECULATIVE and self._drafts_nothing else arm

    # ---- the reply

    def response(self, head: ResponseHead, now: float) -> tuple[bool, bytes]:
        try:
            return self._read_head(head, now)
        except Exception as error:
            self._fail(error)
            return False, b""

    def _read_head(self, head: ResponseHead, now: float) -> tuple[bool, bytes]:
        self._last_at = now
        kind = _kind(head.value(b"content-type"))
        if kind == "text/event-stream":
            self._streamed = True
            self._stream = Stream(_READERS[self._endpoint])
            self._reason = "the stream ended before its usage event"
        elif kind == "application/json" or kind.endswith("+json"):
            self._body = []
        else:
            self._give_up(f"a reply of type {kind or 'unknown'} is not read")
        coding = head.value(b"content-encoding")
        if coding is not None:
            try:
                self._decoder = decoder(coding)
            except CodingError as error:
                self._give_up(str(error))
        if self._usage_added and self._stream is not None and self._decoder is None and head.status == 200:
            self._filter = UsageFilter()
        if not self._context.add_headers:
            return self._filter is not None, b""
        added = b"x-specwatch-arm: " + self._served.encode() + b"\r\n"
        upstream_id = head.value(b"x-request-id")
        if upstream_id:
            self._request_id = _name(upstream_id)
        else:
            if self._request_id is None:
                self._request_id = _new_id()
            added = b"x-request-id: " + self._request_id.encode("latin-1", "replace") + b"\r\n" + added
        return self._filter is not None, added

    def feed(self, payload: bytes, now: float) -> None:
        reads = self._reads
        reads.append((payload, now))
        if len(reads) >= _READ_TOGETHER or len(payload) > _LONG_READ:
            self._read()

    def _read(self) -> None:
        """Look at the reads that wait."""
        reads = self._reads
        self._reads = []
        for payload, now in reads:
            gap = now - self._last_at
            if gap > self._max_gap:
                self._max_gap = gap
            self._last_at = now
            try:
                if self._decoder is not None:
                    payload = self._decoder.feed(payload)
                if self._transcript is not None and not self._unread:
                    self._transcript.reply(payload)
                if self._stream is not None:
                    if len(payload) > _LONG_READ and payload.count(b"\n") + payload.count(b"\r") > MAX_LINES:
                        self._give_up(f"a read of the reply has more than {MAX_LINES} lines")
                    else:
                        self._stream.feed(payload, now)
                elif self._body is not None:
                    self._collect(payload)
            except CodingError as error:
                self._give_up(str(error))
            except Exception as error:
                self._fail(error)

    def waits(self, now: float) -> float | None:
        """How long a stream has been waiting for its first content, s; None once it came, or where none is seen."""
        if self._request is None or not self._request.streaming:
            return None
        self._read()
        stream = self._stream
        over = self._unread or self._body is not None if stream is None else stream.first_at is not None
        return None if over else now - self._started

    def filter(self, payload: bytes, now: float) -> bytes:
        self._reads.append((payload, now))
        self._read()
        if self._filter is None or (self._stream is not None and self._stream.plain and self._filter.idle):
            return payload
        return self._filter.feed(payload)

    def flush(self) -> bytes:
        return b"" if self._filter is None else self._filter.flush()

    def _collect(self, payload: bytes) -> None:
        assert self._body is not None
        self._body.append(payload)
        self._body_size += len(payload)
        if self._body_size > MAX_REPLY:
            self._give_up(f"the reply is longer than {MAX_REPLY} bytes and was not read")

    def _give_up(self, reason: str) -> None:
        """Read no further; the bytes go on."""
        self._unread = True
        self._reason = reason
        self._decoder = None
        self._stream = None
        self._body = None

    # ---- the end

    def left(self) -> None:
        self._read()
        stream = self._stream
        self._left = stream is None or not (stream.found.last or stream.found.error)

    def end(self, outcome: Outcome, status: int | None, bytes_in: int, bytes_out: int, now: float) -> None:
        self._context.ended(self, outcome, status, bytes_in, bytes_out, now)

    def finish(self, outcome: Outcome, status: int | None, bytes_in: int, bytes_out: int, now: float) -> None:
        """Make the record."""
        if self._reads:
            self._read()
        try:
            found = self._read_end(outcome, status)
            record = self._record(found, outcome, status, bytes_in, bytes_out, now)
        except Exception as error:
            self._fail(error)
            record = self._record(_NOTHING, outcome, status, bytes_in, bytes_out, now)
        try:
            self._context.sink(record)
        except Exception as error:
            self._fail(error)
        try:
            if self._transcript is not None:
                self._transcript.end(record, streamed=self._streamed, whole=not self._unread)
        except Exception as error:
            self._fail(error)

    def _read_end(self, outcome: Outcome, status: int | None) -> Reply:
        """What the whole reply told."""
        if self._stream is not None:
            self._stream.finish(self._last_at)
            if self._stream.skipped:
                self._unread = True
                self._reason = f"an event was longer than {MAX_EVENT} bytes and was not read"
            return self._stream.found
        if self._body is None:
            return _NOTHING
        if outcome is not Outcome.OK and (status is None or status < 400):
            self._reason = "the reply was cut"
            return _NOTHING
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        reply = _READERS[self._endpoint](body)
        if reply is None:
            cut = self._decoder is not None and not self._decoder.complete
            self._reason = "the reply's coded data is cut" if cut else "the reply's body is no JSON object"
            return _NOTHING
        self._reason = "the reply has no acceptance block: is the engine started with per-request metrics?"
        return reply

    def _record(
        self, found: Reply, outcome: Outcome, status: int | None, bytes_in: int, bytes_out: int, now: float
    ) -> Record:
        stream = self._stream
        if outcome is Outcome.CLIENT_ABORT and not self._left and stream is not None and (found.last or found.error):
            outcome = Outcome.OK  # many clients leave at the last event, without reading that the body ends there
        if outcome is Outcome.OK:
            if found.error:
                outcome = Outcome.UPSTREAM_ERROR
            elif stream is not None and not (found.last or self._unread) and found.finish_reason is None:
                outcome = Outcome.TRUNCATED
        request = self._request
        model = self.model
        if model is None and found.model is not None:
            model = found.model[:MAX_NAME]
        context = self._context
        facts = context.facts.get(self.upstream, _NO_FACTS)
        arm, acceptance = self._served, found.acceptance
        capped = arm is not self._ordered
        if arm not in (Arm.SPECULATIVE, Arm.PROBE) and acceptance is not None and acceptance.draft_tokens:
            arm = Arm.SPECULATIVE
            if not capped:
                context.opted_out(True)
        speculative = arm is Arm.SPECULATIVE or arm is Arm.PROBE
        if acceptance is None or not (speculative or acceptance.draft_tokens):
            acceptance = missing(self._missing(found, outcome, speculative=speculative))
        tokens = found.completion_tokens
        if tokens is None:
            tokens = found.counted_tokens or None
        content_ms = None if stream is None else _content_ms(stream)
        reply_id = found.id
        if reply_id is None and outcome is Outcome.CLIENT_ABORT:
            reply_id = self._awaited_id()
        # By position, in the order of the fields: by name this would take ten times as long.
        return Record(
            self._request_id or _new_id(),
            self._started_wall,
            context.instance,
            self.upstream,
            arm,
            self._endpoint,
            self.scenario,
            outcome,
            acceptance,
            model,
            facts.draft_model if speculative else None,
            self._streamed or (request is not None and request.streaming),
            status,
            _word(found.finish_reason),
            self.temperature,
            found.prompt_tokens,
            tokens,
            None if stream is None or stream.first_at is None else _ms(stream.first_at - self._started),
            _ms(now - self._started),
            None if content_ms is None or tokens is None or tokens < 2 else content_ms / (tokens - 1),
            None if self._max_gap < 0 else _ms(self._max_gap),
            found.queue_ms,
            self._concurrency,
            facts.fingerprint,
            bytes_in,
            bytes_out,
            reply_id if reply_id is None or len(reply_id) <= MAX_REPLY_ID else None,
            None if request is None else request.replies,
            content_ms,
            capped,
        )

    def _awaited_id(self) -> str | None:
        """What the reply would have been called that the client did not wait for; None where the engine names it."""
        own, prefix = self._head.value(b"x-request-id"), _PREFIXES.get(self._endpoint)
        return prefix + own.decode("latin-1") if own is not None and prefix is not None else None

    def _missing(self, found: Reply, outcome: Outcome, *, speculative: bool) -> str:
        """Why a reply has no acceptance figures."""
        if self._failed:
            return self._reason
        if outcome is not Outcome.OK:
            return f"no figures: {outcome}"
        if not speculative:
            return NOT_SPECULATED
        request = self._request
        if request is not None and request.replies > 1:
            return "n > 1: vLLM gives no acceptance figures in such replies; the engine plugin's events have them"
        if self._endpoint in _WITHOUT_FIGURES:
            path = _WITHOUT_FIGURES[self._endpoint]
            return f"vLLM gives no acceptance figures in replies of {path}; the engine plugin's events have them"
        if self._unread:
            return self._reason
        if found.measured:
            return (
                "the engine gave no figures for this request: vLLM does so where a stop string ended the reply, "
                "and where it was started without --per-request-spec-decode-metrics"
            )
        if self._stream is not None and found.usage:
            return "the usage event has no acceptance block: is the engine started with per-request metrics?"
        if self._stream is not None and request is not None and not self._usage_added:
            if request.usage_declined:
                return "the client declined usage: load the engine plugin, whose events have the figures"
            return "no usage was asked for: load the engine plugin (engine_events), or set add_usage"
        return self._reason

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            self._context.failures += 1
            _log.error("a tap failed; its request is served on, unread\n%s", where(error))
        # What was being read when it failed is not to be touched again.
        self._give_up("the sidecar failed to read this reply")


def _ms(seconds: float) -> float:
    """To the microsecond; `round` would take twice as long."""
    return int(seconds * 1e6 + 0.5) / 1e3


def _content_ms(stream: Stream) -> float | None:
    if stream.first_at is None or stream.end_at is None:
        return None
    return (stream.end_at - stream.first_at) * 1e3


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e9 else None


# A handful of words, and whatever else a server writes there: that may be text.
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,39}")


def _word(value: str | None) -> str | None:
    """A finish reason, which is a word; `other` for what is none."""
    return value if value is None or _WORD.fullmatch(value) else "other"


def _name(value: bytes | None) -> str | None:
    """A header value as text; None if empty."""
    return value.decode("latin-1")[:MAX_NAME] if value else None


# In a row stands what type was not read; no words of a server are stored.
_MEDIA_TYPES = frozenset(mimetypes.types_map.values()) | {"text/event-stream"}


# A server repeats a handful of values.
@lru_cache(64)
def _kind(value: bytes | None) -> str:
    """The media type of a Content-Type, without parameters; one that is not registered is `other`."""
    kind = (value or b"").partition(b";")[0].strip().lower().decode("latin-1")
    known = not kind or kind in _MEDIA_TYPES or kind.endswith("+json")
    return kind if known else "other"


# Unlike with a token for each, the system is asked for random bytes only once.
_ID_PREFIX = secrets.token_hex(8)
_numbers = count(1)


def _new_id() -> str:
    """A request id that no other process gives."""
    return f"{_ID_PREFIX}{next(_numbers):08x}"
