"""The switch by hand: what it does, refuses and remembers."""

import pytest

from sidecar.control.fallback import CannotFallBack, Decision, Fallback, Mode, State
from sidecar.record import Arm

STARTED = Decision(Mode.AUTO, State.SPECULATIVE, 0.0, "started")


def switch(decision: Decision = STARTED, *, second: bool = True, baseline_share: float = 0.0) -> Fallback:
    return Fallback(decision, can_fall_back=lambda: second, baseline_share=baseline_share, seed=1)


def test_the_order_holds_for_every_request_after_it() -> None:
    fallback = switch(baseline_share=0.5)
    decision = fallback.set_mode(Mode.AUTOREGRESSIVE, "drill", 5.0)
    assert decision == Decision(Mode.AUTOREGRESSIVE, State.AUTOREGRESSIVE, 5.0, "drill")
    assert {fallback.arm() for _ in range(200)} == {Arm.AUTOREGRESSIVE}
    fallback.set_mode(Mode.SPECULATIVE, "over", 6.0)
    assert {fallback.arm() for _ in range(200)} == {Arm.SPECULATIVE}  # forced: not even a baseline
    fallback.set_mode(Mode.AUTO, "over", 7.0)
    assert {fallback.arm() for _ in range(200)} == {Arm.SPECULATIVE, Arm.BASELINE}


def test_the_baseline_is_a_small_share() -> None:
    fallback = switch(baseline_share=0.02)
    arms = [fallback.arm() for _ in range(10_000)]
    assert 120 < arms.count(Arm.BASELINE) < 280


def test_without_a_second_upstream_nothing_is_promised() -> None:
    fallback = switch(second=False, baseline_share=0.5)
    with pytest.raises(CannotFallBack, match="fallback_upstream"):
        fallback.set_mode(Mode.AUTOREGRESSIVE, "drill", 1.0)
    assert fallback.decision == STARTED
    assert {fallback.arm() for _ in range(100)} == {Arm.SPECULATIVE}


def test_an_order_waits_while_there_is_nothing_to_fall_back_to() -> None:
    there = False
    fallback = Fallback(STARTED, can_fall_back=lambda: there, baseline_share=0.5, seed=1)
    ordered = Decision(Mode.AUTOREGRESSIVE, State.AUTOREGRESSIVE, 5.0, "drill")
    fallback.decision = ordered  # as after a restart
    assert {fallback.arm() for _ in range(100)} == {Arm.SPECULATIVE}
    assert (fallback.in_force.mode, fallback.in_force.state) == (Mode.AUTOREGRESSIVE, State.SPECULATIVE)
    assert fallback.in_force.reason.startswith("drill (not in force: no autoregressive upstream")
    there = True
    assert fallback.arm() is Arm.AUTOREGRESSIVE
    assert fallback.in_force == ordered
