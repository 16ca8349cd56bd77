"""Requests of which every part holds a mark of its own, and replies likewise: all paths that a text can take."""

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from .canaries import Canaries
from .proxy import post
from .quoting_sidecar import FAILURES
from .upstream import BLOCK, DONE, USAGE, chat_chunk, chunked, event, json_reply

CHAT, LEGACY, RESPONSES, MESSAGES = b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages"
#: Bytes of a body that are read.
HOLD = 65_536

Reply = Callable[["Play"], bytes]


@dataclass
class Play:
    """One request and its reply."""

    name: str
    reply: "Reply | Fault"
    path: bytes = CHAT
    stream: bool = False
    #: Words that stand in the body beside the marks.
    word: str = ""
    scenario: str = ""
    body: Callable[["Play"], bytes] | None = None
    #: Bytes of the reply after which the client leaves.
    leaves_after: int | None = None
    canaries: Canaries = field(default_factory=Canaries)
    model: str = "m"
    number: int = 0
    #: Times that the upstream was asked.
    answered: int = 0

    def text(self, part: str) -> str:
        return self.canaries.text(self.name, part)

    @property
    def key(self) -> str:
        """What tells the upstream which request it has, also where it is sent again."""
        return f"play-{self.number}-"


@dataclass
class Fault:
    """What comes of a reply, and how it ends."""

    start: Reply
    hangs: bool = False


# ---- requests


def chat_body(play: Play) -> bytes:
    text = play.text
    return json.dumps(
        {
            "model": play.model,
            "stream": play.stream,
            "user": text("user"),
            "metadata": {"tenant": text("metadata"), text("metadata name"): "x"},
            "messages": [
                {"role": "system", "content": text("system prompt")},
                {"role": "user", "name": text("name"), "content": f"{play.key} {play.word} {text('content')}"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": text("part")},
                        {"type": "image_url", "image_url": {"url": f"https://x/{quote(text('image URL'))}"}},
                        {"type": "image_url", "image_url": {"url": _data_url(text("image data"))}},
                        {"type": "input_audio", "input_audio": {"data": text("audio"), "format": "wav"}},
                    ],
                },
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "f", "arguments": text("arguments")}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": text("tool result")},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "description": text("tool description")}}],
            "stop": [text("stop")],
            "prompt": text("a prompt beside"),
            text("a field's name"): 1,
        }
    ).encode()


def _data_url(text: str) -> str:
    return "data:image/png;base64," + base64.b64encode(text.encode()).decode()


def legacy_body(play: Play) -> bytes:
    prompts = [f"{play.key} {play.text('prompt')}", play.text("second prompt")]
    return json.dumps(
        {"model": play.model, "stream": play.stream, "prompt": prompts, "suffix": play.text("suffix")}
    ).encode()


def responses_body(play: Play) -> bytes:
    return json.dumps(
        {
            "model": play.model,
            "stream": play.stream,
            "instructions": play.text("instructions"),
            "input": [{"role": "user", "content": [{"type": "input_text", "text": play.key + play.text("input")}]}],
        }
    ).encode()


def messages_body(play: Play) -> bytes:
    return json.dumps(
        {
            "model": play.model,
            "stream": play.stream,
            "system": play.text("system"),
            "messages": [{"role": "user", "content": f"{play.key} {play.text('content')}"}],
        }
    ).encode()


BODIES = {CHAT: chat_body, LEGACY: legacy_body, RESPONSES: responses_body, MESSAGES: messages_body}


def broken(play: Play) -> bytes:
    return chat_body(play)[:-20] + play.text("broken").encode()


def odd(play: Play) -> bytes:
    text = play.text("odd").replace("\n", " ").replace('"', "")
    return b'\xef\xbb\xbf{"model":"m","temperature":NaN,"messages":"\\ud800 %b %b","n":"%b"}' % (
        play.key.encode(),
        text.encode(),
        play.text("n").replace("\n", " ").replace('"', "").encode(),
    )


def too_long(play: Play) -> bytes:
    return chat_body(play)[:-1] + b',"pad":"' + b" " * HOLD + play.text("end").split()[0].encode() + b'"}'


def request_of(play: Play) -> bytes:
    canaries = play.canaries
    fields = [
        f"x-play: {play.key}",
        f"authorization: Bearer {canaries(play.name, 'authorization')}",
        f"x-api-key: {canaries(play.name, 'x-api-key')}",
        f"cookie: a={canaries(play.name, 'cookie')}",
        f"x-own: {canaries(play.name, 'field')}",
        *([f"x-scenario: {play.scenario}"] if play.scenario else []),
    ]
    path = play.path + f"?key={canaries(play.name, 'query')}".encode()
    body = (play.body or BODIES[play.path])(play)
    return post(body, path, extra="".join(f"{line}\r\n" for line in fields).encode())


# ---- replies


def plain_reply(play: Play) -> bytes:
    text = f"{play.word} {play.text('reply')}"
    match play.path:
        case b"/v1/responses":
            output = [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
            return json_reply({"id": "resp_1", "object": "response", "status": "completed", "output": output})
        case b"/v1/messages":
            content = [{"type": "text", "text": text}]
            return json_reply({"id": "m1", "type": "message", "content": content, "stop_reason": "end_turn"})
        case b"/v1/completions":
            choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": "stop"}
        case _:
            call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": play.text("arguments said")}}
            message = {"content": text, "reasoning_content": play.text("reasoning"), "tool_calls": [call]}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
    figures = {"speculative_decoding": BLOCK}
    return json_reply({"id": play.key, "model": "m", "choices": [choice], "usage": USAGE, "metrics": figures})


def events_of(play: Play) -> list[bytes]:
    texts = [play.text("reply"), play.text("reply"), play.text("reply, at the end")]
    match play.path:
        case b"/v1/responses":
            made = [event({"type": "response.output_text.delta", "delta": text}) for text in texts]
            return [*made, event({"type": "response.completed", "response": {"id": "resp_2", "status": "completed"}})]
        case b"/v1/messages":
            made = [event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": t}}) for t in texts]
            return [*made, event({"type": "message_stop"})]
        case b"/v1/completions":
            return [*(event({"id": "cmpl-1", "choices": [{"text": text}]}) for text in texts), DONE]
    usage = event({"id": "chatcmpl-1", "choices": [], "usage": USAGE, "metrics": {"speculative_decoding": BLOCK}})
    reasoning = chat_chunk({"reasoning_content": play.text("reasoning")})
    return [reasoning, *(chat_chunk({"content": text}) for text in texts), chat_chunk({}, "stop"), usage, DONE]


def stream_reply(play: Play) -> bytes:
    return chunked(*events_of(play))


def zipped(play: Play) -> bytes:
    body = gzip.compress(b"".join(events_of(play)))
    head = b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
    return chunked(body[: len(body) // 2], body[len(body) // 2 :], head=head)


def refusing(status: bytes) -> Reply:
    def reply(play: Play) -> bytes:
        line = status + b" " + play.canaries(play.name, "status line").encode()
        message = play.text("error") + chat_body(play).decode()
        return json_reply({"error": {"message": message, "type": play.text("error type"), "code": 1}}, line)

    return reply


def error_inside(play: Play) -> bytes:
    wrong = {"error": {"message": play.text("error"), "type": play.text("type"), "code": play.text("code")}}
    return chunked(*events_of(play)[:2], event(wrong), DONE)


def strange_figures(changes: Callable[[Play], dict[str, Any]], *, stream: bool) -> Reply:
    def reply(play: Play) -> bytes:
        metrics = {"speculative_decoding": BLOCK | changes(play), play.text("metric"): play.text("metric")}
        end = {"id": "chatcmpl-1", "choices": [], "usage": USAGE, "metrics": metrics}
        if stream:
            return chunked(chat_chunk({"content": play.text("reply")}, "stop"), event(end), DONE)
        return json_reply(end | {"choices": [{"message": {"content": play.text("reply")}, "finish_reason": "stop"}]})

    return reply


def strange_words(play: Play) -> bytes:
    """A reply whose every word stands where it should not."""
    text = play.text
    value = {
        "object": text("object"),
        "type": text("type"),
        "choices": [{"message": {"content": text("reply")}, "finish_reason": text("finish reason")}],
        "usage": {"prompt_tokens": text("usage"), text("usage"): 1},
        "detail": [text("detail")],
        "metrics": {"queue_time_ms": text("queue")},
    }
    return json_reply(value)


def strange_head(play: Play) -> bytes:
    mark = play.canaries(play.name, "head").encode()
    return (
        b"HTTP/1.1 200 %b\r\ncontent-type: text/%b; charset=%b\r\ncontent-encoding: %b\r\nserver: %b\r\n"
        b"set-cookie: %b\r\ncontent-length: 2\r\n\r\n{}" % (mark, mark, mark, mark, mark, mark)
    )


def no_http(play: Play) -> bytes:
    return b"HTTP/1.1 2x0 " + play.text("no HTTP").encode() + b"\r\n\r\n"


def bad_chunk(play: Play) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + play.text("chunk size").encode() + b"\r\n"


def cut(reply: Reply) -> Reply:
    return lambda play: reply(play)[:-60]


def nothing(_play: Play) -> bytes:
    return b""


def plays() -> Iterator[Play]:
    for path in BODIES:
        yield Play(f"{path.decode()} plain", plain_reply, path)
        yield Play(f"{path.decode()} stream", stream_reply, path, stream=True)
    yield Play("compressed stream", zipped, stream=True)
    for status in (b"400", b"422", b"429", b"500", b"503"):
        yield Play(f"error {status.decode()}", refusing(status))
    yield Play("error, streaming", refusing(b"400"), stream=True)
    yield Play("error inside a stream", error_inside, stream=True)
    for stream in (False, True):
        kind = "stream" if stream else "plain"

        def unknown(play: Play) -> dict[str, Any]:
            text = play.text("figures")
            return {"num_spec_steps": text, "acceptance_histogram": {text: 1, "2": text}, text: [text, {text: text}]}

        def inconsistent(play: Play) -> dict[str, Any]:
            text = play.text("figures")
            return {"num_draft_tokens": 3, "note": text, text: text}

        yield Play(f"unknown figures, {kind}", strange_figures(unknown, stream=stream), stream=stream)
        yield Play(f"inconsistent figures, {kind}", strange_figures(inconsistent, stream=stream), stream=stream)
    yield Play("strange words", strange_words)
    yield Play("strange head", strange_head)
    yield Play("client leaves", Fault(cut(stream_reply), hangs=True), stream=True, leaves_after=1)
    yield Play("upstream dies before a head", Fault(nothing))
    yield Play("upstream dies within a stream", Fault(cut(stream_reply)), stream=True)
    yield Play("upstream dies within a reply", Fault(cut(plain_reply)))
    yield Play("timeout before a head", Fault(nothing, hangs=True))
    yield Play("timeout within a stream", Fault(cut(stream_reply), hangs=True), stream=True)
    yield Play("no HTTP", no_http)
    yield Play("no chunk", bad_chunk, stream=True)
    yield Play("broken JSON", plain_reply, body=broken)
    yield Play("odd JSON", plain_reply, body=odd)
    yield Play("too long to be read", plain_reply, body=too_long)
    for part in (*FAILURES, "embedder"):
        yield Play(f"failure of {part}", plain_reply, word=f"fail-{part}", scenario=f"fails-{part}")
