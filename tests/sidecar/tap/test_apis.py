"""One exchange in, one record out, for each of the four APIs and each content coding. C14-C16, C18, C20, C22."""

import json
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.codings import CODINGS, coded
from support.streams import APIS, cut, cuts, named, texts
from support.tapped import JSON, SSE, STREAM, Run
from support.upstream import BLOCK, DONE, USAGE, chat_chunk, chat_stream, event

from sidecar.record import AcceptanceSource, Outcome, Record
from sidecar.tap.sse import MAX_EVENT
from sidecar.tap.tap import MAX_REPLY

CHAT, COMPLETIONS, RESPONSES, MESSAGES = APIS
REQUEST_ID = b"X-Request-Id: r\r\n"
NOT_THERE = "vLLM gives no acceptance figures in replies of {}; the engine plugin's events have them"


def encoded(name: str) -> bytes:
    return b"Content-Encoding: " + name.encode() + b"\r\n"


# ---- any cuts, any line ends, any coding: the same record


def dressed(events: list[bytes], newline: bytes, *, bom: bool, comments: bool, space: bool) -> list[bytes]:
    """The same stream as another server writes it."""
    out = [b": ping\n\n" + each + b": pong\n" if comments else each for each in events]
    out = [each if space else each.replace(b"data: ", b"data:", 1) for each in out]
    out[0] = (b"\xef\xbb\xbf" if bom else b"") + out[0]
    return [each.replace(b"\n", newline) for each in out]


@given(
    st.sampled_from(sorted(APIS)),
    st.lists(texts, max_size=5),
    cuts,
    st.sampled_from((b"\n", b"\r\n", b"\r")),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from((None, *sorted(CODINGS), "gzip, br")),
)
def test_c14_c15_c22_any_cuts_line_ends_and_codings_give_the_same_record(
    path: bytes,
    pieces: list[str],
    at: list[int],
    newline: bytes,
    bom: bool,
    comments: bool,
    space: bool,
    coding: str | None,
) -> None:
    def once(reads: list[bytes], fields: bytes = SSE) -> Record:
        run = Run(path=path, fields=REQUEST_ID, add_usage=False)
        run.reply(*((0.5, read) for read in reads), fields=fields)
        return replace(run.end(), started_at=0.0)

    events = APIS[path](pieces)
    plain = once(events)
    assert plain.outcome is Outcome.OK
    assert (plain.prompt_tokens, plain.completion_tokens) == (5, 10)
    assert plain.finish_reason
    assert (plain.ttft_ms is None) == (not any(pieces))
    other = dressed(events, newline, bom=bom, comments=comments, space=space)
    if coding is None:
        assert once(cut(b"".join(other), at)) == plain
    else:
        wire = b"".join(coded(coding, other))
        assert once(cut(wire, at), SSE + encoded(coding)) == plain


WHOLE: dict[bytes, dict[str, Any]] = {
    CHAT: {
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": {"content": "你 x"}, "finish_reason": "stop"}],
        "usage": USAGE,
        "metrics": {"speculative_decoding": BLOCK},
    },
    COMPLETIONS: {
        "object": "text_completion",
        "model": "m",
        "choices": [{"index": 0, "text": "x", "finish_reason": "length"}],
        "usage": USAGE,
        "metrics": {"speculative_decoding": BLOCK},
    },
    RESPONSES: {
        "object": "response",
        "model": "m",
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "x"}]}],
        "usage": {"input_tokens": 5, "output_tokens": 10},
    },
    MESSAGES: {
        "type": "message",
        "model": "m",
        "content": [{"type": "text", "text": "x"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 10},
    },
}


@given(st.sampled_from(sorted(WHOLE)), cuts, st.sampled_from((None, *sorted(CODINGS), "gzip, br")))
def test_c14_c22_any_cuts_and_codings_of_a_whole_reply_give_the_same_record(
    path: bytes, at: list[int], coding: str | None
) -> None:
    text = json.dumps(WHOLE[path], ensure_ascii=False).encode()
    wire = text if coding is None else b"".join(coded(coding, [text]))
    run = Run(b"{}", path=path)
    run.reply(*((0.5, read) for read in cut(wire, at)), fields=JSON + (encoded(coding) if coding else b""))
    record = run.end()
    assert record.outcome is Outcome.OK
    assert record.model == "m"
    assert record.finish_reason in ("stop", "length", "completed", "end_turn")
    assert (record.prompt_tokens, record.completion_tokens) == (5, 10)
    if path in (CHAT, COMPLETIONS):
        assert record.acceptance.draft_tokens == BLOCK["num_draft_tokens"]
    else:
        assert record.acceptance.source is AcceptanceSource.NONE
        assert record.acceptance.reason == NOT_THERE.format(path.decode())


# ---- the Responses and the Messages API, in time


def timed(path: bytes, reads: list[tuple[float, dict[str, Any]]], **options: Any) -> Record:
    run = Run(path=path)
    run.reply(*((at, named(value)) for at, value in reads))
    return run.end(**options)


def text_delta(text: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "delta": text, "item_id": "msg_1"}


RESPONSE = {"object": "response", "model": "m", "status": "in_progress", "usage": None, "error": None}
DONE_RESPONSE = RESPONSE | {"status": "completed", "usage": {"input_tokens": 5, "output_tokens": 16}}


def test_c16_a_streamed_response() -> None:
    record = timed(
        RESPONSES,
        [
            (0.1, {"type": "response.created", "response": RESPONSE}),
            (0.15, {"type": "response.output_item.added", "item": {"type": "message"}}),
            (0.2, text_delta("four")),
            (0.7, text_delta(" more")),
            (1.7, text_delta(" words")),
            (1.75, {"type": "response.output_text.done", "text": "four more words"}),
            (1.8, {"type": "response.completed", "response": DONE_RESPONSE}),
        ],
    )
    assert record.outcome is Outcome.OK
    assert record.endpoint == "responses"
    assert record.ttft_ms == pytest.approx(200)
    assert record.tpot_ms == pytest.approx(100)
    assert record.max_chunk_gap_ms == pytest.approx(1000)
    assert (record.prompt_tokens, record.completion_tokens) == (5, 16)
    assert record.finish_reason == "completed"
    assert record.acceptance.reason == NOT_THERE.format("/v1/responses")


def test_c16_a_streamed_message() -> None:
    def said(kind: str, **fields: object) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **fields}}

    start = {"type": "message", "model": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}
    record = timed(
        MESSAGES,
        [
            (0.1, {"type": "message_start", "message": start}),
            (0.12, {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
            (0.15, {"type": "ping"}),
            (0.2, said("thinking_delta", thinking="hm")),
            (0.7, said("text_delta", text="text")),
            (1.7, said("input_json_delta", partial_json="{}")),
            (1.72, {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 15}}),
            (1.75, {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 16}}),
            (1.8, {"type": "message_stop"}),
        ],
    )
    assert record.outcome is Outcome.OK
    assert record.endpoint == "messages"
    assert record.ttft_ms == pytest.approx(200)
    assert record.tpot_ms == pytest.approx(100)
    assert (record.prompt_tokens, record.completion_tokens) == (5, 16)
    assert record.finish_reason == "tool_use"
    assert record.acceptance.reason == NOT_THERE.format("/v1/messages")


@pytest.mark.parametrize(
    ("name", "path", "events", "outcome"),
    [
        ("responses: cut", RESPONSES, [text_delta("a")], Outcome.TRUNCATED),
        ("responses: nothing", RESPONSES, [], Outcome.TRUNCATED),
        (
            "responses: incomplete",
            RESPONSES,
            [text_delta("a"), {"type": "response.incomplete", "response": {"status": "incomplete"}}],
            Outcome.OK,
        ),
        (
            "responses: failed",
            RESPONSES,
            [text_delta("a"), {"type": "response.failed", "response": {"status": "failed", "error": {"code": "x"}}}],
            Outcome.UPSTREAM_ERROR,
        ),
        ("responses: error", RESPONSES, [{"type": "error", "message": "x"}], Outcome.UPSTREAM_ERROR),
        ("responses: a text of an error", RESPONSES, [text_delta('{"error":1}')], Outcome.TRUNCATED),
        ("messages: cut", MESSAGES, [{"type": "message_start", "message": {}}], Outcome.TRUNCATED),
        ("messages: done", MESSAGES, [{"type": "message_stop"}], Outcome.OK),
        (
            "messages: error",
            MESSAGES,
            [{"type": "ping"}, {"type": "error", "error": {"type": "overloaded_error"}}],
            Outcome.UPSTREAM_ERROR,
        ),
        (
            "messages: a reason without message_stop",
            MESSAGES,
            [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}],
            Outcome.OK,
        ),
    ],
)
def test_c18_c20_how_a_stream_of_events_ended(
    name: str, path: bytes, events: list[dict[str, Any]], outcome: Outcome
) -> None:
    record = timed(path, [(0.1, each) for each in events])
    assert record.outcome is outcome, name
    assert record.acceptance.draft_tokens is None


def test_c18_tokens_said_at_the_start_of_a_cut_message_are_not_its_tokens() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}}
    record = timed(MESSAGES, [(0.1, start)])
    assert (record.prompt_tokens, record.completion_tokens) == (5, None)


# ---- tokens without usage


@pytest.mark.parametrize(
    "more", [{"token_ids": [1, 2, 3, 4]}, {"logprobs": {"content": [{"token": "a", "logprob": 0.0}] * 4}}]
)
def test_c16_c18_tokens_are_counted_where_they_come_one_by_one(more: dict[str, Any]) -> None:
    def chunk(finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": {"content": "four tokens"}, "finish_reason": finish, **more}
        return event({"model": "m", "choices": [choice]})

    run = Run(add_usage=False)
    run.reply((0.2, chunk()), (0.7, chunk()), (1.2, chunk()), (1.7, chunk("stop")), (1.8, DONE))
    record = run.end()
    assert record.completion_tokens == 16
    assert record.tpot_ms == pytest.approx(100)


def test_c16_usage_is_believed_before_tokens_counted() -> None:
    run = Run()
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop", "token_ids": [1, 2]}
    run.reply((0.1, event({"choices": [choice]})), (0.2, event({"choices": [], "usage": USAGE})), (0.3, DONE))
    assert run.end().completion_tokens == 10


def test_c19_tokens_so_far_of_a_client_that_left() -> None:
    run = Run(add_usage=False)
    run.reply((0.1, event({"choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [1, 2]}]})))
    assert run.end(Outcome.CLIENT_ABORT).completion_tokens == 2


# ---- bounds


def test_c14_a_data_line_of_1_mib_is_read() -> None:
    run = Run()
    long = chat_chunk({"content": "x" * (1 << 20)})
    run.reply(*((0.3, part) for part in cut(long, list(range(0, len(long), 65_536)))), (0.5, b"".join([usage(), DONE])))
    record = run.end()
    assert record.ttft_ms == pytest.approx(300)
    assert record.acceptance.draft_tokens == BLOCK["num_draft_tokens"]


def usage() -> bytes:
    return event({"choices": [], "usage": USAGE, "metrics": {"speculative_decoding": BLOCK}})


@pytest.mark.parametrize("fields", [SSE, JSON])
def test_c14_64_mib_without_a_newline_pass_in_bounded_memory(fields: bytes) -> None:
    run = Run()
    part = b"x" * 262_144
    tracemalloc.start()
    try:
        run.reply(fields=fields)
        size = 0
        for number in range(256):
            if fields is SSE:
                size += len(run.tap.filter(part, 11.0 + number))
            else:
                run.tap.feed(part, 11.0 + number)
        assert tracemalloc.get_traced_memory()[1] < 4 * max(MAX_EVENT, MAX_REPLY)
    finally:
        tracemalloc.stop()
    if fields is SSE:
        assert size + len(run.tap.flush()) == 256 * len(part)
    record = run.end()
    assert record.outcome is Outcome.OK  # whether it had an end is not known
    assert "longer than" in (record.acceptance.reason or "")


def test_c14_after_an_event_too_long_the_next_is_read() -> None:
    run = Run()
    run.reply((0.1, b"data: " + b"x" * (MAX_EVENT + 1)), (0.2, b"\n\n" + chat_chunk({"content": "a"})), (0.3, usage()))
    record = run.end()
    assert record.outcome is Outcome.OK
    assert record.ttft_ms == pytest.approx(200)
    assert record.acceptance.draft_tokens == BLOCK["num_draft_tokens"]


# ---- compressed replies


@pytest.mark.parametrize("coding", [*sorted(CODINGS), "gzip, br"])
def test_c22_a_stream_flushed_at_each_event_keeps_its_times(coding: str) -> None:
    events = [
        chat_chunk({"role": "assistant", "content": ""}),
        *(chat_chunk({"content": "four tokens"}) for _ in range(4)),
        event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 16}}) + DONE,
    ]
    run = Run()
    times = (0.1, 0.2, 0.7, 1.2, 1.7, 1.75, 1.8, 1.8, 1.8)
    wire = coded(coding, events)
    assert run.reply(*zip(times, wire, strict=False), fields=SSE + encoded(coding)) == b"".join(wire)
    record = run.end()
    assert record.outcome is Outcome.OK
    assert record.ttft_ms == pytest.approx(200)
    assert record.tpot_ms == pytest.approx(100)


@pytest.mark.parametrize(
    ("name", "coding", "wire", "reason"),
    [
        ("unknown", "compress", b"x", "content coding compress is not known here"),
        ("another than said", "gzip", b"{}", "the reply is no gzip"),
        ("cut", "gzip", zlib.compress(json.dumps(WHOLE[CHAT]).encode(), wbits=31)[:-40], "coded data is cut"),
        ("cut at once", "br", b"\x0b", "coded data is cut"),
        ("a bomb", "gzip", zlib.compress(b"\0" * (1 << 24), wbits=31), "decodes to more than"),
        ("no JSON", "gzip", zlib.compress(b"x", wbits=31), "no JSON object"),
    ],
)
@pytest.mark.parametrize("fields", [SSE, JSON])
def test_c22_what_cannot_be_decoded_is_unread_and_no_error(
    name: str, coding: str, wire: bytes, reason: str, fields: bytes
) -> None:
    run = Run()
    assert run.reply((0.1, wire), fields=fields + encoded(coding)) == wire
    record = run.end()
    if fields is SSE and reason in ("coded data is cut", "no JSON object"):
        assert record.outcome is Outcome.TRUNCATED, name
    else:
        assert record.outcome is Outcome.OK, name
        assert reason in (record.acceptance.reason or ""), name
    assert record.stream


@pytest.mark.parametrize("coding", sorted(CODINGS))
def test_c22_a_compressed_error(coding: str) -> None:
    run = Run()
    wire = b"".join(coded(coding, [b'{"error":{"message":"no such model"}}']))
    run.reply((0.1, wire), status=404, fields=JSON + encoded(coding))
    record = run.end(Outcome.UPSTREAM_ERROR, 404)
    assert (record.outcome, record.status) == (Outcome.UPSTREAM_ERROR, 404)


def test_c22_an_error_inside_a_compressed_200() -> None:
    run = Run(b"{}")
    run.reply((0.1, zlib.compress(b'{"error":{"message":"x"}}', wbits=31)), fields=JSON + encoded("gzip"))
    assert run.end().outcome is Outcome.UPSTREAM_ERROR


def test_c22_a_compressed_stream_keeps_the_usage_that_was_asked_for() -> None:
    run = Run(STREAM, add_usage=True)
    assert run.sent is not None
    wire = coded("gzip", chat_stream(usage=True))
    assert run.reply(*((0.1, each) for each in wire), fields=SSE + encoded("gzip")) == b"".join(wire)
    assert run.end().acceptance.draft_tokens == BLOCK["num_draft_tokens"]
