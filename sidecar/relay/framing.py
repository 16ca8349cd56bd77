"""How a reply's body reaches the client where it cannot pass as it is."""

from .http1 import CHUNKED, HOP_BY_HOP, UNTIL_CLOSE, RequestHead, ResponseHead
from .watch import Watch

#: Chunks of one read that keep their bounds when the reply is put into chunks anew.
MAX_PARTS = 64


class Reframing:
    """Puts the payload of a reply into new chunks, or sends it bare until the connection closes.

    `filter_` takes bytes out on the way. `dropped`: the fields to leave out of the reply's head; `added`: those
    to put in.
    """

    __slots__ = ("_filter", "added", "chunks", "dropped")

    def __init__(self, head: ResponseHead, filter_: Watch | None) -> None:
        self._filter = filter_
        self.added: list[bytes] = []
        self.chunks = filter_ is not None and head.length != UNTIL_CLOSE and head.version == b"HTTP/1.1"
        if not self.chunks:
            self.dropped = HOP_BY_HOP | {b"transfer-encoding", b"content-length"}
        else:
            self.dropped = HOP_BY_HOP | {b"content-length"}
            if head.length != CHUNKED:
                self.added.append(b"Transfer-Encoding: chunked")

    @property
    def filters(self) -> bool:
        return self._filter is not None

    def feed(self, parts: list[bytes], now: float, *, last: bool) -> bytes:
        """Bytes for the client for the `parts` of one read; with `last` those that end the reply."""
        watch = self._filter
        if watch is not None:
            if len(parts) > MAX_PARTS:
                parts = [b"".join(parts)]
            parts = [watch.filter(part, now) for part in parts]
            if last:
                parts.append(watch.flush())
        if not self.chunks:
            return b"".join(parts)
        out = b"".join([b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part])
        return out + b"0\r\n\r\n" if last else out

    def rest(self) -> bytes:
        """What is still held of a reply that was cut."""
        rest = self._filter.flush() if self._filter is not None else b""
        return b"%x\r\n%b\r\n" % (len(rest), rest) if rest and self.chunks else rest


def reframing(request: RequestHead, head: ResponseHead, filter_: Watch | None) -> Reframing | None:
    """None where the reply's body passes as it is: it is not filtered, and an HTTP/1.0 client gets no chunks."""
    if filter_ is None and (head.length != CHUNKED or request.version != b"HTTP/1.0"):
        return None
    return Reframing(head, filter_)
