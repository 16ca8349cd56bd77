"""One switch that decides by itself. C04, C06, C07."""

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.traffic import accepting

from sidecar.control.circuit import MOST_DOUBLINGS, Change, Circuit, Readings, Rules, State, Trigger
from sidecar.record import Acceptance, Arm, Outcome, Record

START = 1_800_000_000.0


class Run:
    """A circuit under a clock that goes on by a tenth of a second a request."""

    def __init__(self, *, name: str = "", step_s: float = 0.1, virtual: bool = False, **rules: Any) -> None:
        self.rules = Rules(**rules)
        self.circuit = Circuit(self.rules, name, START)
        self.now = START
        self.step_s = step_s
        self.virtual = virtual
        self.changes: list[Change] = []

    def ask(self, p: float | None, count: int = 1, readings: Readings = Readings(), **fields: Any) -> None:  # noqa: B008
        """So many requests, served as the circuit says: with speculation, as probes, or not at all."""
        for _ in range(count):
            self.now += self.step_s
            self.note(self.circuit.tick(self.now, readings))
            if self.circuit.state is not State.AUTOREGRESSIVE:
                arm = Arm.PROBE if self.circuit.state is State.PROBING and not self.virtual else Arm.SPECULATIVE
                self.give(p, arm=arm, **fields)

    def give(self, p: float | None, **fields: Any) -> None:
        made: Record = accepting(p or 0.0, started_at=self.now, **fields)
        if p is None:
            made = replace(made, acceptance=Acceptance())
        self.note(self.circuit.add(made, self.now, virtual=self.virtual))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.note(self.circuit.tick(self.now, Readings()))

    def note(self, change: Change | None) -> None:
        if change is not None:
            self.changes.append(change)

    @property
    def told(self) -> list[tuple[State, Trigger]]:
        return [(change.after, change.trigger) for change in self.changes]


AR, SPEC, PROBING = State.AUTOREGRESSIVE, State.SPECULATIVE, State.PROBING


def test_it_falls_back_within_a_hundred_requests_of_the_shift() -> None:
    run = Run()
    run.ask(0.9, 300)
    assert not run.changes
    run.ask(0.45, 100)
    ((state, trigger),) = run.told
    (change,) = run.changes
    assert (state, trigger) == (AR, Trigger.ACCEPTANCE)
    shifted = round((change.at - START) / 0.1) - 300
    # 100 requests at 0.9 of which n are at 0.45 now: below 0.65 from the 56th on.
    assert shifted == 56
    assert change.evidence["p"] == pytest.approx(0.648)
    assert (change.evidence["requests"], change.evidence["k"], change.evidence["mark"]) == (100, 4, 0.65)
    assert change.reason == "p 0.648 over the last 100 requests is below 0.65 (k 4, 3.59 tokens a step)"
    assert change.evidence["dwell_s"] == 60


def test_what_is_just_below_the_mark_is_not_told_as_at_it() -> None:
    run = Run()
    run.ask(0.6497, 100, draft_tokens=10_000)
    (change,) = run.changes
    assert change.reason.startswith("p 0.64970 over the last 10 requests is below 0.65 ")


def test_c07_warm_up_window_dwell_and_hysteresis() -> None:
    run = Run(window=50)
    run.ask(0.1, 3)
    run.ask(0.8, 50)
    assert not run.changes
    run.ask(0.60, 50)
    assert run.told == [(AR, Trigger.ACCEPTANCE)]
    run.wait(60)
    for _ in range(25):  # 50 probes at 0.66, which scatter as real ones do
        run.ask(0.46)
        run.ask(0.86)
    assert run.told[1:] == [(PROBING, Trigger.DWELL), (AR, Trigger.PROBES)]
    assert run.changes[-1].evidence["dwell_s"] == 120
    run.wait(119)
    run.ask(0.75, 9)
    assert run.circuit.state is AR
    run.wait(1)
    run.ask(0.75, 50)
    assert run.told[3:] == [(PROBING, Trigger.DWELL), (SPEC, Trigger.PROBES)]


def test_few_requests_decide_where_they_leave_no_doubt() -> None:
    run = Run()
    run.ask(0.16, 10, draft_tokens=400)
    assert run.told == [(AR, Trigger.ACCEPTANCE)]
    # Ten that scatter do not.
    run = Run()
    for p in (0.1, 0.9, 0.5, 0.2, 0.9, 0.6, 0.3, 0.9, 0.8, 0.4):
        run.ask(p)
    assert not run.changes


def test_draft_tokens_have_a_minimum_too() -> None:
    run = Run(min_draft_tokens=2000)
    run.ask(0.1, 99, draft_tokens=20)
    assert not run.changes
    run.ask(0.1, 1, draft_tokens=20)
    assert run.changes[0].evidence["draft_tokens"] == 2000


def test_c04_requests_without_drafts_are_no_evidence() -> None:
    run = Run()
    run.ask(None, 200)
    run.ask(0.8, 20)
    assert not run.changes
    assert run.circuit.window.figures().p == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("k", "below_by", "falls"),
    [(4, {}, True), (8, {"k=8": 0.4}, False), (4, {"k=8": 0.4}, True), (8, {"model=target": 0.5, "k=8": 0.3}, True)],
)
def test_c06_the_mark_may_depend_on_k_and_model(k: int, below_by: dict[str, float], falls: bool) -> None:
    run = Run(below_by=below_by)
    run.ask(0.44, 100, k=k, draft_tokens=160)
    assert bool(run.changes) is falls
    if run.changes:
        assert run.changes[0].evidence["k"] == k
        assert run.changes[0].evidence["definition"] == "pooled"


def test_c06_where_marks_differ_each_draft_token_has_its_own() -> None:
    """Two models, each fine by its own mark; then one of them is not."""
    run = Run(below_by={"model=small": 0.4})
    for _ in range(100):
        run.ask(0.45, model="small")
        run.ask(0.75, model="large")
    assert not run.changes
    for _ in range(50):
        run.ask(0.45, model="small")
        run.ask(0.55, model="large")
    assert run.told == [(AR, Trigger.ACCEPTANCE)]
    assert run.changes[0].evidence["mark"] == pytest.approx(0.525)


def test_c06_the_three_runs() -> None:
    """One threshold on p, three draft lengths: what is decided tells k, p and the mean acceptance length."""
    for k, accepted, drafted, p, length in (
        (1, 22_021, 26_407, 0.834, 1.83),
        (8, 38_611, 88_344, 0.437, 4.50),
        (3, 167, 259, 0.6448, 2.92),
    ):
        run = Run(min_requests=5, min_draft_tokens=100)
        steps, plain = -(-drafted // k), accepting(0.5)
        totals = {"verify_steps": steps, "draft_tokens": drafted, "accepted_tokens": accepted}
        figures = replace(plain.acceptance, num_speculative_tokens=k, **totals)
        for _ in range(100):
            run.now += 0.1
            each = replace(plain, acceptance=figures, started_at=run.now)
            run.note(run.circuit.add(each, run.now, virtual=False))
            if run.changes:
                break
        if p >= 0.65:
            assert not run.changes
            continue
        evidence = run.changes[0].evidence
        assert evidence["k"] == k
        assert evidence["p"] == pytest.approx(p, abs=5e-4)
        assert evidence["mean_acceptance_length"] == pytest.approx(length, abs=0.02)
        assert f"(k {k}, {length:.2f} tokens a step)" in run.changes[0].reason


def test_per_token_is_another_figure() -> None:
    # Pooled 0.5, but of the 63 tokens that were judged 50: the rest lay behind a rejection.
    run = Run(definition="per_token", below=0.75, above=0.8)
    run.ask(0.5, 150)
    assert not run.changes
    run = Run(definition="per_token", below=0.8, above=0.85)
    run.ask(0.5, 99)
    assert not run.changes  # a window that is not full decides by the pooled rate's interval alone
    run.ask(0.5, 1)
    assert run.told == [(AR, Trigger.ACCEPTANCE)]


def test_a_return_that_does_not_last_makes_the_next_dwell_longer() -> None:
    """Probes are fine each time, and the rest is not: the switches become rarer."""
    run = Run(window=20, probes=20)
    dwells = []
    for _ in range(4):
        while run.circuit.state is not AR:
            run.ask(0.4)
        dwells.append(run.changes[-1].evidence["dwell_s"])
        run.wait(float(str(dwells[-1])))
        run.ask(0.9, 20)
        assert run.circuit.state is SPEC
    assert dwells == [60, 120, 240, 480]
    # One that lasted longer than the dwell before it begins with the shortest again.
    run.ask(0.9, 100_000)
    run.ask(0.4, 100)
    assert run.changes[-1].evidence["dwell_s"] == 60


def test_the_dwell_has_an_end() -> None:
    run = Run(dwell_s=60, dwell_max_s=200, probes=10, window=20)
    run.ask(0.3, 30)
    for _ in range(6):
        run.wait(200)
        run.ask(0.3, 10)
    assert [change.evidence["dwell_s"] for change in run.changes if change.after is AR][:4] == [60, 120, 200, 200]


def test_flapping_switches_at_most_once_a_dwell() -> None:
    """p around 0.65 for ten minutes, ten requests a second, and as many probes as there are requests."""
    noise = random.Random(5)
    run = Run()
    while run.now < START + 600:
        run.ask(min(max(noise.gauss(0.65, 0.15), 0), 1))
    switches = [change for change in run.changes if SPEC in (change.before, change.after)]
    assert switches
    times = [change.at for change in switches]
    assert all(later - earlier >= 60 for earlier, later in pairwise(times))
    assert len(switches) <= 10


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.2, 0.6, 0.65, 0.7, 0.9]))
def test_whatever_comes_it_holds_what_it_decided(seed: int, around: float) -> None:
    """Laws: states follow each other in order, a dwell is kept, probes are bounded, no switch is without evidence."""
    chance = random.Random(seed)
    run = Run(window=20, probes=10, dwell_s=5, dwell_max_s=40)
    for _ in range(1500):
        p = None if chance.random() < 0.2 else min(max(chance.gauss(around, 0.2), 0), 1)
        run.ask(p, outcome=chance.choice([Outcome.OK] * 30 + [*Outcome]), status=chance.choice([200, 500]))
    after = {SPEC: {AR}, AR: {PROBING}, PROBING: {SPEC, AR}}
    state, since = SPEC, START
    for change in run.changes:
        assert change.before is state
        assert change.after in after[state]
        assert change.reason
        if state is AR:
            assert change.at - since >= 5
        state, since = change.after, change.at
    assert state is run.circuit.state


def failing(run: Run, count: int, **more: Any) -> None:
    for _ in range(count):
        run.ask(None, outcome=Outcome.UPSTREAM_ERROR, status=500, **more)


def test_engine_errors_open_it_at_once_and_good_probes_close_it() -> None:
    run = Run()
    run.ask(0.9, 4)
    failing(run, 4)
    assert not run.changes
    failing(run, 1)
    assert run.told == [(AR, Trigger.ENGINE_ERRORS)]
    assert run.changes[0].evidence["failed"] == 5
    run.wait(60)
    failing(run, 3)
    assert run.told[1:] == [(PROBING, Trigger.DWELL), (AR, Trigger.ENGINE_ERRORS)]
    run.wait(120)
    run.ask(0.6, 5)
    assert run.told[3:] == [(PROBING, Trigger.DWELL), (SPEC, Trigger.PROBES)]
    assert run.changes[-1].reason == "5 of 5 probes went well"


@pytest.mark.parametrize(
    ("outcome", "status", "counts"),
    [
        (Outcome.UPSTREAM_ERROR, 500, True),
        (Outcome.UPSTREAM_ERROR, 200, True),
        (Outcome.BAD_GATEWAY, 502, True),
        (Outcome.TIMEOUT, 504, True),
        (Outcome.UPSTREAM_ERROR, 404, False),
        (Outcome.UPSTREAM_ERROR, 429, False),
        (Outcome.CLIENT_ABORT, None, False),
        (Outcome.TRUNCATED, 200, True),
    ],
)
def test_what_counts_as_an_engine_error(outcome: Outcome, status: int | None, counts: bool) -> None:
    run = Run()
    run.ask(None, 10, outcome=outcome, status=status)
    assert bool(run.changes) is counts


def test_a_few_errors_among_many_requests_are_none_of_its_business() -> None:
    run = Run()
    for _ in range(20):
        run.ask(0.9, 9)
        failing(run, 1)
    assert not run.changes


def test_late_first_content_opens_it_and_so_do_streams_that_wait() -> None:
    run = Run(first_byte_limit_s=2.0)
    run.ask(0.9, 2, ttft_ms=2500, stream=True)
    run.ask(0.9, 50, ttft_ms=100, stream=True)
    assert not run.changes
    run.ask(0.9, 1, ttft_ms=2001, stream=True)
    assert run.told == [(AR, Trigger.DRAFT_TIMEOUT)]
    waiting = Run(first_byte_limit_s=2.0)
    waiting.ask(0.9, 2, ttft_ms=2500, stream=True)
    waiting.note(waiting.circuit.tick(waiting.now, Readings(slow_streams=1)))
    assert waiting.told == [(AR, Trigger.DRAFT_TIMEOUT)]
    # One that has ended since it was last looked who waits is not two.
    ended = Run(first_byte_limit_s=2.0)
    ended.note(ended.circuit.tick(ended.now, Readings(slow_streams=2)))
    for _ in range(2):
        ended.give(0.9, arm=Arm.SPECULATIVE, ttft_ms=2500, stream=True)
    assert not ended.changes
    # Three in ten minutes are not three in one.
    seldom = Run(first_byte_limit_s=2.0, step_s=61)
    seldom.ask(0.9, 10, ttft_ms=2500, stream=True)
    assert not seldom.changes
    assert not Run().changes


TOLD = {
    "misalignment": (Readings(misaligned="1 token has another id"), Trigger.MISALIGNMENT),
    "similarity": (Readings(similarity=0.7, pairs=50), Trigger.SIMILARITY),
    "latency_ratio": (Readings(latency_ratio=1.2, concurrency="17-32"), Trigger.LATENCY_RATIO),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_no_single_request_tells(name: str) -> None:
    readings, trigger = TOLD[name]
    run = Run(triggers=frozenset((name,)))
    run.ask(0.9, 1, readings)
    assert run.told == [(AR, trigger)]
    run.wait(60)
    # Probes whose acceptance is fine do not bring it back while that is still so.
    run.ask(0.9, 50, readings)
    assert run.told[1:] == [(PROBING, Trigger.DWELL), (AR, trigger)]
    run.wait(120)
    run.ask(0.9, 50)
    assert run.circuit.state is SPEC
    # Neither by default nor in a slice.
    for other in (Run(), Run(name="scenario=billing", triggers=frozenset((name,)))):
        other.ask(0.9, 30, readings)
        assert not other.changes


def test_too_little_to_tell() -> None:
    run = Run(triggers=frozenset(TOLD))
    run.ask(0.9, 5, Readings(similarity=0.1, pairs=49, latency_ratio=1.0))
    assert not run.changes


def test_a_few_probes_are_held_to_the_mark_as_many_are() -> None:
    run = Run(probes=5)
    run.ask(0.3, 100)
    run.wait(60)
    run.ask(0.69, 5)
    assert run.told[1:] == [(PROBING, Trigger.DWELL), (AR, Trigger.PROBES)]


def test_probes_without_figures_come_to_an_end() -> None:
    run = Run(probes=10)
    run.ask(0.3, 100)
    run.wait(60)
    run.ask(None, 40)
    assert run.told[1:] == [(PROBING, Trigger.DWELL), (AR, Trigger.NO_DATA)]
    assert run.changes[-1].reason == "40 probes gave no figures to decide on (0 had some)"


@pytest.mark.parametrize(("probes", "draft_tokens", "asked"), [(50, 8, 63), (10, 40, 13), (10, 4, 40)])
def test_short_replies_bring_it_back_too(probes: int, draft_tokens: int, asked: int) -> None:
    """As many draft tokens as a fallback takes, of more probes; where not even these have them, all there may be."""
    run = Run(probes=probes)
    run.ask(0.3, 100)
    run.wait(60)
    run.ask(0.75, asked - 1, draft_tokens=draft_tokens)
    assert run.circuit.state is PROBING
    run.ask(0.75, 1, draft_tokens=draft_tokens)
    assert run.circuit.state is SPEC


def test_probes_whose_rate_is_unknown_say_nothing() -> None:
    run = Run(definition="per_token", probes=10)
    run.ask(0.0, 100)
    run.wait(60)
    blind = replace(accepting(0.9), arm=Arm.PROBE, started_at=run.now)
    blind = replace(blind, acceptance=replace(blind.acceptance, rejected_at=None, reached=None))
    for _ in range(40):
        run.note(run.circuit.add(blind, run.now, virtual=False))
    assert run.told[1:] == [(PROBING, Trigger.DWELL), (AR, Trigger.NO_DATA)]


def test_a_clock_that_is_set_back_keeps_nothing_from_ending() -> None:
    run = Run()
    run.now -= 3600
    run.ask(0.3, 700)
    assert run.told == [(AR, Trigger.ACCEPTANCE)]
    run.now -= 3600
    run.ask(0.9, 1)
    run.wait(60)
    run.ask(0.9, 50)
    assert run.told[1:] == [(PROBING, Trigger.DWELL), (SPEC, Trigger.PROBES)]


def test_probes_of_a_draft_that_is_surely_bad_end_early() -> None:
    run = Run()
    run.ask(0.3, 100)
    run.wait(60)
    run.ask(0.1, 50)
    assert run.told[1:] == [(PROBING, Trigger.DWELL), (AR, Trigger.PROBES)]
    assert run.changes[-1].evidence["requests"] == 10


def test_a_round_of_probes_tells_how_far_it_is() -> None:
    run = Run()
    run.ask(0.3, 100)
    assert run.circuit.progress == ""
    run.wait(60)
    assert run.circuit.progress == " (0 of 50 probes had figures)"
    run.ask(0.8, 3)
    assert run.circuit.progress == " (3 of 50 probes had figures, p 0.800 so far)"


def test_only_what_was_begun_after_a_change_counts() -> None:
    run = Run()
    run.ask(0.3, 10)
    assert run.circuit.state is AR
    run.wait(60)
    started = run.circuit.since - 1
    for _ in range(50):
        late = accepting(0.9, started_at=started, arm=Arm.PROBE)
        run.note(run.circuit.add(late, run.now, virtual=False))
    run.note(run.circuit.add(accepting(0.9, started_at=run.now), run.now, virtual=False))  # no probe
    assert len(run.circuit.window) == 0


def test_where_nothing_is_carried_out_all_requests_are_probes() -> None:
    run = Run(virtual=True)
    run.ask(0.3, 100)
    run.wait(60)
    run.ask(0.9, 50)
    assert run.told == [(AR, Trigger.ACCEPTANCE), (PROBING, Trigger.DWELL), (SPEC, Trigger.PROBES)]


def test_a_restart_changes_nothing() -> None:
    run = Run(probes=10)
    run.ask(0.3, 100)
    run.wait(60)
    run.ask(0.3, 10)
    last = run.changes[-1]
    again = Circuit(run.rules, "", run.now)
    again.restore(last.after, last.at, last.trigger, last.reason, last.evidence)
    assert (again.state, again.since, again.until) == (AR, last.at, last.at + 120)
    assert again.tick(last.at + 119, Readings()) is None
    change = again.tick(last.at + 120, Readings())
    assert change is not None
    assert change.after is PROBING
    for evidence in ({}, {"level": "x"}, {"level": -1}, {"level": True, "opened_by": "nobody"}, {"opened_by": []}):
        again.restore(AR, last.at, last.trigger, "r", evidence)
        assert again.until is not None


@pytest.mark.parametrize("p", [0.70, 0.75])
def test_a_healthy_draft_is_let_be(p: float) -> None:
    """Requests whose own p is beta distributed (correlation 0.1): no switch in 20 times 300 requests."""
    chance = random.Random(11)
    spread = 1 / 0.1 - 1
    switched = 0
    for _ in range(20):
        run = Run()
        for _ in range(300):
            own = chance.betavariate(p * spread, (1 - p) * spread)
            run.ask(own, draft_tokens=chance.choice([40, 80, 160]))
        switched += bool(run.changes)
    assert switched <= (4 if p < 0.75 else 0)


def test_drafts_that_stay_bad_for_months_are_probed_all_the_time() -> None:
    run = Run(probes=5, min_requests=5, min_draft_tokens=50, dwell_s=10, dwell_max_s=20, window=10)
    run.ask(0.1, 20)
    for _ in range(1100):
        run.wait(20)
        run.ask(0.1, 5)
    assert run.told[-2:] == [(PROBING, Trigger.DWELL), (AR, Trigger.PROBES)]
    assert len(run.changes) == 2201
    level = run.changes[-1].evidence["level"]
    assert (level, run.changes[-1].evidence["dwell_s"]) == (MOST_DOUBLINGS, 20)
    # What a restart finds, also of a version that counted on.
    run.circuit.restore(AR, run.now, Trigger.PROBES, "p 0.1", {"level": 700})
    assert run.circuit.until == run.now + 20
