"""The switch where scenarios are certified: what begins without speculation, what returns, what ends it. Pure."""

from collections import Counter
from typing import Any

from support.traffic import accepting

from sidecar.control.circuit import Change, Readings, Rules, State, Trigger
from sidecar.control.fallback import MOST_SLICES, Fallback, Mode
from sidecar.probes.slices import asked
from sidecar.record import Arm

START = 1_800_000_000.0
AR, SPEC, PROBING = State.AUTOREGRESSIVE, State.SPECULATIVE, State.PROBING
ENGINE, OTHER = "draft_digest aa", "draft_digest bb"


class World:
    """Requests one after the other, served as the switch says; `certified` is what the certificate does."""

    def __init__(self, *certified: str, **options: Any) -> None:
        self.certified = set(certified)
        self.engine: str | None = ENGINE
        self.now = START
        self.changes: list[Change] = []
        self.fallback = self.started(**options)

    def started(self, **options: Any) -> Fallback:
        options = {"can_fall_back": lambda: True, "probe_share": 0.5, "refusal": self.refusal, "seed": 1} | options
        return Fallback(Rules(), self.now, **options)

    def refusal(self, scenario: str) -> str | None:
        return None if scenario in self.certified else f"not certified: {scenario}"

    def serve(self, scenario: str, p: float = 0.9, count: int = 1) -> Counter[Arm]:
        served: Counter[Arm] = Counter()
        for _ in range(count):
            self.now += 0.1
            slices = asked(scenario, "m", None, None, 1)
            self.changes += self.fallback.admit(slices, self.now)
            arm = self.fallback.arm(slices)
            served[arm] += 1
            made = accepting(p, started_at=self.now, arm=arm, scenario=scenario, model="m")
            self.changes += self.fallback.add(made, self.now)
        return served

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.changes += self.fallback.tick(self.now, Readings())

    def review(self, *, anew: bool = False) -> None:
        self.changes += self.fallback.review(self.engine, self.now, anew=anew)

    def told(self) -> list[tuple[str, State, Trigger]]:
        """Of the changes since the last call."""
        made, self.changes = self.changes, []
        return [(each.slice.removeprefix("scenario="), each.after, each.trigger) for each in made]

    def earn(self, scenario: str) -> None:
        """Have good probes bring a scenario back."""
        self.wait(60)
        while self.told()[-1:] != [(scenario, SPEC, Trigger.PROBES)]:
            self.serve(scenario)

    def probes_that_fail(self, scenario: str) -> None:
        self.wait(60)
        while self.told()[-1:] != [(scenario, AR, Trigger.PROBES)]:
            self.serve(scenario, 0.2)


def test_the_first_request_of_a_scenario_is_served_as_it_is_certified() -> None:
    world = World("good")
    assert world.serve("bad") == {Arm.AUTOREGRESSIVE: 1}
    assert world.told() == [("bad", AR, Trigger.CERTIFICATE)]
    assert world.serve("good") == {Arm.SPECULATIVE: 1}
    assert world.serve("bad", count=20) == {Arm.AUTOREGRESSIVE: 20}
    assert world.told() == []
    (circuit,) = world.fallback.open_slices
    assert circuit.reason == "not certified: bad"
    assert circuit.until is not None


def test_it_speculates_once_probes_are_good_and_only_then() -> None:
    world = World("good")
    world.review(anew=True)
    world.serve("bad")
    world.probes_that_fail("bad")
    assert world.serve("bad", count=20) == {Arm.AUTOREGRESSIVE: 20}
    world.wait(115)
    assert world.told() == []
    world.wait(10)
    assert world.told() == [("bad", PROBING, Trigger.DWELL)]
    while not world.changes:
        world.serve("bad")
    assert world.changes[0].evidence["engine"] == ENGINE
    assert world.told() == [("bad", SPEC, Trigger.PROBES)]
    assert world.serve("bad", count=5) == {Arm.SPECULATIVE: 5}
    # The certificate has had its say.
    world.review()
    world.review(anew=True)
    assert world.told() == []


def test_another_engine_ends_what_was_certified_and_what_probes_have_earned() -> None:
    world = World("good", "new")
    world.review(anew=True)
    world.serve("good")
    world.serve("bad")
    world.earn("bad")
    world.certified, world.engine = set(), OTHER
    world.review(anew=True)
    assert sorted(world.told()) == [("bad", AR, Trigger.CERTIFICATE), ("good", AR, Trigger.CERTIFICATE)]
    assert world.serve("good", count=3) == {Arm.AUTOREGRESSIVE: 3}
    assert world.serve("new") == {Arm.AUTOREGRESSIVE: 1}
    world.told()
    world.earn("good")
    # The old one is back: what stands back over the certificate alone goes on.
    world.certified, world.engine = {"good", "new"}, ENGINE
    world.review(anew=True)
    assert world.told() == [("new", SPEC, Trigger.CERTIFICATE)]
    assert world.serve("new", count=3) == {Arm.SPECULATIVE: 3}
    assert world.serve("bad") in ({Arm.AUTOREGRESSIVE: 1}, {Arm.PROBE: 1})


def test_a_certificate_that_expires_leaves_what_probes_have_earned() -> None:
    world = World("good")
    world.review(anew=True)
    world.serve("good")
    world.serve("bad")
    world.earn("bad")
    world.certified = set()
    world.review(anew=True)
    assert world.told() == [("good", AR, Trigger.CERTIFICATE)]
    assert world.serve("bad", count=3) == {Arm.SPECULATIVE: 3}


def test_what_has_failed_its_probes_goes_by_them_and_not_by_a_new_certificate() -> None:
    world = World()
    world.serve("a")
    world.serve("b")
    world.told()
    world.probes_that_fail("a")
    world.certified = {"a", "b"}
    world.review()
    assert world.told() == [], "nothing else is certified than before"
    world.review(anew=True)
    assert world.told() == [("b", SPEC, Trigger.CERTIFICATE)]
    assert world.serve("a") == {Arm.AUTOREGRESSIVE: 1}


def test_probes_of_another_engine_do_not_count() -> None:
    world = World()
    world.review()
    world.serve("a")
    world.wait(60)
    world.serve("a", count=40)
    probed = len(world.fallback.open_slices[0].window)
    assert probed > 5
    world.review()
    assert len(world.fallback.open_slices[0].window) == probed
    world.engine = None
    world.review()
    assert len(world.fallback.open_slices[0].window) == probed, "an engine that does not tell is no other"
    world.engine = OTHER
    world.review()
    assert len(world.fallback.open_slices[0].window) == 0


def test_an_order_wins_and_afterwards_the_certificate_is_asked_again() -> None:
    world = World("good")
    world.serve("bad")
    world.told()
    world.fallback.set_mode(Mode.SPECULATIVE, "we know", world.now)
    assert world.serve("bad", count=5) == {Arm.SPECULATIVE: 5}
    world.certified = set()
    world.review(anew=True)
    assert world.told() == []
    assert world.serve("good") == {Arm.SPECULATIVE: 1}
    world.fallback.set_mode(Mode.AUTO, "over", world.now)
    assert world.serve("good") == {Arm.AUTOREGRESSIVE: 1}


def test_what_was_decided_before_a_restart_wins_over_the_start() -> None:
    world = World("good")
    world.review(anew=True)
    world.serve("bad")
    world.serve("worse")
    refused = world.changes[-1]
    world.wait(60)
    world.serve("bad", count=200)
    earned = world.changes[-1]
    assert (refused.slice, earned.slice, earned.after) == ("scenario=worse", "scenario=bad", SPEC)
    known = [earned, refused]
    world.told()
    world.fallback = world.started()
    world.fallback.restore(None, known)
    assert world.serve("bad") == {Arm.SPECULATIVE: 1}
    assert world.serve("worse") == {Arm.AUTOREGRESSIVE: 1}
    world.review(anew=True)
    assert world.told() == []
    # The engine was started with another draft meanwhile.
    world.fallback = world.started()
    world.engine = OTHER
    world.fallback.restore(None, known)
    world.review(anew=True)
    assert world.told() == [("bad", AR, Trigger.CERTIFICATE)]
    # And one was certified meanwhile.
    world.fallback = world.started()
    world.certified.add("worse")
    world.fallback.restore(None, known)
    world.review(anew=True)
    assert ("worse", SPEC, Trigger.CERTIFICATE) in world.told()


def test_scenarios_beyond_all_places_go_without_speculation_and_say_nothing() -> None:
    world = World("good")
    world.serve("good")
    for number in range(MOST_SLICES + 20):
        assert world.serve(f"s{number}") == {Arm.AUTOREGRESSIVE: 1}
    assert len(world.told()) == MOST_SLICES - 1
    assert world.serve("one more", count=3) == {Arm.AUTOREGRESSIVE: 3}
    assert world.serve("good", count=3) == {Arm.SPECULATIVE: 3}
    assert world.told() == []


def test_names_that_clients_make_up_take_no_certified_scenario_its_place() -> None:
    world = World("early", "late")
    world.serve("early", count=9)
    for number in range(MOST_SLICES):
        world.serve(f"s{number}")
    world.told()
    # Both are watched: they fall back over their own figures.
    for name in ("early", "late"):
        world.serve(name, 0.2, count=100)
        assert (name, AR, Trigger.ACCEPTANCE) in world.told()
    for number in range(MOST_SLICES):
        assert world.serve(f"t{number}") == {Arm.AUTOREGRESSIVE: 1}
    assert world.told() == []


def test_new_scenarios_take_nothing_from_what_others_have_counted() -> None:
    world = World("good")
    world.serve("good", count=30)
    assert len(world.fallback.whole.window) == 30
    world.serve("bad")
    assert len(world.fallback.whole.window) == 30


def test_a_slice_that_was_never_to_speculate_is_no_slice_that_fell_back() -> None:
    world = World("good")
    world.serve("bad")
    assert (len(world.fallback.open_slices), world.fallback.plain_slices) == (1, 0)
    world.serve("good", 0.2, count=100)
    assert (len(world.fallback.open_slices), world.fallback.plain_slices) == (2, 1)


def test_where_nothing_is_carried_out_it_is_only_said() -> None:
    for options in ({"dry_run": True}, {"can_fall_back": lambda: False}):
        world = World(**options)
        assert world.serve("bad", count=3) == {Arm.SPECULATIVE: 3}
        assert world.told() == [("bad", AR, Trigger.CERTIFICATE)]


def test_other_kinds_of_slices_are_not_certified() -> None:
    world = World("good", slices=("model",))
    assert world.serve("good", 0.2, count=150)[Arm.SPECULATIVE]
    slices = {change.slice for change in world.changes}
    assert slices
    assert all(change.trigger is Trigger.ACCEPTANCE for change in world.changes)


def test_without_a_certificate_nothing_is_asked() -> None:
    world = World(refusal=None)
    assert world.serve("bad", count=3) == {Arm.SPECULATIVE: 3}
    world.review(anew=True)
    assert world.told() == []
    assert not world.fallback.asks_for_slices
