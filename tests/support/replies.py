"""Replies as clients hand them out, made comparable: the same request, asked twice, gives equal values."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

#: Names and clock times, which differ between two replies to one request; so do keys that end in `_ms`.
VARYING = frozenset(("id", "item_id", "call_id", "created", "created_at", "tokens_per_second"))
#: Where streams carry generated text.
PIECES = frozenset(("content", "text", "arguments", "delta", "partial_json"))


def plain(value: Any) -> Any:
    """Dicts, lists and scalars, without what varies."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", warnings=False)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items() if key not in VARYING and not key.endswith("_ms")}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    assert value is None or isinstance(value, str | int | float), type(value)
    return value


def folded(events: Iterable[Any]) -> list[Any]:
    """All text of a stream, then its kinds of event in the order in which each first came.

    How many tokens share an event depends on how busy the engine's machine is, so their number is left out.
    """
    pieces: list[str] = []
    kinds: list[Any] = []

    def without_text(value: Any) -> Any:
        if isinstance(value, list):
            return [without_text(each) for each in value]
        if not isinstance(value, dict):
            return value
        kind = {}
        for key, each in value.items():
            if key in PIECES and isinstance(each, str):
                pieces.append(each)
                kind[key] = "…"
            elif key != "sequence_number":
                kind[key] = without_text(each)
        return kind

    for event in events:
        kind = without_text(plain(event))
        if kind not in kinds:
            kinds.append(kind)
    return ["".join(pieces), *kinds]


def from_wire(body: bytes) -> Any:
    """A body as it came: one JSON value, or a stream of events."""
    if not body.startswith((b"data:", b"event:")):
        return plain(json.loads(body))
    fields = [line.partition(b": ") for line in body.splitlines() if line]
    return folded(
        [name.decode(), value.decode() if value == b"[DONE]" or name != b"data" else json.loads(value)]
        for name, _, value in fields
    )
