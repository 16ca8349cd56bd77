"""Server-sent events, incrementally (WHATWG HTML, 9.2), over bytes cut anywhere."""

import re

#: Longest event kept, bytes. One longer is skipped and counted.
MAX_EVENT = 4 * 1024 * 1024

_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class SseReader:
    """`feed(bytes)` returns the data of each event completed by them; `finish()` that of a last, unended one.

    Data lines of one event are joined by LF. Comments, ids and event names are no events of their own.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_line", "_size", "idle", "overflows")

    def __init__(self) -> None:
        self._line = bytearray()  # the part of a line that has come so far
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._first = True
        #: The next byte is the first of an event.
        self.idle = True
        #: Events skipped because they were longer than MAX_EVENT.
        self.overflows = 0

    def feed(self, data: bytes) -> list[bytes]:
        # Nearly every read of a stream is whole events of one line each, as servers write them.
        if (
            self.idle
            and data.startswith(b"data: ")
            and data.endswith(b"\n\n")
            and b"\r" not in data
            and len(data) <= MAX_EVENT
        ):
            events = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(events):
                self._first = False
                return events
        return self._lines(data)

    def finish(self) -> list[bytes]:
        """Data of an event that the end of the stream cut before its empty line."""
        events: list[bytes] = []
        if self._line:
            self._field(bytes(self._line))
            self._line.clear()
        self._ended(events)
        return events

    def _ended(self, events: list[bytes]) -> None:
        """Add the event that ends here, if there is one."""
        if self._data and self._size >= 0:
            events.append(b"\n".join(self._data))
        elif self._size < 0:
            self.overflows += 1
        self._data = []
        self._size = 0

    def _lines(self, data: bytes) -> list[bytes]:
        events: list[bytes] = []
        if not data:
            return events
        if self._after_cr:
            self._after_cr = False
            if data[:1] == b"\n":
                data = data[1:]
        at = 0
        for match in _END.finditer(data):
            line = data[at : match.start()]
            if self._line:
                self._line += line
                line = bytes(self._line)
                self._line.clear()
            at = match.end()
            if line:
                self._field(line)
            else:
                self._first = False
                self._ended(events)
        self._after_cr = data.endswith(b"\r")
        rest = data[at:]
        if self._size >= 0 and self._size + len(self._line) + len(rest) <= MAX_EVENT:
            self._line += rest
        else:
            self._drop()
            # Only whether the line is empty matters now, and it is not.
            self._line[:] = b":" if self._line or rest else b""
        self.idle = not (self._line or self._data or self._size or self._after_cr)
        return events

    def _field(self, line: bytes) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if self._size < 0:
            return
        if line.startswith(b"data:"):
            value = line[6:] if line[5:6] == b" " else line[5:]
        elif line == b"data":
            value = b""
        else:
            return
        self._data.append(value)
        self._size += len(value) + 1
        if self._size > MAX_EVENT:
            self._drop()

    def _drop(self) -> None:
        self._data = []
        self._size = -1
