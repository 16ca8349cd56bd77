"""The latency goal from memory is what SQL answers on the same rows."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import NOW, record, records

from sidecar.probes.goal import GOAL_MS, TRAILING, WINDOW_S, Goal, Reached
from sidecar.record import Outcome, Record

from .test_queries import Store

#: A whole minute, an hour and some before NOW.
MINUTE = NOW // 60 * 60
FAST, SLOW = 800.0, 800.5


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(f"sqlite:///{tmp_path_factory.mktemp('goal') / 'specwatch.db'}")
    yield made
    made.close()


def ended(item: Record) -> float:
    return item.started_at + (item.latency_ms or 0.0) / 1e3


def in_memory(items: Sequence[Record], now: float) -> Reached:
    goal = Goal()
    for item in sorted(items, key=ended):
        goal.add(item, ended(item))
    return goal.reached(now)._replace(since=None)


def in_sql(store: Store, items: Sequence[Record], now: float) -> Reached:
    store.hold(items)
    # The figures from memory are those of the last whole second.
    found, until = store.reader.summary(WINDOW_S, int(now)), int(now)
    timed = [item for item in items if item.outcome is Outcome.OK and item.latency_ms is not None]
    inside = [item for item in timed if until - WINDOW_S <= round(item.started_at, 6) < until]
    return Reached(len(inside), *found["slo"].values())


def several(count: int, started_at: float, latency_ms: float) -> list[Record]:
    return [record(started_at=started_at, latency_ms=latency_ms) for _ in range(count)]


def at(minutes: float, seconds: float = 0.0) -> float:
    """A time before MINUTE."""
    return MINUTE - 60 * minutes + seconds


CASES: dict[str, tuple[list[Record], float, Reached]] = {
    "nothing": ([], MINUTE, Reached(0, None, None)),
    "one": (several(1, at(1), FAST), MINUTE, Reached(1, 1.0, 1.0)),
    "19 of 20 are enough": (several(19, at(1), FAST) + several(1, at(1), SLOW), MINUTE, Reached(20, 0.95, 1.0)),
    "18 of 19 are not": (several(18, at(1), FAST) + several(1, at(1), SLOW), MINUTE, Reached(19, 18 / 19, 0.0)),
    "a slow one counts in its own minute and the four after it, those without traffic are none": (
        several(1, at(20), SLOW) + [each for back in (19, 16, 15, 3) for each in several(1, at(back), FAST)],
        MINUTE,
        Reached(5, 0.8, 2 / 5),
    ),
    "the current minute counts as far as it is": (
        several(1, at(0, 10), FAST) + several(1, at(0, 30), SLOW),
        at(0, 30),
        Reached(1, 1.0, 1.0),
    ),
    "the current second does not": (several(1, at(0, 30.2), SLOW), at(0, 30.9), Reached(0, None, None)),
    "the second before it does": (several(1, at(0, 29.9), SLOW), at(0, 30.9), Reached(1, 0.0, 0.0)),
    "what seems to come, as the clock was set back, is not yet": (
        several(1, at(0, 65), SLOW) + several(1, at(1), FAST),
        at(0, 10),
        Reached(1, 1.0, 1.0),
    ),
    "an hour ago is inside": (several(1, at(60), FAST), MINUTE, Reached(1, 1.0, 1.0)),
    "a microsecond before that is not": (several(1, at(60, -1e-6), FAST), MINUTE, Reached(0, None, None)),
    "half of the first minute lies outside, and is held against what lies inside": (
        several(1, at(60, 29), SLOW) + several(1, at(60, 31), FAST),
        at(0, 30),
        Reached(1, 1.0, 0.0),
    ),
    "so do the four minutes before the window": (
        several(1, at(64), SLOW) + several(1, at(60, 31), FAST),
        at(0, 30),
        Reached(1, 1.0, 0.0),
    ),
    "but not the fifth": (
        several(1, at(65, 59.9), SLOW) + several(1, at(60, 31), FAST),
        at(0, 30),
        Reached(1, 1.0, 1.0),
    ),
    "the first minute without a request inside is no minute": (
        several(1, at(60, 29), SLOW) + several(1, at(59, 1), FAST),
        at(0, 30),
        Reached(1, 1.0, 0.0),
    ),
    "a late record counts where it began": (
        [*several(9, at(2), FAST), record(started_at=at(30), latency_ms=29.5 * 60e3)],
        MINUTE,
        Reached(10, 0.9, 1 / 2),
    ),
    "one that took longer than the window counts nowhere": (
        [*several(1, at(2), FAST), record(started_at=at(70), latency_ms=69.5 * 60e3)],
        MINUTE,
        Reached(1, 1.0, 1.0),
    ),
    "what did not end well is no request": (
        [record(started_at=at(1), outcome=outcome, latency_ms=9e3) for outcome in Outcome if outcome != "ok"],
        MINUTE,
        Reached(0, None, None),
    ),
    "nor what took nobody knows how long": ([record(latency_ms=None)], MINUTE, Reached(0, None, None)),
    "times are rounded to what a row holds": (several(1, MINUTE - 3e-7, FAST), MINUTE, Reached(0, None, None)),
}


@pytest.mark.parametrize(("items", "now", "expected"), CASES.values(), ids=CASES)
def test_boundaries(sqlite: Store, items: list[Record], now: float, expected: Reached) -> None:
    assert in_memory(items, now) == expected
    assert in_sql(sqlite, items, now) == expected


def test_the_goal_is_the_one_in_the_names_of_its_figures() -> None:
    assert GOAL_MS == 800


long = st.builds(
    lambda item, ms: replace(item, latency_ms=ms), records, st.floats(1e5, 6e6) | st.sampled_from((60e3, 3600e3))
)
edges = st.builds(
    lambda item, second, before: replace(item, started_at=second - before),
    records,
    st.integers(int(NOW) - 4000, int(NOW)),
    st.sampled_from((0.0, 1e-7, 3e-7, 4e-7, 6e-7, 1e-6, 0.5)),
)


@given(
    st.lists(st.one_of(records, records, long, edges), max_size=60),
    st.integers(0, 130) | st.floats(0, 130) | st.just(3600.0),
)
def test_any_traffic_is_judged_as_sql_does(sqlite: Store, items: list[Record], later: float) -> None:
    now = max([NOW, *map(ended, items)]) + later
    assert in_memory(items, now) == in_sql(sqlite, items, now)


def test_memory_is_bounded() -> None:
    goal = Goal()
    for minute in range(500):
        goal.add(record(started_at=at(-minute), latency_ms=FAST), at(-minute, 0.8))
    for minute in range(70, 100):
        goal.add(record(started_at=at(minute - 500), latency_ms=FAST), at(-499, 0.8))
    assert len(goal._minutes) == WINDOW_S // 60 + TRAILING
    assert goal.reached(at(-499, 1)).requests == 60
