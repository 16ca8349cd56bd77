"""The verdict and the summary of sweeps whose clock is known."""

from typing import Any

import msgspec
import pytest
from specwatch_engine.lab.stats import Estimate
from specwatch_engine.lab.summary import Kind, Summary, read
from specwatch_engine.lab.sweep import plan
from specwatch_engine.lab.sweep.cells import Cell, blocks_of
from specwatch_engine.lab.sweep.found import CANNOT_TELL, NO_GAIN, RECOMMENDED, UNCONFIRMED, Asked, At, analyse, verdict
from specwatch_engine.lab.sweep.recommend import Choice, Neighbour, Race, neighbours
from specwatch_engine.lab.sweep.report import in_short, saving, summary
from support.swept import Clock, prompts, swept

TRAFFIC = {"easy": 60, "hard": 40}
SHARES = {"easy": 0.6, "hard": 0.4}
KS = (1, 2, 4)
GOOD = {"easy": 0.9, "hard": 0.5}


def asked(**changes: Any) -> Asked:
    given: dict[str, Any] = {
        "ks": KS,
        "concurrencies": (1, 4),
        "shares": SHARES,
        "most": 10,
        "rounds": 5,
        "baseline": "spec_disabled",
        "confirm": True,
    }
    return Asked(**given | changes)


def confirmation(clock: Clock, chosen: dict[int, int], rounds: int = 4) -> list[Cell]:
    deal = plan.Deal(prompts(TRAFFIC), SHARES, dict.fromkeys(chosen, 12), 0)
    cells: list[Cell] = []
    while turn := plan.next_turn(
        blocks_of(cells, "confirm"), tuple(chosen), rounds, 1, lambda c, blocks: neighbours(chosen[c], 10)
    ):
        batch, block = deal.batch(turn.round, turn.concurrency, held_out=True), float(len(cells))
        cells += [clock.cell("confirm", turn, place, block, batch) for place in range(len(turn.order))]
    return cells


def cells_of(clock: Clock, confirming: Clock | None = None, rounds: int = 4) -> list[Cell]:
    found = swept(clock, TRAFFIC, KS, (1, 4), rounds=5)
    if confirming is not None:
        chosen = {at.concurrency: at.choice.k for at in analyse(found, asked()) if at.choice and at.choice.k}
        found += confirmation(confirming, chosen, rounds)
    return found


class Turned(Clock):
    """A clock that takes much more time for one k, as if the sweep had been wrong of it."""

    slow = 0

    def step_ms(self, k: int) -> float:
        return super().step_ms(k) * (2.0 if k == self.slow else 1.0)


def turned(slow: int) -> Turned:
    clock = Turned(GOOD, b=1.0, cell_noise=0.01, seed=5)
    clock.slow = slow
    return clock


@pytest.mark.parametrize(
    ("name", "clock", "confirming", "rounds", "word"),
    [
        ("a good draft", Clock(GOOD, b=1.0), Clock(GOOD, b=1.0, seed=9), 3, RECOMMENDED),
        ("two rounds of confirmation", Clock(GOOD, b=1.0), Clock(GOOD, b=1.0, seed=9), 2, UNCONFIRMED),
        ("no confirmation", Clock(GOOD, b=1.0), None, 0, UNCONFIRMED),
        ("a costly draft", Clock({"easy": 0.3, "hard": 0.3}, b=8.0, cell_noise=0.01), None, 0, NO_GAIN),
        ("noise", Clock({"easy": 0.5, "hard": 0.5}, b=4.5, cell_noise=0.3), None, 0, CANNOT_TELL),
    ],
)
def test_verdicts(name: str, clock: Clock, confirming: Clock | None, rounds: int, word: str) -> None:
    assert verdict(analyse(cells_of(clock, confirming, rounds), asked())) == word, name


def test_one_concurrency_without_its_confirmation_is_enough_to_say_so() -> None:
    cells = cells_of(Clock(GOOD, b=1.0), Clock(GOOD, b=1.0, seed=9))
    only_one = [cell for cell in cells if cell.stage == "sweep" or cell.concurrency == 1]
    assert verdict(analyse(only_one, asked())) == UNCONFIRMED


def test_nothing_served_cannot_tell() -> None:
    assert verdict(analyse([], asked())) == CANNOT_TELL
    found = summary([], asked(), None, {})
    assert found.verdict == CANNOT_TELL


def test_two_rounds_cannot_tell() -> None:
    cells = swept(Clock(GOOD, b=1.0), TRAFFIC, KS, (1,), rounds=2)
    assert verdict(analyse(cells, asked(concurrencies=(1,)))) == CANNOT_TELL


def whole(found: Summary) -> str:
    """What is read of it, after it went through JSON and its shape was checked."""
    again = read(found.json())
    for plot in again.plots:
        for series in plot.series:
            assert all(part is None or len(part) == len(plot.x) for part in (series.y, series.low, series.high))
    for table in again.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    return " ".join(again.reasons)


def test_a_confirmed_recommendation() -> None:
    clock = Clock(GOOD, b=1.0, cell_noise=0.01)
    cells = cells_of(clock, Clock(GOOD, b=1.0, cell_noise=0.01, seed=9))
    found = summary(cells, asked(), [[1, 2, 4], [3, 16, 4]], {"cells": "cells.jsonl"})
    said = whole(found)
    assert found.verdict == RECOMMENDED
    assert "The engine's table of draft tokens by batch size: [[1, 2, 4], [3, 16, 4]]." in said
    assert "At 1 in flight k=4 is recommended: R is 2." in said
    assert "Confirmation at 1 in flight, with other prompts: k=3 " in said
    assert [gate.passed for gate in found.gates] == [True, True, True, True]
    assert {plot.kind for plot in found.plots} == {Kind.LINES, Kind.HEAT}
    first = found.plots[0]
    assert [series.name for series in first.series] == [
        "R measured",
        "1+(k-1)p",
        "(1-p^(k+1))/(1-p)/(1+kc), p per token",
    ]
    assert (first.x, first.mark) == ([1, 2, 4], 1.0)
    assert "More than 35%" in said  # with a p of 0.5, four tokens are hardly ever all accepted


def test_a_confirmation_that_contradicts_withdraws_the_verdict() -> None:
    found = summary(cells_of(Clock(GOOD, b=1.0), turned(4)), asked(), None, {})
    said = whole(found)
    assert found.verdict == CANNOT_TELL
    assert "the recommendation does not hold" in said
    assert False in [gate.passed for gate in found.gates]


def test_a_gain_that_the_confirmation_does_not_see_is_none() -> None:
    found = summary(
        cells_of(Clock(GOOD, b=1.0), Clock(GOOD, b=1.0, plain=3.5, cell_noise=0.2, seed=9)), asked(), None, {}
    )
    assert found.verdict == CANNOT_TELL
    assert "That is no sure gain." in whole(found)


def test_a_confirmation_that_did_not_run_is_not_passed() -> None:
    found = summary(cells_of(Clock(GOOD, b=1.0)), asked(), None, {})
    confirmed = [gate for gate in found.gates if "confirmed" in gate.name]
    assert [gate.passed for gate in confirmed] == [None, None]
    assert found.reasons[1] == (
        "No second run with other prompts has confirmed it: that did not come to its end; go on by --resume."
    )
    without = summary(cells_of(Clock(GOOD, b=1.0)), asked(confirm=False), None, {})
    assert not [gate for gate in without.gates if "confirmed" in gate.name]
    assert without.verdict == found.verdict == UNCONFIRMED
    assert without.reasons[1].endswith("--no-confirm left it out.")


def chosen(concurrency: int, k: int, *beside: tuple[int, float, float], rounds: int = 3, as_good: Any = (7,)) -> At:
    """At `concurrency` with neighbours in the confirmation, each k with the interval of how much slower it was."""
    r = Estimate(2.0, 1.9, 2.1, rounds)
    neighbours = [Neighbour(each, Estimate((low + high) / 2, low, high, rounds)) for each, low, high in beside]
    choice = Choice(k, k or 1, r, as_good)
    return At(concurrency, [], Race((k,), {}, ""), None, {}, choice, {}, {}, neighbours, r)


@pytest.mark.parametrize(
    ("name", "found", "said"),
    [
        ("told apart", [chosen(1, 4, (3, 1.01, 1.1), (5, 1.01, 1.1))], "k=4."),
        ("not the smaller", [chosen(1, 4, (3, 0.99, 1.1), (5, 1.01, 1.1))], "k=4; k=3 not told apart."),
        ("neither", [chosen(1, 4, (3, 0.99, 1.1), (5, 0.9, 1.1))], "k=4; k=3, 5 not told apart."),
        ("plain decoding is no k", [chosen(1, 1, (0, 0.99, 1.1))], "k=1."),
        ("too few rounds to confirm", [chosen(1, 4, (3, 1.01, 1.1), rounds=2)], "k=4; k=7 not told apart."),
        ("contradicted", [chosen(1, 4, (3, 0.8, 0.9))], "k=4; k=7 not told apart."),
        ("no confirmation, all told apart", [chosen(1, 4, as_good=())], "k=4."),
        (
            "two",
            [chosen(1, 4, (3, 0.99, 1.1)), chosen(8, 0)],
            "1 in flight: k=4; k=3 not told apart. 8 in flight: plain decoding.",
        ),
    ],
)
def test_what_is_not_told_apart_is_said_in_short(name: str, found: list[At], said: str) -> None:
    assert in_short(found) == said, name


def test_unconfirmed_what_is_not_told_apart_is_of_the_rounds_that_chose() -> None:
    noisy = Clock({"easy": 0.9, "hard": 0.9}, b=1.0, cell_noise=0.05)
    cells = swept(noisy, TRAFFIC, (3, 4, 5), (1,), rounds=5)
    (at,) = analyse(cells, asked(concurrencies=(1,), ks=(3, 4, 5)))
    assert at.choice is not None
    assert at.untold == at.choice.as_good != ()
    found = summary(cells, asked(concurrencies=(1,), ks=(3, 4, 5)), None, {})
    untold = ", ".join(map(str, at.untold))
    assert found.reasons[0] == f"k={at.choice.k}; k={untold} not told apart."
    assert f"these rounds do not tell k={untold} apart from it, which is the smallest within 2%" in whole(found)


def test_the_scenario_that_gains_least_comes_first() -> None:
    found = summary(cells_of(Clock(GOOD, b=1.0)), asked(), None, {})
    (table,) = (each for each in found.tables if "by scenario" in each.title)
    assert [row[0] for row in table.rows] == ["hard", "hard", "easy", "easy"]
    easy, hard = table.rows[2], table.rows[0]
    assert isinstance(easy[3], float)
    assert isinstance(hard[3], float)
    assert easy[3] > hard[3]


def test_one_scenario_has_no_table_of_scenarios() -> None:
    cells = swept(Clock({"a": 0.8}), {"a": 60}, KS, (1,), rounds=3)
    found = summary(cells, asked(shares={"a": 1.0}, concurrencies=(1,)), None, {})
    assert not [each for each in found.tables if "by scenario" in each.title]
    assert not [each for each in found.plots if each.kind is Kind.HEAT]


def test_what_was_not_served_is_what_was_saved() -> None:
    cells = swept(Clock({"a": 0.95}, b=0.1), {"a": 60}, (1, 2, 10), (1,), rounds=12)
    all_of_it = asked(shares={"a": 1.0}, concurrencies=(1,), ks=(1, 2, 10), rounds=12)
    found = analyse(cells, all_of_it)
    served, saved = saving(found, all_of_it)
    assert served == pytest.approx(sum(cell.seconds for cell in cells))
    assert saved / served == pytest.approx(12 / len(found[0].blocks) - 1, rel=0.1)
    said = whole(summary(cells, all_of_it, None, {}))
    assert "Dropping and stopping early saved about" in said
    assert "k=10 alone is left" in said


def test_rounds_left_undone_are_not_saved() -> None:
    cells = swept(Clock(GOOD, b=1.0, cell_noise=0.5), TRAFFIC, (3, 4), (1,), rounds=3)
    more = asked(ks=(3, 4), concurrencies=(1,), rounds=50)
    found = analyse(cells, more)
    assert not found[0].race.over
    assert saving(found, more)[1] == 0.0


def test_failures_are_told() -> None:
    cells = cells_of(Clock(GOOD, b=1.0))
    failed = [msgspec.structs.replace(cells[0], failures={"timeout": 2}), *cells[1:]]
    assert "2 requests failed (timeout 2)" in whole(summary(failed, asked(), None, {}))


def test_figures_of_the_seed_stand_beside_the_measured_ones() -> None:
    found = summary(cells_of(Clock(GOOD, b=1.0)), asked(), None, {})
    (table,) = (each for each in found.tables if each.title == "All ks at 1 in flight")
    columns = {name: i for i, name in enumerate(table.columns)}
    plain, *rows = table.rows
    assert plain[columns["R"]] is None
    for row in rows:
        k, p = row[columns["k"]], row[columns["p"]]
        assert isinstance(k, int)
        assert isinstance(p, float)
        assert row[columns["1+(k-1)p"]] == pytest.approx(1 + (k - 1) * p)
        assert row[columns["R"]] == pytest.approx(row[columns["by p and c"]], rel=0.1)
