"""A streamed reply: what its events tell, and when its content came."""

import re

from .reply import Reader, Reply
from .sse import SseReader

# Before a piece of the reply's text, in any of the APIs; and the rest of a JSON string.
_TEXT = re.compile(rb'"(?:content|reasoning|reasoning_content|text|delta|thinking|partial_json|arguments)":"')
_STRING = re.compile(rb'\A[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
# Of an event without id or comment, which could not come again.
_FIRST = (b"data:", b"event:")
_NOT_PLAIN = (b"\r", b'"usage":{', b'"finish_reason":"')
_QUOTE = b'"'
_BACKSLASH = 0x5C
# Events of the Responses API are numbered.
_NUMBER = re.compile(rb'(?<="sequence_number":)\d+')
_DIGITS = 20

#: Events of a stream that are tried as its pattern; where each differs from the last, none is one.
_TRIES = 4


class Stream:
    """`feed` and `finish` take the bytes; `found` is what they told so far: of the figures always the latest.

    Nearly every event of a stream is as the last was but for its piece of text, and tells nothing but that
    content came. So of one that was read the bytes before and after the text are kept, and an event of the same
    bytes with another text is not read again.
    """

    __slots__ = ("_events", "_head", "_pattern", "_read", "_tries", "end_at", "first_at", "found", "plain")

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._events = SseReader()
        self.found = Reply()
        #: When the first and the latest content came.
        self.first_at: float | None = None
        self.end_at: float | None = None
        #: The last read was whole plain events, which a usage filter lets pass as well.
        self.plain = False
        #: What stands before and after the text of a plain event, the latter up to its number and from there on.
        self._pattern = (b"", b"", b"")
        #: The former, where the next byte is an event's first; else None.
        self._head: bytes | None = None
        self._tries = _TRIES

    @property
    def skipped(self) -> int:
        """Events too long to be read."""
        return self._events.overflows

    def feed(self, payload: bytes, now: float) -> None:
        head = self._head
        if head is not None and payload.startswith(head):
            _, tail, rest = self._pattern
            text = len(head)
            end = 0
            while True:
                # Inside a JSON string the first quote ends it, unless it is escaped; then the event is read.
                quote = payload.find(_QUOTE, text)
                if quote <= text or payload[quote - 1] == _BACKSLASH or not payload.startswith(tail, quote):
                    break
                after = quote + len(tail)
                if rest:
                    number = after
                    after = payload.find(rest, number, number + _DIGITS + len(rest))
                    if after < 0 or not payload[number:after].isdigit():
                        break
                    after += len(rest)
                end = after
                self.end_at = now
                if end == len(payload):
                    self.plain = True
                    return
                if not payload.startswith(head, end):
                    break
                text = end + len(head)
            payload = payload[end:]
        self.plain = False
        self._read_events(payload, now)

    def finish(self, now: float) -> None:
        """The bytes are over; an event that lacks its last empty line counts."""
        for data in self._events.finish():
            self._event(data, now)

    def _read_events(self, payload: bytes, now: float) -> None:
        events = self._events
        fresh = events.idle
        data, reply = b"", None
        for data in events.feed(payload):
            reply = self._event(data, now)
        if not events.idle:
            self._head = None
            return
        if self._tries and reply is not None:
            before = payload.rfind(b"\n\n", 0, -len(data) - 2)
            if fresh or before >= 0:
                self._learn(payload[before + 2 :] if before >= 0 else payload, data, reply)
        self._head = self._pattern[0] or None

    def _learn(self, event: bytes, data: bytes, reply: Reply) -> None:
        """Take an event, given with all its lines, for the pattern of those to come, if it is a plain one."""
        head, tail, rest = self._pattern
        if head and event.startswith(head) and event.endswith(rest or tail):
            return
        text = _TEXT.search(data)
        if text is None or reply != Reply(reply.model, content=True, id=reply.id):
            return
        self._tries -= 1
        start, end = text.end(), _STRING.sub(b"", data[text.end() :], 1)
        # Without this string it is no content, so that the string is what makes it content. A quote, a colon and a
        # quote stand in JSON only where a string begins; whatever text comes there, all else means the same.
        if (
            self._read(data[:start] + end) == Reply(reply.model, id=reply.id)
            and event.startswith(_FIRST)
            and event.endswith(data + b"\n\n")
            and not any(each in event for each in _NOT_PLAIN)
        ):
            tail, *numbered = _NUMBER.split(end + b"\n\n", 1)
            self._pattern = event[: start - len(data) - 2], tail, numbered[0] if numbered else b""

    def _event(self, data: bytes, now: float) -> Reply | None:
        found = self.found
        if data.strip() == b"[DONE]":
            found.last = True
            return None
        reply = self._read(data)
        if reply is None:
            return None
        if reply.content:
            if self.first_at is None:
                self.first_at = now
            self.end_at = now
        found.model = found.model or reply.model
        found.id = found.id or reply.id
        found.finish_reason = reply.finish_reason or found.finish_reason
        found.counted_tokens += reply.counted_tokens
        found.error |= reply.error
        found.last |= reply.last
        if reply.usage:
            found.usage = True
            # A later event may leave out what an earlier one has said.
            if reply.prompt_tokens is not None:
                found.prompt_tokens = reply.prompt_tokens
            if reply.completion_tokens is not None:
                found.completion_tokens = reply.completion_tokens
        if reply.acceptance is not None:
            found.acceptance = reply.acceptance
        found.measured |= reply.measured
        if reply.queue_ms is not None:
            found.queue_ms = reply.queue_ms
        return reply
