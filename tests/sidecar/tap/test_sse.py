"""C14, C15: events, however the bytes are cut and whatever ends the lines."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.tap.sse import MAX_EVENT, SseReader


def read(*parts: bytes) -> list[bytes]:
    reader = SseReader()
    events = [event for part in parts for event in reader.feed(part)]
    return events + reader.finish()


@pytest.mark.parametrize(
    ("name", "stream", "events"),
    [
        ("one event", b"data: a\n\n", [b"a"]),
        ("no space after the colon", b"data:a\n\n", [b"a"]),
        ("only one space is taken", b"data:  a\n\n", [b" a"]),
        ("CRLF and a comment", b': ping\r\n\r\ndata: {"a":1}\r\n\r\ndata: [DONE]\r\n\r\n', [b'{"a":1}', b"[DONE]"]),
        ("CR", b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        ("mixed line ends", b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
        ("several data lines", b"data: a\ndata: b\n\n", [b"a\nb"]),
        ("other fields", b"event: x\nid: 1\nretry: 5\ndata: a\n\n", [b"a"]),
        ("a field without a colon", b"data\n\n", [b""]),
        ("a name that begins like data", b"database: a\n\n", []),
        ("byte order mark", b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        ("byte order mark later on", b"\n\xef\xbb\xbfdata: a\n\n", []),
        ("U+2028 ends no line", "data: a\u2028b\n\n".encode(), ["a\u2028b".encode()]),
        ("bytes that are no UTF-8", b"data: \xff\xfe\n\n", [b"\xff\xfe"]),
        ("no empty line at the end", b"data: a\n\ndata: b", [b"a", b"b"]),
        ("empty lines alone", b"\n\n\n", []),
        ("a comment alone", b": ping\n\n", []),
    ],
)
def test_events(name: str, stream: bytes, events: list[bytes]) -> None:
    assert read(stream) == events, name
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == events, name
    for cut in range(len(stream)):
        assert read(stream[:cut], stream[cut:]) == events, f"{name}, cut at {cut}"


lines = st.lists(
    st.tuples(
        st.sampled_from([b"data: ", b"data:", b"", b": ", b"event: ", b"data"]),
        st.binary(max_size=12).map(lambda text: text.translate(None, b"\r\n")),
        st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b"\r\r"]),
    ).map(b"".join),
    max_size=12,
).map(b"".join)


@given(lines, st.lists(st.integers(0, 200), max_size=8))
def test_any_cuts_give_the_same_events(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut <= len(stream)), len(stream)]
    parts = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert read(*parts) == read(stream)


def test_a_long_line_is_read() -> None:
    line = b"data: " + b"x" * (1 << 20) + b"\n\n"
    assert read(line[:70_000], line[70_000:]) == [b"x" * (1 << 20)]


def test_an_endless_line_is_skipped_in_bounded_memory_and_the_next_event_is_read() -> None:
    reader = SseReader()
    part = b"data: " + b"x" * 65_530
    for _ in range(2 * MAX_EVENT // len(part)):
        assert reader.feed(part) == []
    assert len(reader._line) <= MAX_EVENT
    assert reader.feed(b"\n\ndata: a\n\n") == [b"a"]
    assert reader.overflows == 1


def test_an_endless_event_of_short_lines_is_skipped() -> None:
    reader = SseReader()
    for _ in range(MAX_EVENT // 60_000 + 2):
        assert reader.feed(b"data: " + b"x" * 60_000 + b"\n") == []
    assert sum(map(len, reader._data)) == 0
    assert reader.feed(b"\ndata: a\n\n") == [b"a"]
