"""What is said in requests and replies of the four APIs, streamed and not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.upstream import DONE, chat_chunk, event

from sidecar.texts.extract import prompt_of, reply_of

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}

PROMPTS: list[tuple[str, object, str]] = [
    (
        "messages",
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE]},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "found"},
            ]
        },
        'system: be brief\nuser: look\n[image]\nassistant: [tool call] find {"a": 1}\ntool: found',
    ),
    (
        "audio",
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "user: [audio]",
    ),
    ("one prompt", {"prompt": "once", "suffix": "end"}, "once\nend"),
    ("prompts", {"prompt": ["one", "two"]}, "one\ntwo"),
    ("tokens", {"prompt": [1, 2, 3]}, "[3 tokens]"),
    ("prompts of tokens", {"prompt": [[1, 2], [3]]}, "[2 tokens]\n[1 tokens]"),
    ("input", {"instructions": "be brief", "input": "hello"}, "instructions: be brief\nhello"),
    (
        "input of items",
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}]},
                {"type": "function_call", "name": "find", "arguments": "{}"},
                {"type": "function_call_output", "output": "found"},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            ]
        },
        "user: a\n[image]\n[tool call] find {}\nfound\n[reasoning] hm",
    ),
    (
        "Anthropic",
        {
            "system": [{"type": "text", "text": "be brief"}],
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "name": "find", "input": {"a": "ä"}}]},
                {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "x"}]}]},
                {"role": "user", "content": [{"type": "document", "source": {}}]},
            ],
        },
        'system: be brief\nassistant: [tool call] find {"a": "ä"}\nuser: x\nuser: [document]',
    ),
    ("half a surrogate pair", {"prompt": "a\ud800b"}, "a?b"),
    ("odd", {"messages": [1, None, "x", {"role": 1, "content": {"a": 1}}], "prompt": {"a": 1}, "input": 7}, "x"),
    ("nothing", {}, ""),
]


@pytest.mark.parametrize(("name", "body", "text"), PROMPTS, ids=[name for name, _, _ in PROMPTS])
def test_prompts(name: str, body: object, text: str) -> None:
    assert prompt_of(json.dumps(body).encode()) == text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe\xff", b"[" * 100_000])
def test_no_json_object_has_no_text(body: bytes) -> None:
    assert prompt_of(body) is None
    assert reply_of(body, streamed=False) is None
    assert reply_of(body, streamed=True) is None


REPLIES: list[tuple[str, object, str | None]] = [
    (
        "chat",
        {
            "choices": [
                {"index": 1, "message": {"content": "other"}},
                {"index": 0, "message": {"reasoning_content": "hm", "content": "hello", "tool_calls": [CALL]}},
            ]
        },
        '[reasoning] hm\nhello\n[tool call] find {"a": 1}',
    ),
    ("completion", {"choices": [{"text": "hello"}]}, "hello"),
    (
        "response",
        {
            "output": [
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
                {"type": "function_call", "name": "find", "arguments": "{}"},
            ]
        },
        "[reasoning] hm\nassistant: hello\n[tool call] find {}",
    ),
    (
        "message",
        {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hello"}]},
        "[reasoning] hm\nhello",
    ),
    ("error", {"error": {"message": "prompt: ..."}}, None),
    ("no choice", {"choices": []}, None),
    ("odd", {"choices": [None, {"message": 1}, 2]}, None),
]


@pytest.mark.parametrize(("name", "body", "text"), REPLIES, ids=[name for name, _, _ in REPLIES])
def test_replies(name: str, body: object, text: str | None) -> None:
    assert reply_of(json.dumps(body).encode(), streamed=False) == text


def arguments(piece: str, name: str | None = None) -> bytes:
    function = {"arguments": piece} | ({"name": name} if name else {})
    return chat_chunk({"tool_calls": [{"index": 0, "function": function}]})


STREAMS: dict[str, tuple[list[bytes], str | None]] = {
    "chat": (
        [
            chat_chunk({"role": "assistant"}),
            chat_chunk({"reasoning": "h"}),
            chat_chunk({"reasoning_content": "m"}),
            *(chat_chunk({"content": piece}) for piece in ("hel", "lo")),
            arguments('{"a"', "find"),
            arguments(": 1}"),
            event({"choices": [{"index": 1, "delta": {"content": "other"}}]}),
            DONE,
        ],
        '[reasoning] hm\nhello\n[tool call] find {"a": 1}',
    ),
    "completions": ([*(event({"choices": [{"text": piece}]}) for piece in ("hel", "lo")), DONE], "hello"),
    "responses": (
        [
            event({"type": "response.reasoning_text.delta", "delta": "hm"}),
            *(event({"type": "response.output_text.delta", "delta": piece}) for piece in ("hel", "lo")),
            event(
                {
                    "type": "response.output_item.added",
                    "output_index": 1,
                    "item": {"type": "function_call", "name": "find"},
                }
            ),
            event({"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{}"}),
            event({"type": "response.output_text.done", "text": "hello"}),
            event({"type": "response.completed", "response": {}}),
        ],
        "[reasoning] hm\nhello\n[tool call] find {}",
    ),
    "messages": (
        [
            event({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}}),
            *(event({"type": "content_block_delta", "delta": {"text": piece}}) for piece in ("hel", "lo")),
            event({"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "find"}}),
            event({"type": "content_block_delta", "index": 1, "delta": {"partial_json": "{}"}}),
        ],
        "[reasoning] hm\nhello\n[tool call] find {}",
    ),
    "error": ([event({"error": {"message": "words of the prompt"}}), DONE], None),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams(name: str) -> None:
    events, text = STREAMS[name]
    assert reply_of(b"".join(events), streamed=True) == text


def test_a_cut_stream_has_what_came() -> None:
    events, _ = STREAMS["chat"]
    assert reply_of(b"".join(events[:4]) + events[4][:-20], streamed=True) == "[reasoning] hm\nhel"


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ("choices", "message", "messages", "content", "role", "type", "text", "delta", "input", "prompt")
            )
            | st.sampled_from(
                ("tool_calls", "function", "arguments", "output", "summary", "index", "item", "content_block")
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_nothing_odd_is_raised_over(value: object) -> None:
    body = json.dumps(value).encode()
    assert isinstance(prompt_of(body), str | None)
    assert isinstance(reply_of(body, streamed=False), str | None)
    assert isinstance(reply_of(b"data: " + body + b"\n\n", streamed=True), str | None)
