"""Orders that are balanced, turns that follow from what was served, batches that hold every scenario."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.lab.sweep.cells import PLAIN, Block, Cell
from specwatch_engine.lab.sweep.plan import LEAST, Deal, PlanError, Turn, batch_size, next_turn, numbers, order, square
from support.swept import prompts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1-10", tuple(range(1, 11))),
        ("4", (4,)),
        ("8,1, 4", (1, 4, 8)),
        ("1-3,2-5", (1, 2, 3, 4, 5)),
    ],
)
def test_lists_of_numbers(text: str, found: tuple[int, ...]) -> None:
    assert numbers(text, "--k") == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "write it as 1-10 or 1,2,4"),
        ("a", "write it as 1-10"),
        ("1-", "write it as 1-10"),
        ("-3", "write it as 1-10"),
        ("1.5", "write it as 1-10"),
        ("²", "write it as 1-10"),
        ("0", "the least is 1"),
        ("7-3", "write 3-7"),
        ("1-999999", "fewer than 1000"),
        ("1,,2", "write it as 1-10"),
    ],
)
def test_lists_that_are_none(text: str, says: str) -> None:
    with pytest.raises(PlanError, match="--k: ") as caught:
        numbers(text, "--k")
    assert says in str(caught.value)


@given(st.text(alphabet="0123456789-, x", max_size=12))
def test_any_list_is_numbers_or_a_fault_that_names_the_option(text: str) -> None:
    try:
        found = numbers(text, "--k")
    except PlanError as error:
        assert str(error).startswith("--k: ")
        return
    assert found == tuple(sorted(set(found)))
    assert found[0] >= 1


@pytest.mark.parametrize("n", range(2, 13))
def test_a_square_balances_places_and_followers(n: int) -> None:
    rows = square(n)
    assert len(rows) == (n if n % 2 == 0 else 2 * n)
    places = Counter((place, each) for row in rows for place, each in enumerate(row))
    assert set(places.values()) == {len(rows) // n}
    assert len(places) == n * n
    followers = Counter(pair for row in rows for pair in pairwise(row))
    assert len(followers) == n * (n - 1)
    assert set(followers.values()) == {len(rows) // n}
    assert all(rows[i + 1] == rows[i][::-1] for i in range(0, len(rows), 2))


@given(st.sets(st.integers(0, 10), min_size=2), st.integers(0, 9), st.integers(0, 40))
def test_any_two_rounds_from_an_even_one_cancel_a_linear_drift(arms: set[int], seed: int, turn: int) -> None:
    first, second = (order(sorted(arms), 2 * turn + i, seed) for i in (0, 1))
    assert first == second[::-1]
    assert set(first) == arms


def test_orders_are_of_the_seed() -> None:
    arms = range(11)
    assert order(arms, 3, 1) == order(arms, 3, 1)
    assert len({order(arms, turn, seed) for turn in range(4) for seed in range(20)}) > 60


def block(number: int, concurrency: int, arms: tuple[int, ...]) -> Block:
    cells = {k: Cell("sweep", number, concurrency, k, i, len(arms), 0.0, 1.0, 1, 1, {}, []) for i, k in enumerate(arms)}
    return Block(number, concurrency, cells)


def test_turns_go_through_rounds_and_begin_with_another_concurrency_each() -> None:
    done: list[Block] = []
    while turn := next_turn(done, (1, 4, 8), 4, 0, lambda c, blocks: (2, 3)):
        assert set(turn.order) == {PLAIN, 2, 3}
        done.append(block(turn.round, turn.concurrency, turn.order))
    assert [(each.round, each.concurrency) for each in done] == [
        *((0, 1), (0, 4), (0, 8)),
        *((1, 4), (1, 8), (1, 1)),
        *((2, 8), (2, 1), (2, 4)),
        *((3, 1), (3, 4), (3, 8)),
    ]


def test_a_decided_concurrency_has_no_turns() -> None:
    turn = next_turn([], (1, 4), 3, 0, lambda c, blocks: () if c == 1 else (5,))
    assert turn is not None
    assert (turn.concurrency, set(turn.order)) == (4, {PLAIN, 5})
    assert next_turn([], (1, 4), 3, 0, lambda c, blocks: ()) is None


def test_what_was_served_is_not_served_again() -> None:
    done = [block(0, 1, (0, 1, 2)), block(0, 4, (0, 1, 2)), block(1, 4, (0, 1, 2))]
    turn = next_turn(done, (1, 4), 2, 0, lambda c, blocks: (1, 2))
    assert turn == Turn(1, 1, order((0, 1, 2), 1, 1))


@pytest.mark.parametrize(
    ("concurrency", "scenarios", "asked", "size"),
    [(1, 1, None, 12), (1, 9, None, 18), (8, 5, None, 24), (4, 5, 8, 8), (1, 5, 3, 5)],
)
def test_sizes_of_batches(concurrency: int, scenarios: int, asked: int | None, size: int) -> None:
    assert batch_size(concurrency, scenarios, asked) == size


def test_a_batch_smaller_than_what_is_in_flight_is_refused() -> None:
    with pytest.raises(PlanError, match=r"--batch: 3 .* at least 8"):
        batch_size(8, 1, 3)


TRAFFIC = {"big": 700, "middle": 250, "rare": 50}
SHARES = {name: number / 1000 for name, number in TRAFFIC.items()}


def test_batches_have_the_shares_and_the_rare_ones() -> None:
    deal = Deal(prompts(TRAFFIC), SHARES, {1: 20}, 0)
    counts = Counter(prompt.scenario for prompt in deal.batch(0, 1))
    assert counts == {"big": 14, "middle": 5, "rare": LEAST}


def test_no_prompt_comes_again_before_all_were_there() -> None:
    deal = Deal(prompts(TRAFFIC), SHARES, {1: 12, 4: 24}, 0)
    found = [prompt.id for number in range(6) for c in (1, 4) for prompt in deal.batch(number, c)]
    rare = [each for each in found if each.startswith("rare")]
    assert len(set(found)) == len(found)
    assert len(rare) >= 6 * 2 * LEAST


def test_the_confirmation_has_other_prompts() -> None:
    deal = Deal(prompts(TRAFFIC), SHARES, {1: 20}, 0)
    swept = {prompt.id for number in range(40) for prompt in deal.batch(number, 1)}
    confirmed = {prompt.id for number in range(40) for prompt in deal.batch(number, 1, held_out=True)}
    assert swept
    assert confirmed
    assert not swept & confirmed
    assert not deal.shared


def test_a_scenario_with_few_prompts_lends_its_own() -> None:
    traffic = {"a": 30, "few": 2}
    deal = Deal(prompts(traffic), {"a": 30 / 32, "few": 2 / 32}, {1: 12}, 0)
    assert deal.shared == ["few"]
    assert {"few-0", "few-1"} <= {prompt.id for prompt in deal.batch(0, 1, held_out=True)}


def test_a_confirmation_that_would_have_too_few_in_flight_has_the_sweep_s_prompts_too() -> None:
    deal = Deal(prompts({"a": 20}), {"a": 1.0}, {1: 12, 8: 24}, 0)
    assert deal.shared == ["a"]
    assert len(deal.batch(0, 8)) == 14
    assert len(deal.batch(0, 8, held_out=True)) == 20
    # At one in flight its own are enough, and so they are with fewer in flight at most.
    assert Deal(prompts({"a": 20}), {"a": 1.0}, {1: 12, 6: 18}, 0).shared == []


def test_too_few_prompts_for_what_is_to_be_in_flight_are_refused() -> None:
    with pytest.raises(
        PlanError, match=r"--concurrencies: a batch has 14 prompts, which never keep 16 .* more prompts"
    ):
        Deal(prompts({"a": 20}), {"a": 1.0}, {1: 12, 16: 48}, 0)


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 40), min_size=1),
    st.integers(1, 8),
    st.integers(0, 5),
)
def test_any_batch_has_every_scenario_no_prompt_twice_and_enough_to_be_in_flight(
    traffic: dict[str, int], concurrency: int, seed: int
) -> None:
    asked = prompts(traffic)
    shares = {name: number / len(asked) for name, number in traffic.items()}
    size = batch_size(concurrency, len(traffic), None)
    if sum(number - number // 3 for number in traffic.values()) < concurrency:
        with pytest.raises(PlanError):
            Deal(asked, shares, {concurrency: size}, seed)
        return
    for number in range(3):
        for held_out in (False, True):
            found = Deal(asked, shares, {concurrency: size}, seed).batch(number, concurrency, held_out=held_out)
            assert {prompt.scenario for prompt in found} == set(traffic)
            assert len({prompt.id for prompt in found}) == len(found) >= concurrency
            assert found == Deal(asked, shares, {concurrency: size}, seed).batch(number, concurrency, held_out=held_out)
