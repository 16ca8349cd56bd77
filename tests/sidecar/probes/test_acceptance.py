"""The window of the last requests that speculated. C04, C06."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sidecar.probes.acceptance import CountWindow
from sidecar.record import Acceptance, AcceptanceQuality, Arm, Outcome, Record


def record(drafted: int | None, accepted: int | None = None, *, steps: int | None = 1, ok: bool = True) -> Record:
    quality = AcceptanceQuality.OK if ok else AcceptanceQuality.INCONSISTENT
    return Record(
        request_id="r",
        started_at=0.0,
        instance="i",
        upstream="speculative",
        arm=Arm.SPECULATIVE,
        endpoint="chat_completions",
        scenario="default",
        outcome=Outcome.OK,
        acceptance=Acceptance(quality=quality, verify_steps=steps, draft_tokens=drafted, accepted_tokens=accepted),
    )


def test_c04_requests_without_drafts_are_no_evidence() -> None:
    window = CountWindow(100)
    for _ in range(200):
        window.add(record(None))
        window.add(record(0, 0, steps=0))
    assert window.acceptance_rate is None
    assert window.mean_acceptance_length is None
    for _ in range(20):
        window.add(record(10, 8, steps=4))
    assert window.acceptance_rate == pytest.approx(0.8)
    assert len(window) == 20


def test_c06_p_is_pooled_over_draft_tokens_not_a_mean_of_rates() -> None:
    window = CountWindow()
    window.add(record(10, 9))
    window.add(record(90, 1))
    assert window.acceptance_rate == pytest.approx(0.10)


def test_failed_requests_do_not_enter() -> None:
    window = CountWindow()
    window.add(replace(record(10, 1), outcome=Outcome.UPSTREAM_ERROR))
    assert len(window) == 0


def test_mean_acceptance_length_counts_the_targets_own_token() -> None:
    window = CountWindow()
    window.add(record(129, 10, steps=43))
    assert window.mean_acceptance_length == pytest.approx(1.23256, abs=5e-6)


def test_figures_that_disagree_do_not_enter() -> None:
    window = CountWindow()
    window.add(record(10, 20, ok=False))
    assert len(window) == 0


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(1, 9)), max_size=60), st.integers(1, 20))
def test_the_sums_are_those_of_the_last_requests(rows: list[tuple[int, int, int]], size: int) -> None:
    window = CountWindow(size)
    for drafted, accepted, steps in rows:
        window.add(record(drafted, min(accepted, drafted), steps=steps))
    last = rows[-size:]
    assert window.draft_tokens == sum(row[0] for row in last)
    assert window.accepted_tokens == sum(min(row[1], row[0]) for row in last)
    assert window.verify_steps == sum(row[2] for row in last)
