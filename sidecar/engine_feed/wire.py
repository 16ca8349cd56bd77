"""Packets of the engine's events. The sender is `specwatch_engine.plugin`; the two share this format, and no code."""

import re
from typing import Annotated

import msgspec

from ..engine_request import Hello

#: The version of the format that is spoken here.
VERSION = 1
#: More draft tokens per step than any proposer makes.
MAX_K = 1_024

_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Id = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]


class Step(msgspec.Struct, array_like=True, gc=False):
    """One step of an engine core."""

    #: Requests taken since the step before: engine id, prompt tokens.
    started: list[tuple[str, _Count]]
    #: Requests of the step, and the tokens each emitted.
    ids: list[str]
    emitted: list[Annotated[list[_Id], msgspec.Meta(max_length=MAX_K + 1)]]
    #: Draft tokens by engine id, those that a grammar made void included.
    drafted: dict[str, Annotated[list[_Id], msgspec.Meta(max_length=MAX_K)]]
    #: How many of them were void.
    invalid: dict[str, _Count] | None
    #: Requests that ended with the step: engine id, output tokens, reason.
    finished: list[tuple[str, _Count, str]]


class Steps(msgspec.Struct, array_like=True, tag="steps", gc=False):
    """Some steps, one after the other."""

    #: Number of the first, dropped ones counted.
    first: _Count
    #: Steps that the engine has dropped so far.
    dropped: _Count
    steps: list[Step]


class Greeting(msgspec.Struct, array_like=True, tag="hello", gc=False):
    """The first packet of a connection."""

    hello: Hello


class MalformedPacket(Exception):
    """A packet that is none of this format."""


_decoder = msgspec.msgpack.Decoder(Greeting | Steps)


def decode(packet: bytes | memoryview) -> Greeting | Steps:
    """Raises MalformedPacket, and nothing else."""
    try:
        found: Greeting | Steps = _decoder.decode(packet)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        # Its words may be those of the packet.
        raise MalformedPacket(type(error).__name__) from None
    if isinstance(found, Steps):
        for step in found.steps:
            if len(step.ids) != len(step.emitted):
                raise MalformedPacket(f"a step has {len(step.ids)} requests and tokens of {len(step.emitted)}")
    return found


# vLLM adds the random end to every id it takes in, and the number before it where n > 1.
_RANDOM_END = re.compile(r"-[0-9a-f]{8}\Z")
_CHILD = re.compile(r"\A\d+_")
#: What follows are the number of the prompt, and that of the turn.
_NUMBERED = re.compile(r"\A(cmpl-.*)-\d+\Z|\A(resp_.*)_\d+\Z", re.DOTALL)


def parent_of(engine_id: str) -> str:
    """The same for all `n` requests that share a prompt."""
    return _CHILD.sub("", engine_id, count=1)


def reply_id_of(engine_id: str) -> str:
    """The id that the reply has to which an engine's request belongs."""
    external = _RANDOM_END.sub("", parent_of(engine_id), count=1)
    numbered = _NUMBERED.match(external)
    return external if numbered is None else numbered[1] or numbered[2]
