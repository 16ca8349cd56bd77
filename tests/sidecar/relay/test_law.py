"""The law of the relay: however the bytes are cut on their way, the same bytes come out and the same record."""

import gzip
import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.proxy import body_of, post
from support.upstream import chat_chunk, chat_stream, chunked, event, json_reply, usage_chunk

from sidecar.record import Arm, Record
from sidecar.relay.client import ClientConnection
from sidecar.relay.server import Relay
from sidecar.relay.upstream import Choice, Upstream, UpstreamConnection
from sidecar.relay.watch import Watch
from sidecar.tap.tap import Facts, TapContext


class Wire:
    """The transport of one connection, in memory."""

    def __init__(self) -> None:
        self.sent = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    abort = write_eof = close

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def parts(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[start:stop] for start, stop in pairwise(edges)]


def relayed(
    request: bytes, reply: bytes, cuts: tuple[list[int], list[int]], *, opt_out: bool = False, **tap: Any
) -> tuple[bytes, bytes, Record]:
    """What the upstream gets, what the client gets, and the record."""
    records: list[Record] = []
    upstream = Upstream("speculative", "http://127.0.0.1:1")
    choices = [Choice(upstream, Arm.BASELINE, opt_out=True) if opt_out else Choice(upstream, Arm.SPECULATIVE)]
    context = TapContext("test", records.append, {"speculative": Facts("draft", 4, "test")}, **tap)
    chosen: list[Watch | None] = []

    def choose(watch: Watch | None) -> list[Choice]:
        chosen.append(watch)
        return choices

    relay = Relay(choose, context.watch, lambda _: pytest.fail("a new connection"))
    relay.time = lambda: 0.0
    below, above = Wire(), Wire()
    client, server = ClientConnection(relay), UpstreamConnection(upstream)
    client.connection_made(below)  # type: ignore[arg-type]
    server.connection_made(above)  # type: ignore[arg-type]
    upstream.give_back(server, 0.0)
    for part in parts(request, cuts[0]):
        client.data_received(part)
    for part in parts(reply, cuts[1]):
        server.data_received(part)
    assert not context.failures
    assert len(chosen) == 1, "a choice holds for the whole reply"
    (record,) = records
    return above.sent, below.sent, msgspec.structs.replace(record, started_at=0.0)


ASKING = b'{"stream":true,"model":"m","temperature":0.5,"metadata":{"scenario":"billing"}}'
TELLING = b'{"stream":true,"stream_options":{"include_usage":true}}'
SQUEEZED = gzip.compress(b"".join(chat_stream(usage=True)), mtime=0)
JSON = {"model": "m", "choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
SSE = b"content-type: text/event-stream\r\n"

EXCHANGES = {
    "a stream with usage": (TELLING, chunked(*chat_stream(usage=True))),
    "a stream in one chunk": (TELLING, chunked(b"".join(chat_stream(usage=True)))),
    "CRLF, a BOM and comments": (
        TELLING,
        chunked(b"\xef\xbb\xbf: hello\r\n\r\n", *(part.replace(b"\n", b"\r\n") for part in chat_stream(usage=True))),
    ),
    "no space, CR alone, a line separator in the text": (
        TELLING,
        chunked(chat_chunk({"content": "a\u2028b"}).replace(b"data: ", b"data:").replace(b"\n", b"\r"), usage_chunk()),
    ),
    "a stream that ends early": (TELLING, chunked(chat_chunk({"content": "x"}))),
    "an error inside a 200": (TELLING, chunked(event({"error": {"message": "x"}}), b"data: [DONE]\n\n")),
    "a stream with a trailer": (TELLING, chunked(*chat_stream(usage=True))[:-2] + b"X-Took: 5\r\n\r\n"),
    "a compressed stream": (TELLING, chunked(SQUEEZED, head=SSE + b"content-encoding: gzip\r\n")),
    "JSON": (b'{"model":"m"}', json_reply(JSON)),
    "an error": (b"{}", json_reply({"error": {"message": "no"}}, b"429 Slow Down")),
    "hints first": (b"{}", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + json_reply(JSON)),
    "no JSON": (b"\xff{", b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-type: text/vtt\r\n\r\n\xff\x00x"),
}
cuts = st.lists(st.integers(0, 3_000), max_size=8)


@pytest.mark.parametrize("name", EXCHANGES)
@given(cuts=st.tuples(cuts, cuts))
def test_the_same_bytes_and_record_however_they_are_cut(name: str, cuts: tuple[list[int], list[int]]) -> None:
    body, reply = EXCHANGES[name]
    request = post(body, close=False, extra=b"X-Request-Id: r\r\n")
    above, below, record = relayed(request, reply, cuts, add_headers=False, add_usage=False)
    assert above == request
    assert below == reply
    assert record == relayed(request, reply, ([], []), add_headers=False, add_usage=False)[2]


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_same_bytes_and_record_a_byte_at_a_time(name: str) -> None:
    body, reply = EXCHANGES[name]
    request = post(body, close=False, extra=b"X-Request-Id: r\r\n")
    each = (list(range(len(request))), list(range(len(reply))))
    above, below, record = relayed(request, reply, each, add_headers=False, add_usage=False)
    assert (above, below) == (request, reply)
    assert record == relayed(request, reply, ([], []), add_headers=False, add_usage=False)[2]


@given(cuts=st.tuples(cuts, cuts))
def test_the_same_body_and_record_however_a_stream_is_cut_whose_usage_was_added(
    cuts: tuple[list[int], list[int]],
) -> None:
    request = post(ASKING, close=False, extra=b"X-Request-Id: r\r\n")
    reply = chunked(*chat_stream(usage=True))
    above, below, record = relayed(request, reply, cuts, add_usage=True)
    sent = json.loads(above.partition(b"\r\n\r\n")[2])
    assert sent == {**json.loads(ASKING), "stream_options": {"include_usage": True}}
    assert body_of(below) == b"".join(chat_stream(usage=False))
    # The client's chunks are as the reads were.
    whole = relayed(request, reply, ([], []), add_usage=True)[2]
    assert record == msgspec.structs.replace(whole, bytes_out=record.bytes_out)
    assert record.acceptance.draft_tokens == 12


@pytest.mark.parametrize("name", EXCHANGES)
@given(cuts=st.tuples(cuts, cuts))
def test_the_same_bytes_and_record_however_one_is_cut_that_asks_for_no_speculation(
    name: str, cuts: tuple[list[int], list[int]]
) -> None:
    body, reply = EXCHANGES[name]
    request = post(body, close=False, extra=b"X-Request-Id: r\r\n")
    above, below, record = relayed(request, reply, cuts, opt_out=True, add_headers=False, add_usage=False)
    asked = body if name == "no JSON" else body[:-1] + b',"vllm_xargs":{"speculative":false}}'
    assert above.partition(b"\r\n\r\n")[2] == asked.replace(b"{,", b"{")
    assert below == reply
    assert record == relayed(request, reply, ([], []), opt_out=True, add_headers=False, add_usage=False)[2]
    assert record.bytes_in == len(body)
