import random
from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import replace
from specwatch_engine.lab.qualify.gates import (
    ENOUGH_TRIALS,
    PlainKind,
    Steps,
    Trial,
    Verdict,
    break_even_of,
    draft_step_gate,
    p_gate,
    step_times,
    tokenizer_gate,
    verdict,
)
from specwatch_engine.lab.qualify.scenarios import Overall, Scenario, Standing
from specwatch_engine.lab.summary import Gate
from support.tokenizer_report import report

from sidecar.probes.acceptance import Counted
from sidecar.probes.tokenizer_check.report import Finding, Group, Report, Severity
from sidecar.probes.tokenizer_check.report import Verdict as Aligned


def trials(
    number: int = 20, *, target: float = 10.0, draft: float = 2.0, ks: tuple[int, ...] = (1, 5), plain: bool = True
) -> list[Trial]:
    """Steps that take `target` + k `draft` ms, plain ones `target`; a prompt's own machine is faster or slower."""
    chance = random.Random(3)
    found = []
    for i in range(number):
        speed, steps = chance.uniform(0.8, 1.2), 10 + i

        def took(ms: float, steps: int = steps, speed: float = speed) -> Steps:
            return Steps(ms * steps * speed * chance.uniform(0.99, 1.01), steps)

        by_k = {k: took(target + k * draft) for k in ks}
        found.append(Trial(f"p{i}", by_k, took(target) if plain else None))
    return found


def test_the_draft_step_is_what_a_token_more_takes() -> None:
    times = step_times(trials(), PlainKind.TRUE_AR)
    assert times.k == 5
    assert times.draft is not None
    assert times.draft.value == pytest.approx(2.0, rel=0.05)
    assert times.plain is not None
    assert times.plain.value == pytest.approx(10.0, rel=0.05)
    assert times.of_plain is not None
    assert times.of_plain.value == pytest.approx(2.0, rel=0.02)
    c = times.c
    assert c is not None
    assert c.low is not None
    assert c.high is not None
    assert c.low < 0.2 < c.high
    # Each prompt's replies are slow or fast together, which cancels.
    assert c.high - c.low < 0.02
    assert not times.bounded


def test_a_reply_that_the_machine_held_up_does_not_count() -> None:
    rows = trials()
    rows[3] = Trial("held up", {1: Steps(9_000.0, 10), 5: rows[3].by_k[5]}, Steps(0.5, 10))
    c = step_times(rows, PlainKind.TRUE_AR).c
    assert c is not None
    assert c.value == pytest.approx(0.2, rel=0.1)


def test_replies_whose_events_came_all_at_once_do_not_count_as_fast() -> None:
    rows = trials()
    # Three of ten, more than a trimmed mean leaves out.
    for i in range(0, 18, 3):
        steps = rows[i].by_k[5]
        rows[i] = replace(rows[i], by_k=rows[i].by_k | {5: Steps(0.5, steps.steps, 20.0 + steps.ms - 0.5)})
    told = [
        replace(row, by_k={k: each if each.first_ms else replace(each, first_ms=20.0) for k, each in row.by_k.items()})
        for row in rows
    ]
    times = step_times(told, PlainKind.TRUE_AR)
    assert times.by_k[5].value == pytest.approx(step_times(trials(), PlainKind.TRUE_AR).by_k[5].value, rel=0.001)


def test_one_draft_length_bounds_the_draft_step() -> None:
    times = step_times(trials(target=10.0, draft=2.0, ks=(5,)), PlainKind.DISABLED)
    assert times.bounded
    assert times.draft is None
    assert times.c is not None
    assert times.c.value == pytest.approx(0.2, rel=0.05)


def test_a_draft_that_ran_in_the_plain_step_is_taken_off() -> None:
    rows = [Trial("a", {1: Steps(120.0, 10), 5: Steps(200.0, 10)}, Steps(120.0, 10))] * 12
    times = step_times(rows, PlainKind.DISABLED_DRAFT_RUNS)
    assert times.plain is not None
    assert (times.plain.value, times.c and times.c.value) == (pytest.approx(10.0), pytest.approx(0.2))
    assert "taken off" in draft_step_gate(times, 0.333).words


def test_a_draft_that_ran_in_the_plain_step_bounds_nothing_with_one_k() -> None:
    # A draft as slow as its target: plain steps with the draft in them look like verify steps of one token.
    rows = [Trial(f"p{i}", {1: Steps(200.0 + i, 10)}, Steps(200.0 + i, 10)) for i in range(20)]
    gate = draft_step_gate(step_times(rows, PlainKind.DISABLED_DRAFT_RUNS), 0.333)
    assert gate.passed is None
    assert "give --plain" in gate.words
    rows = [Trial(f"p{i}", {1: Steps(220.0 + i, 10)}, Steps(200.0 + i, 10)) for i in range(20)]
    assert draft_step_gate(step_times(rows, PlainKind.TRUE_AR), 0.333).passed is True


def test_without_plain_steps_there_is_no_ratio() -> None:
    times = step_times(trials(plain=False), None)
    assert (times.c, times.plain, times.of_plain) == (None, None, None)
    assert times.draft is not None
    assert draft_step_gate(times, 0.333).passed is None
    assert step_times([], None).by_k == {}


@pytest.mark.parametrize(
    ("rows", "limit", "passed", "said"),
    [
        (trials(draft=2.0), 0.333, True, "of a target step (95 % interval"),
        (trials(draft=5.0), 0.333, False, ", which takes "),
        (trials(draft=3.3), 0.331, None, "The limit of 0.331 lies in between"),
        (trials(draft=2.0, ks=(5,)), 0.333, True, "takes at most 0.2"),
        (trials(draft=5.0, ks=(5,)), 0.333, None, "may be below the limit"),
        (trials(draft=-0.5), 0.333, None, "which cannot be"),
        (trials(ENOUGH_TRIALS - 1), 0.333, None, "too few to tell"),
        ("there is no plain decoding", 0.333, None, "There is no plain decoding."),
    ],
)
def test_the_gate_of_the_draft_step(rows: list[Trial] | str, limit: float, passed: bool | None, said: str) -> None:
    gate = draft_step_gate(rows if isinstance(rows, str) else step_times(rows, PlainKind.TRUE_AR), limit)
    assert (gate.passed, gate.limit) == (passed, limit)
    assert said in gate.words


def test_a_draft_that_is_cheap_by_steps_with_other_cuda_graphs_has_not_passed() -> None:
    gate = draft_step_gate(step_times(trials(draft=2.0), PlainKind.DISABLED), 0.333, unlike=True)
    assert gate.passed is None
    assert "have the lab start the engine" in gate.words
    # Graphs make the draft look cheaper than it is.
    assert draft_step_gate(step_times(trials(draft=5.0), PlainKind.DISABLED), 0.333, unlike=True).passed is False


@pytest.mark.parametrize(
    ("found", "passed", "said"),
    [
        (Overall(0.7, 0.68, 0.72, 300, ()), True, "p is 0.700 (95 % interval 0.680 to 0.720) of 300 requests"),
        (Overall(0.5, 0.48, 0.52, 300, ()), False, "p is 0.500"),
        (Overall(0.65, 0.65, 0.65, 300, ()), True, "p is 0.650"),
        (Overall(0.64, 0.62, 0.66, 300, ()), None, "some 900 more prompts are likely to tell"),
        (Overall(0.65, 0.63, 0.67, 300, ()), None, "The limit of 0.65 lies in between."),
        (Overall(0.7, 0.68, 0.72, 300, ("chat",)), True, "Nothing is known of chat."),
        (Overall(0.9, 0.88, 0.92, 29, ()), None, "of 29 requests only; 30 are needed"),
        (Overall(0.9, None, None, 40, ()), None, "p is 0.900"),
        (Overall(None, None, None, 0, ("a",)), None, "No request tells"),
    ],
)
def test_the_gate_of_p(found: Overall, passed: bool | None, said: str) -> None:
    gate = p_gate(found, 0.65)
    assert (gate.passed, gate.value) == (passed, found.p)
    assert said in gate.words


@pytest.mark.parametrize(
    ("checked", "passed", "said"),
    [
        (report(verdict=Aligned.ALIGNED), True, "have the same id"),
        (
            report(
                verdict=Aligned.MISALIGNED,
                severity=Severity.HIGH,
                findings=[Finding(Severity.HIGH, "12 tokens are known by another id.")],
                ordinary=Group(100, 100, 100, 88),
                special=Group(2, 2, 2, 2),
            ),
            False,
            "102 tokens that target and draft have in common 90 have the same id. 12 tokens are known by another id.",
        ),
        (report(verdict=Aligned.UNKNOWN, severity=Severity.WARNING), None, "tokens"),
        ("/models/x: no tokenizer.json", None, "They were not compared: /models/x: no tokenizer.json."),
    ],
)
def test_the_gate_of_the_tokenizers(checked: Any, passed: bool | None, said: str) -> None:
    gate = tokenizer_gate(checked if isinstance(checked, str) else convert(checked, Report))
    assert gate.passed is passed
    assert said in gate.words


def test_break_even_by_formula_and_by_steps() -> None:
    times = step_times(trials(target=10.0, draft=2.0), PlainKind.TRUE_AR)
    found = Overall(0.6, 0.5, 0.7, 99, (), 0.77, 4.0)
    even = break_even_of(times, found, 5)
    assert even is not None
    # p + … + p^5 = 5 c = 1 at p = 0.51.
    assert even.p == pytest.approx(0.51, abs=0.02)
    assert (even.measured, even.given, even.pays) == (0.77, 4.0, True)
    assert even.tokens == pytest.approx(2.0, rel=0.05)
    poor = break_even_of(times, Overall(0.1, 0.0, 0.2, 99, (), 0.3, 1.5), 5)
    assert poor is not None
    assert poor.pays is False
    assert break_even_of(times, found, None) is None
    # Steps of another k tell nothing of this one.
    other = break_even_of(times, found, 4)
    assert other is not None
    assert (other.tokens, other.pays) == (None, None)
    unknown = break_even_of("no steps", Overall(None, None, None, 0, ()), 5)
    assert unknown is not None
    assert (unknown.p, unknown.tokens, unknown.pays) == (None, None, None)


def gate(passed: bool | None) -> Gate:
    return Gate("g", passed, None, None, "…")


def scenario(standing: Standing) -> Scenario:
    return Scenario("s", 0.5, Counted().figures(None), standing, "…", None, None)


GOOD, BAD, OPEN = (scenario(each) for each in (Standing.CERTIFIED, Standing.REJECTED, Standing.UNCERTAIN))


@pytest.mark.parametrize(
    ("needed", "beside", "scenarios", "expected"),
    [
        ((True, True, True), (True,), (GOOD, GOOD), Verdict.QUALIFIED),
        ((True, True, True), (None,), (GOOD,), Verdict.QUALIFIED),
        ((True, True, True), (False,), (GOOD,), Verdict.REJECTED),
        ((True, True, True), (), (GOOD, BAD), Verdict.IN_PART),
        ((True, True, True), (), (GOOD, OPEN), Verdict.IN_PART),
        ((True, True, True), (), (OPEN, BAD), Verdict.CANNOT_TELL),
        ((True, True, True), (), (BAD, BAD), Verdict.REJECTED),
        ((True, True, True), (), (), Verdict.CANNOT_TELL),
        ((True, False, True), (), (GOOD,), Verdict.REJECTED),
        ((True, False, None), (), (GOOD,), Verdict.REJECTED),
        ((True, True, None), (), (GOOD,), Verdict.CANNOT_TELL),
    ],
)
def test_the_verdict(
    needed: tuple[bool | None, ...],
    beside: tuple[bool | None, ...],
    scenarios: tuple[Scenario, ...],
    expected: Verdict,
) -> None:
    assert verdict([*map(gate, needed)], [*map(gate, beside)], scenarios) is expected
