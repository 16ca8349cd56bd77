"""Replies of /v1/messages, Anthropic's Messages API."""

from typing import Any

import msgspec

from .acceptance import Count
from .reply import Metrics, Reply, reader


class _Usage(msgspec.Struct, gc=False):
    #: The prompt less its cached parts, which are counted by themselves.
    input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    output_tokens: Count | None = None

    def prompt_tokens(self) -> int | None:
        if self.input_tokens is None:
            return None
        # vLLM says 0 where it does not know yet: no prompt is empty.
        return self.input_tokens + (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0) or None


class _Message(msgspec.Struct, gc=False):
    id: str | None = None
    model: str | None = None
    usage: _Usage | None = None


class _Body(msgspec.Struct, gc=False):
    """A message, or an event of one."""

    type: str | None = None
    id: str | None = None
    object: str | None = None
    model: str | None = None
    message: _Message | str | None = None
    delta: dict[str, Any] | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None
    metrics: Metrics | None = None
    error: Any = None
    detail: Any = None


def _tell(body: _Body) -> Reply:
    kind, delta = body.type, body.delta
    reply = Reply(
        body.model,
        body.stop_reason,
        error=kind == "error" or body.error is not None or body.object == "error" or body.detail is not None,
        last=kind == "message_stop",
        id=body.id,
    )
    if kind == "content_block_delta" and delta is not None:
        reply.content = any(value for key, value in delta.items() if key != "type")
    elif kind == "message_delta" and delta is not None:
        reason = delta.get("stop_reason")
        reply.finish_reason = reason if isinstance(reason, str) else None
    elif kind == "message_start" and isinstance(body.message, _Message):
        reply.model = body.message.model
        reply.id = body.message.id
        if body.message.usage is not None:
            # Its output tokens are none yet, whatever it says.
            reply.usage = True
            reply.prompt_tokens = body.message.usage.prompt_tokens()
    if body.usage is not None:
        reply.usage = True
        reply.prompt_tokens = body.usage.prompt_tokens()
        reply.completion_tokens = body.usage.output_tokens
    if body.metrics is not None:
        reply.queue_ms = body.metrics.queue_time_ms
        reply.acceptance = body.metrics.acceptance()
    return reply


read_message = reader(_Body, _tell)
