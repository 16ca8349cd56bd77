"""Requests with an acceptance rate of choice, for the switch."""

from typing import Any

from sidecar.record import Acceptance, AcceptanceQuality, AcceptanceSource, Record

from .records import record

K = 4


def accepting(p: float, *, draft_tokens: int = 100, k: int = K, **fields: Any) -> Record:
    """A request whose draft tokens were accepted at the rate p, as nearly as whole tokens allow."""
    accepted = round(p * draft_tokens)
    steps = draft_tokens // k
    cut = steps - accepted // k
    acceptance = Acceptance(
        source=AcceptanceSource.ENGINE,
        quality=AcceptanceQuality.OK,
        num_speculative_tokens=k,
        verify_steps=steps,
        draft_tokens=draft_tokens,
        accepted_tokens=accepted,
        rejected_at=(cut, *[0] * (k - 1)),
        reached=(steps, *[steps - cut] * (k - 1)),
    )
    return record(acceptance=acceptance, **fields)
