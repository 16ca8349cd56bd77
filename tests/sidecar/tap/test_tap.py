"""One exchange in, one record out. C04, C14-C16, C18, C20."""

import gzip
import itertools
import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.tapped import JSON, SSE, STREAM, Run
from support.upstream import BLOCK, DONE, USAGE, chat_chunk, chat_stream, event, usage_chunk

from sidecar.record import AcceptanceQuality, AcceptanceSource, Arm, Outcome, Record
from sidecar.relay.http1 import RequestHead
from sidecar.tap.tap import TapContext


def test_a_streamed_reply() -> None:
    run = Run()
    run.reply((0.5, b"".join(chat_stream(usage=True)[:1])), (0.6, b"".join(chat_stream(usage=True)[1:])))
    record = run.end()
    assert record.outcome is Outcome.OK
    assert record.acceptance.source is AcceptanceSource.RESPONSE
    assert record.acceptance.draft_tokens == BLOCK["num_draft_tokens"]
    assert record.acceptance.rejected_at == (1, 0, 1, 0)
    assert record.acceptance.reached == (3, 2, 2, 1)
    assert (record.prompt_tokens, record.completion_tokens) == (5, 10)
    assert record.queue_ms == 1.5
    assert record.ttft_ms == pytest.approx(600)
    assert record.latency_ms == pytest.approx(2000)
    assert record.finish_reason == "stop"
    assert (record.model, record.draft_model, record.fingerprint) == ("m", "draft", "vllm 0.32")
    assert (record.concurrency, record.bytes_in, record.bytes_out) == (3, 7, 9)
    assert record.temperature == 0.0
    assert record.stream


def test_a_whole_json_reply() -> None:
    body = {
        "object": "chat.completion",
        "model": "m2",
        "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "length"}],
        "usage": USAGE,
        "metrics": {"speculative_decoding": BLOCK},
    }
    run = Run(b'{"model":"m","temperature":0.7}')
    text = json.dumps(body).encode()
    run.reply((0.1, text[:20]), (0.2, text[20:]), fields=JSON)
    record = run.end()
    assert record.acceptance.accepted_tokens == 6
    assert record.finish_reason == "length"
    assert record.ttft_ms is None  # nothing tells when its first token was there
    assert not record.stream
    assert record.temperature == 0.7


def test_c15_ttft_is_at_the_first_content_not_at_a_comment_or_a_role() -> None:
    run = Run()
    run.reply(
        (0.1, b": ping\r\n\r\n"),
        (0.2, chat_chunk({"role": "assistant", "content": ""})),
        (0.3, chat_chunk({"content": "x"})),
        (0.4, DONE),
    )
    assert run.end().ttft_ms == pytest.approx(300)


@pytest.mark.parametrize(
    "first", [{"reasoning": "x"}, {"reasoning_content": "x"}, {"tool_calls": [{"index": 0}]}, {"refusal": "x"}]
)
def test_c18_content_of_any_kind_is_a_first_token(first: object) -> None:
    run = Run()
    run.reply((0.3, chat_chunk(first)), (0.4, chat_chunk({"content": "y"}, "stop")), (0.5, DONE))
    record = run.end()
    assert record.ttft_ms == pytest.approx(300)
    assert record.outcome is Outcome.OK


def test_c16_tokens_are_not_chunks() -> None:
    run = Run()
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 16}}
    reads = [(at, chat_chunk({"content": "four tokens"})) for at in (0.2, 0.7, 1.2, 1.7)]
    run.reply(*reads, (1.75, event(usage)), (1.8, DONE))
    record = run.end()
    assert record.completion_tokens == 16
    assert record.tpot_ms == pytest.approx(100)
    assert record.max_chunk_gap_ms == pytest.approx(500)


@pytest.mark.parametrize("tokens", [0, 1, None, -1, "16", True])
def test_c16_no_time_per_token_without_two_tokens(tokens: object) -> None:
    run = Run()
    run.reply(
        (0.2, chat_chunk({"content": "x"})),
        (0.3, event({"choices": [], "usage": {"completion_tokens": tokens}})),
        (0.4, DONE),
    )
    assert run.end().tpot_ms is None


def test_cumulative_usage_counts_once() -> None:
    def chunk(tokens: int) -> bytes:
        return event(
            {
                "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}],
                "usage": {"prompt_tokens": 5, "completion_tokens": tokens},
            }
        )

    run = Run(b'{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}')
    run.reply((0.1, chunk(2)), (0.2, chunk(5)), (0.3, chunk(9)), (0.4, DONE))
    assert run.end().completion_tokens == 9


@pytest.mark.parametrize(
    ("name", "events", "outcome"),
    [
        ("error object", [event({"error": {"message": "x", "code": 500}}), DONE], Outcome.UPSTREAM_ERROR),
        ("object: error", [event({"object": "error", "message": "x"}), DONE], Outcome.UPSTREAM_ERROR),
        ("type: error", [event({"type": "error", "message": "x"})], Outcome.UPSTREAM_ERROR),
        ("detail", [event({"detail": "x"}), DONE], Outcome.UPSTREAM_ERROR),
        ("text with the word", [chat_chunk({"content": '{"error":1}'}), DONE], Outcome.OK),
        ("an error after content", [chat_chunk({"content": "a"}), event({"error": {}})], Outcome.UPSTREAM_ERROR),
        ("no end at all", [chat_chunk({"content": "a"})], Outcome.TRUNCATED),
        ("nothing", [], Outcome.TRUNCATED),
        ("a finish without [DONE]", [chat_chunk({"content": "a"}, "stop")], Outcome.OK),
    ],
)
def test_c18_c20_how_a_stream_ended(name: str, events: list[bytes], outcome: Outcome) -> None:
    run = Run()
    run.reply((0.1, b"".join(events)))
    record = run.end()
    assert record.outcome is outcome, name
    assert record.acceptance.draft_tokens is None


def test_c20_an_error_status_is_an_error_whatever_its_body() -> None:
    run = Run()
    run.reply((0.1, b'{"error":{"message":"x"}}'), status=429, fields=JSON)
    record = run.end(Outcome.UPSTREAM_ERROR, 429)
    assert record.outcome is Outcome.UPSTREAM_ERROR
    assert record.status == 429


@pytest.mark.parametrize(
    ("name", "request_body", "usage", "options", "reason"),
    [
        ("n = 2", b'{"stream":true,"n":2}', True, {}, "n > 1"),
        ("two prompts", b'{"stream":true,"prompt":["a","b"]}', True, {}, "n > 1"),
        (
            "declined",
            b'{"stream":true,"stream_options":{"include_usage":false}}',
            False,
            {},
            "the client declined usage",
        ),
        ("not asked for", STREAM, False, {}, "no usage was asked for: load the engine plugin"),
        ("no block", STREAM, True, {"add_usage": True}, "no acceptance block"),
    ],
)
def test_c04_missing_figures_have_a_reason(
    name: str, request_body: bytes, usage: bool, options: dict[str, object], reason: str
) -> None:
    run = Run(request_body, **options)
    tail = [event({"choices": [], "usage": USAGE, "metrics": None})] if usage else []
    run.reply((0.1, b"".join([chat_chunk({"content": "a"}, "stop"), *tail, DONE])))
    record = run.end()
    assert record.outcome is Outcome.OK
    assert record.acceptance.source is AcceptanceSource.NONE
    assert record.acceptance.draft_tokens is None
    assert reason in (record.acceptance.reason or ""), name


def test_plain_decoding_has_no_figures_and_no_draft_model() -> None:
    run = Run(arm=Arm.BASELINE)
    run.reply((0.1, b"".join([chat_chunk({"content": "a"}, "stop"), DONE])))
    record = run.end()
    assert record.acceptance.reason == "served without speculation"
    assert record.draft_model is None


def test_an_aborted_request_keeps_what_was_seen() -> None:
    run = Run()
    run.reply((0.2, chat_chunk({"content": "a"})))
    record = run.end(Outcome.CLIENT_ABORT)
    assert record.ttft_ms == pytest.approx(200)
    assert record.acceptance.reason == "no figures: client_abort"


def test_a_strange_block_is_kept_and_not_believed() -> None:
    run = Run()
    strange = BLOCK | {"acceptance_histogram": [9, 9]}
    usage = {"choices": [], "usage": USAGE, "metrics": {"speculative_decoding": strange}}
    run.reply((0.1, chat_chunk({"content": "a"}, "stop") + event(usage) + DONE))
    acceptance = run.end().acceptance
    assert acceptance.quality is AcceptanceQuality.INCONSISTENT
    assert json.loads(acceptance.raw or "") == strange


@pytest.mark.parametrize(
    ("fields", "body", "scenario"),
    [
        (b"X-Scenario: billing\r\n", b'{"metadata":{"scenario":"code"}}', "billing"),
        (b"", b'{"metadata":{"scenario":"code"}}', "code"),
        (b"", b'{"metadata":{"scenario":" "},"messages":["my invoice"]}', "money"),
        (b"", b'{"metadata":"x"}', "default"),
        (b"X-Scenario: \r\n", b"no json", "default"),
        (b"X-Scenario: \xe9\r\n", b"{}", "é"),
    ],
)
def test_scenarios(fields: bytes, body: bytes, scenario: str) -> None:
    run = Run(body, fields=fields, scenario_rules=[("money", re.compile(b"invoice"))])
    assert run.end(Outcome.CLIENT_ABORT, None).scenario == scenario


def test_only_generation_requests_are_watched() -> None:
    context = Run().context
    for raw in (b"GET /v1/chat/completions", b"POST /v1/embeddings", b"POST /tokenize"):
        assert context.watch(RequestHead(raw + b" HTTP/1.1\r\nHost: h\r\n\r\n"), 0.0) is None


def test_a_tap_that_fails_turns_itself_off_and_the_record_is_written() -> None:
    run = Run()
    run.reply((0.1, chat_chunk({"content": "a"})))
    run.tap._stream = object()  # type: ignore[assignment]  # the next look at it raises
    run.tap.feed(b"data: x\n\n", 10.2)
    run.tap.feed(b"data: y\n\n", 10.3)
    run.tap.end(Outcome.OK, 200, 1, 2, 11.0)
    assert run.context.failures == 1
    (record,) = run.records
    assert record.acceptance.reason == "the sidecar failed to read this reply"


@given(st.lists(st.integers(0, 2500), max_size=10), st.sampled_from([b"\n", b"\r\n"]))
def test_the_law_any_cuts_give_the_same_bytes_and_the_same_record(cuts: list[int], newline: bytes) -> None:
    wire = b"".join([b": ping\n\n", *chat_stream(usage=True)]).replace(b"\n", newline)
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    parts = [wire[a:b] for a, b in itertools.pairwise(edges)]

    def once(reads: list[bytes]) -> tuple[bytes, Record]:
        run = Run(fields=b"X-Request-Id: r\r\n", add_usage=True)
        out = run.reply(*((0.5, part) for part in reads))
        return out, replace(run.end(), started_at=0.0)

    assert once(parts) == once([wire])
    assert once(parts)[0] == b"".join([b": ping\n\n", *chat_stream(usage=False)]).replace(b"\n", newline)


@given(st.binary(max_size=400), st.booleans())
def test_no_bytes_break_a_tap(data: bytes, stream: bool) -> None:
    run = Run()
    run.reply((0.1, data), fields=SSE if stream else JSON)
    run.end()


def test_usage_event_alone_is_no_content() -> None:
    run = Run(add_usage=True)
    assert run.reply((0.1, usage_chunk()), (0.2, DONE)) == DONE
    record = run.end()
    assert record.ttft_ms is None
    assert record.completion_tokens == 10


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        (chat_stream(usage=True), Outcome.OK),
        ([*chat_stream(usage=True)[:-1]], Outcome.CLIENT_ABORT),
        ([chat_chunk({"content": "x"}), event({"error": {"message": "no"}})], Outcome.UPSTREAM_ERROR),
    ],
    ids=["at the end", "before it", "at an error"],
)
def test_a_client_that_leaves_at_the_terminal_event_has_read_all(events: list[bytes], outcome: Outcome) -> None:
    run = Run()
    run.reply((0.1, b"".join(events)))
    assert run.end(Outcome.CLIENT_ABORT).outcome is outcome


def test_what_comes_after_the_client_has_left_it_has_not_read() -> None:
    run = Run()
    run.reply((0.1, chat_stream(usage=True)[0]))
    run.tap.left()
    for data in chat_stream(usage=True)[1:]:
        run.tap.feed(data, 11.0)
    record = run.end(Outcome.CLIENT_ABORT)
    assert record.outcome is Outcome.CLIENT_ABORT
    assert record.acceptance.quality is AcceptanceQuality.OK


def test_figures_that_the_engine_kept_to_itself_are_no_missing_setting() -> None:
    run = Run(b'{"stop":["x"]}')
    body = {"choices": [{"finish_reason": "stop"}], "usage": USAGE, "metrics": {"speculative_decoding": None}}
    run.reply((0.1, json.dumps(body).encode()), fields=JSON)
    assert "stop string" in (run.end().acceptance.reason or "")


def test_gaps_are_known_also_of_a_reply_that_cannot_be_decoded() -> None:
    run = Run()
    run.reply((0.1, b"garbage"), (0.6, b"aa"), (1.1, b"bb"), fields=SSE + b"Content-Encoding: gzip\r\n")
    assert run.end().max_chunk_gap_ms == pytest.approx(500)


def test_a_read_of_very_many_lines_is_not_read() -> None:
    run = Run()
    run.reply((0.1, b"\n" * 200_000))
    assert "lines" in (run.end().acceptance.reason or "")


def another(context: TapContext) -> None:
    """One more request, that ends at once."""
    tap = context.watch(RequestHead(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\n\r\n"), 0.0)
    assert tap is not None
    tap.end(Outcome.CLIENT_ABORT, None, 1, 2, 0.5)


def test_requests_that_end_within_a_moment_are_read_together() -> None:
    waiting: list[Callable[[], None]] = []
    run = Run(later=waiting.append)
    for _ in range(3):
        another(run.context)
    assert not run.records
    (finish,) = waiting
    finish()
    assert [record.latency_ms for record in run.records] == [500.0] * 3


def test_not_many_ended_requests_wait_to_be_read() -> None:
    run = Run(later=lambda _: None)
    for _ in range(1_000):
        another(run.context)
    assert len(run.records) > 900


def test_long_reads_do_not_wait_to_be_read() -> None:
    run = Run()
    run.reply((0.1, b": " + b"x" * 100_000))
    assert not run.tap._reads


class Heard:
    """A transcript, which fails as told."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.told: list[object] = []

    def _tell(self, name: str, *told: object) -> None:
        self.told += told
        if self.fails == name:
            raise ValueError(name)

    def request(self, body: bytes) -> None:
        self._tell("request", body)

    def reply(self, payload: bytes) -> None:
        self._tell("reply", payload)

    def end(self, record: Record, *, streamed: bool, whole: bool) -> None:
        self._tell("end", record.request_id, streamed, whole)


def test_a_transcript_has_the_bytes_without_their_coding() -> None:
    heard = Heard()
    run = Run(transcript=lambda: heard)
    body = chat_chunk({"content": "a"}) + DONE
    coded = gzip.compress(body)
    run.reply((0.1, coded[:9]), (0.2, coded[9:]), fields=SSE + b"Content-Encoding: gzip\r\n")
    record = run.end()
    assert heard.told[0] == STREAM
    assert b"".join(each for each in heard.told[1:-3] if isinstance(each, bytes)) == body
    assert heard.told[-3:] == [record.request_id, True, True]


def test_a_transcript_of_what_is_not_read_is_not_whole() -> None:
    heard = Heard()
    run = Run(transcript=lambda: heard)
    run.reply((0.1, b"<html>"), fields=b"Content-Type: text/html\r\n")
    run.end()
    assert heard.told[1:][1:] == [False, False]


def test_a_transcript_ends_where_the_record_cannot_be_kept() -> None:
    heard = Heard()
    run = Run(transcript=lambda: heard)

    def fail(record: Record) -> None:
        raise ValueError

    run.context.sink = fail
    run.reply((0.1, DONE))
    run.tap.end(Outcome.OK, 200, 7, 9, 12.0)
    assert heard.told[-2:] == [True, False]


@pytest.mark.parametrize("where", ["request", "reply", "end"])
def test_a_transcript_that_fails_is_a_failure_of_the_tap_and_changes_no_byte(where: str) -> None:
    run = Run(transcript=lambda: Heard(where))
    events = b"".join(chat_stream(usage=True))
    assert run.reply((0.1, events[:50]), (0.2, events[50:])) == events
    run.tap.end(Outcome.OK, 200, 7, 9, 12.0)
    (record,) = run.records
    assert record.outcome is Outcome.OK
    assert run.context.failures == 1
