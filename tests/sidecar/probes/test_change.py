"""The change detector on synthetic streams, of fixed seeds; `tests/bench/change.py` measures at length."""

import random
from collections.abc import Iterator

import pytest

from sidecar.probes.change import REFERENCE, Change


def stream(seed: int, p: float, alike: float = 0.1) -> Iterator[tuple[int, int]]:
    """(accepted, drafted) of requests, each with a p of its own; `alike`: intraclass correlation."""
    rng, size = random.Random(seed), 1 / alike - 1
    while True:
        own, drafted = rng.betavariate(p * size, (1 - p) * size), 4 + int(rng.lognormvariate(4, 1))
        yield sum(rng.random() < own for _ in range(drafted)), drafted


def alarm(change: Change, rows: Iterator[tuple[int, int]], most: int) -> int | None:
    return next((i for i in range(1, most + 1) if change.add(*next(rows))), None)


def test_it_is_silent_while_it_learns() -> None:
    change = Change()
    assert alarm(change, stream(1, 0.01), REFERENCE) is None
    assert change.rate is None


def test_false_alarms_are_rare_however_unlike_requests_are() -> None:
    alarms = sum(
        alarm(Change(), stream(seed, 0.8, alike), 3000) is not None for alike in (0.02, 0.1, 0.3) for seed in range(8)
    )
    assert alarms <= 3  # in 70,000 requests; of a limit of 5 standard deviations there would be dozens


@pytest.mark.parametrize(("after", "most"), [(0.3, 20), (0.5, 45)])
def test_a_drop_is_told_long_before_a_window_of_100_is_full_of_it(after: float, most: int) -> None:
    told = []
    for seed in range(20):
        change = Change()
        assert alarm(change, stream(seed, 0.8), 300) is None
        told.append(alarm(change, stream(seed + 100, after), 500) or 500)
        assert change.rate is not None
        assert change.rate < 0.65
    assert sorted(told)[18] <= most


def test_a_rise_is_none() -> None:
    change = Change()
    alarm(change, stream(1, 0.5), 300)
    assert alarm(change, stream(2, 0.9), 1000) is None
    assert change.rate is None


def test_equal_requests_leave_room() -> None:
    change = Change()
    assert alarm(change, iter([(70, 100)] * 300), 300) is None
    assert alarm(change, iter([(68, 100)] * 1000), 1000) is None
    assert alarm(change, iter([(50, 100)] * 1000), 1000) is not None
