"""What sidecars of a fleet make of each other's rows: one history, one state, whatever is late or lost. No I/O."""

import asyncio
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.traffic import accepting

from sidecar import sharing
from sidecar.control.circuit import Change, Readings, Rules, State, Trigger
from sidecar.control.fallback import Decision, Fallback, Mode
from sidecar.probes.slices import asked
from sidecar.record import Arm
from sidecar.sharing import Sharing
from sidecar.store.shared import CAP, FORGOTTEN_S, ORDER, SharedRow, settled

AR, SPEC, PROBING = State.AUTOREGRESSIVE, State.SPECULATIVE, State.PROBING
DWELL_S = 20.0
RULES = Rules(
    triggers=frozenset(("acceptance",)), window=20, min_requests=5, min_draft_tokens=100, dwell_s=DWELL_S, probes=8
)


@dataclass
class Store:
    """The table. Its clock is the world's."""

    now: float = 1_800_000_000.0
    rows: dict[str, tuple[SharedRow, float]] = field(default_factory=dict)
    #: All that was ever written, and when it was decided.
    history: list[tuple[SharedRow, float]] = field(default_factory=list)

    def exchange(self, mine: list[SharedRow], under: int) -> dict[str, SharedRow]:
        theirs = {name: row._replace(age_s=self.now - made) for name, (row, made) in self.rows.items()}
        after = settled(theirs, mine, under)
        for name, row in after.items():
            if theirs.get(name) is not row:
                self.history.append((row, self.now - row.age_s))
        self.rows = {name: (row, self.now - row.age_s) for name, row in after.items()}
        return after

    @property
    def newest(self) -> dict[str, str]:
        return {name: row.to_state for name, (row, _) in self.rows.items()}


class Node:
    """A sidecar without its servers, whose clock goes wrong by `skew` seconds."""

    def __init__(self, store: Store, name: str, skew: float = 0.0, slices: Sequence[str] = ("scenario",)) -> None:
        self.store, self.name, self.skew = store, name, skew
        self.fallback = Fallback(RULES, self.now, can_fall_back=lambda: True, slices=slices, probe_share=0.5, seed=1)
        self.sharing = Sharing(
            None,  # type: ignore[arg-type]  # its part is played here
            "f",
            name,
            self,
            clock=lambda: self.now,
            monotonic=lambda: store.now - 1_000_000.0 * skew,
        )
        self.decided: list[Change] = []
        self.adopted: list[tuple[Change, str]] = []
        self.orders: list[tuple[Decision, str]] = []
        self.caps = 0

    @property
    def now(self) -> float:
        return self.store.now + self.skew

    # ---- what it is told

    def adopt(self, change: Change, by: str) -> None:
        self.adopted += [(each, by) for each in self.fallback.adopt(change)]

    def adopt_order(self, order: Decision, evidence: Mapping[str, Any], by: str) -> None:
        self.orders.append((order, by))
        self.fallback.restore(order, ())

    def uncapped(self) -> None:
        self.caps += 1

    # ---- what it does

    def tick(self) -> None:
        self._tell(self.fallback.tick(self.now, Readings()))

    def serve(self, p: float, count: int = 1, scenario: str = "a") -> None:
        for _ in range(count):
            slices = asked(scenario, "m", 0.0, 100, 1)
            arm = self.fallback.arm(slices)
            drafted = 100 if arm in (Arm.SPECULATIVE, Arm.PROBE) else 0
            made = accepting(p, draft_tokens=drafted, started_at=self.now, arm=arm, scenario=scenario)
            self._tell(self.fallback.add(made, self.now))

    def order(self, mode: Mode, reason: str = "drill") -> None:
        self.sharing.ordered(self.fallback.set_mode(mode, reason, self.now), {})

    def exchange(self) -> None:
        sent, mine = self.sharing.outgoing()
        self.sharing.incoming(self.store.exchange(mine, self.sharing._version(ORDER)), sent)

    def _tell(self, changes: list[Change]) -> None:
        for change in changes:
            self.decided.append(change)
            self.sharing.changed(change, change.evidence)

    @property
    def state(self) -> dict[str, Any]:
        circuits = [self.fallback.whole, *self.fallback.open_slices]
        return {"mode": self.fallback.mode} | {each.name: each.state for each in circuits}


def pair(skew: float = 0.0) -> tuple[Store, Node, Node]:
    store = Store()
    return store, Node(store, "a", skew), Node(store, "b", -skew)


def fall_back(node: Node) -> None:
    """All traffic, over what no request showed."""
    whole = Change("", SPEC, AR, node.now, Trigger.ACCEPTANCE, "p fell", {"dwell_s": DWELL_S, "level": 0})
    node._tell(node.fallback.adopt(whole))


@pytest.mark.parametrize("skew", [0.0, 600.0, -600.0])
def test_a_decision_is_adopted_by_the_other_ones_clock(skew: float) -> None:
    store, a, b = pair(skew)
    fall_back(a)
    a.exchange()
    store.now += 5
    b.exchange()
    assert b.state[""] is AR
    # It began five seconds ago, and both dwells end together.
    assert b.fallback.whole.since == pytest.approx(b.now - 5)
    store.now += DWELL_S - 5.1
    a.tick()
    b.tick()
    assert (a.state[""], b.state[""]) == (AR, AR)
    store.now += 0.2
    a.tick()
    b.tick()
    assert (a.state[""], b.state[""]) == (PROBING, PROBING)


def test_what_was_adopted_is_not_told_again() -> None:
    store, a, b = pair()
    fall_back(a)
    a.exchange()
    written = len(store.history)
    for _ in range(5):
        b.exchange()
        a.exchange()
    assert len(store.history) == written
    assert b.sharing.decided_by("") == "a"
    assert [by for _, by in b.adopted] == ["a"] * len(b.adopted)


def test_of_two_that_decide_at_once_one_stands() -> None:
    store, a, b = pair()
    fall_back(a)
    fall_back(b)
    b.exchange()
    a.exchange()
    assert (a.sharing.decided_by(""), b.sharing.decided_by("")) == ("b", "b")
    assert a.state == b.state
    # They probe, and disagree: who has seen enough first decides for both.
    store.now += DWELL_S
    a.tick()
    b.tick()
    a.exchange()
    b.exchange()
    while a.state[""] is PROBING:
        a.serve(0.9)
    while b.state[""] is PROBING:
        b.serve(0.2)
    assert (a.state[""], b.state[""]) == (SPEC, AR)
    a.exchange()
    b.exchange()
    assert (a.state[""], b.state[""]) == (SPEC, SPEC)
    # A return holds for a dwell, also where it was adopted.
    store.now += 1
    b.serve(0.2, 60)
    assert b.state[""] is SPEC


def test_an_order_voids_what_circuits_decided_and_the_later_order_stands() -> None:
    store, a, b = pair(600)
    fall_back(a)
    a.exchange()
    b.exchange()
    store.now += 1
    b.order(Mode.SPECULATIVE, "we look")
    store.now += DWELL_S
    a.tick()  # probes, and does not know of the order
    b.exchange()
    a.exchange()
    assert a.state == b.state == {"mode": Mode.SPECULATIVE, "": SPEC}
    assert store.newest == {ORDER: "speculative"}
    # Both are given one while neither can reach the store; the later one comes to it first.
    a.order(Mode.AUTOREGRESSIVE, "first")
    store.now += 60
    b.order(Mode.AUTO, "second")
    b.exchange()
    a.exchange()
    assert (a.fallback.order.reason, a.fallback.mode) == ("second", Mode.AUTO)
    a.order(Mode.AUTOREGRESSIVE, "third")
    store.now += 60
    b.order(Mode.AUTO, "fourth")
    a.exchange()
    b.exchange()
    a.exchange()
    assert (a.fallback.order.reason, b.fallback.order.reason) == ("fourth", "fourth")


def test_an_order_that_is_given_while_rows_come_is_not_lost() -> None:
    _, a, b = pair()
    a.order(Mode.AUTOREGRESSIVE, "one")
    a.exchange()
    sent, mine = b.sharing.outgoing()
    theirs = b.store.exchange(mine, 0)
    b.store.now += 0.1
    b.order(Mode.SPECULATIVE, "two")
    b.sharing.incoming(theirs, sent)
    assert b.fallback.order.reason == "two"
    b.exchange()
    a.exchange()
    assert a.fallback.order.reason == "two"


def test_the_same_order_again_has_all_circuits_begin_anew() -> None:
    _, a, b = pair()
    a.order(Mode.AUTO, "over")
    a.exchange()
    b.exchange()
    fall_back(b)
    b.exchange()
    a.exchange()
    assert a.state[""] is AR
    a.order(Mode.AUTO, "over")
    a.exchange()
    b.exchange()
    assert a.state == b.state == {"mode": Mode.AUTO, "": SPEC}


def test_an_answer_that_was_lost_makes_nothing_twice() -> None:
    store, a, b = pair()
    a.order(Mode.AUTO, "over")
    store.exchange(a.sharing.outgoing()[1], 0)
    store.now += 1
    fall_back(a)
    a.exchange()
    a.exchange()
    assert [row.circuit for row, _ in store.history] == [ORDER, ""]
    assert (a.orders, a.adopted, a.state[""]) == ([], [], AR)
    b.exchange()
    assert b.state[""] is AR


def test_one_that_starts_adopts_what_holds() -> None:
    store, a, _ = pair()
    fall_back(a)
    a.exchange()
    store.now += DWELL_S
    a.tick()
    a.exchange()
    third = Node(store, "c", 300)
    third.sharing.remember(Decision(Mode.AUTO, SPEC, third.now - 9000, "of old"), [])
    third.exchange()
    assert (third.state[""], third.sharing.decided_by("")) == (PROBING, "a")
    third.exchange()
    assert ORDER not in store.newest


def test_what_is_remembered_is_told_to_a_fleet_that_knows_nothing() -> None:
    store, a, b = pair()
    change = Change("", SPEC, AR, a.now - 5, Trigger.ACCEPTANCE, "p fell", {"level": 2, "opened_by": "acceptance"})
    order = Decision(Mode.AUTO, SPEC, a.now - 50, "over")
    a.fallback.restore(order, [change])
    a.sharing.remember(order, [change])
    a.exchange()
    a.exchange()
    assert store.newest == {"": "autoregressive"}
    b.exchange()
    assert (b.state[""], b.fallback.whole.until) == (AR, pytest.approx(b.now - 5 + 4 * DWELL_S))
    # A forced mode is told too, and another that remembers the same takes it for its own.
    c, d = Node(store, "c"), Node(store, "d")
    for each, age in ((c, 50), (d, 40)):
        forced = Decision(Mode.AUTOREGRESSIVE, AR, each.now - age, "broken")
        each.fallback.restore(forced, ())
        each.sharing.remember(forced, [])
        each.exchange()
        each.exchange()
    assert [row.circuit for row, _ in store.history].count(ORDER) == 1
    assert (d.orders, d.sharing.decided_by(ORDER)) == ([], "c")
    b.exchange()
    assert b.fallback.mode is Mode.AUTOREGRESSIVE


def test_a_store_that_has_lost_all_is_told_again() -> None:
    store, a, b = pair()
    a.order(Mode.AUTO, "over")
    a.exchange()
    fall_back(a)
    a.exchange()
    b.exchange()
    held = a.state
    store.rows.clear()
    for _ in range(2):
        a.exchange()
        b.exchange()
    assert a.state == b.state == held
    assert store.newest[""] == "autoregressive"
    # And one that was set back: what it holds is older than what is known.
    before = dict(store.rows)
    a.order(Mode.SPECULATIVE, "lost")
    a.exchange()
    b.exchange()
    store.rows = before
    for _ in range(3):
        a.exchange()
        b.exchange()
    assert a.fallback.order.reason == b.fallback.order.reason == "lost"


def test_slices_that_returned_are_forgotten_in_time() -> None:
    store, a, b = pair()
    a.serve(0.9, 20, "good")
    a.serve(0.1, 30, "bad")
    assert a.state["scenario=bad"] is AR
    a.exchange()
    b.exchange()
    assert b.state["scenario=bad"] is AR
    store.now += DWELL_S
    b.tick()
    b.exchange()
    while b.fallback.open_slices:
        b.serve(0.9, scenario="bad")
    b.exchange()
    a.exchange()
    assert "scenario=bad" not in a.state
    assert store.newest["scenario=bad"] == "speculative"
    store.now += FORGOTTEN_S + 1
    a.serve(0.1, 30, "other")
    a.exchange()
    b.exchange()
    a.exchange()
    assert set(store.newest) == {"scenario=other"}
    assert set(a.sharing._held) == set(b.sharing._held) == {"scenario=other"}


def test_rows_of_a_later_version_are_left_alone() -> None:
    store, a, b = pair()
    made = SharedRow("scenario=x", 0, "z", "auto", "speculative", "half", "boredom", "r", None, 0.0)
    store.exchange([made], 0)
    a.exchange()
    a.exchange()
    assert a.state == {"mode": Mode.AUTO, "": SPEC}
    assert store.newest == {"scenario=x": "half"}
    store.exchange([made._replace(circuit=ORDER, mode="half")], 0)
    b.exchange()
    assert (b.fallback.mode, b.orders) == (Mode.AUTO, [])


def test_one_that_stops_tells_the_others_to_look_at_the_cap() -> None:
    store, a, b = pair()
    b.exchange()
    a.sharing.uncapped()
    a.exchange()
    b.exchange()
    b.exchange()
    assert (a.caps, b.caps) == (0, 1)
    store.now += FORGOTTEN_S + 1
    fall_back(b)
    b.exchange()
    assert CAP not in store.newest


class Silent:
    """A store that does not answer before it is told to give up."""

    def __init__(self) -> None:
        self.given_up, self.asked = threading.Event(), 0

    def exchange(self, *_: object) -> None:
        self.asked += 1
        self.given_up.wait(20)
        self.given_up.clear()
        raise OSError("closed")

    def abort(self) -> None:
        self.given_up.set()


async def test_a_store_that_does_not_answer_is_given_up_and_keeps_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sharing, "_PATIENCE_S", 0.1)
    store, node = Silent(), Node(Store(), "a")
    made = Sharing(store, "f", "a", node)  # type: ignore[arg-type]
    made.up = True
    await made.exchange()
    assert (made.up, store.asked) == (False, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "fleet f: the database cannot be asked, each decides by itself: it does not answer"
    ]
    # Cancelled, it leaves no thread behind either.
    monkeypatch.setattr(sharing, "_PATIENCE_S", 60)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await made.exchange()
    async with asyncio.timeout(10):
        await asyncio.get_running_loop().shutdown_default_executor()
    assert store.asked == 2


# ---- laws


@dataclass
class Flight:
    """An exchange under way: when it reaches the store, when the answer comes, and what is lost of it."""

    arrives: float
    returns: float
    sent: Any
    mine: list[SharedRow]
    under: int
    lost: str
    theirs: dict[str, SharedRow] | None = None


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9), count=st.integers(2, 4), orders=st.integers(0, 3), sliced=st.booleans())
def test_c38_whatever_is_late_or_lost_there_is_one_history_and_they_agree(
    seed: int, count: int, orders: int, sliced: bool
) -> None:
    """Delays to two seconds, a fifth of all messages lost, outages, clocks that differ by up to ten minutes."""
    chance = random.Random(seed)
    store = Store()
    slices = ["scenario"] if sliced else []
    nodes = [Node(store, f"n{index}", chance.uniform(-600, 600), slices) for index in range(count)]
    flights: dict[Node, Flight] = {}
    away = {node: (start := chance.uniform(0, 150), start + chance.uniform(0, 60)) for node in nodes}
    ordered = sorted(chance.uniform(0, 200) for _ in range(orders))
    begin, step = store.now, 0.1
    bad = {node: chance.uniform(0, 150) for node in nodes}
    for number in range(2000):
        store.now = begin + number * step
        elapsed = store.now - begin
        while ordered and ordered[0] < elapsed:
            ordered.pop(0)
            chance.choice(nodes).order(chance.choice([*Mode]), f"order {number}")
        for node in nodes:
            flight = flights.get(node)
            if flight is None and chance.random() < 0.2:
                lost = chance.choice(["request", "answer", *[""] * 8])
                if away[node][0] < elapsed < away[node][1]:
                    lost = "request"
                there, back = chance.uniform(0, 1), chance.uniform(0, 1)
                sent, mine = node.sharing.outgoing()
                under = node.sharing._version(ORDER)
                flights[node] = Flight(store.now + there, store.now + there + back, sent, mine, under, lost)
            elif flight is not None:
                if flight.theirs is None and flight.lost != "request" and flight.arrives <= store.now:
                    flight.theirs = store.exchange(flight.mine, flight.under)
                if flight.returns <= store.now:
                    if flight.theirs is not None and not flight.lost:
                        node.sharing.incoming(flight.theirs, flight.sent)
                    del flights[node]
            if number % 10 == 0:
                node.tick()
            if chance.random() < 0.5:
                poor = bad[node] < elapsed < bad[node] + 40
                node.serve(chance.uniform(0.2, 0.5) if poor else chance.uniform(0.8, 1.0), scenario=chance.choice("ab"))
    for _ in range(2):
        for node in nodes:
            node.exchange()
    # They agree with one another and with the store, each by its own clock.
    first = nodes[0]
    assert all(node.state == first.state for node in nodes)
    assert not any(node.sharing._pending for node in nodes)
    for node in nodes:
        for circuit in (node.fallback.whole, *node.fallback.open_slices):
            if circuit.name in store.rows:
                assert circuit.since - node.skew == pytest.approx(store.rows[circuit.name][1], abs=2.1)
                assert circuit.state == store.newest[circuit.name]
    # Every row is one decision of one sidecar: nothing comes back as an echo.
    written = [(row.circuit, row.instance, made) for row, made in store.history if row.circuit != ORDER]
    decided = sum(len(node.decided) for node in nodes)
    assert len(set(written)) == len(written) <= decided
    # A sidecar switches as the fleet does, and once there and back for what it decided in vain.
    vain = decided - len(written)
    for node in nodes:
        assert len(node.decided) + len(node.adopted) <= len(written) + 2 * vain + orders * 4
    # What was decided holds for a dwell, whoever decides next; so does a return of all traffic. Rows are late by what
    # they take to the store.
    last: dict[str, tuple[SharedRow, float]] = {}
    for row, made in store.history:
        if row.circuit == ORDER:
            last.clear()
            continue
        before, since = last.get(row.circuit, (None, 0.0))
        returned = before is not None and before.to_state == "speculative" and not row.circuit
        if before is not None and (before.to_state == "autoregressive" or returned):
            assert made - since >= DWELL_S - 1.1
        last[row.circuit] = row, made
