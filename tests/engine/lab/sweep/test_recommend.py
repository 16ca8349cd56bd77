"""Which k: tables of named cases, and whole sweeps of a simulated engine with drift and noise."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from specwatch_engine.lab.sweep.analysis import MIXED, Times, slope, steps, times
from specwatch_engine.lab.sweep.cells import PLAIN, blocks_of
from specwatch_engine.lab.sweep.recommend import (
    LEAST_ROUNDS,
    Choice,
    Race,
    Shape,
    choose,
    confirmed,
    leader,
    neighbours,
    race,
    surely_slower,
)
from support.swept import Clock, swept


def rounds(ms: Mapping[int, float], number: int = 7, noise: float = 0.004) -> list[Times]:
    """Rounds in which k takes `ms[k]`, each a little off: of a mean of nothing over seven rounds, and of up to six ks
    no two alike.
    """

    def off(i: int, j: int) -> float:
        wave = (math.cos, math.sin)[j % 2]
        return noise * wave(2 * math.pi * i * (j // 2 + 1) / 7)

    return [{k: math.log(value) + off(i, j) for j, (k, value) in enumerate(ms.items())} for i in range(number)]


@pytest.mark.parametrize(
    ("name", "ms", "k", "gain"),
    [
        ("one is best", {0: 10, 1: 8, 2: 6, 3: 7}, 2, True),
        ("a flat optimum gives the smaller k", {0: 10, 1: 8, 2: 6.05, 3: 6.0, 4: 6.02}, 2, True),
        ("a hair beyond equal", {0: 10, 2: 6.2, 3: 6.0}, 3, True),
        ("plain decoding wins", {0: 10, 1: 11, 2: 12}, PLAIN, False),
        ("nothing in it", {0: 10, 1: 10.005, 2: 11}, PLAIN, None),
        ("the largest is best", {0: 10, 1: 9, 2: 8, 3: 7}, 3, True),
        ("only one k", {0: 10, 4: 6}, 4, True),
    ],
)
def test_choice(name: str, ms: Mapping[int, float], k: int, gain: bool | None) -> None:
    found = choose(rounds(ms), [each for each in ms if each])
    assert found is not None
    assert (found.k, found.gain) == (k, gain), name


def test_what_cannot_be_told_from_the_choice_is_named() -> None:
    found = choose(rounds({0: 10, 1: 8, 2: 6.01, 3: 6.0, 4: 7.0}), [1, 2, 3, 4])
    assert found is not None
    assert (found.k, found.as_good) == (2, (3,))


@pytest.mark.parametrize(
    ("name", "accepted", "slope_", "noise", "k"),
    [
        ("luck among those that cannot be told", {1: 1.9, 4: 4.1, 8: 6.0}, 0.05, 0.5, 8),
        ("a costly draft", {1: 1.9, 4: 4.1, 8: 6.0}, 0.5, 0.5, 4),
        ("what is told apart stands", {1: 1.9, 4: 4.1, 8: 6.0}, 0.05, 0.004, 4),
    ],
)
def test_ties_are_decided_by_what_all_cells_tell(
    name: str, accepted: Mapping[int, float], slope_: float, noise: float, k: int
) -> None:
    counted = [{n: -math.log(length) for n, length in ({0: 1.0} | dict(accepted)).items()}] * 7
    found = choose(rounds({0: 10, 1: 6.5, 4: 6.0, 8: 6.3}, noise=noise), [1, 4, 8], Shape(counted, slope_))
    assert found is not None
    assert found.best == k, name


def test_nothing_served_is_no_choice() -> None:
    assert choose([], [1, 2]) is None
    assert choose([{}, {}], [1, 2]) is None


def test_a_k_of_too_few_rounds_is_passed_over() -> None:
    seen = rounds({0: 10, 2: 6.5, 3: 6.6})
    lucky = [{**each, 1: math.log(5)} if i == 0 else each for i, each in enumerate(seen)]
    found = choose(lucky, [1, 2, 3])
    assert found is not None
    assert found.k == 2


@pytest.mark.parametrize(
    ("name", "ms", "noise", "out"),
    [
        ("clearly slower", {0: 10, 1: 9, 2: 6, 3: 6.5}, 0.004, {1, 3}),
        ("noise holds all", {0: 10, 1: 6.3, 2: 6, 3: 6.2}, 0.1, set()),
        ("a smaller one within what counts as equal stays", {0: 10, 2: 6.06, 3: 6.0, 4: 6.06}, 0.0004, {4}),
    ],
)
def test_who_is_surely_slower(name: str, ms: Mapping[int, float], noise: float, out: set[int]) -> None:
    assert surely_slower(rounds(ms, noise=noise), [k for k in ms if k]) == out, name


def test_the_leader_is_measured_against_plain_decoding_of_its_own_rounds() -> None:
    # k=2 was there only while the machine was fast.
    seen: list[Times] = [{0: 2.0, 1: 1.5, 2: 1.6}, {0: 3.0, 1: 2.5}]
    assert leader(seen, (1, 2)) == 1


# ---- whole sweeps

TRAFFIC = {"a": 60, "b": 30, "c": 10}
SHARES = {name: number / 100 for name, number in TRAFFIC.items()}
KS = range(1, 11)


def result(clock: Clock, **options: Any) -> tuple[Choice, Race, int]:
    """The choice for mixed traffic at the first concurrency, the race, and the number of cells."""
    cells = swept(clock, TRAFFIC, **options)
    blocks = blocks_of(cells, "sweep")
    ks: Sequence[int] = tuple(options.get("ks", KS))
    stands = race(blocks, ks, SHARES)
    rate = slope(blocks)
    shape = None if rate is None else Shape([steps(each, MIXED, SHARES) for each in blocks], rate)
    found = choose([times(each, MIXED, SHARES) for each in blocks], stands.left, shape)
    assert found is not None
    return found, stands, len(cells)


@pytest.mark.parametrize("seed", range(3))
def test_thirty_per_cent_of_drift_changes_no_recommendation(seed: int) -> None:
    # A sharp optimum at k = 3; the clock loses 30 % while the sweep runs.
    p = {"a": 0.7, "b": 0.7, "c": 0.7}
    steady, _, _ = result(Clock(p, b=1.6, seed=seed), seed=seed, rounds=6)
    drifting, _, _ = result(Clock(p, b=1.6, seed=seed, drift=0.3, span_s=250), seed=seed, rounds=6)
    assert drifting.k == steady.k
    assert drifting.r.value == pytest.approx(steady.r.value, rel=0.02)
    assert drifting.gain


def test_noise_costs_no_more_than_what_counts_as_equal() -> None:
    p = {"a": 0.8, "b": 0.6, "c": 0.3}
    chosen, _, _ = result(Clock(p, cell_noise=0.02, reply_noise=0.05, seed=4), rounds=8)
    assert chosen.k in (3, 4, 5)  # 3 and 5 take 0.9 % and 1.4 % longer than 4


def test_a_flat_optimum_gives_the_smaller_k() -> None:
    # With p = 0.5, b = 0 and replies of one k's luck, all from 6 on are within 2 %.
    chosen, stands, _ = result(Clock(dict.fromkeys(TRAFFIC, 0.5), b=0.08, tokens=600, seed=2), rounds=6)
    assert chosen.k <= 6
    assert max(stands.left) <= 10


def test_a_clear_optimum_ends_early_and_saves_cells() -> None:
    chosen, stands, cells = result(Clock(dict.fromkeys(TRAFFIC, 0.95), b=0.1, seed=1), ks=(1, 2, 10), rounds=12)
    assert (chosen.k, stands.left) == (10, (10,))
    assert stands.over == "k=10 alone is left"
    assert set(stands.dropped) == {1, 2}
    assert min(stands.dropped.values()) == LEAST_ROUNDS - 1
    assert cells < 12 * 4
    assert not stands.served


def test_a_draft_that_costs_too_much_gives_plain_decoding() -> None:
    chosen, _, _ = result(Clock(dict.fromkeys(TRAFFIC, 0.3), b=6, seed=1), ks=(1, 2, 3), rounds=4)
    assert chosen.k == PLAIN
    assert chosen.gain is False
    assert chosen.no_gain


def test_a_k_that_leads_in_a_scenario_is_served_on() -> None:
    clock = Clock({"a": 0.95, "b": 0.95, "c": 0.05}, b=1.0, seed=3)
    cells = swept(clock, TRAFFIC, ks=(1, 4, 8), rounds=6)
    blocks = blocks_of(cells, "sweep")
    stands = race(blocks, (1, 4, 8), SHARES)
    assert clock.best("c", (1, 4, 8)) == 1
    of_c = choose([times(each, "c", SHARES) for each in blocks], (1, 4, 8))
    assert of_c is not None
    assert of_c.best == 1
    assert sum(1 in each.cells for each in blocks) == len(blocks)
    assert 1 not in stands.dropped or stands.over


def test_one_k_alone_is_measured_in_all_rounds() -> None:
    cells = swept(Clock(dict.fromkeys(TRAFFIC, 0.8)), TRAFFIC, ks=(4,), rounds=4)
    assert len(cells) == 4 * 2


# ---- confirmation


@pytest.mark.parametrize(("k", "most", "found"), [(4, 10, (3, 4, 5)), (1, 10, (1, 2)), (10, 10, (9, 10)), (1, 1, (1,))])
def test_neighbours(k: int, most: int, found: tuple[int, ...]) -> None:
    assert neighbours(k, most) == found


@pytest.mark.parametrize(
    ("name", "ms", "says", "contradicts"),
    [
        ("slower", {0: 10, 3: 7, 4: 6, 5: 7}, "k=3 is slower than k=4", False),
        ("hardly slower", {0: 10, 3: 6.05, 4: 6, 5: 7}, "practically nothing", False),
        ("as good", {0: 10, 3: 6.0, 4: 6, 5: 7}, "k=3 is as good as k=4", False),
        ("better", {0: 10, 3: 5, 4: 6, 5: 7}, "the recommendation does not hold", True),
        ("a little better", {0: 10, 3: 5.93, 4: 6, 5: 7}, "k=3 is a little faster than k=4", False),
    ],
)
def test_what_the_confirmation_says(name: str, ms: Mapping[int, float], says: str, contradicts: bool) -> None:
    below, above = confirmed(rounds(ms, noise=0.001), 4, 10)
    assert (below.k, above.k) == (3, 5)
    assert says in below.words(4), name
    assert below.contradicts is contradicts
    assert above.surely_slower


def test_below_k_1_there_is_plain_decoding() -> None:
    plain, two = confirmed(rounds({0: 10, 1: 8, 2: 9}), 1, 10)
    assert "plain decoding is slower than k=1" in plain.words(1)
    assert two.k == 2
    (only,) = confirmed(rounds({0: 10, 1: 8}), 1, 1)
    assert only.k == PLAIN


def test_one_round_of_confirmation_tells_nothing() -> None:
    below, _ = confirmed(rounds({0: 10, 3: 5, 4: 6, 5: 7}, 1), 4, 10)
    assert "one round only" in below.words(4)
    assert not below.contradicts
