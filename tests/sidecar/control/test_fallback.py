"""The switch: an operator's orders, circuits of all traffic and of slices, and whether it is carried out. C08, C10."""

import random
from collections import Counter
from typing import Any

import pytest
from support.traffic import accepting

from sidecar.control.circuit import Change, Readings, Rules, State, Trigger
from sidecar.control.fallback import (
    MOST_SLICES,
    NOWHERE,
    CannotFallBack,
    Decision,
    Fallback,
    Mode,
)
from sidecar.probes.slices import asked
from sidecar.record import Arm, Record

START = 1_800_000_000.0
AR, SPEC, PROBING = State.AUTOREGRESSIVE, State.SPECULATIVE, State.PROBING


def switch(*, second: bool = True, rules: Rules | None = None, **options: Any) -> Fallback:
    return Fallback(rules or Rules(), START, can_fall_back=lambda: second, seed=1, **options)


def arms(fallback: Fallback, count: int = 200, slices: dict[str, str] | None = None) -> set[Arm]:
    return {fallback.arm(slices) for _ in range(count)}


# ---- an operator's orders


def test_the_order_holds_for_every_request_after_it() -> None:
    fallback = switch(baseline_share=0.5)
    decision = fallback.set_mode(Mode.AUTOREGRESSIVE, "drill", 5.0)
    assert decision == Decision(Mode.AUTOREGRESSIVE, AR, 5.0, "drill")
    assert arms(fallback) == {Arm.AUTOREGRESSIVE}
    fallback.set_mode(Mode.SPECULATIVE, "over", 6.0)
    assert arms(fallback) == {Arm.SPECULATIVE}  # forced: not even a baseline
    fallback.set_mode(Mode.AUTO, "over", 7.0)
    assert arms(fallback) == {Arm.SPECULATIVE, Arm.BASELINE}


def test_the_baseline_is_a_small_share() -> None:
    fallback = switch(baseline_share=0.02)
    assert 120 < [fallback.arm() for _ in range(10_000)].count(Arm.BASELINE) < 280


def test_without_a_second_upstream_nothing_is_promised() -> None:
    fallback = switch(second=False, baseline_share=0.5)
    with pytest.raises(CannotFallBack, match="fallback_upstream"):
        fallback.set_mode(Mode.AUTOREGRESSIVE, "drill", 1.0)
    assert fallback.mode is Mode.AUTO
    assert arms(fallback) == {Arm.SPECULATIVE}


def test_an_order_waits_while_there_is_nothing_to_fall_back_to() -> None:
    there = False
    fallback = Fallback(Rules(), START, can_fall_back=lambda: there, baseline_share=0.5, seed=1)
    ordered = Decision(Mode.AUTOREGRESSIVE, AR, 5.0, "drill")
    fallback.restore(ordered, [])
    assert arms(fallback) == {Arm.SPECULATIVE}
    assert (fallback.in_force.mode, fallback.in_force.state) == (Mode.AUTOREGRESSIVE, SPEC)
    assert fallback.in_force.reason.startswith("drill (not in force: no autoregressive upstream")
    there = True
    assert fallback.arm() is Arm.AUTOREGRESSIVE
    assert fallback.in_force == ordered


def test_a_manual_switch_wins_over_what_was_decided() -> None:
    world = World(switch())
    world.serve(0.3, 100)
    assert world.fallback.in_force.state is AR
    world.fallback.set_mode(Mode.SPECULATIVE, "we know", world.now)
    assert arms(world.fallback) == {Arm.SPECULATIVE}
    world.serve(0.1, 300)
    assert world.fallback.in_force == Decision(Mode.SPECULATIVE, SPEC, world.fallback.order.at, "we know")
    assert len(world.changes) == 1
    # Back in auto it begins anew.
    world.fallback.set_mode(Mode.AUTO, "over", world.now)
    assert world.fallback.in_force.state is SPEC
    world.serve(0.1, 100)
    assert world.fallback.in_force.state is AR
    assert world.fallback.in_force.trigger is Trigger.ACCEPTANCE


# ---- what it decides by itself


class World:
    """Requests that come one after the other and end at once, served as the switch says."""

    def __init__(self, fallback: Fallback) -> None:
        self.fallback = fallback
        self.now = START
        self.changes: list[Change] = []
        self.served: Counter[Arm] = Counter()

    def serve(self, p: float, count: int = 1, *, draft_tokens: int = 100, **fields: Any) -> None:
        for _ in range(count):
            self.now += 0.1
            self.changes += self.fallback.tick(self.now, Readings())
            made: Record = accepting(p, started_at=self.now, draft_tokens=draft_tokens, **fields)
            slices = asked(made.scenario, made.model, made.temperature, made.prompt_tokens, made.concurrency)
            made = accepting(p, started_at=self.now, draft_tokens=draft_tokens, arm=self.fallback.arm(slices), **fields)
            self.served[made.arm] += 1
            self.changes += self.fallback.add(made, self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.changes += self.fallback.tick(self.now, Readings())

    @property
    def told(self) -> list[tuple[str, State]]:
        return [(change.slice, change.after) for change in self.changes]


def test_all_traffic_falls_back_is_probed_and_returns() -> None:
    world = World(switch())
    world.serve(0.9, 200)
    world.serve(0.4, 100)
    assert world.told == [("", AR)]
    world.served.clear()
    world.wait(60)
    assert world.fallback.in_force.state is PROBING
    while world.fallback.in_force.state is PROBING:
        world.serve(0.9)
    assert world.told == [("", AR), ("", PROBING), ("", SPEC)]
    # Probes are few and bounded: 5 %, and no more than are needed.
    assert world.served[Arm.PROBE] == 50
    assert 0.03 < 50 / world.served.total() < 0.09


def test_one_slice_falls_back_and_the_rest_goes_on() -> None:
    world = World(switch(slices=["scenario"]))
    chance = random.Random(3)
    for _ in range(800):
        name = chance.choice(["billing", "code", "fault_report", "address", "product"])
        world.serve(0.42 if name == "fault_report" else 0.9, scenario=name)
    assert world.told[0] == ("scenario=fault_report", AR)
    assert {name for name, _ in world.told} == {"scenario=fault_report"}
    assert world.fallback.in_force.state is SPEC
    bad, good = ({"scenario": name} for name in ("fault_report", "billing"))
    assert arms(world.fallback, slices=bad) <= {Arm.AUTOREGRESSIVE, Arm.PROBE}
    assert arms(world.fallback, slices=good) == {Arm.SPECULATIVE}
    (circuit,) = world.fallback.open_slices
    assert circuit.name == "scenario=fault_report"


def test_a_slice_that_makes_up_all_traffic_is_switched_alone() -> None:
    """The shift of all traffic to the weak scenario: the slice decides, and what it showed is not held against all."""
    world = World(switch(slices=["scenario"]))
    world.serve(0.9, 300, scenario="billing")
    world.serve(0.4, 100, scenario="fault_report")
    assert world.told == [("scenario=fault_report", AR)]
    world.serve(0.9, 100, scenario="billing")
    assert world.told == [("scenario=fault_report", AR)]


def test_all_traffic_is_not_switched_for_what_one_slice_does() -> None:
    """Nine hot requests of many draft tokens bring the figure of all traffic down before their slice has its ten."""
    world = World(switch(slices=["scenario", "temperature"]))
    for index in range(120):
        world.serve(0.93, draft_tokens=96, temperature=0.0, scenario="abcd"[index % 4])
    for index in range(20):
        world.serve(0.0, draft_tokens=440, temperature=2.0, scenario="abcd"[index % 4])
    assert world.told == [("temperature=>1", AR)]
    assert world.changes[0].evidence["requests"] == 9
    world.serve(0.9, 100, temperature=0.0)
    assert world.told == [("temperature=>1", AR)]


def test_a_slice_is_not_switched_for_what_another_does() -> None:
    """Eight requests of a scenario, of which the hot ones bring it down: the temperature is to blame."""
    world = World(switch(slices=["scenario", "temperature"]))
    for index in range(24):
        world.serve(0.93, draft_tokens=96, temperature=0.0, scenario="ab"[index % 2])
    for index in range(40):
        hot = index % 3 != 2
        world.serve(0.0 if hot else 0.93, draft_tokens=500 if hot else 96, temperature=2.0 * hot, scenario="a")
    assert world.told[0] == ("temperature=>1", AR)
    assert {name for name, _ in world.told} == {"temperature=>1"}


def test_what_was_in_flight_when_a_slice_was_switched_is_held_against_no_other() -> None:
    world = World(switch(slices=["scenario", "temperature"]))
    world.serve(0.9, 60, scenario="good", temperature=0.0)
    world.serve(0.2, 12, scenario="weak", temperature=0.0)
    assert world.told == [("scenario=weak", AR)]
    begun = world.changes[0].at - 1
    for _ in range(50):
        late = accepting(0.2, started_at=begun, scenario="weak", temperature=0.0, arm=Arm.SPECULATIVE)
        world.changes += world.fallback.add(late, world.now)
    world.serve(0.9, 60, scenario="good", temperature=0.0)
    assert world.told == [("scenario=weak", AR)]


def test_after_a_return_no_slice_is_judged_by_what_was_before() -> None:
    world = World(switch(slices=["scenario"]))
    for index in range(100):
        world.serve(0.1 if index % 4 < 2 else 0.9, scenario="ab"[index % 2])
    assert world.told == [("", AR)]
    world.wait(60)
    while world.fallback.in_force.state is PROBING:
        world.serve(0.75)
    for index in range(400):
        world.serve(0.75, scenario="ab"[index % 2])
    assert world.told == [("", AR), ("", PROBING), ("", SPEC)]


def test_all_traffic_is_switched_where_no_slice_is_to_blame() -> None:
    world = World(switch(slices=["scenario", "temperature"], rules=Rules(min_requests=100)))
    for index in range(300):
        world.serve(0.55 + 0.05 * (index % 3), scenario="abc"[index % 3], temperature=index % 2)
    assert world.told == [("", AR)]


def test_c10_only_the_long_prompts_trip() -> None:
    world = World(switch(slices=["prompt_length"]))
    for index in range(50):
        if index % 5:
            world.serve(0.70, prompt_tokens=1_000)
        else:
            world.serve(0.16, prompt_tokens=120_000, draft_tokens=400)
    assert world.told == [("prompt_length=32769-131072", AR)]
    assert world.changes[0].evidence["p"] == pytest.approx(0.16)
    assert world.changes[0].evidence["requests"] == 10


def test_a_slice_returns_by_its_own_probes() -> None:
    world = World(switch(slices=["temperature"], rules=Rules(probes=10), probe_share=0.5))
    world.serve(0.3, 30, temperature=1.0)
    world.serve(0.9, 30, temperature=0.0)
    assert world.told == [("temperature=0.7-1", AR)]
    world.wait(60)
    while world.fallback.open_slices:
        world.serve(0.9, temperature=0.0)
        world.serve(0.8, temperature=1.0)
    assert world.told[1:] == [("temperature=0.7-1", PROBING), ("temperature=0.7-1", SPEC)]


def test_slices_are_bounded_and_those_with_a_decision_stay() -> None:
    world = World(switch(slices=["scenario"]))
    world.serve(0.2, 20, scenario="bad")
    for index in range(3 * MOST_SLICES):
        world.serve(0.9, 1, scenario=f"s{index}")
    assert [circuit.name for circuit in world.fallback.open_slices] == ["scenario=bad"]
    assert len(world.fallback._slices["scenario"]) == MOST_SLICES
    # Where every place is taken by a decision, others count in all traffic alone.
    full = World(switch(slices=["scenario"]))
    for index in range(MOST_SLICES + 5):
        full.serve(0.2, 12, scenario=f"s{index}")
    assert len(full.fallback._slices["scenario"]) == MOST_SLICES


def test_a_dry_run_decides_and_serves_on() -> None:
    world = World(switch(dry_run=True, slices=["scenario"]))
    world.serve(0.4, 200)
    assert ("scenario=default", AR) in world.told
    assert set(world.served) == {Arm.SPECULATIVE}
    assert world.fallback.in_force.state is SPEC
    world.wait(120)
    world.serve(0.9, 300)
    assert world.told[-1] == ("scenario=default", SPEC)
    whole = World(switch(dry_run=True))
    whole.serve(0.4, 100)
    assert whole.fallback.in_force.reason.startswith("dry run; would be autoregressive: p 0.400")


def test_c08_without_anything_to_fall_back_to_it_only_tells() -> None:
    world = World(switch(second=False))
    world.serve(0.4, 100)
    assert world.told == [("", AR)]
    assert set(world.served) == {Arm.SPECULATIVE}
    assert world.fallback.in_force.state is SPEC
    assert NOWHERE in world.fallback.in_force.reason


# ---- whether it is carried out


def test_c08_an_engine_that_drafts_all_the_same() -> None:
    """An upstream that ignores the opt-out and keeps raising its draft counters is ineffective, never active."""
    fallback = switch()
    fallback.set_mode(Mode.AUTOREGRESSIVE, "drill", START)
    assert (fallback.effective, fallback.all_plain) == (None, True)
    fallback.counted(0)
    assert (fallback.effective, fallback.in_force.state) == (True, AR)
    fallback.counted(400)
    assert (fallback.effective, fallback.in_force.state) == (False, State.INEFFECTIVE)
    assert fallback.in_force.reason == "drill (the engine drafts tokens all the same)"
    assert arms(fallback) == {Arm.AUTOREGRESSIVE}
    # What it tells of single requests counts more: others may be drafted for.
    for _ in range(3):
        fallback.served_plain(drafted=False)
    assert fallback.effective is True
    for _ in range(3):
        fallback.served_plain(drafted=True)
    assert fallback.in_force.state is State.INEFFECTIVE
    for _ in range(20):
        fallback.served_plain(drafted=False)
    assert fallback.in_force.state is AR
    fallback.set_mode(Mode.AUTO, "over", START + 1)
    assert (fallback.effective, fallback.all_plain, fallback.in_force.state) == (None, False, SPEC)


def test_replies_that_were_drafted_for_are_forgiven_once_the_counters_say_so() -> None:
    """Without the engine's events no reply tells that it was not."""
    fallback = switch()
    fallback.set_mode(Mode.AUTOREGRESSIVE, "drill", START)
    for _ in range(3):
        fallback.served_plain(drafted=True)
    assert fallback.in_force.state is State.INEFFECTIVE
    fallback.counted(0)
    assert fallback.in_force.state is AR


def test_one_that_was_overtaken_says_nothing() -> None:
    fallback = switch()
    fallback.set_mode(Mode.AUTOREGRESSIVE, "drill", START)
    for drafted in (True, True, False, False, False):
        fallback.served_plain(drafted=drafted)
    assert fallback.effective is True


# ---- over a restart


def test_a_restart_goes_on_where_it_was() -> None:
    world = World(switch(slices=["scenario"]))
    world.serve(0.3, 30, scenario="weak")
    world.serve(0.4, 100, scenario="other")
    order = world.fallback.order
    again = switch(slices=["scenario"])
    again.restore(order, world.changes)
    assert [circuit.name for circuit in again.open_slices] == ["scenario=weak", "scenario=other"]
    assert again.arm({"scenario": "weak"}) is Arm.AUTOREGRESSIVE
    changes = again.tick(world.now + 61, Readings())
    assert [(change.slice, change.after) for change in changes] == [
        ("scenario=weak", PROBING),
        ("scenario=other", PROBING),
    ]
    # A round of probes begins anew, and slices of a kind that is not asked for any more are left out.
    other = switch()
    other.restore(order, [*world.changes, Change("", AR, PROBING, world.now, Trigger.DWELL, "over", {})])
    assert not other.open_slices
    assert other.in_force.state is AR
    assert [change.after for change in other.tick(world.now, Readings())] == [PROBING]


def test_an_order_makes_what_was_decided_before_it_void() -> None:
    fallback = switch()
    before = Change("", SPEC, AR, START, Trigger.ACCEPTANCE, "p fell", {"dwell_s": 60.0, "level": 0})
    fallback.restore(Decision(Mode.AUTO, SPEC, START + 1, "over"), [before])
    assert fallback.in_force == Decision(Mode.AUTO, SPEC, START + 1, "over")
    fallback.restore(Decision(Mode.SPECULATIVE, SPEC, START - 1, "stay"), [before])
    assert arms(fallback) == {Arm.SPECULATIVE}


# ---- in a fleet


def test_what_another_has_decided_is_adopted_as_a_change_of_what_held_here() -> None:
    world = World(switch(slices=["scenario"]))
    world.serve(0.9, 50, scenario="a")
    evidence: dict[str, object] = {"dwell_s": 240.0, "level": 2, "opened_by": "acceptance"}
    theirs = Change("scenario=a", PROBING, AR, world.now - 5, Trigger.PROBES, "p 0.5", evidence)
    (change,) = world.fallback.adopt(theirs)
    assert (change.before, change.after, change.at) == (SPEC, AR, world.now - 5)
    (circuit,) = world.fallback.open_slices
    assert circuit.until == world.now - 5 + 240
    # The same again is no change, but the newest figures count.
    assert world.fallback.adopt(Change("scenario=a", AR, AR, world.now, Trigger.PROBES, "p 0.4", evidence)) == []
    assert (circuit.reason, circuit.since) == ("p 0.4", world.now)
    # Its round of probes is this one's, which judges its own.
    world.fallback.adopt(Change("scenario=a", AR, PROBING, world.now, Trigger.DWELL, "over", evidence))
    assert arms(world.fallback, slices={"scenario": "a"}) == {Arm.PROBE, Arm.AUTOREGRESSIVE}
    while circuit.state is PROBING:
        world.serve(0.2, scenario="a")
    assert [(each.after, each.evidence["level"]) for each in world.changes] == [(AR, 3)]


def test_what_is_not_watched_here_or_goes_by_an_order_is_not_adopted() -> None:
    fallback = switch(slices=["scenario"])
    change = Change("temperature=0", SPEC, AR, START, Trigger.ACCEPTANCE, "p 0.4", {})
    assert fallback.adopt(change) == []
    assert not fallback.open_slices
    fallback.set_mode(Mode.SPECULATIVE, "we know", START)
    assert fallback.adopt(Change("", SPEC, AR, START + 1, Trigger.ACCEPTANCE, "p 0.4", {})) == []
    assert fallback.in_force.state is SPEC


def test_what_is_adopted_and_cannot_be_carried_out_is_not_in_force() -> None:
    fallback = switch(second=False)
    (change,) = fallback.adopt(Change("", SPEC, AR, START, Trigger.ACCEPTANCE, "p 0.4", {}))
    assert change.after is AR
    assert fallback.in_force.state is SPEC
    assert NOWHERE in fallback.in_force.reason
