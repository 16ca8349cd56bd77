"""What replies tell, whichever API they speak: a whole JSON body, or the events of a stream one by one."""

import json
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

from ..record import Acceptance, AcceptanceQuality
from .acceptance import Block, figures, from_block


class Reply(msgspec.Struct, gc=False):
    """What a whole reply, or one event of a stream, tells; what it does not is None."""

    model: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    #: Tokens that came along one by one, as token ids or log probabilities.
    counted_tokens: int = 0
    #: It has usage, whatever that says.
    usage: bool = False
    #: It brings generated content: text, reasoning or a tool call, not a role alone.
    content: bool = False
    #: It is an error, in one of the shapes servers send inside a 200.
    error: bool = False
    #: It is the terminal event of its API.
    last: bool = False
    acceptance: Acceptance | None = None
    #: It has the engine's metrics, with acceptance figures or without (chat and completions).
    measured: bool = False
    #: Time the request waited in the engine, as the engine measured it.
    queue_ms: float | None = None
    #: Id of the whole reply.
    id: str | None = None


#: Reads a whole reply or the data of one event. None for what is no JSON object.
Reader = Callable[[bytes], Reply | None]


class Metrics(msgspec.Struct, gc=False):
    """What the engine measured for one request."""

    speculative_decoding: Block | None = None
    queue_time_ms: Annotated[float, msgspec.Meta(ge=0, lt=1e12)] | None = None

    def acceptance(self) -> Acceptance | None:
        block = self.speculative_decoding
        return None if block is None else figures(block)


Shape = TypeVar("Shape", bound=msgspec.Struct)


def reader(shape: type[Shape], tell: Callable[[Shape], Reply]) -> Reader:
    """The reader of an API whose replies and events have `shape`, of which `tell` makes a Reply.

    One typed decode is all that a reply as servers write it costs. Where that fails, fields of a wrong type are
    taken as absent, and an acceptance block that is not believed is kept raw.
    """
    decode = msgspec.json.Decoder(shape).decode

    def read(data: bytes) -> Reply | None:
        try:
            reply = tell(decode(data))
        except msgspec.ValidationError:
            return read_loosely(data)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
        acceptance = reply.acceptance
        if acceptance is not None and acceptance.quality is AcceptanceQuality.INCONSISTENT:
            return read_loosely(data)
        return reply

    def read_loosely(data: bytes) -> Reply | None:
        try:
            value = msgspec.json.decode(data)
            body = _salvaged(value, shape)
            if body is None:
                return None
            reply = tell(body)
            block = _block(value)
            reply.acceptance = None if block is None else from_block(json.dumps(block).encode())
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
        return reply

    return read


def _salvaged(value: Any, shape: Any) -> Any:
    """`value` in `shape`, less the parts that do not fit; None where it does not fit at all."""
    try:
        return msgspec.convert(value, shape, str_keys=True)
    except msgspec.ValidationError:
        pass
    for kind in get_args(shape) if isinstance(shape, UnionType) else (shape,):
        if isinstance(value, list) and get_origin(kind) is list:
            (item,) = get_args(kind)
            return [kept for each in value if (kept := _salvaged(each, item)) is not None]
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            given = (field for field in msgspec.structs.fields(kind) if field.encode_name in value)
            parts = {field.name: _salvaged(value[field.encode_name], field.type) for field in given}
            try:
                return kind(**{name: part for name, part in parts.items() if part is not None})
            except TypeError:
                return None  # it lacks a field it cannot be without
    return None


def _block(value: Any) -> Any:
    """The acceptance block: at the root, in a Responses event's `response`, or early builds' of the only choice."""
    choices = value.get("choices")
    for holder in (value, value.get("response"), *(choices if isinstance(choices, list) and len(choices) == 1 else ())):
        metrics = holder.get("metrics") if isinstance(holder, dict) else None
        block = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
        if block is not None:
            return block
    return None
