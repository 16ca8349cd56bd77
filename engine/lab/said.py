"""What a reply of the chat and completions APIs says: its text and its tool calls, streamed or whole. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sidecar.tap.sse import SseReader


@dataclass(frozen=True, slots=True)
class Said:
    """The first choice of a reply."""

    text: str = ""
    tool_calls: list[dict[str, Any]] | None = None


def said_in(data: bytes, *, streamed: bool) -> Said:
    """Whatever can be read of a reply's bytes, be they cut; nothing of what is no reply."""
    text: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    for choice in _choices(data, streamed):
        piece = choice.get("text")
        message = choice.get("delta" if streamed else "message")
        if isinstance(message, dict):
            piece = message.get("content")
            _add_calls(calls, message.get("tool_calls"))
        if isinstance(piece, str):
            text.append(piece)
    # Half a surrogate pair is valid in JSON, and nowhere else.
    whole = "".join(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return Said(whole, [calls[at] for at in sorted(calls)] or None)


def complaint_in(data: bytes, *, streamed: bool) -> str:
    """What a server says went wrong, in whichever of their shapes; of a body that is no JSON, the body."""
    for value in _bodies(data, streamed):
        error = value.get("error")
        if error is None and value.get("object") != "error" and "detail" not in value:
            continue
        if isinstance(error, str):
            return error
        told = error if isinstance(error, dict) else value
        found = told.get("message") or told.get("detail") or error or value
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return "" if streamed else data.decode("utf-8", "replace").strip()


def _bodies(data: bytes, streamed: bool) -> Iterator[dict[str, Any]]:
    """The JSON object of the reply, or that of each of its events."""
    reader = SseReader()
    for body in (*reader.feed(data), *reader.finish()) if streamed else (data,):
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _choices(data: bytes, streamed: bool) -> Iterator[dict[str, Any]]:
    """The first choice of the reply, or of each of its events."""
    for value in _bodies(data, streamed):
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in (0, None):
                yield choice


def _add_calls(calls: dict[int, dict[str, Any]], pieces: Any) -> None:
    """Put pieces of tool calls where they belong: of a stream, name and arguments come bit by bit."""
    for number, piece in enumerate(pieces if isinstance(pieces, list) else ()):
        if not isinstance(piece, dict):
            continue
        at = piece.get("index")
        call = calls.setdefault(
            at if type(at) is int else number,
            {"id": None, "type": "function", "function": {"name": "", "arguments": ""}},
        )
        if isinstance(piece.get("id"), str):
            call["id"] = piece["id"]
        function = piece.get("function")
        for name in ("name", "arguments"):
            if isinstance(function, dict) and isinstance(function.get(name), str):
                call["function"][name] += function[name]
