"""Content codings as servers apply them, with what they hold back pushed out after each part."""

import zlib
from collections.abc import Callable, Iterable

import brotli
from backports import zstd


def _zlib(wbits: int) -> Callable[[Iterable[bytes]], list[bytes]]:
    def code(parts: Iterable[bytes]) -> list[bytes]:
        coder = zlib.compressobj(wbits=wbits)
        return [
            *(coder.compress(part) + coder.flush(zlib.Z_SYNC_FLUSH) for part in parts),
            coder.flush(),
        ]

    return code


def _brotli(parts: Iterable[bytes]) -> list[bytes]:
    coder = brotli.Compressor(quality=4)
    return [*(coder.process(part) + coder.flush() for part in parts), coder.finish()]


def _zstd(parts: Iterable[bytes]) -> list[bytes]:
    coder = zstd.ZstdCompressor()
    return [*(coder.compress(part, mode=coder.FLUSH_BLOCK) for part in parts), coder.flush()]


#: Name -> the coded parts, and what ends them.
CODINGS: dict[str, Callable[[Iterable[bytes]], list[bytes]]] = {
    "gzip": _zlib(31),
    "x-gzip": _zlib(31),
    "deflate": _zlib(15),
    "br": _brotli,
    "zstd": _zstd,
}
raw_deflate = _zlib(-15)


def coded(codings: str, parts: Iterable[bytes]) -> list[bytes]:
    """Parts under a Content-Encoding, as `gzip, br`, in the order in which the codings were applied."""
    out = list(parts)
    for name in codings.split(","):
        out = CODINGS[name.strip()](out)
    return out
