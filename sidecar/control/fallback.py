"""The switch between speculative and plain (autoregressive) decoding."""

import random
from collections.abc import Callable
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


REMEDY = "set fallback_upstream, or load the engine plugin and set engine_token or engine_events"
NOWHERE = (
    "no autoregressive upstream is configured, and no engine plugin is known that could serve a request without "
    "speculation"
)


class CannotFallBack(Exception):
    """There is nothing to fall back to."""


class Fallback:
    """Holds the decision in force; `arm` tells each new request how it is served.

    In mode auto requests are speculative, but for the baseline share that latencies are compared with.
    A decision holds for requests that come after it; one in flight is served as it began.
    `can_fall_back` is asked each time, as engines come and go; an order to fall back waits where it cannot.
    """

    def __init__(
        self, decision: Decision, *, can_fall_back: Callable[[], bool], baseline_share: float, seed: int | None = None
    ):
        self._can_fall_back = can_fall_back
        self._baseline_share = baseline_share
        self._random = random.Random(seed).random  # noqa: S311 - chooses the baseline, guards nothing
        #: As ordered.
        self.decision = decision

    @property
    def can_fall_back(self) -> bool:
        return self._can_fall_back()

    @property
    def in_force(self) -> Decision:
        """The decision as it is carried out."""
        decision = self.decision
        if decision.state is State.AUTOREGRESSIVE and not self.can_fall_back:
            return replace(decision, state=State.SPECULATIVE, reason=f"{decision.reason} (not in force: {NOWHERE})")
        return decision

    def set_mode(self, mode: Mode, reason: str, now: float) -> Decision:
        """Take an operator's order. Raises CannotFallBack if there is nowhere to fall back to."""
        if mode is Mode.AUTOREGRESSIVE and not self.can_fall_back:
            raise CannotFallBack(f"{NOWHERE}: {REMEDY}")
        state = State.AUTOREGRESSIVE if mode is Mode.AUTOREGRESSIVE else State.SPECULATIVE
        self.decision = Decision(mode, state, now, reason)
        return self.decision

    def arm(self) -> Arm:
        """How the next request is served."""
        if self.decision.state is State.AUTOREGRESSIVE:
            return Arm.AUTOREGRESSIVE if self.can_fall_back else Arm.SPECULATIVE
        if self._baseline_share and self.decision.mode is Mode.AUTO and self._random() < self._baseline_share:
            return Arm.BASELINE if self.can_fall_back else Arm.SPECULATIVE
        return Arm.SPECULATIVE
