import pytest
from specwatch_engine.lab.sweep import plan
from specwatch_engine.lab.sweep.ahead import Pace, too_short
from specwatch_engine.lab.sweep.cells import Cell, blocks_of
from specwatch_engine.lab.sweep.recommend import race
from support.swept import Clock, swept

TRAFFIC = {"a": 60}
SHARES = {"a": 1.0}


def cell(concurrency: int, k: int, seconds: float) -> Cell:
    return Cell("sweep", 0, concurrency, k, 0, 1, 0.0, seconds, 1, 1, {}, [])


def test_a_batch_takes_as_long_as_those_before_or_as_the_warm_up() -> None:
    cells = [cell(1, 0, 6.0), cell(1, 2, 2.0), cell(1, 4, 4.0)]
    assert Pace.of(cells) == Pace({1: 6.0}, {1: 3.0})
    pace = Pace.of(cells, Pace({1: 9.0, 4: 8.0}, {1: 9.0, 4: 5.0}))
    assert pace == Pace({1: 6.0, 4: 8.0}, {1: 3.0, 4: 5.0})
    assert pace.round_s(4, 2) == 18.0
    assert pace.rounds_s({1: (2, 10), 4: (1, 2)}) == 2 * 36.0 + 18.0
    assert Pace.of([]).round_s(1, 10) == 0.0


@pytest.mark.parametrize(
    ("left_s", "rounds", "confirm_rounds", "said"),
    [
        # 3 rounds of 4 s for plain decoding and 40 s for ks are 132 s; 8 of 4 and 12 s to confirm, 128 s more.
        (-3, 3, 0, "--minutes: 0 s are left, and 3 rounds, the least for a verdict, take about 2 minutes more: give"),
        (131, 3, 8, "--minutes: 2 minutes are left, and 3 rounds, the least for a verdict, take about 2 minutes"),
        (133, 3, 8, "--minutes: 2 minutes are left, and 3 rounds with the confirmation take about 4 minutes more"),
        (133, 3, 0, ""),
        (261, 3, 8, ""),
        # What is served already is not to be served again.
        (43, 1, 0, "--minutes: 43 s are left, and 3 rounds, the least for a verdict, take about 44 s more"),
        (45, 1, 0, ""),
        (45, 1, 1, "--minutes: 45 s are left, and 3 rounds with the confirmation take about 60 s more"),
        (-3, 0, 0, ""),
    ],
)
def test_minutes_that_are_too_few_are_told(left_s: float, rounds: int, confirm_rounds: int, said: str) -> None:
    least, confirm = dict.fromkeys((1, 4), (rounds, 10)), dict.fromkeys((1, 4), (confirm_rounds, 3))
    found = too_short(left_s, least, confirm, Pace({1: 1.0, 4: 3.0}, {1: 2.0, 4: 2.0}))
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_what_is_left_is_what_may_still_be_served() -> None:
    ks, rounds = (1, 2, 10), 12
    cells = swept(Clock({"a": 0.95}, b=0.1), TRAFFIC, ks, (1, 4), rounds=rounds)

    def left(number: int) -> dict[int, tuple[int, int]]:
        blocks = [each for each in blocks_of(cells, "sweep") if each.round < number]
        return plan.rounds_left(blocks, (1, 4), rounds, lambda c, some: race(some, ks, SHARES).served)

    assert left(0) == {1: (12, 3), 4: (12, 3)}
    assert left(2) == {1: (10, 3), 4: (10, 3)}
    # It is over before all rounds are served.
    assert left(rounds) == {}
