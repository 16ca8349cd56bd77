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
    metrics: msgspec.Raw = msgspec.Raw(b"null")


class Metrics(msgspec.Struct):
    """What the engine measured for one request."""

    speculative_decoding: msgspec.Raw = msgspec.Raw(b"null")
    queue_time_ms: Any = None


class Reply(msgspec.Struct):
    """A reply or an event of one; the same fields mean the same in both."""

    object: Any = None
    type: Any = None
    model: Any = None
    choices: list[Choice] | None = None
    usage: Any = None
    metrics: msgspec.Raw = msgspec.Raw(b"null")
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
        block = bytes(self._metrics().speculative_decoding)
        if block == b"null" and self.choices and len(self.choices) == 1:
            block = bytes(_read_metrics(self.choices[0].metrics).speculative_decoding)
        return None if block == b"null" else from_block(block)

    def queue_ms(self) -> float | None:
        """Time the request waited in the engine, as the engine measured it."""
        value = self._metrics().queue_time_ms
        return float(value) if type(value) in (int, float) and 0 <= value < 1e12 else None

    def _metrics(self) -> Metrics:
        return _read_metrics(self.metrics)


_metrics_decoder = msgspec.json.Decoder(Metrics)


def _read_metrics(raw: msgspec.Raw) -> Metrics:
    try:
        return _metrics_decoder.decode(raw)
    except msgspec.DecodeError:
        return Metrics()


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
