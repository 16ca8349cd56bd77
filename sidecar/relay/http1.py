"""HTTP/1.1 message heads, sans-io (RFC 9112).

Strict where laxness lets two servers read one byte stream differently (request smuggling): such a
message raises `ProtocolError` and must not be forwarded. Everything accepted keeps its raw bytes.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Generic, TypeVar

#: Largest request or response head, bytes.
MAX_HEAD = 65_536

#: `length` of a body that ends with the connection, and of one in chunks.
UNTIL_CLOSE = -1
CHUNKED = -2

#: Longest Content-Length, digits: it fits 64 bits.
MAX_DIGITS = 18

TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_VISIBLE = bytes(range(0x21, 0x7F)) + bytes(range(0x80, 0x100))

#: Fields that belong to one connection (RFC 9110, 7.6.1), beside those that Connection names.
HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"))
_NOT_PLAIN = HOP_BY_HOP | {b"expect"}

# A sender must not name these in Connection; dropping them would change the message's meaning.
_NEVER_NAMED = frozenset((b"content-length", b"transfer-encoding", b"host", b"close", b"content-type"))


class ProtocolError(Exception):
    """The peer's bytes are not HTTP/1.1 that may be forwarded. `status` is the answer a client gets."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Head:
    """One parsed message head: its start line and field lines, raw and in the order they came."""

    __slots__ = ("_first", "connection", "keep_alive", "length", "names", "plain", "rows", "start", "version")

    #: Bytes of body still to come; or UNTIL_CLOSE, CHUNKED.
    length: int
    keep_alive: bool
    version: bytes

    def __init__(self, raw: bytes) -> None:
        self.start, *rows = raw[:-4].split(b"\r\n")
        names = [_name(row) for row in rows]
        self.rows: list[bytes] = rows
        #: The lines' field names, lower-case.
        self.names: list[bytes] = names
        #: Field name -> its first line.
        self._first = first = dict(zip(names, rows))  # noqa: B905
        if len(first) < len(names):
            self._first = dict(zip(reversed(names), reversed(rows), strict=True))
        #: Whether no field is for this connection alone, so that the head may be forwarded as it is.
        self.plain = _NOT_PLAIN.isdisjoint(first)
        #: Names in Connection, lower-case.
        self.connection: frozenset[bytes] = frozenset()
        if b"connection" in first:
            lines = (row for name, row in zip(names, rows, strict=True) if name == b"connection")
            self.connection = frozenset().union(*map(_connection, lines))

    def value(self, name: bytes) -> bytes | None:
        """The first value of a field, without surrounding white space; None if absent."""
        row = self._first.get(name)
        return None if row is None else row[len(name) + 1 :].strip(b" \t")

    def put(self, at: int, row: bytes) -> None:
        """Replace a line by another of the same, unrepeated name."""
        self.rows[at] = row
        self._first[self.names[at]] = row

    def lines(self, name: bytes) -> list[bytes]:
        """The raw lines of a field."""
        return [row for key, row in zip(self.names, self.rows, strict=True) if key == name]

    def forwarded(self, drop: frozenset[bytes] = HOP_BY_HOP) -> list[bytes]:
        """The raw field lines without those in `drop` and those that Connection names."""
        if self.connection:
            drop = drop | (self.connection - _NEVER_NAMED)
        return [row for name, row in zip(self.names, self.rows, strict=True) if name not in drop]

    @property
    def length_is_told(self) -> bool:
        """Whether a head that differs in Content-Length alone differs in nothing but the body's length."""
        return b"upgrade" not in self._first  # what that means depends on the length

    def _framing(self) -> tuple[int, bool]:
        """(Content-Length or -1, chunked)."""
        first = self._first
        length, chunked = -1, False
        if len(first) < len(self.names) and (
            self.names.count(b"content-length") > 1 or self.names.count(b"transfer-encoding") > 1
        ):
            raise ProtocolError("repeated Content-Length or Transfer-Encoding")
        row = first.get(b"content-length")
        if row is not None:
            value = row[15:].strip(b" \t")
            if not value.isdigit() or len(value) > MAX_DIGITS:
                raise ProtocolError("malformed Content-Length")
            length = int(value)
        row = first.get(b"transfer-encoding")
        if row is not None:
            if row[18:].strip(b" \t").lower() != b"chunked":
                raise ProtocolError("the only transfer coding spoken here is chunked, once")
            if length >= 0:
                raise ProtocolError("both Content-Length and Transfer-Encoding")
            chunked = True
        return length, chunked

    def _keeps_alive(self) -> bool:
        if self.version == b"HTTP/1.1":
            return b"close" not in self.connection
        return b"keep-alive" in self.connection


class RequestHead(Head):
    """`raw` is all bytes up to and including the empty line. Raises ProtocolError."""

    __slots__ = ("expect_continue", "method", "path", "target", "upgrade")

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        #: `path` is the target without query, and without scheme and authority.
        self.method, self.target, self.version, self.path = _request_line(self.start)
        names = self.names
        length, chunked = self._framing()
        if names.count(b"host") != 1 and (b"host" in names or self.version == b"HTTP/1.1"):
            raise ProtocolError("a request needs exactly one Host field")
        if chunked and self.version == b"HTTP/1.0":
            raise ProtocolError("Transfer-Encoding in an HTTP/1.0 request")
        self.length = CHUNKED if chunked else max(0, length)
        self.keep_alive = self._keeps_alive()
        self.expect_continue = self.upgrade = False
        if not self.plain:
            self.expect_continue = any(
                row[7:].strip(b" \t").lower() == b"100-continue" for row in self.lines(b"expect")
            )
            # With a body, servers disagree on where the old protocol ends; then the offer is dropped, as it may be.
            self.upgrade = (
                b"upgrade" in self.connection
                and b"upgrade" in names
                and self.length == 0
                and self.version == b"HTTP/1.1"
            )


class ResponseHead(Head):
    """Head of the response to a request with `method`, `raw` as above. Raises ProtocolError."""

    __slots__ = ("status",)

    def __init__(self, raw: bytes, method: bytes = b"") -> None:
        super().__init__(raw)
        self.version, self.status = _status_line(self.start)
        length, chunked = self._framing()
        if method == b"HEAD" or not self._may_have_body():
            self.length = 0
        else:
            self.length = CHUNKED if chunked else length
        self.keep_alive = self.length != UNTIL_CLOSE and self._keeps_alive()

    def _may_have_body(self) -> bool:
        return self.status >= 200 and self.status not in (204, 304)

    @property
    def length_is_told(self) -> bool:
        return self._may_have_body() and super().length_is_told


H = TypeVar("H", bound=Head)


class Heads(Generic[H]):
    """Parses the heads that one peer sends: mostly they differ in Content-Length alone, and are parsed but once.

    `read(raw)` gives the head of `raw`, all bytes up to and including the empty line; the object is good until
    the next call. Raises ProtocolError.
    """

    __slots__ = ("_after", "_before", "_digits", "_head", "_parse", "_row")

    def __init__(self, parse: Callable[[bytes], H]) -> None:
        self._parse = parse
        self._head: H | None = None
        #: The last head's bytes before and after the digits of its Content-Length.
        self._before = self._after = self._digits = b""
        #: Which line has them.
        self._row = -1

    def read(self, raw: bytes) -> H:
        head = self._head
        if head is not None and raw.startswith(self._before) and raw.endswith(self._after):
            digits = raw[len(self._before) : len(raw) - len(self._after)]
            if digits == self._digits:
                return head
            if self._row >= 0 and digits.isdigit() and len(digits) <= MAX_DIGITS:
                row = head.rows[self._row]
                at = row.rindex(self._digits)
                head.put(self._row, row[:at] + digits + row[at + len(self._digits) :])
                head.length = int(digits)
                self._digits = digits
                return head
        head = self._parse(raw)
        self._remember(raw, head)
        return head

    def _remember(self, raw: bytes, head: H) -> None:
        self._head = None
        names = head.names
        if not head.length_is_told:
            return
        if b"content-length" not in names:
            self._before, self._digits, self._after, self._row = raw, b"", b"", -1
        elif head.length >= 0:
            row = names.index(b"content-length")
            line = head.rows[row]
            digits = line[15:].strip(b" \t")
            start = len(head.start) + 2 + sum(len(each) + 2 for each in head.rows[:row]) + line.rindex(digits)
            self._before, self._digits, self._after = raw[:start], digits, raw[start + len(digits) :]
            self._row = row
        self._head = head


def _name(row: bytes) -> bytes:
    """The lower-case name of a field line."""
    _check_line(row)
    colon = row.find(b":")
    return _token(row[:colon] if colon > 0 else b"")


@lru_cache(1_024)
def _token(name: bytes) -> bytes:
    # Also refuses a folded line and white space before the colon.
    if not name or name.translate(None, TOKEN):
        raise ProtocolError("malformed header field")
    return name.lower()


def _check_line(line: bytes) -> None:
    # CR LF pairs went with the split into lines, so any that are left are bare.
    if b"\r" in line or b"\n" in line or b"\0" in line:
        raise ProtocolError("bare CR, bare LF or NUL in a message head")


@lru_cache(512)
def _request_line(line: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """(method, target, version, path)"""
    _check_line(line)
    parts = line.split(b" ")
    if len(parts) != 3 or parts[0].translate(None, TOKEN) or not parts[0]:
        raise ProtocolError("malformed request line")
    method, target, version = parts
    if not target or target.translate(None, _VISIBLE):
        raise ProtocolError("malformed request target")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        if version[:5] == b"HTTP/":
            raise ProtocolError("only HTTP/1.1 and HTTP/1.0 are spoken here", 505)
        raise ProtocolError("malformed request line")
    path = target.partition(b"?")[0]
    if path[:1] != b"/" and b"://" in path:
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
    return method, target, version, path


@lru_cache(64)
def _status_line(line: bytes) -> tuple[bytes, int]:
    """(version, status)"""
    _check_line(line)
    version, _, rest = line.partition(b" ")
    code = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or not code.isdigit() or rest[3:4] not in (b"", b" "):
        raise ProtocolError("malformed status line")
    if int(code) < 100:
        raise ProtocolError("malformed status line")
    return version, int(code)


@lru_cache(256)
def _connection(row: bytes) -> frozenset[bytes]:
    """What a Connection line names, lower-case."""
    return frozenset(filter(None, (part.strip(b" \t").lower() for part in row[11:].split(b","))))
