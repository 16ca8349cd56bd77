"""One switch that decides by itself: all traffic's, or a slice's. Pure: no clock, no I/O.

It begins speculative. What it counts there are requests served with speculation; once a trigger fires it is
autoregressive for a dwell, then it probes: a small share of its requests speculates, and their figures alone decide
whether speculation returns, at a higher mark than the one it fell below (hysteresis). A return holds for the shortest
dwell. A round of probes that fails, and a return that did not last for another dwell after that, double the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from ..probes.acceptance import CountWindow, Figures
from ..probes.change import Change as ChangeDetector
from ..record import Arm, Outcome, Record

#: Standard errors between p and its mark before a window that is not full may decide. It is asked again with every
#: request, so the 2.6 of one look at 99 % would not do.
SURE = 3.0
#: Streams in so many seconds whose first content came too late, and failed requests, that are taken for a fault.
RECENT_S, SLOW_STREAMS, FAILED = 60.0, 3, 5
#: Of the requests in that time, the share that must have failed.
FAILED_SHARE = 0.5
#: Probes that must go well after faults of that kind, and those that may fail before a round ends.
GOOD_PROBES, BAD_PROBES = 5, 3
#: A round ends after so many times the probes it takes: figures do not come.
MOST_PROBES = 4
#: Doublings of the dwell that are counted: a float holds no 2**1024, which drafts that stay bad come to in weeks.
MOST_DOUBLINGS = 63
#: Pairs of texts before their similarity decides.
SIMILAR_PAIRS = 50


class State(StrEnum):
    """How requests are served."""

    SPECULATIVE = "speculative"
    AUTOREGRESSIVE = "autoregressive"
    #: Autoregressive, but for a few requests that are watched.
    PROBING = "probing"
    #: Autoregressive was decided, and tokens are drafted all the same. No circuit is in it by itself.
    INEFFECTIVE = "ineffective"


class Trigger(StrEnum):
    """What brings a change about."""

    ACCEPTANCE = "acceptance"
    #: The acceptance rate has dropped below its mark, seen before the window shows it.
    CHANGE = "change"
    DRAFT_TIMEOUT = "draft_timeout"
    ENGINE_ERRORS = "engine_errors"
    SIMILARITY = "similarity"
    MISALIGNMENT = "misalignment"
    LATENCY_RATIO = "latency_ratio"
    #: The dwell is over.
    DWELL = "dwell"
    #: What the probes showed.
    PROBES = "probes"
    #: Probes came to an end without showing anything.
    NO_DATA = "no_data"
    #: What is certified, and what is not.
    CERTIFICATE = "certificate"
    #: Tokens are drafted though none should be, or are not any more.
    EFFECT = "effect"
    OPERATOR = "operator"
    #: An order to the engine was carried out.
    ENGINE = "engine"


_FAULTS = (Trigger.DRAFT_TIMEOUT, Trigger.ENGINE_ERRORS)
Evidence = dict[str, object]


@dataclass(frozen=True, slots=True)
class Rules:
    """What is decided by; the settings `fallback_…` tell what each means. Rates are 0..1, times seconds."""

    triggers: frozenset[str] = frozenset(("acceptance", "draft_timeout", "engine_errors"))
    below: float = 0.65
    above: float = 0.70
    below_by: Mapping[str, float] = field(default_factory=dict)
    definition: Literal["pooled", "per_token"] = "pooled"
    window: int = 100
    min_requests: int = 10
    min_draft_tokens: int = 500
    dwell_s: float = 60.0
    dwell_max_s: float = 3600.0
    probes: int = 50
    first_byte_limit_s: float | None = None
    similarity_below: float = 0.75

    def below_of(self, model: str | None, k: int | None) -> float:
        """The mark for a model and a draft length; that of the model comes first."""
        named = self.below_by.get(f"model={model}")
        return named if named is not None else self.below_by.get(f"k={k}", self.below)

    def rate(self, figures: Figures) -> float | None:
        return figures.p if self.definition == "pooled" else figures.p_per_token


@dataclass(frozen=True, slots=True)
class Readings:
    """What else is known at a moment; None where it is not."""

    #: Streams that wait for their first content now, for longer than the limit.
    slow_streams: int = 0
    #: Mean similarity of the last pairs of texts, and their number.
    similarity: float | None = None
    pairs: int = 0
    #: Why draft and target are taken to be misaligned.
    misaligned: str | None = None
    #: p95 with speculation / p95 of the baseline at like concurrency, and that concurrency.
    latency_ratio: float | None = None
    concurrency: str | None = None


NOTHING = Readings()


@dataclass(frozen=True, slots=True)
class Change:
    """A decision: `slice` as `scenario=billing`, empty for all traffic. `at` is Unix time in seconds."""

    slice: str
    before: State
    after: State
    at: float
    trigger: Trigger
    reason: str
    evidence: Evidence


class Circuit:
    """`name` is its slice's, empty for all traffic. `now` is Unix time in seconds throughout."""

    #: The acceptance rate has dropped, by the detector.
    _dropped: bool

    def __init__(
        self,
        rules: Rules,
        name: str,
        now: float,
        *,
        patient: bool = False,
        excuse: Callable[[float], bool] = lambda now: False,
    ) -> None:
        """`patient`: it waits for a full window. `excuse` is asked before it falls back over figures: whether what they
        show has been seen to otherwise.
        """
        self.name = name
        self._patient = patient
        self._excuse = excuse
        self.state = State.SPECULATIVE
        self.since = now
        self.reason = "started"
        self.trigger = Trigger.OPERATOR
        self.evidence: Evidence = {}
        self._rules = rules
        #: Doublings of the dwell, what it is, and what made decoding fall back.
        self._level = 0
        self._dwell_s = rules.dwell_s
        self._opened_by = Trigger.ACCEPTANCE
        #: No earlier does a figure make decoding fall back again.
        self._held_until = now
        self._readings = NOTHING
        self.forget()

    @property
    def until(self) -> float | None:
        """When the dwell is over; None where there is none."""
        return self.since + self._dwell_s if self.state is State.AUTOREGRESSIVE else None

    @property
    def window(self) -> CountWindow:
        """What counts in the state that holds."""
        return self._window

    @property
    def mark(self) -> float:
        """The acceptance rate that decides in the state that holds; the mean of the draft tokens' marks."""
        below = self._rules.below
        if drafted := sum(tokens for _, tokens in self._marks):
            below = sum(mark * tokens for mark, tokens in self._marks) / drafted
        if self.state is State.SPECULATIVE:
            return below
        return round(min(1.0, below + self._rules.above - self._rules.below), 6)

    @property
    def progress(self) -> str:
        """How far a round of probes is, to be added to a sentence; empty where there is none."""
        if self.state is not State.PROBING:
            return ""
        rate = self._rules.rate(self._window.figures())
        so_far = "" if rate is None else f", p {rate:.3f} so far"
        return f" ({len(self._window)} of {self._rules.probes} probes had figures{so_far})"

    @property
    def opened_by(self) -> Trigger:
        """What made decoding fall back last."""
        return self._opened_by

    @property
    def refused(self) -> bool:
        """Whether it stands back over a certificate alone: no round of probes has failed since."""
        return self.state is not State.SPECULATIVE and self._opened_by is Trigger.CERTIFICATE and not self._level

    def refuse(self, now: float, reason: str, evidence: Evidence) -> Change:
        """Stand back, as it is not certified: from here on it is as after any fallback."""
        self._level = 0
        self._opened_by = Trigger.CERTIFICATE
        return self._stand_back(now, Trigger.CERTIFICATE, reason, evidence)

    def accept(self, now: float, reason: str, evidence: Evidence) -> Change:
        """Speculate, as it is certified."""
        return self._change(State.SPECULATIVE, now, Trigger.CERTIFICATE, reason, evidence)

    def restore(self, state: State, at: float, trigger: Trigger, reason: str, evidence: Evidence) -> None:
        """Be as before a restart. A round of probes begins anew."""
        level = evidence.get("level")
        self._level = min(level, MOST_DOUBLINGS) if isinstance(level, int) and level >= 0 else 0
        known = {each.value: each for each in Trigger}
        self._opened_by = known.get(str(evidence.get("opened_by")), Trigger.ACCEPTANCE)
        self._dwell_s = self._dwell()
        self._enter(state, at, trigger, reason, evidence)
        if state is State.SPECULATIVE:
            self._held_until = at + self._rules.dwell_s if trigger is Trigger.PROBES else at

    # ---- what happens

    def add(self, record: Record, now: float, *, virtual: bool) -> Change | None:
        """Take in a request that ended.

        `virtual`: what was decided is not carried out, so that all requests speculate and count as probes.
        """
        self._keep_up(now)
        if record.started_at < self.since:
            return None
        arm = record.arm
        if self.state is State.SPECULATIVE:
            return self._served(record, now) if arm is Arm.SPECULATIVE else None
        if self.state is State.PROBING and (arm is Arm.PROBE or (virtual and arm is Arm.SPECULATIVE)):
            return self._probed(record, now)
        return None

    def tick(self, now: float, readings: Readings) -> Change | None:
        """Look at the clock, and at what no single request tells. At least every few seconds."""
        self._keep_up(now)
        self._readings = readings
        if self.state is State.AUTOREGRESSIVE:
            if now < self.since + self._dwell_s:
                return None
            reason = f"the dwell of {self._dwell_s:g} s is over: a share of the requests is served with speculation"
            return self._change(State.PROBING, now, Trigger.DWELL, reason, {})
        if self.state is State.PROBING:
            return self._round_over(now)
        if self.name:
            return None
        if fault := self._fault(now, readings.slow_streams):
            return self._fall_back(now, *fault)
        if now < self._held_until:
            return None
        if told := self._told(readings):
            return self._fall_back(now, *told)
        return None

    def _keep_up(self, now: float) -> None:
        """A clock that was set back must not make what holds hold for so much longer."""
        if now < self.since:
            self.since = now
            self._held_until = min(self._held_until, now + self._rules.dwell_s)

    # ---- speculative

    def _served(self, record: Record, now: float) -> Change | None:
        rules = self._rules
        failed = engine_failed(record)
        if not self.name:
            self._recent.append((now, failed))
            if (self._note_slow(record, now) or failed) and (fault := self._fault(now)):
                return self._fall_back(now, *fault)
        if not self._count(record) or now < self._held_until:
            return None
        if "acceptance" in rules.triggers and self._low():
            return None if self._excuse(now) else self.open(now)
        if self._dropped and "change" in rules.triggers:
            p = rules.rate(self._window.figures())
            if p is not None and (since := self._detector.rate) is not None and since < self.mark:
                if self._excuse(now):
                    return None
                reason = f"the acceptance rate has dropped to {since:.2f} (it is {p:.2f} over the window)"
                return self._fall_back(now, Trigger.CHANGE, reason, self._figures() | {"p_since_change": since})
        return None

    def open(self, now: float) -> Change:
        """Fall back over what the window shows."""
        return self._fall_back(now, Trigger.ACCEPTANCE, self._sentence("is below"), self._figures())

    def _fault(self, now: float, waiting: int = 0) -> tuple[Trigger, str, Evidence] | None:
        """What goes wrong with requests, whatever their figures; `waiting` streams have been for too long."""
        triggers, limit = self._rules.triggers, self._rules.first_byte_limit_s
        while self._slow and self._slow[0] < now - RECENT_S:
            self._slow.popleft()
        slow = len(self._slow) + waiting
        if limit is not None and slow >= SLOW_STREAMS and "draft_timeout" in triggers:
            reason = f"{slow} streams in {RECENT_S:g} s had their first content later than {limit:g} s"
            return Trigger.DRAFT_TIMEOUT, reason, {"slow_streams": slow, "first_byte_limit_s": limit}
        while self._recent and self._recent[0][0] < now - RECENT_S:
            self._recent.popleft()
        if "engine_errors" in triggers:
            failed = sum(bad for _, bad in self._recent)
            if failed >= FAILED and failed >= FAILED_SHARE * len(self._recent):
                reason = f"{failed} of {len(self._recent)} requests in {RECENT_S:g} s failed"
                return Trigger.ENGINE_ERRORS, reason, {"failed": failed, "requests": len(self._recent)}
        return None

    def _told(self, readings: Readings) -> tuple[Trigger, str, Evidence] | None:
        """What the readings say against speculation."""
        rules = self._rules
        if "misalignment" in rules.triggers and readings.misaligned is not None:
            return Trigger.MISALIGNMENT, readings.misaligned, {}
        similarity, low = readings.similarity, rules.similarity_below
        enough = readings.pairs >= SIMILAR_PAIRS and similarity is not None and similarity < low
        if "similarity" in rules.triggers and enough:
            reason = (
                f"draft and final texts of the last {readings.pairs} pairs have a mean similarity of {similarity:.2f}, "
                f"below {low:g}"
            )
            return Trigger.SIMILARITY, reason, {"similarity": similarity, "pairs": readings.pairs}
        if "latency_ratio" in rules.triggers and readings.latency_ratio is not None and readings.latency_ratio > 1:
            reason = (
                f"requests take {readings.latency_ratio:.2f} times as long as without speculation "
                f"(p95, concurrency {readings.concurrency})"
            )
            evidence: Evidence = {"latency_ratio": readings.latency_ratio, "concurrency": readings.concurrency}
            return Trigger.LATENCY_RATIO, reason, evidence | self._figures()
        return None

    def _fall_back(self, now: float, trigger: Trigger, reason: str, evidence: Evidence) -> Change:
        # The first time, and after a return that lasted, the dwell is the shortest. That it was held does not count.
        lasted = self.trigger is not Trigger.PROBES or now - self._held_until >= self._dwell_s
        self._level = 0 if lasted else min(self._level + 1, MOST_DOUBLINGS)
        self._opened_by = trigger
        return self._stand_back(now, trigger, reason, evidence)

    def _stand_back(self, now: float, trigger: Trigger, reason: str, evidence: Evidence) -> Change:
        self._dwell_s = self._dwell()
        held = {"dwell_s": self._dwell_s, "level": self._level, "opened_by": self._opened_by.value}
        return self._change(State.AUTOREGRESSIVE, now, trigger, reason, evidence | held)

    def _dwell(self) -> float:
        return min(self._rules.dwell_s * 2.0**self._level, self._rules.dwell_max_s)

    # ---- probing

    def _probed(self, record: Record, now: float) -> Change | None:
        rules, window = self._rules, self._window
        if record.outcome is Outcome.CLIENT_ABORT:
            return None
        self._probes += 1
        self._bad += engine_failed(record)
        self._note_slow(record, now)
        self._count(record)
        if self._bad >= BAD_PROBES:
            return self._probes_failed(now, Trigger.ENGINE_ERRORS, f"{self._bad} of {self._probes} probes failed")
        if rules.first_byte_limit_s is not None and len(self._slow) >= BAD_PROBES:
            reason = f"{len(self._slow)} probes had their first content later than {rules.first_byte_limit_s:g} s"
            return self._probes_failed(now, Trigger.DRAFT_TIMEOUT, reason)
        low = self._low()
        good = self._probes - self._bad - len(self._slow)
        figures = window.figures()
        rate = rules.rate(figures)
        # Where replies are short, so many draft tokens as a fallback takes do not come.
        last = self._probes >= MOST_PROBES * rules.probes
        enough = len(window) >= rules.probes and (last or figures.draft_tokens >= rules.min_draft_tokens)
        if self._opened_by in _FAULTS:
            enough = good >= GOOD_PROBES
        elif rate is None:
            enough = False
        elif enough:
            low = rate < self.mark
        if low:
            return self._probes_failed(now, Trigger.PROBES, self._sentence("is below", "probes"))
        if enough and (told := self._told(self._readings)):
            return self._probes_failed(now, *told)
        if enough:
            reason = (
                f"{good} of {self._probes} probes went well"
                if self._opened_by in _FAULTS
                else self._sentence("has reached", "probes")
            )
            self._held_until = now + rules.dwell_s
            evidence = self._figures() | {"level": self._level, "opened_by": self._opened_by.value}
            return self._change(State.SPECULATIVE, now, Trigger.PROBES, reason, evidence)
        return self._round_over(now)

    def _round_over(self, now: float) -> Change | None:
        if self._probes < MOST_PROBES * self._rules.probes:
            return None
        reason = f"{self._probes} probes gave no figures to decide on ({len(self._window)} had some)"
        return self._probes_failed(now, Trigger.NO_DATA, reason)

    def _probes_failed(self, now: float, trigger: Trigger, reason: str, evidence: Evidence | None = None) -> Change:
        self._level = min(self._level + 1, MOST_DOUBLINGS)
        return self._stand_back(now, trigger, reason, self._figures() | {"probes": self._probes} | (evidence or {}))

    # ---- both

    def _count(self, record: Record) -> bool:
        """Whether the request counts."""
        if not self._window.add(record):
            return False
        figures = record.acceptance
        accepted, drafted = figures.accepted_tokens or 0, figures.draft_tokens or 0
        if self._rules.below_by:
            self._marks.append((self._rules.below_of(record.model, figures.num_speculative_tokens), drafted))
        if "change" in self._rules.triggers:
            self._dropped = self._detector.add(accepted, drafted) or self._dropped
        return True

    def _note_slow(self, record: Record, now: float) -> bool:
        """Whether the first content of a stream came too late."""
        slow = came_late(record, self._rules.first_byte_limit_s)
        if slow:
            self._slow.append(now)
        return slow

    def _low(self) -> bool:
        """Whether the window's rate is below the mark: that of a full one, or one that is surely below."""
        rules, window = self._rules, self._window
        if len(window) < rules.min_requests:
            return False
        figures = window.figures()
        rate = rules.rate(figures)
        if figures.draft_tokens < rules.min_draft_tokens or rate is None or rate >= self.mark:
            return False
        if len(window) >= self._size:
            return True
        hasty = not (self._patient and self.state is State.SPECULATIVE)
        interval = window.interval(SURE) if hasty and rules.definition == "pooled" else None
        return interval is not None and interval[1] < self.mark

    def _sentence(self, relation: str, what: str = "requests") -> str:
        figures = self._window.figures()
        rate, length = self._rules.rate(figures), figures.mean_acceptance_length
        k = "?" if figures.num_speculative_tokens is None else figures.num_speculative_tokens
        name = "p" if self._rules.definition == "pooled" else "p per token"
        shown = f"{0 if rate is None else rate:.3f}"
        if rate is not None and rate != self.mark and shown == f"{self.mark:.3f}":
            # Rounded, it would be at the mark that it misses.
            shown = f"{rate:.5f}"
        return (
            f"{name} {shown} over the last {figures.requests} {what} {relation} "
            f"{self.mark:g} (k {k}, {0 if length is None else length:.2f} tokens a step)"
        )

    def _figures(self) -> Evidence:
        """The window, as a row keeps it."""
        figures = self._window.figures()
        return {
            "p": figures.p,
            "p_per_token": figures.p_per_token,
            "definition": self._rules.definition,
            "mark": self.mark,
            "low": figures.low,
            "high": figures.high,
            "k": figures.num_speculative_tokens,
            "mean_acceptance_length": figures.mean_acceptance_length,
            "requests": figures.requests,
            "verify_steps": figures.verify_steps,
            "draft_tokens": figures.draft_tokens,
            "accepted_tokens": figures.accepted_tokens,
        }

    def _change(self, after: State, now: float, trigger: Trigger, reason: str, evidence: Evidence) -> Change:
        before = self.state
        if after is State.PROBING:
            evidence = {"dwell_s": self._dwell_s, "level": self._level, "opened_by": self._opened_by.value}
        self._enter(after, now, trigger, reason, evidence)
        return Change(self.name, before, after, now, trigger, reason, evidence)

    def _enter(self, state: State, now: float, trigger: Trigger, reason: str, evidence: Evidence) -> None:
        self.state, self.since, self.trigger, self.reason, self.evidence = state, now, trigger, reason, evidence
        self.forget()

    def forget(self) -> None:
        """Count anew, while the state goes on."""
        probing, rules = self.state is State.PROBING, self._rules
        #: Requests from which on the window decides by its rate alone.
        self._size = rules.probes if probing else rules.window
        most = MOST_PROBES * rules.probes if probing else rules.window
        self._window = CountWindow(most)
        #: Mark and draft tokens of each of the window's requests, where these differ.
        self._marks: deque[tuple[float, int]] = deque(maxlen=most)
        self._detector = ChangeDetector()
        self._dropped = False
        #: When streams ended whose first content came too late; when requests ended, and whether they failed.
        self._slow: deque[float] = deque(maxlen=100)
        self._recent: deque[tuple[float, bool]] = deque(maxlen=1000)
        self._probes = 0
        self._bad = 0


def came_late(record: Record, limit_s: float | None) -> bool:
    """Whether the first content of a stream came later than that; never without a limit."""
    return limit_s is not None and record.stream and record.ttft_ms is not None and record.ttft_ms > limit_s * 1e3


def engine_failed(record: Record) -> bool:
    """Whether the engine, and not the client or the request, is to blame."""
    outcome, status = record.outcome, record.status
    if outcome is Outcome.UPSTREAM_ERROR:
        return status is None or status >= 500 or status == 200
    # A reply that is cut is what clients see of an engine that dies.
    return outcome in (Outcome.BAD_GATEWAY, Outcome.TIMEOUT, Outcome.TRUNCATED)
