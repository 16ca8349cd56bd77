"""Streams: an event that is not read again tells what reading it would. C14-C16."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.streams import APIS, READERS, chat_events, cut, cuts, dumped, texts
from support.upstream import chat_chunk

from sidecar.tap.chat import read_chat
from sidecar.tap.reply import Reader, Reply
from sidecar.tap.stream import Stream


def run(read: Reader, reads: list[bytes], *, fast: bool) -> tuple[Reply, float | None, float | None]:
    stream = Stream(read)
    if not fast:
        stream._tries = 0
    for number, data in enumerate(reads):
        stream.feed(data, float(number))
    stream.finish(float(len(reads)))
    return stream.found, stream.first_at, stream.end_at


def counting(read: Reader) -> tuple[Reader, list[bytes]]:
    """The reader, and what it was given."""
    given_: list[bytes] = []

    def counted(data: bytes) -> Reply | None:
        given_.append(data)
        return read(data)

    return counted, given_


@given(st.sampled_from(sorted(APIS)), st.lists(texts, max_size=8), cuts, st.sampled_from((b"\n", b"\r\n", b"\r")))
def test_c14_reading_all_and_reading_what_differs_tell_the_same(
    path: bytes, pieces: list[str], at: list[int], newline: bytes
) -> None:
    read = READERS[path]
    events = [each.replace(b"\n", newline) for each in APIS[path](pieces)]
    for reads in (events, cut(b"".join(events), at)):
        assert run(read, reads, fast=True) == run(read, reads, fast=False)


@given(st.lists(chat_events, max_size=12), cuts)
def test_c14_strange_streams_tell_the_same_read_either_way(events: list[bytes], at: list[int]) -> None:
    for reads in (events, cut(b"".join(events), at)):
        assert run(read_chat, reads, fast=True) == run(read_chat, reads, fast=False)


@given(st.binary(max_size=300), cuts)
def test_garbage_never_raises(data: bytes, at: list[int]) -> None:
    for read in READERS.values():
        run(read, cut(chat_chunk({"content": "a"}) + data, at), fast=True)


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("together", [1, 5])
def test_c16_events_that_differ_by_their_text_are_read_once(path: bytes, together: int) -> None:
    read, given_ = counting(READERS[path])
    stream = Stream(read)
    events = APIS[path](["some", "thought", *["text, and a\nline"] * 60])
    for at in range(0, 15, together):
        stream.feed(b"".join(events[at : at + together]), 1.0)
    before = len(given_)
    for at in range(15, 55, together):
        stream.feed(b"".join(events[at : at + together]), 2.0)
    assert len(given_) == before
    assert stream.end_at == 2.0


def test_a_quote_in_a_text_is_read() -> None:
    read, given_ = counting(read_chat)
    stream = Stream(read)
    for number, text in enumerate(("a", "b", 'c"', "d\\", "e")):
        stream.feed(chat_chunk({"content": text}), float(number))
    assert [data for data in given_ if b'c\\"' in data or b"d\\\\" in data]
    assert stream.end_at == 4.0
    assert stream.found == Reply("m", id="chatcmpl-1")


def test_an_event_without_text_is_no_content() -> None:
    stream = Stream(read_chat)
    for number, text in enumerate(("a", "b", "", "")):
        stream.feed(chat_chunk({"content": text}), float(number))
    assert (stream.first_at, stream.end_at) == (0.0, 1.0)


def test_streams_whose_events_never_repeat_stop_being_learned() -> None:
    stream = Stream(read_chat)
    for number in range(20):
        value = {"id": str(number), "choices": [{"delta": {"content": "a"}}]}
        stream.feed(b"data: " + dumped(value) + b"\n\n", float(number))
    assert stream._tries == 0
    assert stream.end_at == 19.0
