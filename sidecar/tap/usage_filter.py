"""Takes the usage event that the sidecar asked for out of a stream again, and nothing else.

vLLM stamps `system_fingerprint` on its last event: with usage that is the usage event, without it the one
with the finish reason. So that the client gets the bytes it would have got, the stamp moves back with it.
"""

import re
from typing import Annotated, Any

import msgspec

from .sse import SseReader

#: An event longer than this cannot be a usage event, even with per-step lists; it passes unheld.
MAX_HELD = 262_144

_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_LF_END = re.compile(rb"\n\n")  # several times as fast, for streams without CR
_FINGERPRINT = re.compile(rb',"system_fingerprint":"(?:[^"\\]|\\.)*"')
# JSON escapes quotes inside strings, so a model's text cannot hold this.
_FINISH = b'"finish_reason":"'
_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\{')
_COMMENTS = re.compile(rb"(?::[^\r\n]*(?:\r\n|\n|\r))+")
_CONTEXT = 32


class UsageFilter:
    """`feed(bytes)` returns what may pass.

    Held back are only an unfinished event that may be the usage event, and the event with the finish reason
    until the next one begins, which a server sends right after it.
    """

    __slots__ = ("_context", "_finish", "_forced", "_held", "_passing", "removed")

    def __init__(self) -> None:
        #: Of the current event, the end of what has passed, and what has not.
        self._context = b""
        self._held = b""
        #: The current event is known not to be the usage event.
        self._passing = False
        #: What has not passed of a complete event with a finish reason.
        self._finish = b""
        #: The server sends usage with every event, asked or not: then all of it is the client's own.
        self._forced = False
        #: Events taken out.
        self.removed = 0

    @property
    def idle(self) -> bool:
        """Nothing is held back, and the next byte is an event's first; or all passes."""
        return self._forced or not (self._held or self._finish or self._context)

    def feed(self, data: bytes) -> bytes:
        if self._forced:
            return data
        # Nearly every read of a stream is whole events of content.
        if (
            self.idle
            and data.endswith(b"\n\n")
            and b'"usage"' not in data
            and _FINISH not in data
            and b"\r" not in data
        ):
            return data
        passed = len(self._context)
        known = passed + len(self._held)
        data = self._context + self._held + data
        out: list[bytes] = []
        at = 0
        # Whether a CR at the end is a line end of its own, the next byte tells.
        ends = _EVENT_END if b"\r" in data else _LF_END
        for match in ends.finditer(data, max(known - 3, 0), len(data) - data.endswith(b"\r")):
            event, rest = data[at : match.end()], data[max(at, passed) : match.end()]
            if not self._passing and _is_usage(event):
                out.append(self._stamped(event))
                out.append(event[: len(event) - len(event.lstrip(b"\r\n"))])
                self.removed += 1
            else:
                out.append(self._finish)
                self._finish = b""
                if b'"usage":{' in event and (self._passing or _CHOICE.search(event)):
                    self._forced, self._held = True, b""
                    return b"".join([*out, data[max(at, passed) :]])
                if _FINISH in event:
                    self._finish = rest
                else:
                    out.append(rest)
            at = match.end()
            self._passing = False
        event, rest = data[at:], data[max(at, passed) :]
        if not self._passing and (_CHOICE.search(event) or len(event) > MAX_HELD):
            self._passing = True
            out.append(self._finish)
            self._finish = b""
        if self._passing and b'"usage":{' in event:
            self._forced, self._held = True, b""
            return b"".join([*out, rest])
        if self._passing and (_FINISH not in event or len(event) > MAX_HELD):
            out.append(rest)
            self._context, self._held = event[-_CONTEXT:], b""
        elif not self._finish and event.endswith(b"\n") and _COMMENTS.fullmatch(event):
            # They keep a connection alive, and must not wait for the event that they may belong to.
            out.append(rest)
            self._context, self._held = b":\n", b""
        else:
            self._context, self._held = event[: len(event) - len(rest)], rest
        return b"".join(out)

    def flush(self) -> bytes:
        """What is still held, at the end; the beginning of a usage event that was cut is not for the client."""
        held = b"" if b'"choices":[]' in self._held else self._held
        rest = self._finish + held
        self._finish = self._held = b""
        return rest

    def _stamped(self, usage: bytes) -> bytes:
        """The event with the finish reason, as it is without a usage event after it."""
        finish, self._finish = self._finish, b""
        stamp = _FINGERPRINT.search(usage)
        if stamp is None or _FINGERPRINT.search(finish) is not None:
            return finish
        end = finish.rfind(b"}")
        return finish if end < 0 else finish[:end] + stamp[0] + finish[end:]


class _UsageEvent(msgspec.Struct):
    """The event that `include_usage` adds: usage and no choices."""

    choices: Annotated[list[Any], msgspec.Meta(max_length=0)]
    usage: dict[str, Any]
    error: None = None
    object: str | None = None


_decoder = msgspec.json.Decoder(_UsageEvent)


def _is_usage(event: bytes) -> bool:
    if b'"usage"' not in event:
        return False
    return any(map(_is_usage_data, SseReader().feed(event)))


def _is_usage_data(data: bytes) -> bool:
    try:
        return _decoder.decode(data).object != "error"
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
