"""Replies of /v1/chat/completions and /v1/completions."""

from typing import Any

import msgspec

from .acceptance import Count
from .reply import Metrics, Reply, reader


class _Logprobs(msgspec.Struct, gc=False):
    #: One entry a token (chat). Completions have other lists, and in them the prompt's tokens with `echo`.
    content: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    delta: dict[str, Any] | None = None
    text: str | None = None
    token_ids: list[msgspec.Raw] | None = None
    logprobs: _Logprobs | None = None
    #: Where early builds put the figures of a choice.
    metrics: Metrics | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class _Body(msgspec.Struct, gc=False):
    """A reply or an event of one; the same fields mean the same in both."""

    id: str | None = None
    object: str | None = None
    type: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    metrics: Metrics | None = None
    error: Any = None
    detail: Any = None


def _tell(body: _Body) -> Reply:
    choices, usage, metrics = body.choices, body.usage, body.metrics
    error = body.error is not None or body.object == "error" or body.type == "error"
    if choices is None:
        error = error or body.detail is not None
        choices = []
    finish_reason = acceptance = queue_ms = None
    content = False
    counted_tokens = 0
    for choice in choices:
        finish_reason = choice.finish_reason or finish_reason
        if choice.text or (choice.delta is not None and _brings_content(choice.delta)):
            content = True
        if choice.token_ids is not None:
            counted_tokens += len(choice.token_ids)
        elif choice.logprobs is not None and choice.logprobs.content is not None:
            counted_tokens += len(choice.logprobs.content)
    if metrics is not None:
        queue_ms = metrics.queue_time_ms
        acceptance = metrics.acceptance()
    if acceptance is None and len(choices) == 1 and choices[0].metrics is not None:
        acceptance = choices[0].metrics.acceptance()
    return Reply(
        body.model,
        finish_reason,
        None if usage is None else usage.prompt_tokens,
        None if usage is None else usage.completion_tokens,
        counted_tokens,
        usage is not None,
        content,
        error,
        False,  # [DONE] is
        acceptance,
        metrics is not None,
        queue_ms,
        body.id,
    )


def _brings_content(delta: dict[str, Any]) -> bool:
    return any(value for key, value in delta.items() if key != "role")


read_chat = reader(_Body, _tell)
