"""C22: content codings, undone for the copy that is read."""

import gzip
import tracemalloc
import zlib

import brotli
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st
from support.codings import CODINGS, coded, raw_deflate
from support.streams import cut, cuts

from sidecar.tap.decode import MAX_CODINGS, MAX_READ, MAX_TOTAL, CodingError, Decoder, decoder


def of(codings: bytes) -> Decoder:
    made = decoder(codings)
    assert made is not None
    return made


ALL = [*CODINGS, "gzip, br", "zstd,gzip", "deflate , br, zstd", "GZIP", "identity, gzip", ",gzip,"]


def code(codings: str, parts: list[bytes]) -> list[bytes]:
    names = [name.strip().lower() for name in codings.split(",")]
    return coded(",".join(name for name in names if name not in ("identity", "")), parts)


@pytest.mark.parametrize("codings", [None, b"", b"identity", b"Identity", b" , identity"])
def test_c22_identity_needs_no_decoder(codings: bytes | None) -> None:
    assert decoder(codings) is None


@pytest.mark.parametrize("codings", ALL)
def test_c22_each_flushed_part_is_decoded_at_once(codings: str) -> None:
    parts = [b"data: %d\n\n" % number for number in range(9)]
    wire = code(codings, parts)
    events, end = wire[: len(parts)], b"".join(wire[len(parts) :])
    decoding = of(codings.encode())
    assert [decoding.feed(each) for each in events] == parts
    assert not decoding.complete
    assert decoding.feed(end) == b""
    assert decoding.complete


@given(st.sampled_from(ALL), st.lists(st.binary(max_size=400), max_size=5), cuts)
def test_c22_any_cuts_give_the_same_bytes(codings: str, parts: list[bytes], at: list[int]) -> None:
    decoding = of(codings.encode())
    out = [decoding.feed(each) for each in cut(b"".join(code(codings, parts)), at)]
    assert b"".join(out) == b"".join(parts)
    assert decoding.complete


@given(st.lists(st.binary(max_size=40), max_size=3), cuts)
def test_c22_deflate_without_its_wrapper(parts: list[bytes], at: list[int]) -> None:
    decoding = of(b"deflate")
    out = [decoding.feed(each) for each in cut(b"".join(raw_deflate(parts)), at)]
    assert b"".join(out) == b"".join(parts)
    assert decoding.complete


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@given(st.lists(st.binary(max_size=40), min_size=2, max_size=4), cuts)
def test_c22_members_one_after_the_other(coding: str, parts: list[bytes], at: list[int]) -> None:
    decoding = of(coding.encode())
    wire = b"".join(b"".join(coded(coding, [part])) for part in parts)
    assert b"".join(decoding.feed(each) for each in cut(wire, at)) == b"".join(parts)
    assert decoding.complete


@pytest.mark.parametrize("coding", sorted(CODINGS))
@pytest.mark.parametrize("padding", [b"\0" * 512, b"padding, or what else", b"\n"])
def test_c22_what_follows_the_end_is_no_part_of_it(coding: str, padding: bytes) -> None:
    for reads in ([b"".join(coded(coding, [b"a"])), padding], [*coded(coding, [b"a"]), padding[:2], padding[2:]]):
        decoding = of(coding.encode())
        assert b"".join(decoding.feed(each) for each in reads if each) == b"a"
        assert decoding.feed(b"more") == b""


@pytest.mark.parametrize("coding", sorted(CODINGS))
def test_c22_what_is_cut_is_not_complete(coding: str) -> None:
    wire = b"".join(coded(coding, [b"some text " * 20]))
    for end in range(len(wire)):
        decoding = of(coding.encode())
        decoding.feed(wire[:end])
        assert not decoding.complete


@pytest.mark.parametrize(
    ("codings", "reason"),
    [
        (b"compress", "content coding compress is not known here"),
        (b"gzip, hologram", "content coding is not known here"),
        (b"\xff", "is not known here"),
        (b",".join([b"gzip"] * (MAX_CODINGS + 1)), "5 content codings"),
    ],
)
def test_c22_codings_that_cannot_be_undone(codings: bytes, reason: str) -> None:
    with pytest.raises(CodingError, match=reason):
        decoder(codings)


@pytest.mark.parametrize("coding", [*sorted(CODINGS), "gzip, br"])
@given(st.binary(min_size=1, max_size=200), cuts)
def test_c22_garbage_raises_nothing_else(coding: str, data: bytes, at: list[int]) -> None:
    decoding = of(coding.encode())
    try:
        for each in cut(data, at):
            decoding.feed(each)
    except CodingError as error:
        assert str(error)


@pytest.mark.parametrize("coding", sorted(CODINGS))
@given(st.data())
def test_c22_damaged_data_raises_nothing_else(coding: str, data: st.DataObject) -> None:
    wire = bytearray(b"".join(coded(coding, [b"some text " * 20])))
    wire[data.draw(st.integers(0, len(wire) - 1))] ^= data.draw(st.integers(1, 255))
    decoding = of(coding.encode())
    try:
        for at in range(0, len(wire), 7):
            decoding.feed(bytes(wire[at : at + 7]))
    except CodingError as error:
        assert str(error)


BOMB = b"\0" * (MAX_READ + MAX_READ // 2)
BOMBS = {
    b"gzip": zlib.compress(BOMB, wbits=31),
    b"deflate": zlib.compress(BOMB),
    b"br": brotli.compress(BOMB, quality=1),
    b"zstd": zstd.compress(BOMB),
}
BOMBS[b"gzip, gzip"] = zlib.compress(BOMBS[b"gzip"], wbits=31)
BOMBS[b"zstd, br"] = brotli.compress(BOMBS[b"zstd"])
BOMBS[b"gzip "] = b"".join([zlib.compress(b"\0" * (MAX_READ // 4), wbits=31)] * 6)  # in members, each of them small


@pytest.mark.parametrize("codings", sorted(BOMBS))
def test_c22_a_bomb_is_given_up_in_bounded_memory(codings: bytes) -> None:
    decoding = of(codings)
    tracemalloc.start()
    try:
        with pytest.raises(CodingError, match="decodes to more than"):
            decoding.feed(BOMBS[codings])
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_READ
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_c22_a_slow_bomb_is_given_up_too(coding: str) -> None:
    part = b"\0" * (MAX_READ // 2)
    reads = coded(coding, [part] * (MAX_TOTAL // len(part) + 1))
    decoding = of(coding.encode())
    with pytest.raises(CodingError, match="decodes to more than"):
        for each in reads:
            decoding.feed(each)


def test_c22_a_window_beyond_the_rule_for_http_is_refused() -> None:
    coder = zstd.ZstdCompressor(options={int(zstd.CompressionParameter.window_log): 27})
    wire = coder.compress(b"a" * 100, mode=coder.FLUSH_BLOCK)
    with pytest.raises(CodingError, match="no zstd"):
        of(b"zstd").feed(wire)


@pytest.mark.parametrize(
    ("codings", "data"),
    [
        (b"gzip", gzip.compress(b"") * 60_000),
        (b"gzip, gzip", gzip.compress(gzip.compress(b"") * 40_000)),
        (b"zstd, gzip", gzip.compress(b"\x50\x2a\x4d\x18\0\0\0\0" * 60_000)),
    ],
    ids=["members", "members in members", "skippable frames"],
)
def test_many_members_are_not_decoded(codings: bytes, data: bytes) -> None:
    made = decoder(codings)
    assert made is not None
    with pytest.raises(CodingError, match="more than 256"):
        made.feed(data)
