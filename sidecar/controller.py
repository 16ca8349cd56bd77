"""Carries out what the fallback decides, and keeps a row of each decision."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from .admission import Admission, Standing, Validity
from .api.models import CertificateState, FallbackState, SliceState
from .control.circuit import Change, Circuit, Evidence, Readings, Rules, State, Trigger
from .control.engine import EngineError
from .control.fallback import DRAFTED, Decision, Fallback, Mode
from .faults import where
from .metrics import Metrics
from .probes.slices import PromptTokens, asked
from .record import Arm, Record
from .settings import Settings
from .steering import Steering
from .store.queries import DatabaseUnavailable, Reader
from .store.rows import Transition
from .store.shared import ORDER
from .store.writer import Writer
from .tap.tap import Tap
from .threads import in_thread

_log = logging.getLogger(__name__)

#: In the evidence of what another of the fleet has decided: its instance.
ADOPTED_FROM = "adopted_from"

_TICK_S = 1.0
_CLOSE_S = 2.0
_RESTORE_S = 5.0


class Fleet(Protocol):
    """Whom decisions are shared with, as `sidecar.sharing` tells. `evidence` is what is told beside."""

    #: Whether it can be told.
    up: bool

    def decided_by(self, circuit: str) -> str: ...

    def changed(self, change: Change, evidence: Mapping[str, Any]) -> None: ...

    def ordered(self, order: Decision, evidence: Mapping[str, Any]) -> None: ...

    def uncapped(self) -> None: ...

    def remember(self, order: Decision | None, changes: list[Change]) -> None: ...


class Controller:
    """One per process, for use in the event loop. It is what the API calls the fallback port.

    `readings` is asked every second, and `forget` has what they tell of speculation counted anew, as it was away or
    is to be judged by its probes; `drafted_since(upstream, since)` gives the tokens that an upstream's own counters
    have seen drafted after a monotonic time, None where they do not tell; `speculates(upstream)`, whether a request is
    under way there that may be drafted for.
    """

    def __init__(
        self,
        settings: Settings,
        writer: Writer,
        reader: Reader,
        metrics: Metrics,
        steering: Steering,
        *,
        can_fall_back: Callable[[], bool],
        outage: Callable[[], tuple[bool, str] | None],
        readings: Callable[[], Readings],
        forget: Callable[[], None],
        drafted_since: Callable[[str, float], int | None],
        speculates: Callable[[str], bool],
        plain_upstream: str,
    ) -> None:
        """`plain_upstream`: what serves requests without speculation."""
        self._settings = settings
        self._writer = writer
        self._reader = reader
        self._metrics = metrics
        self._steering = steering
        self._readings = readings
        self._forget = forget
        self._drafted_since = drafted_since
        self._plain_upstream = plain_upstream
        self._speculates = speculates
        self.fallback = Fallback(
            rules_of(settings),
            time.time(),
            can_fall_back=can_fall_back,
            outage=outage,
            slices=settings.fallback_slices,
            baseline_share=settings.baseline_share,
            probe_share=settings.fallback_probe_share,
            dry_run=settings.fallback_dry_run,
            refusal=None if settings.certificate is None else self._refusal,
        )
        self._admission = None if settings.certificate is None else Admission(settings.certificate)
        #: How the certificate stands to what runs; None: none is set.
        self.standing: Standing | None = (
            None if self._admission is None else self._admission.standing(None, time.time())
        )
        #: What of it was told, and what scenarios were last reviewed by.
        self._told_of: tuple[str, str] | None = None
        self._reviewed: tuple[tuple[str, str], str | None] | None = None
        #: None: it decides for itself alone.
        self.fleet: Fleet | None = None
        self._prompt_tokens = PromptTokens()
        self._restored = False
        self._unread = 0
        #: A circuit has decided something since the start.
        self._decided = False
        #: When the engine took orders, and what was done, while it was not known what mode is in force.
        self._untold: list[tuple[float, str]] = []
        #: State of all traffic, as the log and the rows last said it.
        self._served = State.SPECULATIVE
        #: Monotonic time since when no request at all is to speculate, and none that was begun before does.
        self._plain_since: float | None = None
        #: The engine drafts nothing, as this wants it; and the cap that held before, which is 0 where an operator wants
        #: the same.
        self._capped = False
        self._cap_before: int | None = None
        #: What that is taken to be where the cap is 0 already, which may be by another of the fleet: what it was when
        #: the fallback was decided.
        self._fleet_cap: int | None = 0
        #: What was decided before a restart still holds, so that a cap of 0 was this one's too.
        self._inherited = False
        self._complaint = ""
        self._failed = False

    # ---- requests

    def arm(self, tap: Tap | None, concurrency: int) -> Arm:
        """How a request is served; `tap` has read it, None: no generation. Never raises."""
        try:
            fallback = self.fallback
            if tap is None or not fallback.asks_for_slices:
                return fallback.arm()
            tokens = self._prompt_tokens.of(tap.body_bytes)
            slices = asked(tap.scenario, tap.model, tap.temperature, tokens, concurrency)
            for change in fallback.admit(slices, time.time()):
                self._tell(change)
            return fallback.arm(slices)
        except Exception as error:
            self._fail(error)
            return Arm.SPECULATIVE

    def add(self, record: Record) -> None:
        """Take in a request that ended. Never raises."""
        try:
            if record.prompt_tokens:
                self._prompt_tokens.add(record)
            for change in self.fallback.add(record, time.time()):
                self._tell(change)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            _log.error("the fallback controller failed; further failures are not told\n%s", where(error))

    # ---- time

    async def run(self) -> None:
        """Look at the clock and at all else once a second, and carry out what is decided. Ends when cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                self.tick(time.time(), time.monotonic())
                await self._carry_out()
            except Exception as error:
                self._fail(error)

    async def keep_certificate(self) -> None:
        """Read it again whenever it was changed. Apart from `run`, as it may lie on a disk that does not answer."""
        while self._admission is not None:
            await asyncio.sleep(_TICK_S)
            await in_thread(self._admission.look)

    def tick(self, now: float, monotonic: float) -> None:
        self.review(now)
        for change in self.fallback.tick(now, self._readings()):
            self._tell(change)
        self._verify(monotonic)
        decision = self.fallback.in_force
        if decision.state is not self._served:
            before, self._served = self._served, decision.state
            if State.INEFFECTIVE in (before, decision.state):
                self._put(now, before, decision.state, Trigger.EFFECT, decision.reason)
            _log.warning("mode %s, serving %s: %s", decision.mode, decision.state, decision.reason)

    def review(self, now: float) -> None:
        """Hold the certificate against what runs now, and have scenarios be served as it says."""
        if self._admission is None:
            return
        standing = self._admission.standing(self._steering.fingerprint(self._steering.steered), now)
        before, self.standing = self.standing, standing
        # That the engine is as it was to be is no news; that it is not, is.
        if standing.validity is not Validity.PENDING and standing.of != self._told_of:
            if standing.holds and self._told_of is None:
                _log.info("certificate: %s", standing.words)
            else:
                self.steered(standing.words)
            self._told_of = standing.of
        elif before is not None and standing.words != before.words:
            _log.info("certificate: %s", standing.words)
        of = standing.of, standing.engine
        anew = standing.validity is not Validity.PENDING and of != self._reviewed
        if anew:
            self._reviewed = of
        for change in self.fallback.review(standing.engine, now, anew=anew):
            self._tell(change)

    @property
    def certificate_valid(self) -> bool | None:
        """Whether the certificate holds; None where there is none, or the engine has not told yet what it is."""
        standing = self.standing
        if standing is None or standing.validity is Validity.PENDING:
            return None
        return standing.holds

    def _refusal(self, scenario: str) -> str | None:
        return None if self.standing is None else self.standing.refusal(scenario)

    def _verify(self, monotonic: float) -> None:
        """Have the engine's counters say whether nothing is drafted while nothing should be."""
        if not self.fallback.all_plain or self._speculates(self._plain_upstream):
            self._plain_since = None
            return
        if self._plain_since is None:
            self._plain_since = monotonic
        self.fallback.counted(self._drafted_since(self._plain_upstream, self._plain_since))

    async def _carry_out(self) -> None:
        """Cap the engine while all traffic falls back, and give it its cap back. Tried again with the next tick."""
        if self._settings.fallback_actuator != "cap" or self._steering.obeys is None:
            return
        wanted, cap = self.fallback.all_plain, self._steering.cap
        if self._inherited:
            self._inherited, self._capped = False, cap == 0
        if wanted is self._capped:
            return
        if self.fleet is not None:
            # Others of the fleet give the same engine the same orders.
            await self._steering.look()
            cap = self._steering.cap
        try:
            if not wanted:
                await self._give_back("the fallback is over")
            else:
                self._cap_before = cap if cap != 0 else self._fleet_cap
                if cap != 0:
                    self._capped = True  # also where this is cancelled while the engine obeys
                    await self._steering.set_cap(0, None, "fallback")
        except EngineError as error:
            if str(error) != self._complaint:
                _log.warning("the engine's cap cannot be set: %s", error)
            self._complaint, self._capped = str(error), not wanted
            return
        self._complaint = ""
        self._capped = wanted

    async def _give_back(self, reason: str) -> None:
        """Have the cap be what it was, unless somebody has ordered another one since. Raises EngineError."""
        if self._steering.cap == 0 and self._cap_before != 0:
            await self._steering.set_cap(self._cap_before, None, reason)

    async def close(self) -> None:
        """Leave no cap behind that nobody would take away. After `run` was cancelled; takes _CLOSE_S at most."""
        if self._capped:
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._steering.look()
                    await self._give_back("the sidecar stops")
                    if self.fleet is not None:
                        self.fleet.uncapped()

    # ---- what is told

    def _tell(self, change: Change) -> None:
        """It was decided here."""
        # What a certificate says is no decision on what was seen, which a database that comes later still tells.
        self._decided = self._decided or change.trigger is not Trigger.CERTIFICATE
        if self.fleet is not None:
            plain = change.after is State.AUTOREGRESSIVE and not change.slice
            self.fleet.changed(change, change.evidence | (self._cap_told() if plain else {}))
        self._note(change, change.at)

    def _note(self, change: Change, at: float) -> None:
        """It holds since `at`, whoever has decided it."""
        evidence: dict[str, object] = dict(change.evidence)
        if self.fallback.dry_run:
            evidence["dry_run"] = True
        reason = f"dry run: {change.reason}" if self.fallback.dry_run else change.reason
        self._put(at, change.before, change.after, change.trigger, reason, change.slice, evidence)
        self._metrics.transition(change.before, change.after, change.trigger, change.slice)
        if not change.slice:
            self._served = self.fallback.in_force.state
            self._forget()
        _log.warning(
            "%s%s: %s after %s (%s)%s: %s",
            "dry run, " if self.fallback.dry_run else "",
            change.slice or "all traffic",
            change.after,
            change.before,
            change.trigger,
            _adopted(evidence),
            change.reason,
        )

    def _put(
        self,
        at: float,
        before: State,
        after: State,
        trigger: Trigger,
        reason: str,
        name: str = "",
        evidence: dict[str, object] | None = None,
    ) -> None:
        instance, mode = self._settings.instance, self.fallback.mode
        self._writer.put_transition(
            Transition(at, instance, mode.value, before.value, after.value, reason, name, trigger.value, evidence)
        )

    def state(self) -> FallbackState:
        fallback, cap = self.fallback, self._steering.cap
        decision, whole = fallback.in_force, fallback.whole
        by_itself = fallback.mode is Mode.AUTO and whole.trigger is not Trigger.OPERATOR
        reason = decision.reason + (whole.progress if by_itself else "")
        if cap is not None:
            reason += (
                f" (the engine's cap is {cap}: {'nothing is' if not cap else f'at most {cap} tokens are'} drafted)"
            )
        return FallbackState(
            mode=decision.mode.value,
            state=decision.state.value,
            since=_utc(decision.at),
            reason=reason,
            trigger=decision.trigger.value,
            evidence=whole.evidence if by_itself else None,
            can_fall_back=fallback.can_fall_back,
            effective=fallback.effective,
            dry_run=fallback.dry_run,
            until=None if whole.until is None or not by_itself else _utc(whole.until),
            slices=[self._slice(each) for each in fallback.open_slices],
            fleet=self._settings.fleet,
            shared=None if self.fleet is None else self.fleet.up,
            decided_by=self._settings.instance
            if self.fleet is None
            else self.fleet.decided_by("" if by_itself else ORDER),
            certificate=self._certificate(),
        )

    def _certificate(self) -> CertificateState | None:
        standing = self.standing
        if standing is None:
            return None
        found = standing.certificate
        named = [] if found is None else sorted(found.scenarios)
        good = set(standing.certified())
        return CertificateState(
            file=str(self._settings.certificate),
            state=standing.validity.value,
            words=standing.words,
            run=None if found is None else found.run,
            verdict=None if found is None else found.verdict,
            signed_off_by=None if found is None else found.signed_off_by,
            issued_at=None if found is None else found.issued_at,
            expires_at=None if found is None else found.expires_at,
            certified=[name for name in named if name in good],
            not_certified=[name for name in named if name not in good],
            not_compared=list(standing.not_compared),
        )

    def _slice(self, circuit: Circuit) -> SliceState:
        state, reason = circuit.state, circuit.reason + circuit.progress
        if self.fallback.dry_run:
            reason = f"dry run; would be {state}: {reason}"
            state = State.SPECULATIVE
        elif not self.fallback.can_fall_back:
            state = State.SPECULATIVE
        elif self.fallback.effective is False:
            state, reason = State.INEFFECTIVE, f"{reason} ({DRAFTED})"
        return SliceState(
            slice=circuit.name,
            state=state.value,
            since=_utc(circuit.since),
            reason=reason,
            trigger=circuit.trigger.value,
            evidence=circuit.evidence,
            until=None if circuit.until is None else _utc(circuit.until),
        )

    # ---- an operator's orders, and what was before

    def set_mode(self, mode: str, reason: str) -> None:
        """An operator's order. Raises CannotFallBack."""
        self._begin_telling()
        before, ended = self.fallback.in_force, self.fallback.open_slices
        decision = self.fallback.set_mode(Mode(mode), reason or "ordered by an operator", time.time())
        if self.fleet is not None:
            self.fleet.ordered(decision, self._cap_told() if decision.mode is Mode.AUTOREGRESSIVE else {})
        self._obeyed(decision.at, before, ended, None)

    def _obeyed(self, at: float, before: Decision, ended: Sequence[Circuit], evidence: Evidence | None) -> None:
        """An order holds since `at`, and ended what these slices had decided."""
        order = self.fallback.order
        for each in ended:
            words = f"ended by an order: {order.reason}"
            self._put(at, each.state, State.SPECULATIVE, Trigger.OPERATOR, words, each.name, evidence)
        self._forget()
        self._put(at, before.state, order.state, Trigger.OPERATOR, order.reason, evidence=evidence)
        self._served = order.state
        if before.state is not order.state:
            self._metrics.transition(before.state, order.state, Trigger.OPERATOR)
        _log.warning("mode %s, serving %s%s: %s", order.mode, order.state, _adopted(evidence), order.reason)

    async def restore(self) -> None:
        """What was ordered and decided holds over a restart, also where the database comes later."""
        if self._restored:
            return
        try:
            # A database that takes connections and answers nothing must not keep the proxy from starting.
            async with asyncio.timeout(_RESTORE_S):
                rows = await asyncio.to_thread(self._reader.last_decisions, self._settings.instance)
        except (DatabaseUnavailable, TimeoutError):
            self._unread += 1
            # A new database has no tables at the first look.
            if self._unread == 2:
                _log.warning("the last order and decisions cannot be read: mode auto until the database answers")
            return
        if self._restored:
            return
        order, changes = self._known(rows)
        # What was decided since the start is newer than what was before, but an order wins over it.
        if not self._decided or (order is not None and order.mode is not Mode.AUTO):
            self.fallback.restore(order, changes)
            self._reviewed = None
            self._inherited = self.fallback.decision.state is not State.SPECULATIVE
            if self.fleet is not None:
                self.fleet.remember(order, self._open())
        self._begin_telling()

    def _open(self) -> list[Change]:
        """What circuits have decided that makes a difference."""
        return [
            Change(each.name, State.SPECULATIVE, each.state, each.since, each.trigger, each.reason, each.evidence)
            for each in (self.fallback.whole, *self.fallback.open_slices)
            if each.state is not State.SPECULATIVE
        ]

    def _known(self, rows: Sequence[dict[str, Any]]) -> tuple[Decision | None, list[Change]]:
        order, changes = None, []
        for row in rows:
            try:
                mode, trigger = Mode(row["mode"]), Trigger(row["trigger"])
                before, state = State(row["from_state"]), State(row["to_state"])
            except ValueError:
                continue  # a later version's
            at, evidence = row["at"].timestamp(), row["evidence"] or {}
            if trigger is Trigger.OPERATOR and row["slice"]:
                continue  # ended by an order, which has a row of its own
            if trigger is Trigger.OPERATOR:
                order = Decision(mode, state, at, row["reason"])
            elif bool(evidence.get("dry_run")) is self.fallback.dry_run:
                changes.append(Change(row["slice"], before, state, at, trigger, row["reason"], evidence))
        return order, changes

    # ---- what others of the fleet have decided

    def adopt(self, change: Change, by: str) -> None:
        """Be as the instance `by` has decided; `change.at` is when, by the clock here. Never raises."""
        try:
            self._begin_telling()
            if not change.slice:
                self._fleet_cap = _cap_of(change.evidence)
            change = replace(change, evidence=change.evidence | {ADOPTED_FROM: by})
            for each in self.fallback.adopt(change):
                self._note(each, time.time())
        except Exception as error:
            self._fail(error)

    def adopt_order(self, order: Decision, evidence: Mapping[str, Any], by: str) -> None:
        """Obey an order that was given to the instance `by`. Never raises."""
        try:
            self._begin_telling()
            before, ended = self.fallback.in_force, self.fallback.open_slices
            self._fleet_cap = _cap_of(evidence)
            self.fallback.restore(order, ())
            self._obeyed(time.time(), before, ended, {ADOPTED_FROM: by})
        except Exception as error:
            self._fail(error)

    def uncapped(self) -> None:
        """Another has given the engine its cap back, as it stops: whether it is to have one is looked at again."""
        if self._capped:
            self._capped, self._fleet_cap = False, self._cap_before

    def _cap_told(self) -> dict[str, object]:
        """What the cap was before this fallback, for others before the same engine."""
        if self._settings.fallback_actuator != "cap":
            return {}
        self._fleet_cap = self._cap_before if self._capped else self._steering.cap
        return {"cap": self._fleet_cap}

    # ---- the engine

    def steered(self, what: str) -> None:
        """The engine took an order."""
        self._untold.append((time.time(), what))
        if self._restored:
            self._begin_telling()
        _log.warning("%s", what)

    def _begin_telling(self) -> None:
        """It is known what is in force, which each row tells."""
        self._restored = True
        state, untold, self._untold = self.fallback.decision.state, self._untold, []
        for at, what in untold:
            self._put(at, state, state, Trigger.ENGINE, what)


def rules_of(settings: Settings) -> Rules:
    return Rules(
        triggers=frozenset(settings.fallback_triggers),
        below=settings.fallback_below,
        above=settings.fallback_above,
        below_by=settings.fallback_below_by,
        definition=settings.acceptance_definition,
        window=settings.fallback_window,
        min_requests=settings.fallback_min_requests,
        min_draft_tokens=settings.fallback_min_draft_tokens,
        dwell_s=settings.fallback_dwell_s,
        dwell_max_s=settings.fallback_dwell_max_s,
        probes=settings.fallback_probes,
        first_byte_limit_s=settings.first_byte_limit_s,
        similarity_below=settings.similarity_critical,
    )


def _adopted(evidence: Mapping[str, object] | None) -> str:
    """To be added to what the log tells; empty where it was decided here."""
    return f" (adopted from {evidence[ADOPTED_FROM]})" if evidence and ADOPTED_FROM in evidence else ""


def _cap_of(evidence: Mapping[str, object]) -> int | None:
    """The cap before a fallback, as the one that decided it knew it; 0 where it does not say."""
    cap = evidence.get("cap", 0)
    return cap if isinstance(cap, int | None) else 0


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
