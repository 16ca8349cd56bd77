"""The shared noun of what the engine tells: one `EngineRequest` per request that an engine core took.

A reply is one of them, or several: one for each of `n` and for each prompt.
"""

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

#: Verify steps of a request that its row tells, in two base-36 digits each.
MOST_STEPS = 1_024
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_PAIRS = {(i, j): f"{one}{other}".encode() for i, one in enumerate(_DIGITS) for j, other in enumerate(_DIGITS)}
#: What no digit tells.
_MORE = b"??"


def step_digits(steps: Iterable[tuple[int, int]]) -> str | None:
    """Drafted and accepted tokens of the first MOST_STEPS verify steps, two base-36 digits each; `00`: none drafted.

    None where a step has more than 35, which no digit tells.
    """
    try:
        return b"".join([_PAIRS[step] for step in islice(steps, MOST_STEPS)]).decode()
    except KeyError:
        return None


class Hello(msgspec.Struct, frozen=True):
    """What an engine core says of itself when it connects. Models and tokenizers are paths or names."""

    version: int
    #: Index of the core among the data-parallel ones.
    engine: int
    pid: int = 0
    vllm: str | None = None
    #: How drafts are made, as `draft_model`; None: the engine does not speculate.
    method: str | None = None
    #: k
    num_speculative_tokens: int | None = None
    target_model: str | None = None
    target_tokenizer: str | None = None
    draft_model: str | None = None
    draft_tokenizer: str | None = None


class EngineRequest:
    """One request as its engine core saw it, from its start to its finish; it does not change after that."""

    __slots__ = (
        "_ids",
        "_steps",
        "counts",
        "engine_id",
        "finish_reason",
        "hello",
        "ids_complete",
        "incomplete",
        "output_tokens",
        "prompt_tokens",
        "reply_id",
    )

    def __init__(self, engine_id: str, reply_id: str, hello: Hello, prompt_tokens: int) -> None:
        self.engine_id = engine_id
        #: The id in the reply that this request is a part of.
        self.reply_id = reply_id
        self.hello = hello
        self.prompt_tokens = prompt_tokens
        #: Tokens of the reply; the last of `steps` may have emitted some more.
        self.output_tokens = 0
        #: stop, length, abort, error or repetition.
        self.finish_reason = ""
        #: Verify steps by (draft tokens, accepted ones). A step whose drafts a grammar made void has drafted 0.
        self.counts: dict[tuple[int, int], int] = {}
        #: Why nothing here can be trusted; None where all was seen.
        self.incomplete: str | None = None
        #: `steps` has all steps; a very long reply's first ones are kept alone.
        self.ids_complete = True
        # One flat array: a few bytes a token, and nothing for the garbage collector to visit.
        self._ids = array("i")
        # Digits of the first steps; made here, as that costs less than to go through all of them at the end.
        self._steps = bytearray()

    @property
    def steps(self) -> list[tuple[list[int], list[int]]]:
        """(drafted, emitted) token ids of every step that emitted some; drafted is empty where nothing was drafted.

        Of a step that drafted d1..dk and accepted a, emitted is d1..da and the target's own token. Ids of -1 among
        the drafted are ids that the engine could not see; their number holds. Made anew by each call.
        """
        found: list[tuple[list[int], list[int]]] = []
        ids, at = self._ids, 0
        while at < len(ids):
            drafted = at + 2 + ids[at]
            emitted = drafted + ids[at + 1]
            found.append((ids[at + 2 : drafted].tolist(), ids[drafted:emitted].tolist()))
            at = emitted
        return found

    def output_ids(self) -> "array[int]":
        """The tokens of the reply, as far as they are kept. Made anew by each call, in less than a millisecond."""
        found, ids, at = array("i"), self._ids, 0
        while at < len(ids):
            start = at + 2 + ids[at]
            at = start + ids[at + 1]
            found.extend(ids[start:at])
        return found[: self.output_tokens]

    @property
    def lengths(self) -> Iterator[tuple[int, int]]:
        """How many ids each of `steps` drafted and emitted."""
        ids, at = self._ids, 0
        while at < len(ids):
            yield ids[at], ids[at + 1]
            at += 2 + ids[at] + ids[at + 1]

    def step_digits(self) -> str | None:
        """As the function of this name, of `steps`."""
        return None if _MORE in self._steps else self._steps.decode()

    def add(self, drafted: list[int], emitted: list[int], invalid: int, most_ids: int) -> None:
        """Take in a step; the last `invalid` of `drafted` were void. Of ids at most `most_ids` are kept."""
        step = 0, 0
        if drafted:
            if invalid:
                drafted = drafted[: max(len(drafted) - invalid, 0)]
            step = len(drafted), len(emitted) - 1
            if step[1] > step[0]:
                self.incomplete = "the engine's events disagree: a verify step accepted more tokens than it drafted"
            counts = self.counts
            counts[step] = counts.get(step, 0) + 1
        if len(self._steps) < 2 * MOST_STEPS:
            self._steps += _PAIRS.get(step, _MORE)
        ids = self._ids
        if len(ids) + len(drafted) + len(emitted) > most_ids:
            self.ids_complete = False
        elif self.ids_complete:
            ids.append(len(drafted))
            ids.append(len(emitted))
            ids.fromlist(drafted)
            ids.fromlist(emitted)
