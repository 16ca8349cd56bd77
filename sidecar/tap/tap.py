"""The watcher of one exchange: bytes in, exactly one `Record` out."""

import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..record import Acceptance, Arm, Outcome, Record
from .acceptance import missing
from .reply import Reply, is_plain_delta, read_reply
from .request import Request, endpoint_of, read_request, with_usage
from .sse import SseReader
from .usage_filter import UsageFilter

_log = logging.getLogger(__name__)

#: Longest reply body of which a copy is kept for reading, bytes.
MAX_REPLY = 8 * 1024 * 1024
#: Characters of a scenario, model or request name that are kept.
MAX_NAME = 200
#: Bytes of a body in which scenario rules are searched.
_RULE_BYTES = 4_096

_TERMINAL = frozenset(("message_stop", "response.completed", "response.failed", "response.incomplete"))


class RequestHead(Protocol):
    """What a tap reads of a request head."""

    method: bytes
    version: bytes

    @property
    def path(self) -> bytes: ...

    def value(self, name: bytes) -> bytes | None: ...


class ResponseHead(Protocol):
    """What a tap reads of a reply's head."""

    status: int

    def value(self, name: bytes) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an upstream without asking it for every request."""

    draft_model: str | None = None
    num_speculative_tokens: int | None = None
    fingerprint: str | None = None


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
    add_usage: bool = True
    #: Add x-specwatch-arm, and x-request-id where the upstream gave none.
    add_headers: bool = True
    #: Taps that failed and turned themselves off.
    failures: int = 0

    def watch(self, head: RequestHead, now: float) -> "Tap | None":
        """The watcher of a request, None if it asks for no generation."""
        if head.method != b"POST":
            return None
        endpoint = endpoint_of(head.path)
        return None if endpoint is None else Tap(self, head, endpoint, now)


class Tap:
    """See `relay.watch.Watch`. A failure of its own is counted, ends its looking, and changes no byte."""

    __slots__ = (
        "_arm",
        "_body",
        "_body_size",
        "_concurrency",
        "_context",
        "_end_at",
        "_endpoint",
        "_failed",
        "_filter",
        "_finish_reason",
        "_first_at",
        "_header_scenario",
        "_http10",
        "_last_at",
        "_max_gap",
        "_reason",
        "_reply",
        "_request",
        "_request_id",
        "_saw_end",
        "_saw_error",
        "_scenario",
        "_sse",
        "_started",
        "_started_wall",
        "_upstream",
        "_usage",
        "_usage_added",
        "hold",
    )

    def __init__(self, context: TapContext, head: RequestHead, endpoint: str, now: float) -> None:
        self._context = context
        self._endpoint = endpoint
        self._started = now
        self._started_wall = time.time()
        self.hold = context.hold
        self._http10 = head.version == b"HTTP/1.0"
        self._header_scenario = _name(head.value(context.scenario_header))
        self._request_id = _name(head.value(b"x-request-id")) or secrets.token_hex(12)
        self._scenario = self._header_scenario or "default"
        self._request: Request | None = None
        self._upstream = ""
        self._arm = Arm.SPECULATIVE
        self._concurrency = 1
        self._usage_added = False
        self._filter: UsageFilter | None = None
        self._sse: SseReader | None = None
        self._body: list[bytes] | None = None
        self._body_size = 0
        #: The reply, or the event of the stream, that had the latest usage.
        self._reply: Reply | None = None
        self._usage: Reply | None = None
        self._reason = "the reply was not read"
        self._finish_reason: str | None = None
        self._first_at: float | None = None
        self._end_at: float | None = None
        self._last_at: float | None = None
        self._max_gap: float | None = None
        self._saw_end = False
        self._saw_error = False
        self._failed = False

    # ---- the request

    def request(self, body: bytes | None) -> bytes | None:
        try:
            return self._read_request(body)
        except Exception:
            self._fail()
            return None

    def _read_request(self, body: bytes | None) -> bytes | None:
        if body is None:
            return None
        request = self._request = read_request(body)
        if request is None:
            return None
        self._scenario = self._header_scenario or self._scenario_of(request, body)
        if not self._context.add_usage or self._http10:
            return None
        changed = with_usage(self._endpoint, request, body)
        self._usage_added = changed is not None
        return changed

    def _scenario_of(self, request: Request, body: bytes) -> str:
        if isinstance(request.metadata, dict):
            named = request.metadata.get("scenario")
            if isinstance(named, str) and named.strip():
                return named.strip()[:MAX_NAME]
        for scenario, pattern in self._context.scenario_rules:
            if pattern.search(body, 0, _RULE_BYTES):
                return scenario
        return "default"

    def restored(self) -> None:
        self._usage_added = False

    def sent(self, upstream: str, arm: Arm, concurrency: int) -> None:
        self._upstream = upstream
        self._arm = arm
        self._concurrency = concurrency

    # ---- the reply

    def response(self, head: ResponseHead, now: float) -> tuple[bool, bytes]:
        try:
            return self._read_head(head, now)
        except Exception:
            self._fail()
            return False, b""

    def _read_head(self, head: ResponseHead, now: float) -> tuple[bool, bytes]:
        self._last_at = now
        kind = (head.value(b"content-type") or b"").partition(b";")[0].strip().lower()
        coding = (head.value(b"content-encoding") or b"identity").lower()
        if coding != b"identity":
            self._reason = f"the reply is compressed ({coding.decode('latin-1')}) and was not read"
        elif kind == b"text/event-stream":
            self._sse = SseReader()
            self._reason = "the stream ended before its usage event"
            if self._usage_added and head.status == 200:
                self._filter = UsageFilter()
        elif kind == b"application/json" or kind.endswith(b"+json"):
            self._body = []
        else:
            self._reason = f"a reply of type {kind.decode('latin-1') or 'unknown'} is not read"
        added = b""
        if self._context.add_headers:
            upstream_id = head.value(b"x-request-id")
            if upstream_id:
                self._request_id = _name(upstream_id) or self._request_id
            else:
                added = b"x-request-id: " + self._request_id.encode("latin-1", "replace") + b"\r\n"
            added += b"x-specwatch-arm: " + self._arm.encode() + b"\r\n"
        return self._filter is not None, added

    def feed(self, payload: bytes, now: float) -> None:
        last = self._last_at
        if last is not None:
            gap = now - last
            if self._max_gap is None or gap > self._max_gap:
                self._max_gap = gap
        self._last_at = now
        if self._failed:
            return
        try:
            if self._sse is not None:
                for event in self._sse.feed(payload):
                    self._event(event, now)
            elif self._body is not None:
                self._collect(payload)
        except Exception:
            self._fail()

    def filter(self, payload: bytes, now: float) -> bytes:
        self.feed(payload, now)
        return payload if self._filter is None else self._filter.feed(payload)

    def flush(self) -> bytes:
        return b"" if self._filter is None else self._filter.flush()

    def _collect(self, payload: bytes) -> None:
        assert self._body is not None
        self._body.append(payload)
        self._body_size += len(payload)
        if self._body_size > MAX_REPLY:
            self._body = None
            self._reason = f"the reply is longer than {MAX_REPLY} bytes and was not read"

    def _event(self, event: bytes, now: float) -> None:
        if self._first_at is not None and is_plain_delta(event):
            self._end_at = now
            return
        if event.strip() == b"[DONE]":
            self._saw_end = True
            return
        reply = read_reply(event)
        if reply is None:
            return
        self._reply = reply
        if reply.is_error:
            self._saw_error = True
        if reply.has_content:
            if self._first_at is None:
                self._first_at = now
            self._end_at = now
        if reply.finish_reason is not None:
            self._finish_reason = reply.finish_reason
        if reply.type in _TERMINAL:
            self._saw_end = True
        if isinstance(reply.usage, dict):
            self._usage = reply

    # ---- the end

    def end(self, outcome: Outcome, status: int | None, bytes_in: int, bytes_out: int, now: float) -> None:
        try:
            self._read_end(outcome, status)
            record = self._record(outcome, status, bytes_in, bytes_out, now)
        except Exception:
            self._fail()
            record = self._record(outcome, status, bytes_in, bytes_out, now)
        try:
            self._context.sink(record)
        except Exception:
            self._fail()

    def _read_end(self, outcome: Outcome, status: int | None) -> None:
        if self._sse is not None:
            for event in self._sse.finish():
                self._event(event, self._last_at or self._started)
        elif self._body is not None:
            whole = outcome is Outcome.OK or (status is not None and status >= 400)
            self._read_body(b"".join(self._body), complete=whole)

    def _record(self, outcome: Outcome, status: int | None, bytes_in: int, bytes_out: int, now: float) -> Record:
        if outcome is Outcome.OK:
            if self._saw_error:
                outcome = Outcome.UPSTREAM_ERROR
            elif self._sse is not None and not self._saw_end and self._finish_reason is None:
                outcome = Outcome.TRUNCATED
        request = self._request
        usage = self._usage
        tokens = usage.tokens("completion_tokens") if usage is not None else None
        facts = self._context.facts.get(self._upstream, Facts())
        speculative = self._arm in (Arm.SPECULATIVE, Arm.PROBE)
        model = request.model if request is not None else None
        if not isinstance(model, str) and self._reply is not None:
            model = self._reply.model
        temperature = request.temperature if request is not None else None
        return Record(
            request_id=self._request_id,
            started_at=self._started_wall,
            instance=self._context.instance,
            upstream=self._upstream,
            arm=self._arm,
            endpoint=self._endpoint,
            scenario=self._scenario,
            outcome=outcome,
            acceptance=self._acceptance(outcome, speculative=speculative, facts=facts),
            model=model[:MAX_NAME] if isinstance(model, str) else None,
            draft_model=facts.draft_model if speculative else None,
            stream=self._sse is not None or (request is not None and request.streaming),
            status=status,
            finish_reason=self._finish_reason,
            temperature=_number(temperature),
            prompt_tokens=usage.tokens("prompt_tokens") if usage is not None else None,
            completion_tokens=tokens,
            ttft_ms=_ms(self._started, self._first_at),
            latency_ms=_ms(self._started, now),
            tpot_ms=self._tpot(tokens),
            max_chunk_gap_ms=_ms(0.0, self._max_gap),
            queue_ms=usage.queue_ms() if usage is not None else None,
            concurrency=self._concurrency,
            fingerprint=facts.fingerprint,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
        )

    def _read_body(self, body: bytes, *, complete: bool) -> None:
        reply = read_reply(body) if complete else None
        if reply is None:
            self._reason = "the reply's body is no JSON object" if complete else "the reply was cut"
            return
        self._reply = reply
        self._saw_error = reply.is_error
        self._finish_reason = reply.finish_reason
        self._usage = reply
        self._saw_end = True
        self._reason = "the reply has no acceptance block: is the engine started with per-request metrics?"

    def _acceptance(self, outcome: Outcome, *, speculative: bool, facts: Facts) -> Acceptance:
        if self._failed:
            return missing("the sidecar failed to read this reply")
        if self._usage is not None:
            found = self._usage.acceptance()
            if found is not None:
                return found
        if outcome is not Outcome.OK:
            return missing(f"no figures: {outcome}")
        if not speculative:
            return missing("served without speculation")
        request = self._request
        if request is not None and request.replies > 1:
            return missing("n > 1: the engine reports no acceptance figures for several replies")
        if self._sse is not None and self._usage is None and request is not None and not self._usage_added:
            return missing("the client declined usage" if request.usage_declined else "no usage was asked for")
        if self._sse is not None and self._usage is not None:
            return missing("the usage event has no acceptance block: is the engine started with per-request metrics?")
        return missing(self._reason)

    def _tpot(self, tokens: int | None) -> float | None:
        if tokens is None or tokens < 2 or self._first_at is None or self._end_at is None:
            return None
        return (self._end_at - self._first_at) * 1e3 / (tokens - 1)

    def _fail(self) -> None:
        if not self._failed:
            self._failed = True
            self._context.failures += 1
            _log.exception("a tap failed; its request is served on, unread")
        # What was being read when it failed is not to be touched again.
        self._sse = None
        self._body = None
        self._reply = None
        self._usage = None


def _ms(start: float, end: float | None) -> float | None:
    return None if end is None else round((end - start) * 1e3, 3)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e9 else None


def _name(value: bytes | None) -> str | None:
    """A header value as text; None if empty."""
    return value.decode("latin-1")[:MAX_NAME] if value else None
