"""The added event is taken out, and it alone, at any cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.streams import chat_events, cut, cuts
from support.tapped import Run
from support.upstream import DONE, chat_chunk, chat_stream, event, usage_chunk

from sidecar.tap.usage_filter import UsageFilter


def run(*parts: bytes) -> bytes:
    filtering = UsageFilter()
    return b"".join([*(filtering.feed(part) for part in parts), filtering.flush()])


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_exactly_the_usage_event_goes(newline: bytes) -> None:
    given_ = b"".join(chat_stream(usage=True)).replace(b"\n", newline)
    wanted = b"".join(chat_stream(usage=False)).replace(b"\n", newline)
    assert run(given_) == wanted
    assert run(*(given_[at : at + 1] for at in range(len(given_)))) == wanted


@given(st.lists(st.integers(0, 2000), max_size=8))
def test_any_cuts(cuts: list[int]) -> None:
    wire = b": ping\n\n" + b"".join(chat_stream(usage=True))
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    parts = [wire[a:b] for a, b in itertools.pairwise(edges)]
    assert run(*parts) == b": ping\n\n" + b"".join(chat_stream(usage=False))


@pytest.mark.parametrize(
    "other",
    [
        event({"choices": [], "usage": None}),
        event({"choices": [], "prompt_filter_results": []}),
        event({"choices": [], "usage": {}, "error": {"message": "x"}}),
        chat_chunk({"content": '"choices":[],"usage":{'}),
        b'event: x\ndata: {"choices":[],"usage"\n\n',
        b"\n\n\n",
    ],
)
def test_whatever_else_stays(other: bytes) -> None:
    assert run(other + usage_chunk() + DONE) == other + DONE


def test_content_is_not_held_back() -> None:
    filtering = UsageFilter()
    whole = chat_chunk({"content": "hello"})
    assert filtering.feed(whole) == whole
    cut = whole[: whole.index(b"delta")]
    assert filtering.feed(cut) == cut  # it has a choice: no usage event
    assert filtering.feed(whole[len(cut) :]) == whole[len(cut) :]


def test_the_finish_waits_for_the_next_event_alone() -> None:
    filtering = UsageFilter()
    finish = chat_chunk({"content": "!"}, "stop")
    assert filtering.feed(finish) == b""
    assert filtering.feed(DONE) == finish + DONE
    assert filtering.feed(finish) == b""
    assert filtering.feed(b'data: {"choices":[{') == finish + b'data: {"choices":[{'


def test_a_usage_event_without_a_stamp_leaves_the_finish_as_it_is() -> None:
    finish = chat_chunk({"content": "!"}, "stop")
    assert run(finish + event({"choices": [], "usage": {}}) + DONE) == finish + DONE


def test_an_event_that_never_ends_is_passed_on() -> None:
    filtering = UsageFilter()
    given_, out = 0, 0
    for _ in range(20):
        given_ += 65_536
        out += len(filtering.feed(b"x" * 65_536))
    assert given_ - out == 0


def test_a_cut_reply_keeps_its_last_bytes_but_not_a_part_of_the_usage_event() -> None:
    assert run(b'data: {"choi') == b'data: {"choi'
    assert run(b'data: {"choices":[],"usa') == b""
    finish = chat_chunk({"content": "!"}, "stop")
    assert run(finish + b'data: {"choices":[],"usa') == finish


@given(st.lists(st.integers(0, 2000), max_size=8))
def test_a_server_that_sends_usage_to_everybody_is_left_alone(cuts: list[int]) -> None:
    content = {
        "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}],
        "usage": {"total_tokens": 1},
    }
    wire = b"".join([event(content), event(content), chat_chunk({}, "stop", usage={}), usage_chunk(), DONE])
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    assert run(*(wire[a:b] for a, b in itertools.pairwise(edges))) == wire


@given(st.lists(chat_events | st.just(usage_chunk()) | st.just(chat_chunk({}, "stop")), max_size=8), cuts)
def test_c17_whole_events_and_single_bytes_give_the_same(events: list[bytes], at: list[int]) -> None:
    wire = b"".join(events)
    singly = run(*(wire[at : at + 1] for at in range(len(wire))))
    assert run(*events) == singly
    assert run(*cut(wire, at)) == singly


@given(st.lists(chat_events | st.just(usage_chunk()) | st.just(chat_chunk({}, "stop")), max_size=8), cuts)
def test_c17_what_a_tap_lets_pass_unfiltered_the_filter_would_let_pass(events: list[bytes], at: list[int]) -> None:
    for reads in (events, cut(b"".join(events), at)):
        tapped, alone = Run(add_usage=True), UsageFilter()
        tapped.reply()
        for read in reads:
            assert tapped.tap.filter(read, 11.0) == alone.feed(read)
        assert tapped.tap.flush() == alone.flush()


def test_small_pieces_do_not_cost_the_square_of_an_event() -> None:
    filtering = UsageFilter()
    line = b"data: " + b"x" * 60_000
    out = b"".join(filtering.feed(line[at : at + 1]) for at in range(len(line)))
    assert out + filtering.flush() == line


def test_comments_that_keep_a_connection_alive_are_not_held() -> None:
    usage_filter = UsageFilter()
    assert usage_filter.feed(b": keep-alive with more words than the filter remembers\n") != b""
    assert usage_filter.feed(b":\n:\n") == b":\n:\n"
    assert usage_filter.feed(usage_chunk()) == b""
    assert usage_filter.removed == 1
    assert usage_filter.feed(DONE) == DONE
