"""Replies of which every part holds a mark of its own, and all the paths that a text can take."""

import gzip
from collections.abc import Callable, Iterator
from typing import Any

from .plays import BODIES, Fault, Play, Reply, broken, chat_body, odd, too_long
from .quoting_sidecar import FAILURES
from .upstream import BLOCK, DONE, USAGE, chat_chunk, chunked, event, json_reply


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


def strange_head(*fields: bytes) -> Reply:
    def reply(play: Play) -> bytes:
        mark = play.canaries(play.name, "head").encode()
        lines = b"".join(b"%b\r\n" % field.replace(b"MARK", mark) for field in fields)
        head = b"HTTP/1.1 200 %b\r\nserver: %b\r\nset-cookie: %b\r\n" % (mark, mark, mark)
        return head + lines + b"content-length: 2\r\n\r\n{}"

    return reply


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
    yield Play("strange type", strange_head(b"content-type: text/MARK; charset=MARK"))
    yield Play("strange coding", strange_head(b"content-type: application/json", b"content-encoding: MARK"))
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
