"""Streamed replies of the four APIs, whole and from Hypothesis."""

import itertools
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from support.upstream import BLOCK, DONE, USAGE, chat_chunk, event

from sidecar.tap.chat import read_chat
from sidecar.tap.messages import read_message
from sidecar.tap.reply import Reader
from sidecar.tap.responses import read_response

#: Text as models write it, and whatever else a JSON string may hold.
texts = st.one_of(
    st.sampled_from(
        ("", " the", "\n\n", 'say "hi"', "\\", 'C:\\"', "\u2028", "你好", "data: x\n\ndata: y", '"usage":{', "{}")
    ),
    st.text(max_size=12),
)


def dumped(value: object, *, ascii_only: bool = False) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only).encode("utf-8", "replace")


def named(value: dict[str, Any]) -> bytes:
    """An event as the Responses and the Messages API send it, with its type as the event's name."""
    return b"event: " + value["type"].encode() + b"\ndata: " + dumped(value) + b"\n\n"


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    """The stream in the reads that these cuts make; none is empty."""
    edges = [0, *sorted({min(each, len(stream)) for each in at}), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges) if b > a]


#: Where to cut a stream of some hundred to some thousand bytes.
cuts = st.lists(st.integers(0, 4000), max_size=10)


_odd_events = st.sampled_from(
    [
        b": ping\n\n",
        b"id: 7\n",
        b"\n",
        b"\r",
        b"\xef\xbb\xbf",
        b"data: [DONE]\n\n",
        b'data: {"error":{"message":"x"}}\n\n',
        b'data: {"choices":[{"delta":{"content":"a"}}],\ndata: "model":"other"}\n\n',
        b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"a"},"token_ids":[1,2]}]}\n\n',
        chat_chunk({"role": "assistant", "content": ""}),
        chat_chunk({"content": "a", "role": "assistant"}),
        chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": "a"}}]}),
        chat_chunk({"content": "a"}, usage={"prompt_tokens": 1, "completion_tokens": 3}),
        chat_chunk({"content": "a"}, sequence_number=7),
        chat_chunk({"content": "b"}, sequence_number=1234567890),
        chat_chunk({"content": "a"}, sequence_number=1.5),
        chat_chunk({"content": "a"}, sequence_number=None),
        chat_chunk({"content": '"sequence_number":12'}),
    ]
)
#: Events of a chat stream, plain and odd.
chat_events = _odd_events | texts.map(lambda text: chat_chunk({"content": text}))


def _chat(texts: list[str]) -> list[bytes]:
    return [
        chat_chunk({"role": "assistant", "content": ""}),
        *(chat_chunk({"reasoning" if number < 2 else "content": text}) for number, text in enumerate(texts)),
        chat_chunk({}, "stop"),
        event({"choices": [], "model": "m", "usage": USAGE, "metrics": {"speculative_decoding": BLOCK}}),
        DONE,
    ]


def _completions(texts: list[str]) -> list[bytes]:
    def chunk(text: str, finish: str | None = None) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        return b"data: " + dumped({"object": "text_completion", "model": "m", "choices": [choice]}) + b"\n\n"

    usage = {"choices": [], "model": "m", "usage": USAGE, "metrics": {"speculative_decoding": BLOCK}}
    return [*map(chunk, texts), chunk("", "length"), event(usage), DONE]


def _responses(texts: list[str]) -> list[bytes]:
    numbers = itertools.count()

    def said(kind: str, **fields: Any) -> bytes:
        return named({**fields, "sequence_number": next(numbers), "type": kind})

    where = {"content_index": 0, "item_id": "msg_1", "output_index": 0}
    response = {"id": "resp_1", "object": "response", "model": "m", "error": None, "incomplete_details": None}
    usage = {"input_tokens": 5, "output_tokens": 10, "total_tokens": 15}
    return [
        said("response.created", response={**response, "status": "in_progress", "usage": None}),
        said("response.in_progress", response={**response, "status": "in_progress", "usage": None}),
        said("response.output_item.added", item={"type": "message", "status": "in_progress"}, output_index=0),
        *(said("response.output_text.delta", delta=text, logprobs=[], **where) for text in texts),
        said("response.output_text.done", text="".join(texts), logprobs=[], **where),
        said("response.completed", response={**response, "status": "completed", "usage": usage}),
    ]


def _messages(texts: list[str]) -> list[bytes]:
    start = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m", "stop_reason": None}
    return [
        named({"type": "message_start", "message": start | {"usage": {"input_tokens": 5, "output_tokens": 0}}}),
        named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        named({"type": "ping"}),
        *(
            named({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
            for text in texts
        ),
        named({"type": "content_block_stop", "index": 0}),
        named(
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {"input_tokens": 5, "output_tokens": 10},
            }
        ),
        named({"type": "message_stop"}),
    ]


#: Path of an API -> the events of a streamed reply of these texts.
APIS: dict[bytes, Callable[[list[str]], list[bytes]]] = {
    b"/v1/chat/completions": _chat,
    b"/v1/completions": _completions,
    b"/v1/responses": _responses,
    b"/v1/messages": _messages,
}
READERS: dict[bytes, Reader] = {
    b"/v1/chat/completions": read_chat,
    b"/v1/completions": read_chat,
    b"/v1/responses": read_response,
    b"/v1/messages": read_message,
}
