"""HTTP/1.1 message bodies through arbitrary reads, sans-io (RFC 9112, 6 and 7)."""

from functools import lru_cache

from .http1 import CHUNKED, HOP_BY_HOP, TOKEN, ProtocolError

#: Largest chunk-size line, and largest trailer section, bytes.
MAX_CHUNK_LINE = 4_096
MAX_TRAILERS = 16_384

_HEX = b"0123456789abcdefABCDEF"

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


class Body:
    """Follows one message body through arbitrary reads.

    `feed(data, start)` looks at `data[start:]` and returns the index just after the message's end, or -1
    when it goes on past `data`. `parts` then holds the body bytes of that call, without framing, a part for
    each chunk. The bytes in `data[start:end]` are the raw message and may be forwarded as they are. Raises
    ProtocolError.
    """

    __slots__ = ("_left", "parts")

    #: Whether only the connection's end tells that the body is complete.
    ends_with_connection = False

    def __init__(self, length: int) -> None:
        self._left = length
        self.parts: list[bytes] = []

    def feed(self, data: bytes, start: int = 0) -> int:
        left = self._left
        size = len(data)
        if size - start < left:
            self._left = left - (size - start)
            self.parts = [data[start:] if start else data]
            return -1
        self._left = 0
        end = start + left
        self.parts = [data[start:end]] if left else []
        return end


class EndlessBody(Body):
    """One that ends with the connection."""

    __slots__ = ()
    ends_with_connection = True

    def feed(self, data: bytes, start: int = 0) -> int:
        self.parts = [data[start:] if start else data]
        return -1


class ChunkedBody(Body):
    __slots__ = ("_in_trailers", "_line", "_trailer_size")

    def __init__(self) -> None:
        super().__init__(0)
        self._line = b""
        self._in_trailers = False
        self._trailer_size = 0

    def feed(self, data: bytes, start: int = 0) -> int:
        self.parts = parts = []
        at, size = start, len(data)
        left = self._left  # of the current chunk, its CRLF included
        while True:
            if left:
                stop = at + left
                if size < stop:
                    self._cut_chunk(data, at, left)
                    return -1
                if left > 2:
                    parts.append(data[at : stop - 2])
                    if data[stop - 2 : stop] != b"\r\n":
                        raise ProtocolError("a chunk is longer than its size")
                elif data[at:stop] != b"\r\n"[2 - left :]:
                    raise ProtocolError("a chunk is longer than its size")
                if stop == size:  # as servers send them: a chunk a read
                    self._left = 0
                    return -1
                at = stop
            newline = data.find(b"\n", at) + 1
            if not newline:
                self._line += data[at:]
                if len(self._line) > (MAX_TRAILERS if self._in_trailers else MAX_CHUNK_LINE):
                    raise ProtocolError("chunk-size line or trailers too long")
                self._left = 0
                return -1
            line = data[at:newline]
            if self._line:
                line = self._line + line
                self._line = b""
            at = newline
            left = 0
            if not self._in_trailers:
                left = _chunk_size(line)
                self._in_trailers = not left
            elif self._trailer(line):
                return at

    def _cut_chunk(self, data: bytes, at: int, left: int) -> None:
        """`data[at:]` ends inside a chunk of which, with its CRLF, `left` bytes are still to come."""
        size = len(data)
        payload = min(size - at, left - 2)
        if payload > 0:
            self.parts.append(data[at : at + payload])
        left -= size - at
        if left == 1 and data[size - 1 : size] != b"\r" and size > at:
            raise ProtocolError("a chunk is longer than its size")
        self._left = left

    def _trailer(self, line: bytes) -> bool:
        """True at the empty line that ends the message."""
        if line == b"\r\n":
            return True
        self._trailer_size += len(line)
        name, colon, _ = line.partition(b":")
        bad = line[-2:] != b"\r\n" or b"\r" in line[:-2] or not colon or not name or name.translate(None, TOKEN)
        if bad or self._trailer_size > MAX_TRAILERS or name.lower() in _NO_TRAILERS:
            raise ProtocolError("malformed trailer field")
        return False


def body_of(length: int) -> Body:
    """The body of a message whose head says `length`."""
    if length >= 0:
        return Body(length)
    return ChunkedBody() if length == CHUNKED else EndlessBody(length)


@lru_cache(1_024)
def _chunk_size(line: bytes) -> int:
    """Bytes of a chunk, its CRLF included; 0 for the last one."""
    if line[-2:] != b"\r\n" or b"\r" in line[:-2] or b"\0" in line or len(line) > MAX_CHUNK_LINE:
        raise ProtocolError("malformed chunk-size line")
    digits, semicolon, _ = line[:-2].partition(b";")
    if semicolon:
        digits = digits.rstrip(b" \t")
    if not digits or len(digits) > 15 or digits.translate(None, _HEX):
        raise ProtocolError("malformed chunk size")
    size = int(digits, 16)
    return size + 2 if size else 0
