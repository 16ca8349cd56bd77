"""The switch between speculative and plain (autoregressive) decoding."""

import random
from dataclasses import dataclass, replace
from enum import StrEnum

from ..record import Arm


class Mode(StrEnum):
    """What the operator asked for."""

    AUTO = "auto"
    SPECULATIVE = "speculative"
    AUTOREGRESSIVE = "autoregressive"


class State(StrEnum):
    """How requests are served."""

    SPECULATIVE = "speculative"
    AUTOREGRESSIVE = "autoregressive"


@dataclass(frozen=True, slots=True)
class Decision:
    """What holds since `at` (Unix seconds), and why."""

    mode: Mode
    state: State
    at: float
    reason: str


class CannotFallBack(Exception):
    """There is nothing to fall back to."""


class Fallback:
    """Holds the decision in force; `arm` tells each new request how it is served.

    In mode auto requests are speculative, but for the baseline share that latencies are compared with.
    A decision holds for requests that come after it; one in flight is served as it began.
    """

    def __init__(self, decision: Decision, *, can_fall_back: bool, baseline_share: float, seed: int | None = None):
        self.can_fall_back = can_fall_back
        self._baseline_share = baseline_share if can_fall_back else 0.0
        self._random = random.Random(seed).random  # noqa: S311 - chooses the baseline, guards nothing
        self.decision = decision

    def restore(self, decision: Decision) -> None:
        """Take up a decision made before a restart, unless its upstream is gone."""
        if decision.state is State.AUTOREGRESSIVE and not self.can_fall_back:
            reason = "no autoregressive upstream is configured any more"
            decision = replace(decision, mode=Mode.AUTO, state=State.SPECULATIVE, reason=reason)
        self.decision = decision

    def set_mode(self, mode: Mode, reason: str, now: float) -> Decision:
        """Take an operator's order. Raises CannotFallBack if there is nowhere to fall back to."""
        if mode is Mode.AUTOREGRESSIVE and not self.can_fall_back:
            raise CannotFallBack("no autoregressive upstream is configured: set fallback_upstream")
        state = State.AUTOREGRESSIVE if mode is Mode.AUTOREGRESSIVE else State.SPECULATIVE
        self.decision = Decision(mode, state, now, reason)
        return self.decision

    def arm(self) -> Arm:
        """How the next request is served."""
        if self.decision.state is State.AUTOREGRESSIVE:
            return Arm.AUTOREGRESSIVE
        if self._baseline_share and self.decision.mode is Mode.AUTO and self._random() < self._baseline_share:
            return Arm.BASELINE
        return Arm.SPECULATIVE
