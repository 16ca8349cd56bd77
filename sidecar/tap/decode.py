"""Content codings of a reply, undone for the copy that is read (RFC 9110, 8.4.1); the client's bytes stay coded.

What servers say is bounded twice, in one read and in all, so that a few bytes cannot fill memory or keep the
event loop busy. The decoders of rarer codings are loaded when a first reply needs them.
"""

import zlib
from collections.abc import Callable
from typing import Protocol

#: Decoded bytes of one read, and of a whole reply. Usual replies grow three to thirty times.
MAX_READ = 1024 * 1024
MAX_TOTAL = 16 * 1024 * 1024
#: Members, or frames, of a reply: each costs a decoder of its own.
MAX_MEMBERS = 256
#: Names that are registered with the IANA and not read here; others may be any words of a server.
_REGISTERED = frozenset(("aes128gcm", "compress", "dcb", "dcz", "exi", "pack200-gzip", "x-compress"))
#: Codings one on the other.
MAX_CODINGS = 4
#: Window of zstd content codings, as a power of two (RFC 9659): 8 MiB.
_ZSTD_WINDOW = 23


class CodingError(Exception):
    """The copy cannot be decoded; the message says why."""


class Decoder:
    """`feed` returns what a read decodes to, which may be nothing yet. Raises CodingError, and is then of no use."""

    __slots__ = ("_stages", "_total")

    def __init__(self, codings: list[str]) -> None:
        self._stages = [_STAGES[coding]() for coding in reversed(codings)]
        self._total = 0

    def feed(self, data: bytes) -> bytes:
        for stage in self._stages:
            data = stage.feed(data)
        self._total += len(data)
        if self._total > MAX_TOTAL:
            raise CodingError(f"the reply decodes to more than {MAX_TOTAL} bytes")
        return data

    @property
    def complete(self) -> bool:
        """Whether the coded data ended where it may end."""
        return all(stage.complete for stage in self._stages)


def decoder(codings: bytes | None) -> Decoder | None:
    """The decoder for a Content-Encoding; None for identity. Raises CodingError."""
    if not codings:
        return None
    names = [name.strip() for name in codings.decode("latin-1").lower().split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if len(names) > MAX_CODINGS:
        raise CodingError(f"the reply has {len(names)} content codings")
    for name in names:
        if name not in _STAGES:
            shown = f" {name}" if name in _REGISTERED else ""
            raise CodingError(f"the reply's content coding{shown} is not known here")
    try:
        return Decoder(names) if names else None
    except ImportError as error:
        raise CodingError(f"the reply's content coding cannot be decoded here: {error}") from None


class _Stage(Protocol):
    complete: bool

    def feed(self, data: bytes) -> bytes: ...


class _Member(Protocol):
    """What zlib and zstd have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


class _Members:
    """Coded data of one member, or of `several` one after the other."""

    def __init__(
        self, name: str, make: Callable[[bytes], _Member], error: type[Exception], *, several: bool = True
    ) -> None:
        self._name = name
        self._several = several
        self._make = make
        self._error = error
        self._member: _Member | None = None
        self._count = 0
        #: A member has ended, and the one after it has told nothing yet: it may be no member.
        self._after = False
        #: What follows is no member; clients do not look at it either.
        self._over = False
        self.complete = False

    def feed(self, data: bytes) -> bytes:
        out: list[bytes] = []
        room = MAX_READ + 1
        while data and not self._over:
            if self._member is None:
                self._count += 1
                if self._count > MAX_MEMBERS:
                    raise CodingError(f"the reply has more than {MAX_MEMBERS} {self._name} members")
                self._member = self._make(data)
                self.complete = False
            try:
                part = self._member.decompress(data, room)
            except self._error as error:
                if self._after:
                    self._over = self.complete = True
                    break
                raise CodingError(f"the reply is no {self._name}: {error}") from None
            self._after = self._after and not part
            out.append(part)
            room -= len(part)
            if room <= 0:
                raise CodingError(f"a read of the reply decodes to more than {MAX_READ} bytes")
            if not self._member.eof:
                break
            data = self._member.unused_data
            self._member = None
            self._after = self.complete = True
            self._over = not self._several
        return out[0] if len(out) == 1 else b"".join(out)


class _Brotli:
    def __init__(self) -> None:
        import brotli  # type: ignore[import-untyped]  # it has no types

        self._error: type[Exception] = brotli.error
        self._decompressor = brotli.Decompressor()
        self.complete = False

    def feed(self, data: bytes) -> bytes:
        if not data or self.complete:
            return b""
        try:
            out: bytes = self._decompressor.process(data, output_buffer_limit=MAX_READ + 1)
        except self._error as error:
            raise CodingError(f"the reply is no br: {error}") from None
        if len(out) > MAX_READ or not self._decompressor.can_accept_more_data():
            raise CodingError(f"a read of the reply decodes to more than {MAX_READ} bytes")
        self.complete = self._decompressor.is_finished()
        return out


def _gzip() -> _Stage:
    return _Members("gzip", lambda _: zlib.decompressobj(zlib.MAX_WBITS | 16), zlib.error)


def _deflate() -> _Stage:
    # Servers disagree on what deflate is. Raw, a first byte like that of the wrapper would be a stored block with
    # bits set where none may be.
    def make(data: bytes) -> _Member:
        return zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == zlib.DEFLATED else -zlib.MAX_WBITS)

    return _Members("deflate", make, zlib.error, several=False)


def _zstd() -> _Stage:
    from backports import zstd

    options = {int(zstd.DecompressionParameter.window_log_max): _ZSTD_WINDOW}
    return _Members("zstd", lambda _: zstd.ZstdDecompressor(options=options), zstd.ZstdError)


_STAGES: dict[str, Callable[[], _Stage]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _Brotli,
    "zstd": _zstd,
}
