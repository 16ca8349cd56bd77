"""Whole replies and single events of the four APIs: what each tells. C01, C16, C18, C20."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.streams import APIS, READERS, texts
from support.upstream import BLOCK, USAGE

from sidecar.record import AcceptanceQuality
from sidecar.tap.acceptance import from_block
from sidecar.tap.chat import read_chat
from sidecar.tap.messages import read_message
from sidecar.tap.reply import Reader, Reply
from sidecar.tap.responses import read_response

METRICS = {"speculative_decoding": BLOCK, "queue_time_ms": 1.5}
FIGURES = from_block(json.dumps(BLOCK).encode())
RESPONSE_USAGE = {"input_tokens": 5, "output_tokens": 10, "total_tokens": 15}


def read(reader: Reader, value: object) -> Reply | None:
    return reader(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("nothing", {}, Reply()),
        (
            "a whole chat completion",
            {
                "object": "chat.completion",
                "model": "m",
                "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}],
                "usage": USAGE,
                "metrics": METRICS,
            },
            Reply("m", "stop", 5, 10, usage=True, acceptance=FIGURES, measured=True, queue_ms=1.5),
        ),
        ("a role alone", {"choices": [{"delta": {"role": "assistant", "content": ""}}]}, Reply()),
        ("text", {"choices": [{"delta": {"content": "x"}}]}, Reply(content=True)),
        ("reasoning", {"choices": [{"delta": {"reasoning": "x"}}]}, Reply(content=True)),
        ("a delta of a kind to come", {"choices": [{"delta": {"holograms": ["x"]}}]}, Reply(content=True)),
        ("a completion's text", {"choices": [{"text": "x"}]}, Reply(content=True)),
        (
            "the last of two choices",
            {"choices": [{"finish_reason": None}, {"finish_reason": "stop"}]},
            Reply(None, "stop"),
        ),
        (
            "token ids",
            {"choices": [{"delta": {"content": "xy"}, "token_ids": [7, 8]}]},
            Reply(counted_tokens=2, content=True),
        ),
        (
            "three entries of log probabilities",
            {"choices": [{"delta": {}, "logprobs": {"content": [{"logprob": 0.0}] * 3}}]},
            Reply(counted_tokens=3),
        ),
        (
            "both, which are the same tokens",
            {"choices": [{"token_ids": [7], "logprobs": {"content": [{"logprob": 0.0}]}}]},
            Reply(counted_tokens=1),
        ),
        (
            "a completion's, which may have the prompt's among them",
            {"choices": [{"text": "x", "logprobs": {"tokens": ["a", "b"]}}]},
            Reply(content=True),
        ),
        ("an error", {"error": {"message": "x"}}, Reply(error=True)),
        ("an error object", {"object": "error", "message": "x"}, Reply(error=True)),
        ("an error type", {"type": "error"}, Reply(error=True)),
        ("a detail", {"detail": "x"}, Reply(error=True)),
        ("a detail of a reply", {"detail": "x", "choices": []}, Reply()),
        ("no error", {"error": None, "object": "chat.completion"}, Reply()),
        (
            "usage of another type",
            {"usage": {"prompt_tokens": "5", "completion_tokens": 10}},
            Reply(None, None, None, 10, usage=True),
        ),
        ("usage of no tokens", {"usage": {}}, Reply(usage=True)),
        ("no usage", {"usage": 3}, Reply()),
        ("a model that is no name", {"model": 3, "choices": [{"text": "x"}]}, Reply(content=True)),
        ("a choice that is none", {"choices": [3, {"text": "x"}]}, Reply(content=True)),
        (
            "a queue time that is none",
            {"metrics": {"queue_time_ms": -1, "speculative_decoding": BLOCK}},
            Reply(acceptance=FIGURES, measured=True),
        ),
        ("null for n > 1", {"choices": [], "metrics": {"speculative_decoding": None}}, Reply(measured=True)),
    ],
)
def test_chat_and_completions(name: str, value: object, told: Reply) -> None:
    assert read(read_chat, value) == told, name


RESPONSE = {"object": "response", "model": "m", "status": "in_progress", "error": None, "usage": None}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "a whole response",
            RESPONSE | {"status": "completed", "usage": RESPONSE_USAGE, "metrics": {"queue_time_ms": 1.5}},
            Reply("m", "completed", 5, 10, usage=True, queue_ms=1.5),
        ),
        (
            "one that was cut at its bound",
            RESPONSE | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            Reply("m", "max_output_tokens"),
        ),
        ("one that was cut", RESPONSE | {"status": "incomplete", "incomplete_details": None}, Reply("m", "incomplete")),
        ("one that failed", RESPONSE | {"status": "failed", "error": {"code": "x"}}, Reply("m", "failed", error=True)),
        ("one in the background", RESPONSE | {"status": "queued"}, Reply("m")),
        ("created", {"type": "response.created", "response": RESPONSE | {"id": "resp_1"}}, Reply("m", id="resp_1")),
        ("an id of another kind", {"item_id": "msg_1", "id": 3, "response": RESPONSE | {"id": 3}}, Reply("m")),
        ("text", {"type": "response.output_text.delta", "delta": "x"}, Reply(content=True)),
        ("empty text", {"type": "response.output_text.delta", "delta": ""}, Reply()),
        ("reasoning", {"type": "response.reasoning_text.delta", "delta": "x"}, Reply(content=True)),
        ("a summary", {"type": "response.reasoning_summary_text.delta", "delta": "x"}, Reply(content=True)),
        ("arguments", {"type": "response.function_call_arguments.delta", "delta": "{"}, Reply(content=True)),
        ("a delta of a kind to come", {"type": "response.hologram.delta", "delta": {"x": 1}}, Reply(content=True)),
        ("the text once more", {"type": "response.output_text.done", "text": "x"}, Reply()),
        (
            "completed",
            {"type": "response.completed", "response": RESPONSE | {"status": "completed", "usage": RESPONSE_USAGE}},
            Reply("m", "completed", 5, 10, usage=True, last=True),
        ),
        (
            "completed, with figures where a later engine may put them",
            {"type": "response.completed", "response": RESPONSE | {"status": "completed", "metrics": METRICS}},
            Reply("m", "completed", last=True, acceptance=FIGURES, queue_ms=1.5),
        ),
        (
            "incomplete",
            {
                "type": "response.incomplete",
                "response": {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            },
            Reply(None, "max_output_tokens", last=True),
        ),
        (
            "failed",
            {"type": "response.failed", "response": {"status": "failed", "error": {"code": "x"}}},
            Reply(None, "failed", error=True, last=True),
        ),
        ("an error", {"type": "error", "code": "x", "message": "x"}, Reply(error=True)),
        ("vLLM's error", {"error": {"message": "x", "type": "x", "code": 500}}, Reply(error=True)),
        (
            "usage of another type",
            RESPONSE | {"usage": {"input_tokens": 5, "output_tokens": -1}},
            Reply("m", None, 5, usage=True),
        ),
        ("a response that is none", {"type": "response.created", "response": 3}, Reply()),
    ],
)
def test_responses(name: str, value: object, told: Reply) -> None:
    assert read(read_response, value) == told, name


MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m"}


def delta(kind: str, **fields: object) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **fields}}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "a whole message",
            MESSAGE | {"stop_reason": "end_turn", "usage": {"input_tokens": 5, "output_tokens": 10}},
            Reply("m", "end_turn", 5, 10, usage=True, id="msg_1"),
        ),
        (
            "a prompt with cached parts",
            MESSAGE
            | {
                "usage": {
                    "input_tokens": 5,
                    "cache_read_input_tokens": 16,
                    "cache_creation_input_tokens": 4,
                    "output_tokens": 1,
                }
            },
            Reply("m", None, 25, 1, usage=True, id="msg_1"),
        ),
        (
            "the start, whose output tokens are none yet",
            {"type": "message_start", "message": MESSAGE | {"usage": {"input_tokens": 5, "output_tokens": 1}}},
            Reply("m", None, 5, usage=True, id="msg_1"),
        ),
        (
            "the start where the engine does not know the prompt's length yet",
            {"type": "message_start", "message": MESSAGE | {"usage": {"input_tokens": 0, "output_tokens": 0}}},
            Reply("m", usage=True, id="msg_1"),
        ),
        ("a block begins", {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, Reply()),
        ("text", delta("text_delta", text="x"), Reply(content=True)),
        ("empty text", delta("text_delta", text=""), Reply()),
        ("thinking", delta("thinking_delta", thinking="x"), Reply(content=True)),
        ("arguments", delta("input_json_delta", partial_json="{"), Reply(content=True)),
        ("a delta of a kind to come", delta("hologram_delta", hologram={"x": 1}), Reply(content=True)),
        (
            "the end's figures",
            {
                "type": "message_delta",
                "delta": {"stop_reason": "max_tokens"},
                "usage": {"input_tokens": 5, "output_tokens": 10},
            },
            Reply(None, "max_tokens", 5, 10, usage=True),
        ),
        (
            "the end's figures, output tokens alone",
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 10}},
            Reply(None, "end_turn", None, 10, usage=True),
        ),
        ("the end", {"type": "message_stop"}, Reply(last=True)),
        ("ping", {"type": "ping"}, Reply()),
        ("an error", {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, Reply(error=True)),
        ("an error object", {"object": "error", "message": "x"}, Reply(error=True)),
        ("a message that is none", {"type": "message_start", "message": 3}, Reply()),
        ("a delta that is none", {"type": "content_block_delta", "delta": 3}, Reply()),
        (
            "figures where a later engine may put them",
            MESSAGE | {"metrics": METRICS},
            Reply("m", acceptance=FIGURES, queue_ms=1.5, id="msg_1"),
        ),
    ],
)
def test_messages(name: str, value: object, told: Reply) -> None:
    assert read(read_message, value) == told, name


@pytest.mark.parametrize("reader", [read_chat, read_response, read_message])
@pytest.mark.parametrize("data", [b"", b"[]", b"3", b"null", b'"x"', b"{", b"\xff", b'{"a":"\xff"}x', b"[" * 100_000])
def test_what_is_no_json_object_tells_nothing(reader: Reader, data: bytes) -> None:
    assert reader(data) is None


@pytest.mark.parametrize(
    ("reader", "wrap"),
    [
        (read_chat, lambda metrics: {"metrics": metrics}),
        (read_chat, lambda metrics: {"choices": [{"metrics": metrics}]}),
        (read_response, lambda metrics: {"metrics": metrics}),
        (read_response, lambda metrics: {"type": "response.completed", "response": {"metrics": metrics}}),
        (read_message, lambda metrics: {"metrics": metrics}),
    ],
)
@pytest.mark.parametrize(
    ("changes", "quality", "kept"),
    [
        ({"num_draft_tokens": 3}, AcceptanceQuality.INCONSISTENT, {}),
        ({"num_draft_tokens": "12"}, AcceptanceQuality.UNKNOWN, {}),
        ({"num_spec_steps": None}, AcceptanceQuality.UNKNOWN, {}),
        ({"acceptance_histogram": "x" * 9999}, AcceptanceQuality.UNKNOWN, {"acceptance_histogram": "text"}),
    ],
)
def test_c01_a_strange_block_is_kept_wherever_it_stands(
    reader: Reader, wrap: Any, changes: dict[str, Any], quality: AcceptanceQuality, kept: dict[str, str]
) -> None:
    block = BLOCK | changes
    reply = read(reader, wrap({"speculative_decoding": block}))
    assert reply is not None
    assert reply.acceptance is not None
    assert reply.acceptance.quality is quality
    assert reply.acceptance.reason
    assert json.loads(reply.acceptance.raw or "") == block | kept


@given(st.sampled_from(sorted(APIS)), st.lists(texts, max_size=4), st.sampled_from(("object", "model")))
def test_a_field_of_a_wrong_type_changes_nothing_else(path: bytes, pieces: list[str], field: str) -> None:
    reader = READERS[path]
    for event in APIS[path](pieces):
        data = event.partition(b"data: ")[2][:-2]
        if data == b"[DONE]":
            continue
        value = json.loads(data)
        plain = reader(data)
        assert plain is not None
        value.pop(field, None)
        without = read(reader, value)
        assert read(reader, value | {field: 7}) == without
        if field == "object":  # it says nothing here
            assert without == plain


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
NAMES = (
    "type",
    "object",
    "model",
    "choices",
    "usage",
    "metrics",
    "error",
    "detail",
    "delta",
    "response",
    "message",
    "text",
    "speculative_decoding",
    "queue_time_ms",
    "status",
    "stop_reason",
    "token_ids",
    "logprobs",
    "content",
    "finish_reason",
    "input_tokens",
    "output_tokens",
    "prompt_tokens",
    "completion_tokens",
    "incomplete_details",
    "num_spec_steps",
)
any_object = st.recursive(
    json_values | st.sampled_from(("error", "message_start", "message_delta", "content_block_delta")),
    lambda inner: st.dictionaries(st.sampled_from(NAMES), inner, max_size=5) | st.lists(inner, max_size=2),
    max_leaves=20,
)


@given(any_object)
def test_nothing_raises(value: object) -> None:
    for reader in (read_chat, read_response, read_message):
        read(reader, value)
