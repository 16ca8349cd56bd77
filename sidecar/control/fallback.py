"""The switch between speculative and plain (autoregressive) decoding: an operator's order, else what circuits say."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from ..probes.acceptance import Counted, Figures, counted
from ..probes.slices import DIMENSIONS, slices_of
from ..record import Arm, Record
from .circuit import NOTHING, Change, Circuit, Evidence, Readings, Rules, State, Trigger

#: The kind of slice that a certificate names, and in the evidence of what it decided, what drafted then.
SCENARIO, ENGINE = "scenario", "engine"
#: Slices of one kind that are watched at a time; clients name scenarios.
MOST_SLICES = 64
#: Requests that a slice, and all others, have at least where it is to blame for what all traffic shows.
BLAME_REQUESTS = 5
#: Requests without speculation that are looked at, and those that tell something.
EFFECT_REQUESTS, EFFECT_ENOUGH = 20, 3


class Mode(StrEnum):
    """What the operator asked for."""

    AUTO = "auto"
    SPECULATIVE = "speculative"
    AUTOREGRESSIVE = "autoregressive"


@dataclass(frozen=True, slots=True)
class Decision:
    """What holds for all traffic since `at` (Unix seconds), and why."""

    mode: Mode
    state: State
    at: float
    reason: str
    trigger: Trigger = Trigger.OPERATOR


REMEDY = "set fallback_upstream, or load the engine plugin and set engine_token or engine_events"
NOWHERE = (
    "no autoregressive upstream is configured and can be reached, and no engine plugin is known that could serve a "
    "request without speculation"
)
DRAFTED = "the engine drafts tokens all the same"


class CannotFallBack(Exception):
    """There is nothing to fall back to."""


class Fallback:
    """Holds what is decided; `arm` tells each new request how it is served.

    In mode auto requests are speculative unless a circuit says otherwise, but for the baseline share that latencies are
    compared with. A decision holds for requests that come after it; one in flight is served as it began.
    `can_fall_back` is asked each time, as engines come and go; an order to fall back waits where it cannot. Times are
    Unix seconds.
    """

    def __init__(
        self,
        rules: Rules,
        now: float,
        *,
        can_fall_back: Callable[[], bool],
        outage: Callable[[], tuple[bool, str] | None] = lambda: None,
        slices: Sequence[str] = (),
        baseline_share: float = 0.0,
        probe_share: float = 0.05,
        dry_run: bool = False,
        refusal: Callable[[str], str | None] | None = None,
        seed: int | None = None,
    ) -> None:
        """`slices`: the dimensions whose slices have circuits of their own. `outage`: whether all requests go without
        speculation, as what speculates cannot be reached, and that in words; None while it can. `refusal`: why a
        scenario is not to begin with speculation, None: it may; where it is given, scenarios have circuits.
        """
        self.rules = rules
        self.dry_run = dry_run
        self.mode = Mode.AUTO
        #: The operator's last order.
        self.order = Decision(Mode.AUTO, State.SPECULATIVE, now, "started")
        self._can_fall_back = can_fall_back
        self._outage = outage
        self._baseline_share = baseline_share
        self._probe_share = probe_share
        self._random = random.Random(seed).random  # noqa: S311 - chooses baseline and probes, guards nothing
        self._refusal = refusal
        #: What drafts, in a text, as it was last told.
        self._engine: str | None = None
        self._dimensions = tuple(
            name for name in DIMENSIONS if name in slices or (refusal is not None and name == SCENARIO)
        )
        #: What the circuit of all traffic has counted, with the slices of each request.
        self._counted: deque[tuple[Counted, tuple[str, ...]]] = deque(maxlen=rules.window)
        self._made: list[Change] = []
        self._whole = self._new_whole(now)
        self._slices: dict[str, OrderedDict[str, Circuit]] = {name: OrderedDict() for name in self._dimensions}
        #: Those of them that are not speculative.
        self._open: dict[tuple[str, str], Circuit] = {}
        self._effect = _Effect()

    # ---- what holds

    @property
    def can_fall_back(self) -> bool:
        return self._can_fall_back()

    @property
    def decision(self) -> Decision:
        """As ordered, or decided; carried out or not."""
        if self.mode is not Mode.AUTO:
            return self.order
        whole = self._whole
        if whole.trigger is Trigger.OPERATOR:
            return replace(self.order, state=whole.state)
        return Decision(self.mode, whole.state, whole.since, whole.reason, whole.trigger)

    @property
    def in_force(self) -> Decision:
        """The decision as it is carried out."""
        decision = self.decision
        if (outage := self._outage()) is not None:
            plain, words = outage
            state = State.AUTOREGRESSIVE if plain else decision.state
            return replace(decision, state=state, reason=f"{words} ({decision.state}: {decision.reason})")
        if decision.state is State.SPECULATIVE:
            return decision
        if self.mode is Mode.AUTO and self.dry_run:
            return replace(
                decision, state=State.SPECULATIVE, reason=f"dry run; would be {decision.state}: {decision.reason}"
            )
        if not self.can_fall_back:
            return replace(decision, state=State.SPECULATIVE, reason=f"{decision.reason} (not in force: {NOWHERE})")
        if self.effective is False:
            return replace(decision, state=State.INEFFECTIVE, reason=f"{decision.reason} ({DRAFTED})")
        return decision

    @property
    def effective(self) -> bool | None:
        """Whether requests that are to go without speculation are seen to; None where that is not known."""
        return self._effect.holds

    @property
    def whole(self) -> Circuit:
        return self._whole

    @property
    def open_slices(self) -> Sequence[Circuit]:
        """Circuits of slices that are not speculative."""
        return [*self._open.values()]

    @property
    def fell_back(self) -> bool:
        """Whether all traffic but probes goes without speculation, by a decision of its own."""
        whole = self._whole
        by_itself = self.mode is Mode.AUTO and whole.trigger is not Trigger.OPERATOR
        return by_itself and whole.state is not State.SPECULATIVE and self._carried_out

    @property
    def plain_slices(self) -> int:
        """Slices that, but for probes, go without speculation, and began with it."""
        fell_back = (each for each in self._open.values() if each.opened_by is not Trigger.CERTIFICATE)
        return sum(1 for _ in fell_back) if self._carried_out else 0

    @property
    def _carried_out(self) -> bool:
        return not self.dry_run and self.can_fall_back

    @property
    def asks_for_slices(self) -> bool:
        """Whether `arm` needs to know a request's slices."""
        return bool(self._open) or self._refusal is not None

    @property
    def all_plain(self) -> bool:
        """Whether it is decided, and carried out, that no request at all is to speculate."""
        in_force = self.in_force.state in (State.AUTOREGRESSIVE, State.INEFFECTIVE)
        return in_force and self.decision.state is State.AUTOREGRESSIVE

    def arm(self, asked: Mapping[str, str] | None = None) -> Arm:
        """How the next request is served. `asked`: its slices by dimension, where `asks_for_slices`."""
        if self.mode is Mode.AUTOREGRESSIVE:
            return Arm.AUTOREGRESSIVE if self.can_fall_back else Arm.SPECULATIVE
        if self.mode is Mode.SPECULATIVE:
            return Arm.SPECULATIVE
        if not self.dry_run:
            state = self._state_for(asked)
            if state is not State.SPECULATIVE and self.can_fall_back:
                probes = state is State.PROBING and self._random() < self._probe_share
                return Arm.PROBE if probes else Arm.AUTOREGRESSIVE
        if self._baseline_share and self._random() < self._baseline_share:
            return Arm.BASELINE if self.can_fall_back else Arm.SPECULATIVE
        return Arm.SPECULATIVE

    def admit(self, asked: Mapping[str, str], now: float) -> list[Change]:
        """Have the scenario of the next request begin as it is certified; what follows from it."""
        if self._refusal is None or self.mode is not Mode.AUTO or asked[SCENARIO] in self._slices[SCENARIO]:
            return []
        self._slice(SCENARIO, asked[SCENARIO], now)
        made, self._made = self._made, []
        return made

    def _state_for(self, asked: Mapping[str, str] | None) -> State:
        """Of all circuits that a request passes; one that is autoregressive counts more than one that probes."""
        state = self._whole.state
        if self._refusal is not None and asked and asked[SCENARIO] not in self._slices[SCENARIO]:
            # There is no place for one more circuit, which would say the same.
            state = state if self._refusal(asked[SCENARIO]) is None else State.AUTOREGRESSIVE
        if self._open and asked:
            for key in asked.items():
                circuit = self._open.get(key)
                if circuit is not None and state is not State.AUTOREGRESSIVE:
                    state = circuit.state
        return state

    # ---- what changes it

    def set_mode(self, mode: Mode, reason: str, now: float) -> Decision:
        """Take an operator's order, which wins over all circuits; they begin anew.

        Raises CannotFallBack if there is nowhere to fall back to.
        """
        if mode is Mode.AUTOREGRESSIVE and not self.can_fall_back:
            raise CannotFallBack(f"{NOWHERE}: {REMEDY}")
        self._obey(
            Decision(mode, State.AUTOREGRESSIVE if mode is Mode.AUTOREGRESSIVE else State.SPECULATIVE, now, reason)
        )
        return self.order

    def restore(self, order: Decision | None, changes: Sequence[Change]) -> None:
        """Be as before a restart: the operator's last order, if there was one, and each circuit's last change since."""
        if order is not None:
            self._obey(order)
        for change in changes if self.mode is Mode.AUTO else ():
            if order is not None and change.at < order.at:
                continue
            circuit = self._named(change.slice)
            if circuit is not None:
                # A round of probes begins with a dwell that is over already.
                state = State.AUTOREGRESSIVE if change.after is State.PROBING else change.after
                at = change.at if state is change.after else 0.0
                circuit.restore(state, at, change.trigger, change.reason, change.evidence)
                self._note(circuit)

    def adopt(self, change: Change) -> list[Change]:
        """Be as another sidecar of the fleet has decided; what follows from it, as a change of what held here.

        Its round of probes is this one's too, which begins to count its own. Slices of a kind that has no circuits here
        are left out.
        """
        circuit = self._named(change.slice) if self.mode is Mode.AUTO else None
        if circuit is None:
            return []
        before = circuit.state
        circuit.restore(change.after, change.at, change.trigger, change.reason, change.evidence)
        self._note(circuit)
        if before is not change.after:
            self._changed(circuit, replace(change, before=before))
        made, self._made = self._made, []
        return made

    def _obey(self, order: Decision) -> None:
        self.mode, self.order = order.mode, order
        self._whole = self._new_whole(order.at)
        self._counted.clear()
        for circuits in self._slices.values():
            circuits.clear()
        self._open.clear()
        self._effect = _Effect()

    def add(self, record: Record, now: float) -> list[Change]:
        """Take in a request that ended; what follows from it."""
        if self.mode is not Mode.AUTO or record.arm in (Arm.AUTOREGRESSIVE, Arm.BASELINE):
            return []
        virtual = self.dry_run or not self.can_fall_back
        slices: list[Circuit] = []
        if self._dimensions:
            values = slices_of(record)
            found = [self._slice(dimension, values[DIMENSIONS.index(dimension)], now) for dimension in self._dimensions]
            slices = [each for each in found if each is not None]
        # A request of a slice that has a decision of its own is no evidence about any other, nor about all traffic:
        # those in flight when that was decided still speculate.
        decided = [each for each in slices if each.state is not State.SPECULATIVE]
        if slices and not decided and record.arm is Arm.SPECULATIVE and (row := counted(record)) is not None:
            self._counted.append((row, values))
        for each in decided or (*slices, self._whole):
            if change := each.add(record, now, virtual=virtual):
                self._changed(each, self._here(each, change))
            if self._made:
                break
        made, self._made = self._made, []
        return made

    def tick(self, now: float, readings: Readings = NOTHING) -> list[Change]:
        """Look at the clock and at what no single request tells; what follows from it."""
        if self.mode is not Mode.AUTO:
            return []
        for each in [self._whole, *self._open.values()]:
            if change := each.tick(now, readings):
                self._changed(each, self._here(each, change))
        made, self._made = self._made, []
        return made

    def review(self, engine: str | None, now: float, *, anew: bool) -> list[Change]:
        """Have those scenarios go without speculation that are not certified any more; what follows from it.

        `engine` tells what drafts now, None: not known. What good probes have brought back stays, unless they were
        another engine's. `anew`: something else is certified than before, so that scenarios that were stopped by that
        alone go on.
        """
        if self._refusal is None or self.mode is not Mode.AUTO:
            return []
        before, self._engine = self._engine, engine or self._engine
        for name, circuit in list(self._slices[SCENARIO].items()):
            why = self._refusal(name)
            if circuit.state is State.SPECULATIVE:
                if why is not None and not self._earned(circuit):
                    self._changed(circuit, circuit.refuse(now, why, self._told()))
            elif why is None and anew and circuit.refused:
                self._changed(circuit, circuit.accept(now, "it is certified now", self._told()))
            elif before not in (None, self._engine):
                # Probes so far were another engine's.
                circuit.forget()
        made, self._made = self._made, []
        return made

    def _earned(self, circuit: Circuit) -> bool:
        """Whether probes of what drafts now have brought it back."""
        probed = circuit.evidence.get(ENGINE)
        return circuit.trigger is Trigger.PROBES and (probed is None or self._engine in (None, probed))

    def _told(self) -> Evidence:
        return {} if self._engine is None else {ENGINE: self._engine}

    def _here(self, circuit: Circuit, change: Change) -> Change:
        """With the engine that showed it, of scenarios that a certificate is asked about."""
        if self._refusal is None or not circuit.name.startswith(f"{SCENARIO}="):
            return change
        circuit.evidence = change.evidence | self._told()
        return replace(change, evidence=circuit.evidence)

    def _changed(self, circuit: Circuit, change: Change) -> None:
        self._made.append(change)
        self._note(circuit)
        if change.before is State.SPECULATIVE:
            self._effect = _Effect()
            # What the others counted of its requests is not theirs any more, nor evidence after a return.
            for each in (self._whole, *(each for slices in self._slices.values() for each in slices.values())):
                if each.state is State.SPECULATIVE:
                    each.forget()
            self._counted.clear()

    def _new_whole(self, now: float) -> Circuit:
        # With slices, they have the first word.
        return Circuit(self.rules, "", now, patient=bool(self._dimensions), excuse=partial(self._blame, "", ""))

    def _blame(self, of: str, name: str, now: float) -> bool:
        """Have a slice of another kind fall back in place of this slice of kind `of`, or of all traffic where there is
        none: one without which the rest of it is fine. Of several, the smallest.
        """
        own = [each for each in self._counted if not of or each[1][DIMENSIONS.index(of)] == name]
        found: list[tuple[int, Circuit]] = []
        for dimension in self._dimensions:
            if dimension == of:
                continue
            at = DIMENSIONS.index(dimension)
            for value in {values[at] for _, values in own}:
                circuit = self._slices[dimension].get(value)
                inside = _figures(row for row, values in self._counted if values[at] == value)
                rest = _figures(row for row, values in own if values[at] != value)
                low, high = self.rules.rate(inside), self.rules.rate(rest)
                if circuit is None or low is None or high is None or not low < self._whole.mark <= high:
                    continue
                if min(inside.requests, rest.requests) >= BLAME_REQUESTS:
                    found.append((inside.requests, circuit))
        if not found:
            return False
        circuit = min(found, key=lambda each: each[0])[1]
        self._changed(circuit, self._here(circuit, circuit.open(now)))
        return True

    # ---- slices

    def _slice(self, dimension: str, value: str, now: float | None = None) -> Circuit | None:
        """None for a new slice while all places are taken by those with a decision.

        `now`: a new one begins as it is certified; None: it will have a state given.
        """
        circuits = self._slices[dimension]
        found = circuits.get(value)
        if found is not None:
            circuits.move_to_end(value)
            return found
        refusal = self._refusal if now is not None and dimension == SCENARIO else None
        why = None if refusal is None else refusal(value)
        if len(circuits) >= MOST_SLICES:
            # Clients name scenarios. One that is refused is served alike without a circuit, so that it takes no other's
            # place, and gives way to others.
            refused = (name for name, each in circuits.items() if each.refused)
            idle = (name for name, each in circuits.items() if each.state is State.SPECULATIVE)
            least = None if why is not None else next(refused, None) or next(idle, None)
            if least is None:
                return None
            del circuits[least]
            self._open.pop((dimension, least), None)
        found = Circuit(
            self.rules, f"{dimension}={value}", self.order.at, excuse=partial(self._blame, dimension, value)
        )
        circuits[value] = found
        if now is not None and why is not None:
            # No circuit has counted a request of it yet.
            self._made.append(found.refuse(now, why, self._told()))
            self._note(found)
        return found

    def _named(self, name: str) -> Circuit | None:
        """The circuit of a slice as rows name it; None where its kind has none any more."""
        dimension, _, value = name.partition("=")
        if not name:
            return self._whole
        return self._slice(dimension, value) if dimension in self._slices else None

    def _note(self, circuit: Circuit) -> None:
        dimension, _, value = circuit.name.partition("=")
        if circuit.name and circuit.state is State.SPECULATIVE:
            self._open.pop((dimension, value), None)
        elif circuit.name:
            self._open[dimension, value] = circuit

    # ---- whether it is carried out

    def served_plain(self, *, drafted: bool) -> None:
        """A request that was to go without speculation has ended, and it is known whether it was drafted for."""
        self._effect.told.append(drafted)

    def counted(self, drafted: int | None) -> None:
        """Tokens that the engine's own counters say were drafted while none should be; None: not known."""
        self._effect.drafted = drafted
        if drafted == 0:
            # Replies tell by themselves only that they were drafted for, never that this is over.
            self._effect.told.clear()


def _figures(rows: Iterable[Counted]) -> Figures:
    total = Counted()
    for row in rows:
        total.put(row)
    return total.figures(None)


class _Effect:
    """Evidence that requests are served without speculation where that was decided."""

    def __init__(self) -> None:
        self.told: deque[bool] = deque(maxlen=EFFECT_REQUESTS)
        self.drafted: int | None = None

    @property
    def holds(self) -> bool | None:
        # What the engine tells of each request is more than what it counts, others' requests among it.
        if len(self.told) >= EFFECT_ENOUGH:
            return sum(self.told) < EFFECT_ENOUGH
        return None if self.drafted is None else not self.drafted
