"""How many tokens may be drafted, for the whole engine and for one request."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

#: Methods whose proposers take no other number of draft tokens than the configured one: the first four assert it,
#: custom_class is never told. What they draft too much is dropped before it is verified.
FIXED_LENGTH = frozenset(("suffix", "medusa", "ngram_gpu", "extract_hidden_states", "custom_class"))

#: Methods that draft by a model of their own, whose KV cache must be kept up with the target's.
_BY_LOOK_UP = frozenset(("ngram",))


class Mode(StrEnum):
    """What a cap spares the engine."""

    #: The proposer drafts no more than the cap allows. At 0 a draft model still runs once a step, so that its KV
    #: cache stays whole and the acceptance rate is back with the first draft.
    HARD = "hard"
    #: The proposer drafts as ever, and what is over the cap is dropped.
    SOFT = "soft"
    #: Like hard, but at 0 the draft model does not run at all. Its KV cache gets holes, so that the prefix cache is
    #: dropped and running requests are computed anew when drafting begins again.
    COLD = "cold"


class Refused(Exception):
    """An order that cannot be carried out; `param` names the field, the message the remedy."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(slots=True)
class Switch:
    """The cap of one engine core.

    `most` is the configured number of draft tokens, `method` the proposer's name in vLLM. `soft_only`, if not
    empty, says why this engine can only drop drafts.
    """

    most: int
    method: str
    soft_only: str = ""
    can_be_cold: bool = False
    cap: int | None = None
    mode: Mode = Mode.HARD

    def __post_init__(self) -> None:
        if self.method in FIXED_LENGTH:
            self.soft_only = f"the proposer {self.method} always drafts {self.most} tokens"
        if self.soft_only:
            self.mode = Mode.SOFT

    def order(self, command: Mapping[str, Any]) -> bool:
        """Take `{"cap": None or 0..most, "mode": ...}`, both optional. Raises Refused and changes nothing then.

        Returns whether the draft model's KV cache has holes that must be mended now.
        """
        cap, mode = command.get("cap", self.cap), self.mode
        if cap is not None and (type(cap) is not int or not 0 <= cap <= self.most):
            raise Refused(f"cap: must be a whole number from 0 to {self.most}, or the engine's default (null)", "cap")
        if command.get("mode") is not None:
            try:
                mode = Mode(command["mode"])
            except ValueError:
                raise Refused("mode: must be hard, soft or cold", "mode") from None
        if self.soft_only and mode is not Mode.SOFT:
            raise Refused(f"mode: only soft is possible, because {self.soft_only}", "mode")
        if mode is Mode.COLD and not self.can_be_cold:
            raise Refused("mode: cold is not possible with this proposer and model runner, use hard", "mode")
        was_cold = self.skips_draft
        self.cap, self.mode = cap, mode
        return was_cold and not self.skips_draft

    @property
    def limit(self) -> int:
        """Draft tokens a request may have verified in a step."""
        return self.most if self.cap is None else self.cap

    @property
    def told(self) -> bool:
        """Whether the proposer is told the limit."""
        return self.mode is not Mode.SOFT

    @property
    def skips_draft(self) -> bool:
        """Whether no draft model runs at all."""
        return self.cap == 0 and self.mode is Mode.COLD

    @property
    def at_zero(self) -> str:
        """What a cap of 0 spares, in a sentence."""
        if self.mode is Mode.SOFT:
            because = f", because {self.soft_only}" if self.soft_only else ""
            return f"drafts are computed and dropped{because}"
        if self.method in _BY_LOOK_UP:
            return "nothing is drafted"
        if self.mode is Mode.COLD:
            return "the draft model does not run; its cache is computed anew when drafting begins again"
        return "the draft model runs once a step, to keep its cache"


def opted_out(extra_args: Mapping[str, Any] | None) -> bool:
    """Whether a request asked, by `vllm_xargs: {"speculative": false}`, for nothing to be drafted for it.

    vLLM's types know no booleans there, so that false may arrive as 0, 0.0 or text.
    """
    if not extra_args or "speculative" not in extra_args:
        return False
    return str(extra_args["speculative"]).strip().lower() in ("false", "0", "0.0", "no", "off")
