"""HTTP/1.1 message heads and body framing, sans-io (RFC 9112).

Strict where laxness lets two servers read one byte stream differently (request smuggling): such a
message raises `ProtocolError` and must not be forwarded. Everything accepted keeps its raw bytes.
"""

from dataclasses import dataclass

#: Largest request or response head, bytes.
MAX_HEAD = 65_536
#: Largest chunk-size line, and largest trailer section, bytes.
MAX_CHUNK_LINE = 4_096
MAX_TRAILERS = 16_384

_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HEX = b"0123456789abcdefABCDEF"
_VISIBLE = bytes(range(0x21, 0x7F)) + bytes(range(0x80, 0x100))

#: Fields that belong to one connection (RFC 9110, 7.6.1), beside those that Connection names.
HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"))


class ProtocolError(Exception):
    """The peer's bytes are not HTTP/1.1 that may be forwarded. `status` is the answer a client gets."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Head:
    """One parsed message head.

    `lines` holds (lower-case name, raw field line without CRLF) in the order they came.
    """

    start: bytes
    version: bytes
    lines: list[tuple[bytes, bytes]]

    #: Bytes of body still to come; -1 until the connection ends, -2 chunked.
    length: int = 0
    keep_alive: bool = True
    #: Fields named by Connection, lower-case.
    connection: frozenset[bytes] = frozenset()

    def value(self, name: bytes) -> bytes | None:
        """The first value of a field, without surrounding white space; None if absent."""
        for key, line in self.lines:
            if key == name:
                return line[len(key) + 1 :].strip(b" \t")
        return None

    def forwarded(self, drop: frozenset[bytes] = HOP_BY_HOP) -> list[bytes]:
        """The raw field lines without those in `drop` and those that Connection names."""
        named = self.connection
        if named:
            drop = drop | (named - _NEVER_NAMED)
        return [line for name, line in self.lines if name not in drop]


@dataclass(slots=True)
class RequestHead(Head):
    method: bytes = b""
    target: bytes = b""
    expect_continue: bool = False
    upgrade: bool = False

    @property
    def path(self) -> bytes:
        """The target without query, and without scheme and authority."""
        path = self.target.partition(b"?")[0]
        if path[:1] != b"/" and b"://" in path:
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
        return path


@dataclass(slots=True)
class ResponseHead(Head):
    status: int = 0


UNTIL_CLOSE = -1
CHUNKED = -2

# Fields that mean something to the connection or the framing must not come as trailers (RFC 9110, 6.5.1); a
# server that heeds one there would leave a connection in a state the relay does not know of.
_NO_TRAILERS = HOP_BY_HOP | {
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"expect",
    b"host",
    b"trailer",
    b"transfer-encoding",
}

# A sender must not name these in Connection; dropping them would change the message's meaning.
_NEVER_NAMED = frozenset((b"content-length", b"transfer-encoding", b"host", b"close", b"content-type"))


def parse_request(raw: bytes) -> RequestHead:
    """Parse a request head, `raw` being all bytes up to and including the empty line."""
    first, lines = _split(raw)
    parts = first.split(b" ")
    if len(parts) != 3 or parts[0].translate(None, _TOKEN) or not parts[0]:
        raise ProtocolError("malformed request line")
    method, target, version = parts
    if not target or target.translate(None, _VISIBLE):
        raise ProtocolError("malformed request target")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        if version[:5] == b"HTTP/":
            raise ProtocolError("only HTTP/1.1 and HTTP/1.0 are spoken here", 505)
        raise ProtocolError("malformed request line")
    head = RequestHead(first, version, lines, method=method, target=target)
    hosts = 0
    length, chunked = _framing(head)
    for name, line in lines:
        if name == b"host":
            hosts += 1
        elif name == b"expect":
            head.expect_continue = line[7:].strip(b" \t").lower() == b"100-continue"
    if hosts > 1 or (hosts == 0 and version == b"HTTP/1.1"):
        raise ProtocolError("a request needs exactly one Host field")
    if chunked and version == b"HTTP/1.0":
        raise ProtocolError("Transfer-Encoding in an HTTP/1.0 request")
    head.length = CHUNKED if chunked else max(length, 0)
    head.keep_alive = _keep_alive(head)
    # With a body, servers disagree on where the old protocol ends; then the offer is dropped, as it may be.
    head.upgrade = (
        b"upgrade" in head.connection
        and head.value(b"upgrade") is not None
        and head.length == 0
        and version == b"HTTP/1.1"
    )
    return head


def parse_response(raw: bytes, method: bytes) -> ResponseHead:
    """Parse the head of a response to a request with `method`."""
    first, lines = _split(raw)
    version, _, rest = first.partition(b" ")
    code = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or not code.isdigit() or rest[3:4] not in (b"", b" "):
        raise ProtocolError("malformed status line")
    status = int(code)
    if status < 100:
        raise ProtocolError("malformed status line")
    head = ResponseHead(first, version, lines, status=status)
    length, chunked = _framing(head)
    if status < 200 or status in (204, 304) or method == b"HEAD":
        head.length = 0
    elif chunked:
        head.length = CHUNKED
    else:
        head.length = length
    head.keep_alive = _keep_alive(head) and head.length != UNTIL_CLOSE
    return head


def _split(raw: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    rows = raw[:-4].split(b"\r\n")
    # Each row but the last lost one CR and one LF to the split; any more are bare.
    if raw.count(b"\r") != len(rows) + 1 or raw.count(b"\n") != len(rows) + 1 or b"\0" in raw:
        raise ProtocolError("bare CR, bare LF or NUL in a message head")
    lines = []
    for row in rows[1:]:
        colon = row.find(b":")
        name = row[:colon]
        # Also refuses a folded line and white space before the colon.
        if colon < 1 or name.translate(None, _TOKEN):
            raise ProtocolError("malformed header field")
        lines.append((name.lower(), row))
    return rows[0], lines


def _framing(head: Head) -> tuple[int, bool]:
    """(Content-Length or -1, chunked); also collects what Connection names."""
    length = -1
    chunked = False
    for name, line in head.lines:
        if name == b"content-length":
            value = line[15:].strip(b" \t")
            if length >= 0 or not value.isdigit() or len(value) > 18:
                raise ProtocolError("malformed or repeated Content-Length")
            length = int(value)
        elif name == b"transfer-encoding":
            if chunked or line[18:].strip(b" \t").lower() != b"chunked":
                raise ProtocolError("the only transfer coding spoken here is chunked, once")
            chunked = True
        elif name == b"connection":
            names = (part.strip(b" \t").lower() for part in line[11:].split(b","))
            head.connection = head.connection | frozenset(part for part in names if part)
    if chunked and length >= 0:
        raise ProtocolError("both Content-Length and Transfer-Encoding")
    return length, chunked


def _keep_alive(head: Head) -> bool:
    if head.version == b"HTTP/1.1":
        return b"close" not in head.connection
    return b"keep-alive" in head.connection


class Body:
    """Follows one message body through arbitrary reads.

    `feed(data, start)` looks at `data[start:]` and returns the index just after the message's end, or -1
    when it goes on past `data`. `payload` then holds the body bytes of that call, without framing. The
    bytes in `data[start:end]` are the raw message and may be forwarded as they are.
    """

    __slots__ = ("_in_trailers", "_left", "_line", "_mode", "_trailer_size", "payload")

    def __init__(self, length: int) -> None:
        self._mode = length
        self._left = max(0, length)
        self._line = b""
        self._in_trailers = False
        self._trailer_size = 0
        self.payload: list[bytes] = []

    @property
    def ends_with_connection(self) -> bool:
        """Whether only the connection's end tells that the body is complete."""
        return self._mode == UNTIL_CLOSE

    def feed(self, data: bytes, start: int = 0) -> int:
        size = len(data)
        if self._mode == CHUNKED:
            return self._chunked(data, start, size)
        if self._mode == UNTIL_CLOSE:
            self.payload = [data[start:] if start else data]
            return -1
        left = self._left
        if size - start < left:
            self._left = left - (size - start)
            self.payload = [data[start:] if start else data]
            return -1
        self._left = 0
        end = start + left
        self.payload = [data[start:end]] if left else []
        return end

    def _chunked(self, data: bytes, at: int, size: int) -> int:
        payload: list[bytes] = []
        self.payload = payload
        left = self._left  # of the current chunk, its CRLF included
        while True:
            if left:
                if left > 2:
                    stop = at + left - 2
                    if size < stop:
                        payload.append(data[at:])
                        self._left = left - (size - at)
                        return -1
                    payload.append(data[at:stop])
                    at = stop
                    left = 2
                while left and at < size:
                    if data[at] != (13, 10)[2 - left]:
                        raise ProtocolError("a chunk is longer than its size")
                    at += 1
                    left -= 1
                if left:
                    self._left = left
                    return -1
            newline = data.find(b"\n", at)
            if newline < 0:
                self._line += data[at:]
                if len(self._line) > (MAX_TRAILERS if self._in_trailers else MAX_CHUNK_LINE):
                    raise ProtocolError("chunk-size line or trailers too long")
                self._left = 0
                return -1
            line = data[at : newline + 1]
            if self._line:
                line = self._line + line
                self._line = b""
            at = newline + 1
            if self._in_trailers:
                if self._trailer(line):
                    return at
                continue
            chunk = _chunk_size(line)
            if chunk:
                left = chunk + 2
            else:
                self._in_trailers = True

    def _trailer(self, line: bytes) -> bool:
        """True at the empty line that ends the message."""
        if line == b"\r\n":
            return True
        self._trailer_size += len(line)
        name, colon, _ = line.partition(b":")
        bad = line[-2:] != b"\r\n" or b"\r" in line[:-2] or not colon or not name or name.translate(None, _TOKEN)
        if bad or self._trailer_size > MAX_TRAILERS or name.lower() in _NO_TRAILERS:
            raise ProtocolError("malformed trailer field")
        return False


def _chunk_size(line: bytes) -> int:
    if line[-2:] != b"\r\n" or b"\r" in line[:-2] or b"\0" in line or len(line) > MAX_CHUNK_LINE:
        raise ProtocolError("malformed chunk-size line")
    digits, semicolon, _ = line[:-2].partition(b";")
    if semicolon:
        digits = digits.rstrip(b" \t")
    if not digits or len(digits) > 15 or digits.translate(None, _HEX):
        raise ProtocolError("malformed chunk size")
    return int(digits, 16)
