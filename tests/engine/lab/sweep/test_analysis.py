"""Figures of cells that are known: ratios paired by prompt, shares, acceptance, step times, formulas."""

import math
from typing import Any

import pytest
from msgspec.structs import replace
from specwatch_engine.lab.load import Reply
from specwatch_engine.lab.prompts import CHAT, Prompt
from specwatch_engine.lab.sweep.analysis import (
    MIXED,
    differences,
    figures,
    formula,
    ratio,
    same_text,
    seeds_formula,
    slope,
    step_times,
    steps,
    times,
    words,
)
from specwatch_engine.lab.sweep.cells import PLAIN, Answer, Block, Cell, answer_of, blocks_of, cell_of
from support.records import figures as acceptance
from support.records import record
from support.swept import Clock, swept

from sidecar.record import AcceptanceQuality, Outcome


def answer(prompt: str, decode_ms: float, tokens: int = 11, **fields: Any) -> Answer:
    return Answer(prompt, fields.pop("scenario", "a"), tokens, 5.0, 5.0 + decode_ms, **fields)


def cell(k: int, *answers: Answer, **fields: Any) -> Cell:
    given = {"round": 0, "concurrency": 1, "place": 0, "arms": 2, "block": 0.0, "seconds": 2.0} | fields
    return Cell(
        "sweep",
        k=k,
        tokens=sum(a.tokens for a in answers),
        requests=len(answers),
        failures={},
        answers=list(answers),
        **given,
    )


def block(*cells: Cell) -> Block:
    return Block(0, 1, {each.k: each for each in cells})


def test_time_per_token_is_of_the_prompts_that_all_cells_answered() -> None:
    pair = block(
        cell(PLAIN, answer("1", 100), answer("2", 300), answer("3", 50)),
        cell(4, answer("1", 50), answer("2", 100), answer("lost elsewhere", 9000)),
    )
    found = times(pair, MIXED, {"a": 1.0})
    assert math.exp(found[PLAIN]) == pytest.approx(400 / 20)
    assert math.exp(differences([found], PLAIN, 4)[0]) == pytest.approx(400 / 150)


def test_mixed_traffic_weighs_replies_by_the_shares_of_the_file() -> None:
    plain = cell(PLAIN, answer("1", 100), answer("2", 100, scenario="b"), answer("3", 100, scenario="b"))
    spec = cell(2, answer("1", 50), answer("2", 100, scenario="b"), answer("3", 100, scenario="b"))
    found = times(block(plain, spec), MIXED, {"a": 0.9, "b": 0.1})
    assert math.exp(differences([found], PLAIN, 2)[0]) == pytest.approx(100 / (0.9 * 50 + 0.1 * 100))


@pytest.mark.parametrize(
    ("what", "cells"),
    [
        ("no answers", (cell(PLAIN), cell(4))),
        ("another scenario", (cell(PLAIN, answer("1", 10, scenario="b")), cell(4, answer("1", 10, scenario="b")))),
        ("replies of one token", (cell(PLAIN, answer("1", 10, 1)), cell(4, answer("1", 10, 1)))),
    ],
)
def test_nothing_to_compare_is_no_figure(what: str, cells: tuple[Cell, ...]) -> None:
    assert times(block(*cells), "a", {"a": 0.5, "b": 0.5}) == {}, what


def test_a_cell_that_failed_does_not_empty_its_block() -> None:
    good = [answer(str(i), 100) for i in range(4)]
    found = times(block(cell(PLAIN, *good), cell(3, *good), cell(4, good[0])), MIXED, {"a": 1.0})
    assert set(found) == {PLAIN, 3}


def test_ratios_are_geometric_with_an_interval_from_two_rounds_on() -> None:
    assert ratio([]) is None
    one = ratio([math.log(2)])
    assert one is not None
    assert (one.value, one.low) == (pytest.approx(2), None)
    assert words(one) == "2.00"
    two = ratio([math.log(1), math.log(4)])
    assert two is not None
    assert two.value == pytest.approx(2)
    # t of one degree of freedom at 97.5 % is 12.706; the standard error of the two logarithms is ln(4) / 2.
    assert two.high == pytest.approx(2 * math.exp(12.706 * math.log(4) / 2), rel=1e-3)
    wider = ratio([math.log(1), math.log(4)], 0.01)
    assert wider is not None
    assert wider.high is not None
    assert wider.high > (two.high or 0)


def test_acceptance_of_a_k() -> None:
    told = {"steps": 43, "drafted": 129, "accepted": 10, "truncated": 40}
    found = figures(
        [block(cell(3, answer("1", 430, 54, **told)), cell(PLAIN, answer("1", 530, 54)))], 3, "a", {"a": 1.0}
    )
    assert found.p == pytest.approx(0.07752, abs=1e-5)
    assert found.length == pytest.approx(1.23256, abs=1e-5)
    assert found.p_per_token == pytest.approx(10 / 50)
    assert found.truncation == pytest.approx(40 / 43)
    assert found.drafted_a_step == 3
    assert found.step_ms == pytest.approx(10)
    assert found.p95_ms == pytest.approx(435)
    assert found.r is not None
    assert found.r.value == pytest.approx(530 / 430)


def test_what_no_reply_tells_is_not_zero() -> None:
    found = figures([block(cell(3, answer("1", 100)), cell(PLAIN, answer("1", 100)))], 3, MIXED, {"a": 1.0})
    assert (found.p, found.p_per_token, found.length, found.truncation, found.step_ms) == (None,) * 5
    assert found.throughput == pytest.approx(11 / 2)
    nothing = figures([], 3, MIXED, {"a": 1.0})
    assert (nothing.r, nothing.p95_ms, nothing.throughput, nothing.rounds) == (None, None, None, 0)


def test_p_of_mixed_traffic_is_weighed_by_the_shares() -> None:
    high = {"steps": 10, "drafted": 40, "accepted": 36, "truncated": 2}
    low = {"steps": 10, "drafted": 40, "accepted": 4, "truncated": 9}
    mixed = block(cell(4, answer("1", 9, **high), answer("2", 9, scenario="b", **low)))
    assert figures([mixed], 4, MIXED, {"a": 0.75, "b": 0.25}).p == pytest.approx(0.75 * 0.9 + 0.25 * 0.1)


@pytest.mark.parametrize("drift", [0.0, 0.5])
def test_step_times_are_a_line_whatever_the_clock_does(drift: float) -> None:
    cells = swept(Clock({"a": 0.7}, a=12, b=1.5, drift=drift, span_s=60), {"a": 40}, ks=(1, 3, 5, 8), rounds=4)
    found = step_times(blocks_of(cells, "sweep"))
    assert found is not None
    assert found.c == pytest.approx(0.15, rel=0.03)
    assert found.a_ms / found.plain_ms == pytest.approx(1.2, rel=0.03)


def test_replies_whose_events_came_all_at_once_do_not_count_as_fast() -> None:
    cells = swept(Clock({"a": 0.7}, a=12, b=1.5), {"a": 40}, ks=(1, 4), rounds=3)

    def speed(served: list[Cell]) -> float:
        found = ratio(differences((times(each, MIXED, {"a": 1.0}) for each in blocks_of(served, "sweep")), PLAIN, 4))
        assert found is not None
        return found.value

    burst = [
        replace(each, answers=[replace(one, ttft_ms=one.latency_ms - 0.5) for one in each.answers])
        if (each.round, each.k) == (1, 4)
        else each
        for each in cells
    ]
    assert speed(burst) == pytest.approx(speed(cells), rel=0.001)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_slope_is_that_of_the_clock_though_blocks_differ(noise: float) -> None:
    clock = Clock({"a": 0.7}, a=12, b=1.8, drift=0.4, span_s=100, cell_noise=noise, seed=1)
    found = slope(blocks_of(swept(clock, {"a": 40}, rounds=8), "sweep"))
    assert found == pytest.approx(0.15, rel=0.05 if not noise else 0.35)


def test_steps_per_token_leave_the_clock_out() -> None:
    told = {"steps": 4, "drafted": 8, "accepted": 6, "truncated": 1}
    slow = block(cell(PLAIN, answer("1", 100)), cell(2, answer("1", 5000, **told)))
    found = steps(slow, MIXED, {"a": 1.0})
    assert found == {PLAIN: 0.0, 2: pytest.approx(math.log(4 / 10))}
    untold = block(cell(PLAIN, answer("1", 100)), cell(2, answer("1", 50)))
    assert steps(untold, MIXED, {"a": 1.0}) == {PLAIN: 0.0}


def test_a_line_needs_two_ks() -> None:
    told = {"steps": 4, "drafted": 8, "accepted": 6, "truncated": 1}
    assert step_times([block(cell(PLAIN, answer("1", 100)), cell(2, answer("1", 50, **told)))]) is None
    assert step_times([]) is None


@pytest.mark.parametrize(
    ("k", "p", "c", "ideal", "real"),
    [
        (4, 0.78, 0.1, 3.34, (1 - 0.78**5) / 0.22 / 1.4),
        (1, 0.5, 0.2, 1.0, 1.5 / 1.2),
        (3, 1.0, 0.25, 3.0, 4 / 1.75),
        (3, 0.0, 0.25, 1.0, 1 / 1.75),
    ],
)
def test_formulas(k: int, p: float, c: float, ideal: float, real: float) -> None:
    assert seeds_formula(k, p) == pytest.approx(ideal)
    assert formula(k, p, c) == pytest.approx(real)


def test_formulas_of_what_is_not_known() -> None:
    assert seeds_formula(3, None) is None
    assert formula(3, None, 0.1) is None
    assert formula(3, 0.5, None) is None
    assert formula(3, 0.5, -0.5) is None


def test_the_formula_agrees_with_a_clock_that_keeps_to_it() -> None:
    cells = swept(Clock({"a": 0.75}, a=10, b=1, tokens=4000), {"a": 60}, ks=(2, 4, 6), rounds=3)
    blocks = blocks_of(cells, "sweep")
    steps = step_times(blocks)
    assert steps is not None
    for k in (2, 4, 6):
        of = figures(blocks, k, MIXED, {"a": 1.0})
        assert of.r is not None
        assert of.r.value == pytest.approx(formula(k, of.p_per_token, steps.c) or 0, rel=0.02)


def test_texts_are_compared_with_the_plain_one() -> None:
    plain = cell(PLAIN, answer("1", 9, text="x"), answer("2", 9, text="y"))
    spec = cell(4, answer("1", 9, text="x"), answer("2", 9, text="z"), answer("3", 9, text="x"))
    assert same_text([block(plain, spec)]) == (1, 2)


# ---- rows


def test_a_cell_comes_back_from_its_row() -> None:
    there = cell(4, answer("1", 9, steps=2, drafted=8, accepted=5, truncated=1, text="abc"))
    assert cell_of(there.row()) == there


@pytest.mark.parametrize(
    "row", [{}, {"stage": "sweep"}, {**cell(1).row(), "k": "four"}, {**cell(1).row(), "answers": 3}]
)
def test_a_row_of_another_shape_names_the_remedy(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="begin a new run"):
        cell_of(row)


def test_a_block_that_was_cut_does_not_count_and_its_later_whole_one_does() -> None:
    cut = [cell(0, block=1.0, arms=3), cell(1, block=1.0, arms=3)]
    assert blocks_of(cut, "sweep") == []
    again = [cell(k, block=2.0, arms=3, seconds=7.0) for k in (2, 0, 1)]
    (found,) = blocks_of([*cut, *again], "sweep")
    assert found.seconds == 21.0
    assert blocks_of(again, "confirm") == []


PROMPT = Prompt("p1", "billing", {"messages": []}, CHAT)


def reply(text: str = "hello", **fields: Any) -> Reply:
    given = {"completion_tokens": 30, "ttft_ms": 10.0, "latency_ms": 400.0, "acceptance": acceptance((10, 5, 5, 20))}
    return Reply(PROMPT, record(**given | fields), text, None, 3)


def test_an_answer_has_what_its_record_tells() -> None:
    found = answer_of(reply())
    assert found is not None
    assert (found.prompt, found.scenario, found.tokens, found.decode_ms) == ("p1", "billing", 30, 390.0)
    assert (found.steps, found.drafted, found.accepted, found.truncated) == (40, 120, 75, 20)
    other = answer_of(reply("other"))
    assert other is not None
    assert other.text != found.text


@pytest.mark.parametrize(
    "fields",
    [{"outcome": Outcome.TIMEOUT}, {"ttft_ms": None}, {"latency_ms": None}, {"completion_tokens": None}],
)
def test_a_reply_without_times_or_tokens_is_no_answer(fields: dict[str, Any]) -> None:
    assert answer_of(reply(**fields)) is None


def test_figures_that_cannot_be_true_are_left_out() -> None:
    found = answer_of(reply(acceptance=acceptance((10, 5), quality=AcceptanceQuality.INCONSISTENT, reason="too many")))
    assert found is not None
    assert (found.steps, found.drafted, found.accepted, found.truncated) == (None,) * 4
