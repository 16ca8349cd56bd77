"""Sidecars of one fleet decide as one, over a table of the database that they share.

What is shared is the last change of each circuit (all traffic, a slice) and an operator's last order. A sidecar decides
by itself at once, and tells; the others adopt. Of two that decide at the same time the first to be written stands, the
other adopts it, so that what is written is one history, in which every change was decided on the one before: dwells,
their doublings and the hold after a return are those of one circuit. An order voids what circuits decided before it; of
two orders the later one stands. What was adopted is not told again, unless the store has lost it.

Rows tell how long ago something was decided, by the clock of the store, and each sidecar reckons from its own: clocks
may differ. While it probes, each serves its own share and judges its own probes; the first that has seen enough decides
for all. Thresholds should be the same in all: each judges by its own. What one cannot carry out (no way to fall back,
an engine that drafts all the same) is its own affair: it adopts, and says that it is not in force there.

Without the store each has the last state it knows, and decides by itself; what changed meanwhile is put to the fleet
afterwards, and stands where the fleet has not moved. A sidecar that starts adopts what holds; to a fleet without rows
it tells what it remembers. One in a dry run takes no part, as its decisions are none.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from msgspec import json

from .control.circuit import Change, State, Trigger
from .control.fallback import Decision, Mode
from .store.rows import clean
from .store.shared import CAP, ORDER, SharedRow, SharedStates, passing

_log = logging.getLogger(__name__)

#: How often the fleet's rows are looked at, and the same while they cannot be, s.
_EVERY_S, _AWAY_S = 0.5, 1.0
#: What takes longer than this is ended, s.
_PATIENCE_S = 3.0
#: Failures before the first success that are not told: a database is made, or comes up, together with its sidecars.
_FIRST_FAILURES = 5
_CLOSE_S = 2.0


class Member(Protocol):
    """What is told of others' decisions. `by` is the instance that decided, times are by this sidecar's clock."""

    def adopt(self, change: Change, by: str) -> None: ...

    def adopt_order(self, order: Decision, evidence: Mapping[str, Any], by: str) -> None: ...

    def uncapped(self) -> None:
        """Another has given the engine its cap back, as it stops."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The last of a circuit that is known here, adopted or decided at the monotonic time `made`."""

    row: SharedRow
    made: float


class Sharing:
    """One per process, for use in the event loop."""

    def __init__(
        self,
        store: SharedStates,
        fleet: str,
        instance: str,
        member: Member,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fleet = fleet
        #: The store was in reach when it was last asked.
        self.up = False
        self._store = store
        self._instance = clean(instance)
        self._member = member
        self._clock = clock
        self._monotonic = monotonic
        self._held: dict[str, _Held] = {}
        #: What of it is to be told.
        self._pending: set[str] = set()
        #: Number and newest version of the rows that were taken in; None: they are to be read again.
        self._known: tuple[int, int] | None = None
        self._failures = 0
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()

    def decided_by(self, circuit: str) -> str:
        """The instance whose decision or order holds."""
        held = self._held.get(circuit)
        return self._instance if held is None else held.row.instance

    # ---- what is decided here

    def changed(self, change: Change, evidence: Mapping[str, Any]) -> None:
        """A circuit has decided."""
        self._tell(_row_of(change, self._instance, evidence))

    def ordered(self, order: Decision, evidence: Mapping[str, Any]) -> None:
        """An operator has."""
        before = self._held.get(ORDER)
        self._held = {} if before is None else {ORDER: before}
        self._pending.clear()
        self._tell(_row_of_order(order, self._instance, evidence))

    def uncapped(self) -> None:
        """The engine was given its cap back, as this sidecar stops."""
        self._tell(SharedRow(CAP, 0, self._instance, "auto", "", "", "", "the sidecar stops", None, 0.0))

    def remember(self, order: Decision | None, changes: list[Change]) -> None:
        """What held here before a restart. It is told to a fleet that has nothing of its own."""
        rows = [_row_of(change, self._instance, change.evidence, self._clock() - change.at) for change in changes]
        if order is not None:
            rows.append(_row_of_order(order, self._instance, {}, self._clock() - order.at))
        for row in rows:
            self._held.setdefault(row.circuit, _Held(row, self._monotonic() - row.age_s))
        self._known = None

    def _tell(self, row: SharedRow) -> None:
        self._held[row.circuit] = _Held(row._replace(version=self._version(row.circuit)), self._monotonic())
        self._pending.add(row.circuit)
        self._wake.set()

    # ---- the fleet

    async def run(self) -> None:
        """Look at the fleet's rows all the time, and tell at once what is decided here. Ends when cancelled."""
        while True:
            if self.up:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_EVERY_S):
                        await self._wake.wait()
            else:
                await asyncio.sleep(_AWAY_S)
            await self.exchange()

    async def exchange(self) -> None:
        """Tell and take in, once. Takes _PATIENCE_S and little more; never raises but for what `member` does."""
        async with self._turn:
            self._wake.clear()
            sent, mine = self.outgoing()
            ask = partial(self._store.exchange, mine, self._version(ORDER), self._known)
            work = asyncio.get_running_loop().run_in_executor(None, ask)
            try:
                done, _ = await asyncio.wait((work,), timeout=_PATIENCE_S)
                if not done:
                    self._lost("it does not answer")
                    self._store.abort()
                theirs = await work
            except asyncio.CancelledError:
                self._store.abort()  # else its thread would keep the process from ending
                raise
            except Exception as error:
                # What the driver says; what it quotes of a row would come in further lines.
                self._lost(str(getattr(error, "orig", None) or type(error).__name__).partition("\n")[0][:300])
                return
            self._reached()
            if theirs is not None:
                self.incoming(theirs, sent)

    async def close(self) -> None:
        """Tell what is not told yet. After `run` was cancelled; takes _CLOSE_S at most."""
        if self._pending and self.up:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self.exchange()
        self._store.close()

    def outgoing(self) -> tuple[dict[str, _Held], list[SharedRow]]:
        """What is to be told: as it is held here, and as rows."""
        sent = {circuit: self._held[circuit] for circuit in self._pending}
        return sent, [held.row._replace(age_s=self._age(held)) for held in sent.values()]

    def incoming(self, theirs: Mapping[str, SharedRow], sent: Mapping[str, _Held]) -> None:
        """Take in the rows of the fleet, after `sent` was put to them."""
        self._known = None
        self._take_order(theirs.get(ORDER), sent)
        if ORDER in self._pending:
            return  # all else is void once that is told
        for circuit, row in theirs.items():
            if circuit != ORDER and row.version > self._version(circuit) and not self._confirmed(row, sent):
                self._hold(row)
                if circuit == CAP:
                    self._member.uncapped()
                else:
                    self._adopt(row)
        for circuit, held in list(self._held.items()):
            if circuit not in theirs and passing(held.row) and circuit not in self._pending:
                del self._held[circuit]
            elif circuit not in theirs or theirs[circuit].version < held.row.version:
                self._pending.add(circuit)
        self._known = len(theirs), max((row.version for row in theirs.values()), default=0)

    def _take_order(self, row: SharedRow | None, sent: Mapping[str, _Held]) -> None:
        order = self._held.get(ORDER)
        remembered = order is not None and not order.row.version and ORDER not in self._pending
        if row is None or row.version < self._version(ORDER):
            if remembered and order is not None and order.row.mode == Mode.AUTO:
                del self._held[ORDER]  # no order is as good, and voids nothing
            elif order is not None:
                # The fleet has lost it, or has none. What was decided under it is told together with it.
                self._pending |= self._held.keys()
        elif row.version > self._version(ORDER) and not self._confirmed(row, sent):
            if remembered and order is not None and order.row.alike(row):
                self._hold(row)
            elif ORDER not in self._pending or order is sent.get(ORDER):
                self._adopt_order(row)

    def _confirmed(self, row: SharedRow, sent: Mapping[str, _Held]) -> bool:
        """Whether it is this sidecar's own, that was sent."""
        mine, held = sent.get(row.circuit), self._held.get(row.circuit)
        if mine is None or held is None or not row.same(mine.row):
            return False
        if held is mine:
            self._pending.discard(row.circuit)
        # What was decided since was decided on this.
        self._held[row.circuit] = _Held(held.row._replace(version=row.version), held.made)
        return True

    def _hold(self, row: SharedRow) -> None:
        self._held[row.circuit] = _Held(row, self._monotonic() - row.age_s)
        self._pending.discard(row.circuit)

    def _adopt(self, row: SharedRow) -> None:
        try:
            before, after, trigger = State(row.from_state), State(row.to_state), Trigger(row.trigger)
        except ValueError:
            return  # a later version's
        at = self._clock() - max(0.0, row.age_s)
        change = Change(row.circuit, before, after, at, trigger, row.reason, row.evidence or {})
        self._member.adopt(change, row.instance)

    def _adopt_order(self, row: SharedRow) -> None:
        self._held.clear()
        self._pending.clear()
        self._hold(row)
        try:
            mode, state = Mode(row.mode), State(row.to_state)
        except ValueError:
            return  # a later version's
        at = self._clock() - max(0.0, row.age_s)
        self._member.adopt_order(Decision(mode, state, at, row.reason), row.evidence or {}, row.instance)

    def _version(self, circuit: str) -> int:
        held = self._held.get(circuit)
        return 0 if held is None else held.row.version

    def _age(self, held: _Held) -> float:
        return max(0.0, self._monotonic() - held.made)

    def _lost(self, why: str) -> None:
        self._failures += 1
        if self.up or self._failures == _FIRST_FAILURES:
            _log.warning("fleet %s: the database cannot be asked, each decides by itself: %s", self.fleet, why)
        self.up = False

    def _reached(self) -> None:
        if not self.up:
            _log.info("fleet %s: decisions are shared", self.fleet)
        self.up, self._failures = True, _FIRST_FAILURES


def _row_of(change: Change, instance: str, evidence: Mapping[str, Any], age_s: float = 0.0) -> SharedRow:
    return SharedRow(
        clean(change.slice),
        0,
        instance,
        Mode.AUTO.value,
        change.before.value,
        change.after.value,
        change.trigger.value,
        clean(change.reason),
        _plain(evidence),
        age_s,
    )


def _row_of_order(order: Decision, instance: str, evidence: Mapping[str, Any], age_s: float = 0.0) -> SharedRow:
    words = order.mode.value, order.state.value, order.state.value, Trigger.OPERATOR.value, clean(order.reason)
    return SharedRow(ORDER, 0, instance, *words, _plain(evidence), age_s)


def _plain(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """As any database gives it back."""
    texts = {name: clean(value) if isinstance(value, str) else value for name, value in evidence.items()}
    found: dict[str, Any] = json.decode(json.encode(texts))
    return found
