"""What may be forwarded, what must not, and where messages end, at any cut."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.relay.body import MAX_TRAILERS, Body, ChunkedBody
from sidecar.relay.http1 import CHUNKED, UNTIL_CLOSE, Head, Heads, ProtocolError, RequestHead, ResponseHead

GET = b"GET / HTTP/1.1\r\n"
HOST = b"Host: h\r\n"


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("both framings", GET + HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("both framings, other order", GET + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"),
        ("two lengths", GET + HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n"),
        ("the same length twice", GET + HOST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n"),
        ("a list of lengths", GET + HOST + b"Content-Length: 3, 3\r\n\r\n"),
        ("a signed length", GET + HOST + b"Content-Length: +3\r\n\r\n"),
        ("a negative length", GET + HOST + b"Content-Length: -3\r\n\r\n"),
        ("an empty length", GET + HOST + b"Content-Length:\r\n\r\n"),
        ("a hexadecimal length", GET + HOST + b"Content-Length: 0x3\r\n\r\n"),
        ("a length beyond 64 bit", GET + HOST + b"Content-Length: 9999999999999999999\r\n\r\n"),
        ("another coding first", GET + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
        ("chunked twice", GET + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("a coding that looks like chunked", GET + HOST + b"Transfer-Encoding: xchunked\r\n\r\n"),
        ("chunked behind a vertical tab", GET + HOST + b"Transfer-Encoding: \x0bchunked\r\n\r\n"),
        ("a coding in HTTP/1.0", b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("white space before the colon", GET + HOST + b"Content-Length : 3\r\n\r\n"),
        ("a folded line", GET + HOST + b"X: a\r\n b\r\n\r\n"),
        ("a folded first line", GET + b" Host: h\r\n\r\n"),
        ("a bare CR", GET + HOST + b"X: a\rContent-Length: 3\r\n\r\n"),
        ("a bare LF", GET + HOST + b"X: a\nContent-Length: 3\r\n\r\n"),
        ("NUL", GET + HOST + b"X: a\0b\r\n\r\n"),
        ("a line without a colon", GET + HOST + b"X\r\n\r\n"),
        ("an empty name", GET + HOST + b": x\r\n\r\n"),
        ("a name with a control byte", GET + HOST + b"X\x01: x\r\n\r\n"),
        ("no Host", GET + b"\r\n"),
        ("two Hosts", GET + HOST + HOST + b"\r\n"),
        ("two spaces", b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n"),
        ("a space in the target", b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n"),
        ("a tab in the request line", b"GET\t/ HTTP/1.1\r\n" + HOST + b"\r\n"),
        ("a control byte in the target", b"GET /\x7f HTTP/1.1\r\n" + HOST + b"\r\n"),
        ("a method that is no token", b"G@T / HTTP/1.1\r\n" + HOST + b"\r\n"),
        ("an empty method", b" / HTTP/1.1\r\n" + HOST + b"\r\n"),
        ("no version", b"GET /\r\n" + HOST + b"\r\n"),
        ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\n"),
        ("another protocol", b"GET / ICY/1.1\r\n" + HOST + b"\r\n"),
    ],
)
def test_requests_that_are_refused(name: str, raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        RequestHead(raw)


def test_a_request_keeps_order_case_repeats_and_latin_1() -> None:
    raw = (
        b"POST /v1/x%2Fy%252F?a=%2B&b=+&c HTTP/1.1\r\nhOST: h\r\nX-b:  two  \r\nX-a: caf\xe9\r\nx-B:\r\n"
        b"Connection: keep-alive, X-Hop\r\nx-hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nContent-Length: 0\r\n\r\n"
    )
    head = RequestHead(raw)
    assert head.forwarded() == [b"hOST: h", b"X-b:  two  ", b"X-a: caf\xe9", b"x-B:", b"Content-Length: 0"]
    assert head.target == b"/v1/x%2Fy%252F?a=%2B&b=+&c"
    assert head.path == b"/v1/x%2Fy%252F"
    assert head.value(b"x-b") == b"two"
    assert head.value(b"x-none") is None


def test_connection_cannot_take_the_framing_away() -> None:
    head = RequestHead(GET + HOST + b"Connection: close, content-length, host\r\nContent-Length: 3\r\n\r\n")
    assert head.forwarded() == [b"Host: h", b"Content-Length: 3"]


def test_the_path_of_an_absolute_target() -> None:
    assert RequestHead(b"GET http://h/a/b?c HTTP/1.1\r\n" + HOST + b"\r\n").path == b"/a/b"


@pytest.mark.parametrize(
    ("name", "method", "raw", "length", "keep_alive"),
    [
        ("length", b"GET", b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", 7, True),
        ("chunked", b"GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", CHUNKED, True),
        ("neither", b"GET", b"HTTP/1.1 200 OK\r\n\r\n", UNTIL_CLOSE, False),
        ("HEAD", b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", 0, True),
        ("HEAD, chunked", b"HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 0, True),
        ("204", b"GET", b"HTTP/1.1 204 No Content\r\n\r\n", 0, True),
        ("304 with a length", b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", 0, True),
        ("close", b"GET", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 7\r\n\r\n", 7, False),
        ("HTTP/1.0", b"GET", b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\n", 7, False),
        ("no reason", b"GET", b"HTTP/1.1 200\r\nContent-Length: 7\r\n\r\n", 7, True),
    ],
)
def test_reply_framing(name: str, method: bytes, raw: bytes, length: int, keep_alive: bool) -> None:
    head = ResponseHead(raw, method)
    assert (head.length, head.keep_alive) == (length, keep_alive), name


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_replies_that_are_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        ResponseHead(raw, b"GET")


@pytest.mark.parametrize(
    "raw",
    [
        b"g\r\n",
        b"\r\n",
        b" 5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"5 5\r\nhello\r\n",
        b"5\nhello\r\n",
        b"5\r\r\nhello\r\n",
        b"5\r\nhelloX",
        b"5\r\nhello\rX",
        b"5\r\nhello\n",
        b"5;\rx\r\nhello\r\n",
        b"fffffffffffffffff\r\n",
        b"0\r\nX\r\n\r\n",
        b"0\r\n x: y\r\n\r\n",
        b"0\r\nX : y\r\n\r\n",
        b"0\r\nX: y\n\r\n",
        b"0\r\n" + b"X: " + b"y" * MAX_TRAILERS + b"\r\n\r\n",
        b"1;" + b"x" * 5000,
    ],
)
def test_chunks_that_are_refused_at_any_cut(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        ChunkedBody().feed(raw)
    body = ChunkedBody()
    with pytest.raises(ProtocolError):
        for at in range(len(raw)):
            body.feed(raw[at : at + 1])


chunk = st.tuples(st.binary(min_size=1, max_size=20), st.sampled_from([b"", b";a=b", b" ;q"]))


@given(st.lists(chunk, max_size=6), st.sampled_from([b"", b"X: y\r\n", b"A:\r\nB: \xe9\r\n"]), st.data())
def test_a_chunked_body_ends_where_it_ends_at_any_cut(
    chunks: list[tuple[bytes, bytes]], trailers: bytes, data: st.DataObject
) -> None:
    raw = b"".join(b"%x%b\r\n%b\r\n" % (len(text), extension, text) for text, extension in chunks)
    raw += b"000\r\n" + trailers + b"\r\n"
    after = b"GET / HTTP/1.1\r\n"
    wire = raw + after
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    body, payload, seen = ChunkedBody(), b"", 0
    for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        end = body.feed(wire[start:stop])
        payload += b"".join(body.parts)
        if end >= 0:
            seen = start + end
            break
        seen = stop
    assert seen == len(raw)
    assert payload == b"".join(text for text, _ in chunks)


@given(st.integers(0, 40), st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_a_length_delimited_body_ends_where_it_ends_at_any_cut(length: int, wire: bytes, cuts: list[int]) -> None:
    edges = sorted(min(cut, len(wire)) for cut in cuts)
    body, payload = Body(length), b""
    for start, stop in zip([0, *edges], [*edges, len(wire)], strict=True):
        end = body.feed(b"xy" + wire[start:stop], 2)
        payload += b"".join(body.parts)
        if end >= 0:
            assert start + end - 2 == length
            break
    assert payload == wire[:length]


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_protocol_errors(raw: bytes) -> None:
    for parse in (
        lambda: RequestHead(raw + b"\r\n\r\n"),
        lambda: ResponseHead(raw + b"\r\n\r\n", b"GET"),
        lambda: ChunkedBody().feed(raw),
    ):
        try:
            parse()
        except ProtocolError as error:
            assert error.status in (400, 505)


field = st.sampled_from(
    [
        b"Host: h",
        b"host: i",
        b"Content-Length: 5",
        b"Content-Length:  17 ",
        b"content-length: 0",
        b"Content-Length: 0",
        b"Content-Length: 123456789012345678",
        b"Content-Length: 1234567890123456789",
        b"Content-Length: 05",
        b"Content-Length: +5",
        b"X-Content-Length: 5",
        b"X-Length: 7",
        b"X-Length: Content-Length: 5",
        b"Connection: keep-alive",
        b"Connection: close, x-a",
        b"Connection: upgrade",
        b"Upgrade: websocket",
        b"Expect: 100-continue",
        b"Transfer-Encoding: chunked",
        b"X-A: 1",
        b"X-A: \xe9",
    ]
)
request_start = st.sampled_from([b"POST /v1/x HTTP/1.1", b"GET /5 HTTP/1.1", b"POST / HTTP/1.0"])
STATUSES = [b"1.1 200 OK", b"1.1 204 No Content", b"1.1 304 OK", b"1.0 200 OK", b"1.1 100 Go"]
reply_start = st.sampled_from([b"HTTP/" + status for status in STATUSES])


def told(parse: Callable[[], Head]) -> object:
    """All that a head says, or why it is refused."""
    try:
        head = parse()
    except ProtocolError as error:
        return str(error), error.status
    lines = [(name, head.value(name), head.lines(name)) for name in head.names]
    others = [getattr(head, name, None) for name in ("method", "target", "upgrade", "expect_continue", "status")]
    return head.start, head.version, head.length, head.keep_alive, head.connection, head.plain, lines, others


@given(st.lists(st.tuples(request_start, st.lists(field, max_size=5)), min_size=2, max_size=6))
def test_a_remembered_request_head_says_what_a_parsed_one_says(heads: list[tuple[bytes, list[bytes]]]) -> None:
    memory = Heads(RequestHead)
    for start, fields in heads:
        raw = b"\r\n".join([start, b"Host: h", *fields]) + b"\r\n\r\n"
        assert told(lambda raw=raw: memory.read(raw)) == told(lambda raw=raw: RequestHead(raw))


@given(st.lists(st.tuples(reply_start, st.lists(field, max_size=5)), min_size=2, max_size=6))
def test_a_remembered_reply_head_says_what_a_parsed_one_says(heads: list[tuple[bytes, list[bytes]]]) -> None:
    memory = Heads(ResponseHead)
    for start, fields in heads:
        raw = b"\r\n".join([start, *fields]) + b"\r\n\r\n"
        assert told(lambda raw=raw: memory.read(raw)) == told(lambda raw=raw: ResponseHead(raw))


@pytest.mark.parametrize("lengths", [(5, 7), (7, 123), (1000, 0), (0, 9)])
@pytest.mark.parametrize("form", [b"Content-Length: %d", b"content-length:%d ", b"X-Length: 5\r\nCONTENT-LENGTH: \t%d"])
def test_heads_that_differ_in_length_alone(lengths: tuple[int, int], form: bytes) -> None:
    memory = Heads(RequestHead)
    for length in (*lengths, *lengths):
        raw = b"POST /v1/x HTTP/1.1\r\nHost: h\r\n" + form % length + b"\r\nX-A: 1\r\n\r\n"
        assert told(lambda raw=raw: memory.read(raw)) == told(lambda raw=raw: RequestHead(raw))


@pytest.mark.parametrize("status", [b"103 Early Hints", b"204 No Content", b"304 Not Modified"])
def test_replies_without_a_body_are_not_remembered_by_their_length(status: bytes) -> None:
    memory = Heads(ResponseHead)
    for length in (0, 5, 0, 7):
        assert memory.read(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, length)).length == 0
