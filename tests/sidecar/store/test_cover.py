"""Whatever is due, kept or asked for: the spans of an answer make up the window, once and from few pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.store.cover import DAY, HOUR, MINUTE, Kept, Piece, cover, rounded, rounded_step

#: A midnight.
START = 20_000 * DAY
NOW = START + 9 * DAY + 14 * HOUR + 37 * MINUTE + 12

times = st.floats(START, NOW) | st.integers(0, 9 * 24 * 60).map(lambda minutes: START + minutes * 60.0)
spans_kept = st.builds(
    lambda hours, minutes: Kept(minutes=START + max(hours * 24, minutes) * HOUR, hours=START + hours * DAY),
    st.integers(0, 6),
    st.integers(0, 8 * 24),
) | st.just(Kept())
starts = st.fixed_dictionaries(
    {
        HOUR: st.sets(st.integers(0, 9 * 24).map(lambda n: START + n * HOUR), max_size=12),
        DAY: st.sets(st.integers(0, 9).map(lambda n: START + n * DAY), max_size=4),
    }
)
steps = st.none() | st.integers(1, 3 * DAY) | st.sampled_from((60, 300, 900, HOUR, 6 * HOUR, DAY, 2 * DAY))


@given(times, times, steps, spans_kept, starts)
def test_a_window_is_covered_once(
    one: float, other: float, step_s: int | None, kept: Kept, due: dict[int, set[int]]
) -> None:
    since, until = rounded(min(one, other), max(one, other), kept)
    assert since <= min(one, other)
    assert until >= max(one, other)
    finest = kept.finest(min(one, other))
    step_s = None if step_s is None else rounded_step(step_s, until - since, finest)
    pieces = cover(since, until, step_s=step_s, kept=kept, due=due, complete=int(NOW) - 120)

    at = since
    for span, first, last in pieces:
        assert first == at < last
        assert first % span == last % span == 0
        assert step_s is None or step_s % span == 0
        # What is no longer there cannot be asked.
        assert span >= kept.finest(first)
        finer = {MINUTE: None, HOUR: MINUTE, DAY: HOUR}[span]
        if finer is not None:
            unusable = [start for start in due[span] if first <= start < last] + [last - span] * (last > NOW - 120)
            assert all(start < kept.since(finer) for start in unusable)
        at = last
    assert at == max(since, until)
    assert all(a.span_s != b.span_s for a, b in pairwise(pieces))
    # Minutes and hours before the first day, and after the last; each due span adds itself and what follows it.
    assert len(pieces) <= 5 + 4 * (len(due[HOUR]) + len(due[DAY]))


@given(st.integers(1, 400 * DAY), st.integers(60, 366 * DAY), st.sampled_from((MINUTE, HOUR, DAY)))
def test_steps_are_of_few_whole_spans(step_s: int, window_s: int, finest: int) -> None:
    found = rounded_step(step_s, window_s, finest)
    assert found >= step_s
    assert found % finest == 0
    span = max(span for span in (MINUTE, HOUR, DAY) if found % span == 0)
    assert window_s / span <= 2880


def plain(since: int, until: int, step_s: int | None = None, **due: set[int]) -> list[Piece]:
    found = {HOUR: due.get("hours", set()), DAY: due.get("days", set())}
    return cover(since, until, step_s=step_s, kept=Kept(), due=found, complete=int(NOW))


def test_days_hours_and_minutes() -> None:
    noon = START + 12 * HOUR
    pieces = plain(noon - 90 * 60, noon + 3 * DAY + 61 * 60)
    assert pieces == [
        (MINUTE, noon - 90 * 60, noon - HOUR),
        (HOUR, noon - HOUR, START + DAY),
        (DAY, START + DAY, START + 3 * DAY),
        (HOUR, START + 3 * DAY, noon + 3 * DAY + HOUR),
        (MINUTE, noon + 3 * DAY + HOUR, noon + 3 * DAY + HOUR + 60),
    ]


def test_what_is_due_is_made_of_what_is_not() -> None:
    pieces = plain(START, START + 3 * DAY, days={START + DAY}, hours={START + DAY + HOUR, START + 2 * DAY})
    assert pieces == [
        (DAY, START, START + DAY),
        (HOUR, START + DAY, START + DAY + HOUR),
        (MINUTE, START + DAY + HOUR, START + DAY + 2 * HOUR),
        (HOUR, START + DAY + 2 * HOUR, START + 2 * DAY),
        (DAY, START + 2 * DAY, START + 3 * DAY),
    ]


def test_the_hour_under_way_is_made_of_minutes() -> None:
    hour = int(NOW) // HOUR * HOUR
    assert plain(hour - HOUR, hour + HOUR) == [(HOUR, hour - HOUR, hour), (MINUTE, hour, hour + HOUR)]


def test_where_minutes_are_gone_hours_are_asked() -> None:
    kept = Kept(minutes=START + 2 * DAY + 5 * HOUR, hours=START + DAY)
    since, until = rounded(START + DAY + 90.5, START + 2 * DAY + 5 * HOUR + 30.5, kept)
    assert (since, until) == (START + DAY, START + 2 * DAY + 5 * HOUR + 60)
    due = {HOUR: {START + DAY + HOUR}, DAY: {START + DAY}}
    assert cover(since, until, kept=kept, due=due, complete=int(NOW)) == [
        (HOUR, START + DAY, START + 2 * DAY + 5 * HOUR),
        (MINUTE, START + 2 * DAY + 5 * HOUR, until),
    ]
    assert rounded(START + 3.5, START + 4.0, kept) == (START, START + DAY)


@pytest.mark.parametrize(
    ("step_s", "window_s", "finest", "rounded_to"),
    [
        (1, 600, MINUTE, 60),
        (90, 3600, MINUTE, 120),
        (5400, DAY, MINUTE, 5400),
        (900, 7 * DAY, MINUTE, 3600),
        (6 * HOUR, 30 * DAY, MINUTE, 6 * HOUR),
        (60, 3600, HOUR, 3600),
        (6 * HOUR, 366 * DAY, MINUTE, DAY),
    ],
)
def test_steps(step_s: int, window_s: int, finest: int, rounded_to: int) -> None:
    assert rounded_step(step_s, window_s, finest) == rounded_to
