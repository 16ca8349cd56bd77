"""Levels, the window of scores, budgets, and where two texts part."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.probes.similarity import Budget, Divergence, Level, Limits, Scores, ScoreWindow, first_divergence

LIMITS = Limits(0.82, 0.75)


@pytest.mark.parametrize(
    ("score", "level"),
    [
        (None, Level.UNKNOWN),
        (1.0, Level.OK),
        (0.82, Level.OK),
        (0.8199, Level.WARNING),
        (0.75, Level.WARNING),
        (0.7499, Level.CRITICAL),
        (-0.2, Level.CRITICAL),
    ],
)
def test_levels(score: float | None, level: Level) -> None:
    assert LIMITS.level(score) is level


@given(st.lists(st.floats(-1, 1), max_size=300))
def test_the_window_is_of_the_last_hundred(scores: list[float]) -> None:
    window = ScoreWindow(LIMITS)
    for score in scores:
        window.add(score)
    last = sorted(scores[-100:])
    found = window.figures()
    assert found.pairs == len(last)
    if not last:
        assert found == Scores(0, None, None, 0, 0)
        return
    assert found.mean == pytest.approx(sum(last) / len(last))
    assert found.p10 == last[math.ceil(len(last) / 10) - 1]
    assert found.critical == sum(score < 0.75 for score in last)
    assert found.warning == sum(0.75 <= score < 0.82 for score in last)


@pytest.mark.parametrize(("per_minute", "at_once"), [(60, 10), (6, 1), (0.5, 1), (600, 100)])
def test_a_budget_bounds_bursts_and_rate(per_minute: float, at_once: int) -> None:
    budget = Budget(per_minute)
    assert sum(budget.take(5.0) for _ in range(1000)) == at_once
    minutes = 10
    taken = sum(budget.take(5.0 + tenth / 10) for tenth in range(1, minutes * 600 + 1))
    assert minutes * per_minute - 1 <= taken <= minutes * per_minute


@pytest.mark.parametrize(
    ("a", "b", "divergence"),
    [
        ("", "", None),
        ("same", "same", None),
        ("", "x", (0, 0)),
        ("the bill is 43.50", "the bill is 38.50", (12, 3)),
        ("the bill is", "the bill is 38.50", (11, 3)),
        ("the bill", "the bills", (8, 1)),
        ("the bill. ", "the bill.\n", (9, 2)),
        ("账单是四十三", "账单是三十八", (3, 0)),
    ],
)
def test_where_texts_part(a: str, b: str, divergence: Divergence | None) -> None:
    assert first_divergence(a, b) == divergence == first_divergence(b, a)


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_what_is_in_common_is_the_longest_beginning(start: str, a: str, b: str) -> None:
    a, b = start + a, start + b
    found = first_divergence(a, b)
    if found is None:
        assert a == b
        return
    assert a[: found.characters] == b[: found.characters]
    assert a[found.characters : found.characters + 1] != b[found.characters : found.characters + 1]
    assert found.words <= len(a[: found.characters].split())
