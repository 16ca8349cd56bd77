"""Events of the last seconds, growth of counts, the longest of the last minute; clocks that are set back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.probes.growth import Growth, Lately, Longest


@pytest.mark.parametrize(
    ("events", "now", "expected"),
    [
        ([], 1000.0, 0),
        ([1000.0, 1000.0], 1000.0, 2),
        ([939.9, 940.9, 941.0, 999.9], 1000.0, 2),  # steps of a second: 941 to 1000 are the last sixty
        ([950.0, 960.0], 2000.0, 0),
        ([2000.0, 1000.0], 1000.0, 1),  # the clock was set back: what comes after now is of no known time
        ([2000.0, 2000.0], 1000.0, 0),
        ([1000.5, 999.9], 1000.9, 1),
    ],
)
def test_events_of_the_last_minute(events: list[float], now: float, expected: int) -> None:
    lately = Lately(60.0)
    for at in events:
        lately.add(at)
    assert lately.total(now) == expected


@given(st.lists(st.floats(0, 200), max_size=50).map(sorted), st.floats(0, 100))
def test_none_is_lost_or_counted_twice(events: list[float], later: float) -> None:
    lately = Lately(60.0, 20)
    for at in events:
        lately.add(at)
    now = (events[-1] if events else 0.0) + later
    # A step is of 3 s, so that a span ends at most that much early.
    first = (int(now / 3) - 19) * 3
    assert lately.total(now) == sum(at >= first for at in events)


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(1000.0, 0)], [0]),
        ([(1000.0, 7)], [7]),  # since the start
        ([(1000.0, 7), (1299.0, 9)], [7, 9]),
        ([(1000.0, 7), (1300.0, 9)], [7, 2]),  # the first look is as old as the span
        ([(1000.0, 7), (1100.0, 8), (1200.0, 8), (1399.0, 9), (1400.0, 9)], [7, 8, 8, 2, 1]),
        ([(1000.0, 7), (9000.0, 9)], [7, 2]),  # nobody looked meanwhile
        ([(1000.0, 7), (500.0, 8), (799.0, 8), (800.0, 8)], [7, 8, 8, 8]),  # set back: it is told for longer
        ([(1000.0, 7), (500.0, 8), (799.0, 8), (806.0, 8), (900.0, 8), (1200.0, 9)], [7, 8, 8, 8, 8, 1]),
    ],
)
def test_growth_in_five_minutes(looks: list[tuple[float, int]], expected: list[int]) -> None:
    growth = Growth(300.0)
    assert [growth.over(count, now) for now, count in looks] == expected


@given(st.lists(st.tuples(st.integers(5, 200), st.integers(0, 5)), min_size=1, max_size=60))
def test_the_span_begins_with_the_newest_look_that_is_as_old(steps: list[tuple[int, int]]) -> None:
    growth, now, count = Growth(300.0), 1000, 0
    looks = [(0, 0)]
    for waited, grown in steps:
        now, count = now + waited, count + grown
        looks.append((now, count))
        base = [seen for at, seen in looks if at <= now - 300][-1]
        assert growth.over(count, now) == count - base


def test_looks_take_bounded_memory() -> None:
    growth = Growth(300.0)
    for tenths in range(20_000):
        assert growth.over(tenths // 10, 1e6 + tenths / 10) <= 305
    assert len(growth._looks) <= 62


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 5)), min_size=1, max_size=60))
def test_the_longest_of_the_last_minute(steps: list[tuple[int, float]]) -> None:
    longest, now, all_of_them = Longest(60.0), 0, []
    for waited, value in steps:
        now += waited
        longest.add(value, now)
        all_of_them.append((now, value))
        assert longest.of(now) == max(value for at, value in all_of_them if at > now - 60)
    assert longest.of(now + 60) == 0.0
