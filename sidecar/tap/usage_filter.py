"""Takes the usage event that the sidecar asked for out of a stream again, and nothing else."""

import re

from .reply import is_usage_event
from .sse import SseReader

#: An event longer than this cannot be a usage event, even with per-step lists; it passes unheld.
MAX_HELD = 262_144

_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")


class UsageFilter:
    """`feed(bytes)` returns what may pass; only an unfinished event that may be the usage event is held."""

    __slots__ = ("_held", "_passed", "_passing", "removed")

    def __init__(self) -> None:
        self._held = b""
        #: The current event is already known to be another; `_passed` are the line ends it passed with last.
        self._passing = False
        self._passed = b""
        #: Events taken out.
        self.removed = 0

    def feed(self, data: bytes) -> bytes:
        had = len(self._passed)
        data = self._passed + self._held + data
        self._passed = self._held = b""
        out: list[bytes] = []
        at = 0
        # Whether a CR at the end is a line end of its own, the next byte tells.
        for match in _EVENT_END.finditer(data, 0, len(data) - data.endswith(b"\r")):
            event = data[at : match.end()]
            if self._passing or not _is_usage(event):
                out.append(data[max(at, had) : match.end()])
            else:
                out.append(event[: len(event) - len(event.lstrip(b"\r\n"))])
                self.removed += 1
            at = match.end()
            self._passing = False
        rest = data[at:]
        if self._passing or b'"choices":[{' in rest or len(rest) > MAX_HELD:
            self._passing = True
            self._passed = rest[len(rest.rstrip(b"\r\n")) :][-3:]
            out.append(data[max(at, had) :])
        else:
            self._held = rest
        return b"".join(out)

    def flush(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _is_usage(event: bytes) -> bool:
    if b'"usage"' not in event:
        return False
    reader = SseReader()
    return any(is_usage_event(data) for data in (*reader.feed(event), *reader.finish()))
