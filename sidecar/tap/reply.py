"""Replies of the OpenAI-compatible endpoints: whole JSON bodies and the events of a stream."""

from typing import Any

import msgspec

from ..record import Acceptance
from .acceptance import from_block

#: Names of events that carry an error; a model's text that contains the word does not.
_ERROR_OBJECTS = frozenset(("error",))


class Choice(msgspec.Struct):
    index: Any = 0
    finish_reason: Any = None
    delta: Any = None
    text: Any = None
    #: Where early builds put the figures of a choice.
    metrics: Any = None


class Reply(msgspec.Struct):
    """A reply or an event of one; the same fields mean the same in both."""

    object: Any = None
    type: Any = None
    model: Any = None
    choices: list[Choice] | None = None
    usage: Any = None
    metrics: Any = None
    error: Any = None
    detail: Any = None

    @property
    def is_error(self) -> bool:
        """An error object in one of the shapes servers send inside a 200."""
        return bool(
            self.error is not None
            or self.object in _ERROR_OBJECTS
            or self.type in _ERROR_OBJECTS
            or (self.detail is not None and self.choices is None)
        )

    @property
    def has_content(self) -> bool:
        """Whether it brings generated content: text, reasoning or a tool call, not a role alone."""
        for choice in self.choices or ():
            if choice.text:
                return True
            delta = choice.delta
            if isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role"):
                return True
        return False

    @property
    def finish_reason(self) -> str | None:
        for choice in self.choices or ():
            if isinstance(choice.finish_reason, str):
                return choice.finish_reason
        return None

    def tokens(self, key: str) -> int | None:
        """A count of `usage`; None when absent or no count."""
        value = self.usage.get(key) if isinstance(self.usage, dict) else None
        return value if type(value) is int and 0 <= value < 2**53 else None

    def acceptance(self) -> Acceptance | None:
        """Figures of the acceptance block; None when the reply has none."""
        metrics = self.metrics
        if not isinstance(metrics, dict) and self.choices and len(self.choices) == 1:
            metrics = self.choices[0].metrics
        block = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
        return None if block is None else from_block(block)

    def milliseconds(self, key: str) -> float | None:
        """A time of `metrics`, as the engine measured it."""
        value = self.metrics.get(key) if isinstance(self.metrics, dict) else None
        return float(value) if isinstance(value, int | float) and 0 <= value < 1e12 else None


_decoder = msgspec.json.Decoder(Reply)


def read_reply(data: bytes) -> Reply | None:
    """None for what is no JSON object of this shape."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def is_plain_delta(event: bytes) -> bool:
    """Whether an event can only be one more piece of content, so that parsing it would tell nothing new.

    JSON escapes quotes inside strings, so these byte patterns cannot come from a model's text.
    """
    return b'"finish_reason":null' in event and b'"usage":{' not in event and b'"finish_reason":"' not in event


def is_usage_event(event: bytes) -> bool:
    """Whether an event is the one that `include_usage` adds: no choices, usage set."""
    if b'"usage"' not in event or b'"choices"' not in event:
        return False
    reply = read_reply(event)
    return reply is not None and reply.choices == [] and isinstance(reply.usage, dict) and not reply.is_error
