"""Replies of /v1/responses, OpenAI's Responses API."""

from typing import Any

import msgspec

from .acceptance import Count
from .reply import Metrics, Reply, reader

_ENDED = frozenset(("completed", "incomplete", "failed", "cancelled"))
_TERMINAL = frozenset(f"response.{status}" for status in _ENDED)


class _Usage(msgspec.Struct, gc=False):
    input_tokens: Count | None = None
    output_tokens: Count | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    id: str | None = None
    object: str | None = None
    status: str | None = None
    model: str | None = None
    usage: _Usage | None = None
    metrics: Metrics | None = None
    incomplete_details: _Incomplete | None = None
    error: Any = None


class _Body(_Response, gc=False):
    """A response, or an event that may hold one."""

    type: str | None = None
    delta: Any = None
    response: _Response | None = None
    detail: Any = None


def _tell(body: _Body) -> Reply:
    kind = body.type or ""
    response = body.response or body
    reply = Reply(
        response.model,
        error=body.error is not None
        or response.error is not None
        or response.status == "failed"
        or kind in ("error", "response.failed")
        or body.object == "error"
        or body.detail is not None,
        content=bool(body.delta) and kind.endswith(".delta"),
        last=kind in _TERMINAL,
        id=response.id,
    )
    if response.status in _ENDED:
        incomplete = response.incomplete_details
        reply.finish_reason = (incomplete and incomplete.reason) or response.status
    usage = response.usage
    if usage is not None:
        reply.usage = True
        reply.prompt_tokens = usage.input_tokens
        reply.completion_tokens = usage.output_tokens
    metrics = response.metrics
    if metrics is not None:
        reply.queue_ms = metrics.queue_time_ms
        reply.acceptance = metrics.acceptance()
    return reply


read_response = reader(_Body, _tell)
