"""The text of requests and replies of the four APIs, out of their bytes. Whatever is odd there is left out."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..tap.sse import SseReader

#: What stands for a part that is no text, by a word of its type.
_PLACEHOLDERS = ("image", "audio", "video", "file", "document")


def prompt_of(body: bytes) -> str | None:
    """Whatever the model was asked; None for a body that is no JSON object."""
    value = _object(body)
    if value is None:
        return None
    found = [_line("system", value.get("system")), _line("instructions", value.get("instructions"))]
    for name in ("messages", "input"):
        items = value.get(name)
        found += map(_message, items) if isinstance(items, list) else [_text(items)]
    prompts = value.get("prompt")
    if isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list):
        found += map(_text, prompts)
    else:
        found.append(_text(prompts))
    found.append(_text(value.get("suffix")))
    return _joined(found)


def reply_of(data: bytes, *, streamed: bool) -> str | None:
    """What the model said, its first choice; None for what is no reply, as an error."""
    if streamed:
        return _streamed(data)
    value = _object(data)
    return None if value is None else _joined([_whole(value)]) or None


def _whole(value: dict[str, Any]) -> str:
    """What a reply says that came at once."""
    choices = value.get("choices")
    if isinstance(choices, list):
        first = next((each for each in choices if isinstance(each, dict) and each.get("index") in (0, None)), {})
        message = first.get("message")
        return _said(message) if isinstance(message, dict) else _text(first.get("text"))
    if isinstance(value.get("output"), list):
        return _joined(map(_message, value["output"]))
    return _content(value.get("content"))


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _joined(parts: Iterable[str]) -> str:
    # Half a surrogate pair is valid in JSON, and nowhere else.
    return "\n".join(filter(None, parts)).encode("utf-8", "replace").decode()


# ---- messages, and their parts


def _line(role: object, content: object) -> str:
    text = _content(content)
    return f"{role}: {text}" if text and isinstance(role, str) else text


def _message(item: object) -> str:
    """A message, or an item of the Responses API."""
    if not isinstance(item, dict):
        return _text(item)
    return _line(item.get("role"), _said(item)) if "role" in item else _part(item)


def _said(message: dict[str, Any]) -> str:
    """Content, reasoning and tool calls of a message."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    calls = message.get("tool_calls")
    functions = [each.get("function") for each in calls if isinstance(each, dict)] if isinstance(calls, list) else []
    return _joined(
        [
            _reasoned(_text(reasoning)),
            _content(message.get("content")),
            _text(message.get("refusal")),
            *(_called(each) for each in (*functions, message.get("function_call"))),
        ]
    )


def _content(content: object) -> str:
    if isinstance(content, list):
        return _joined(_part(part) if isinstance(part, dict) else _text(part) for part in content)
    return _text(content)


def _part(part: dict[str, Any]) -> str:
    """A part of a message's content."""
    kind = str(part.get("type"))
    if kind in ("tool_use", "function_call"):
        return _called(part)
    if kind in ("thinking", "reasoning"):
        return _reasoned(_text(part.get("thinking")) or _content(part.get("summary")) or _content(part.get("content")))
    for word in _PLACEHOLDERS:
        if word in kind:
            return f"[{word}]"
    return _text(part.get("text")) or _content(part.get("content")) or _content(part.get("output"))


def _called(function: object) -> str:
    if not isinstance(function, dict):
        return ""
    arguments = function.get("arguments", function.get("input"))
    given = json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict | list) else _text(arguments)
    return f"[tool call] {_text(function.get('name'))} {given}"


def _reasoned(text: str) -> str:
    return f"[reasoning] {text}" if text else ""


def _text(value: object) -> str:
    """A string as it is; of tokens their number."""
    if isinstance(value, list):
        return f"[{len(value)} tokens]" if value else ""
    return value if isinstance(value, str) else ""


# ---- streams


class _Pieces:
    """A reply as it comes in pieces."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.content: list[str] = []
        #: Name and arguments of tool calls, by where the API says they belong.
        self.calls: dict[object, tuple[list[str], list[str]]] = {}

    def add(self, pieces: list[str], piece: object) -> None:
        if isinstance(piece, str):
            pieces.append(piece)

    def call(self, at: object, name: object, arguments: object) -> None:
        names, given = self.calls.setdefault(at if isinstance(at, int | str) else None, ([], []))
        self.add(names, name)
        self.add(given, arguments)

    def text(self) -> str:
        calls = (f"[tool call] {''.join(names)} {''.join(given)}" for names, given in self.calls.values())
        return _joined([_reasoned("".join(self.reasoning)), "".join(self.content), *calls])


def _streamed(data: bytes) -> str | None:
    reader, pieces = SseReader(), _Pieces()
    for event in (*reader.feed(data), *reader.finish()):
        value = _object(event)
        if value is not None:
            for look in _LOOKS:
                look(value, pieces)
    return pieces.text() or None


def _chat_event(value: dict[str, Any], pieces: _Pieces) -> None:
    for choice in _objects(value.get("choices")):
        if choice.get("index") not in (0, None):
            continue
        pieces.add(pieces.content, choice.get("text"))
        delta = choice.get("delta")
        if isinstance(delta, dict):
            pieces.add(pieces.reasoning, delta.get("reasoning_content") or delta.get("reasoning"))
            pieces.add(pieces.content, delta.get("content"))
            pieces.add(pieces.content, delta.get("refusal"))
            for call in _objects(delta.get("tool_calls")):
                function = call.get("function")
                if isinstance(function, dict):
                    pieces.call(call.get("index"), function.get("name"), function.get("arguments"))


def _response_event(value: dict[str, Any], pieces: _Pieces) -> None:
    kind, item = value.get("type"), value.get("item")
    if not isinstance(kind, str) or not kind.startswith("response."):
        return
    if kind == "response.output_item.added" and isinstance(item, dict) and item.get("type") == "function_call":
        pieces.call(value.get("output_index"), item.get("name"), None)
    elif kind == "response.function_call_arguments.delta":
        pieces.call(value.get("output_index"), None, value.get("delta"))
    elif kind.startswith("response.reasoning") and kind.endswith(".delta"):
        pieces.add(pieces.reasoning, value.get("delta"))
    elif kind in ("response.output_text.delta", "response.refusal.delta"):
        pieces.add(pieces.content, value.get("delta"))


def _message_event(value: dict[str, Any], pieces: _Pieces) -> None:
    block, delta = value.get("content_block"), value.get("delta")
    if value.get("type") == "content_block_start" and isinstance(block, dict) and block.get("type") == "tool_use":
        pieces.call(value.get("index"), block.get("name"), None)
    elif value.get("type") == "content_block_delta" and isinstance(delta, dict):
        pieces.add(pieces.content, delta.get("text"))
        pieces.add(pieces.reasoning, delta.get("thinking"))
        if "partial_json" in delta:
            pieces.call(value.get("index"), None, delta["partial_json"])


_LOOKS: tuple[Callable[[dict[str, Any], _Pieces], None], ...] = (_chat_event, _response_event, _message_event)


def _objects(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))
