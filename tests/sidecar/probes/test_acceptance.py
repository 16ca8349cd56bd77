"""Acceptance windows: what counts, the sums, the interval. C04, C05, C06."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import acceptances, figures
from support.records import record as any_record

from sidecar.probes.acceptance import Counted, CountWindow, TimeWindow, break_even, counted, one
from sidecar.record import Acceptance, AcceptanceQuality, Outcome, Record


def record(drafted: int | None, accepted: int | None = None, **fields: Any) -> Record:
    given = {"quality": AcceptanceQuality.OK, "verify_steps": 1, **fields}
    return any_record(acceptance=Acceptance(draft_tokens=drafted, accepted_tokens=accepted, **given))


def test_c04_requests_without_drafts_are_no_evidence() -> None:
    window = CountWindow(100)
    for _ in range(200):
        window.add(record(None))
        window.add(record(0, 0, verify_steps=0))
    assert window.figures().p is None
    assert window.figures().mean_acceptance_length is None
    for _ in range(20):
        window.add(record(10, 8, verify_steps=4))
    assert window.figures().p == pytest.approx(0.8)
    assert len(window) == 20


@pytest.mark.parametrize(
    ("steps", "drafted", "accepted", "p", "length"),
    [
        (1, 7, 6, 0.857, 7),  # of 7 drafted 6 were accepted; the token behind them is nobody's guess
        (43, 215, 63, 0.2930, 2.4651),
        (43, 129, 10, 0.07752, 1.23256),
    ],
)
def test_c05_the_bonus_token_is_in_the_length_and_not_in_p(
    steps: int, drafted: int, accepted: int, p: float, length: float
) -> None:
    window = CountWindow()
    window.add(record(drafted, accepted, verify_steps=steps))
    assert window.figures().p == pytest.approx(p, abs=5e-4)
    assert window.figures().mean_acceptance_length == pytest.approx(length, abs=5e-5)


def test_c05_figures_that_cannot_be_true_do_not_enter() -> None:
    window = CountWindow()
    assert not window.add(record(129, 130, verify_steps=43, quality=AcceptanceQuality.INCONSISTENT))
    assert len(window) == 0


def test_c06_p_is_pooled_over_draft_tokens_not_a_mean_of_rates() -> None:
    window = CountWindow()
    window.add(record(10, 9))
    window.add(record(90, 1))
    assert window.figures().p == pytest.approx(0.10)


@pytest.mark.parametrize(
    ("k", "drafted", "accepted", "p", "length"),
    [(1, 26407, 22021, 0.834, 1.83), (8, 88344, 38611, 0.437, 4.50), (3, 259, 167, 0.6448, 2.92)],
)
def test_c06_p_comes_with_its_k_and_the_mean_length(
    k: int, drafted: int, accepted: int, p: float, length: float
) -> None:
    window = CountWindow()
    window.add(record(drafted, accepted, verify_steps=-(-drafted // k), num_speculative_tokens=k))
    found = window.figures()
    assert found.num_speculative_tokens == k
    assert found.p == pytest.approx(p, abs=5e-4)
    assert found.mean_acceptance_length == pytest.approx(length, abs=5e-3)
    window.add(record(10, 5, num_speculative_tokens=k + 1))
    assert window.figures().num_speculative_tokens is None


def test_p_per_token_leaves_out_what_was_never_judged() -> None:
    window = CountWindow()
    window.add(any_record(acceptance=figures((39, 1, 0, 3))))
    assert window.figures().truncated_steps == 40
    assert window.figures().p_per_token == 10 / 50
    window.add(record(10, 5))
    assert window.figures().truncated_steps is None
    assert window.figures().p_per_token is None


def test_failed_requests_do_not_enter() -> None:
    window = CountWindow()
    window.add(replace(record(10, 1), outcome=Outcome.UPSTREAM_ERROR))
    assert len(window) == 0


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(1, 9)), max_size=60), st.integers(1, 20))
def test_the_sums_are_those_of_the_last_requests(rows: list[tuple[int, int, int]], size: int) -> None:
    window = CountWindow(size)
    for drafted, accepted, steps in rows:
        window.add(record(drafted, min(accepted, drafted), verify_steps=steps))
    last = rows[-size:]
    found = window.figures()
    assert found.requests == len(window) == len(last)
    assert found.draft_tokens == sum(row[0] for row in last)
    assert found.accepted_tokens == sum(min(row[1], row[0]) for row in last)
    assert found.verify_steps == sum(row[2] for row in last)
    interval = window.interval()
    if len(last) < 2:
        assert interval is None
        return
    pairs = [(min(row[1], row[0]), row[0]) for row in last]
    p, n = found.accepted_tokens / found.draft_tokens, len(pairs)
    error = (n / (n - 1) * sum((a - p * d) ** 2 for a, d in pairs)) ** 0.5 / found.draft_tokens
    assert interval is not None
    assert interval[0] <= p <= interval[1]
    assert interval[1] - interval[0] >= min(2 * 1.96 * error, p, 1 - p) - 1e-9
    window.clear()
    assert (len(window), window.figures().p, window.interval()) == (0, None, None)


@given(st.lists(acceptances, max_size=40), st.integers(1, 10))
def test_truncation_is_that_of_the_requests_that_tell(found: list[Acceptance], size: int) -> None:
    window = CountWindow(size)
    in_window = [each for each in found if window.add(any_record(acceptance=each))][-size:]
    told = [each for each in in_window if each.rejected_at is not None]
    steps = sum(each.verify_steps or 0 for each in told)
    cut = sum(sum(each.rejected_at or ()) for each in told)
    first = sum((each.rejected_at or (0,))[0] for each in told)
    assert window.truncation_rate == (cut / steps if steps else None)
    assert window.first_position_share == (first / cut if cut else None)


def test_a_time_window_forgets_by_the_clock() -> None:
    window = TimeWindow(span_s=600, slots=10)
    for at in range(0, 1200, 6):
        row = counted(record(10, 8 if at < 600 else 4, num_speculative_tokens=3 if at < 600 else 4))
        assert row is not None
        window.put(row, at)
    found = window.figures(1199.0)
    assert (found.requests, found.p, found.num_speculative_tokens) == (100, 0.4, 4)
    assert window.figures(1439.0).requests == 60
    assert window.figures(5000.0).p is None
    window.put(row, 100.0)  # the clock was set back
    assert window.figures(1199.0).requests == 101


def stream(seed: int, p: float = 0.9, k: int = 4) -> Iterator[Counted]:
    """Requests of different lengths, each with a p of its own."""
    rng = random.Random(seed)
    while True:
        own, steps = rng.betavariate(9 * p, 9 * (1 - p)), 1 + int(rng.lognormvariate(3, 1))
        accepted = sum(next((i for i in range(k) if rng.random() >= own), k) for _ in range(steps))
        yield one(steps, steps * k, accepted, k)


def test_the_interval_knows_that_tokens_of_one_request_resemble_each_other() -> None:
    rows = stream(1)
    many = [next(rows) for _ in range(10_000)]
    truth = sum(row.accepted_tokens for row in many) / sum(row.draft_tokens for row in many)
    held = by_tokens = 0
    for start in range(0, 10_000, 50):
        window = CountWindow(50)
        for row in many[start : start + 50]:
            window.put(row)
        low, high = window.interval() or (1, 0)
        held += low <= truth <= high
        found = window.figures()
        p = found.accepted_tokens / found.draft_tokens
        by_tokens += abs(p - truth) <= 1.96 * (p * (1 - p) / found.draft_tokens) ** 0.5
    assert held / 200 > 0.87
    assert by_tokens / 200 < 0.5


@pytest.mark.parametrize(
    ("k", "c", "p"), [(1, 0.3, 0.3), (2, 0.375, 0.5), (4, 0.0, 0.0), (4, 1.0, 1.0), (4, 1.2, None), (0, 0.1, None)]
)
def test_break_even(k: int, c: float, p: float | None) -> None:
    assert break_even(k, c) == (None if p is None else pytest.approx(p))
