"""Figures from sums. Ratios are 0..1; a ratio with nothing below its line is None, never 0 or NaN."""

from collections.abc import Sequence
from typing import Any

#: Requests that each side of a latency ratio needs.
MIN_FOR_RATIO = 50
LATENCY_FIGURES = ("p50_ms", "p95_ms", "p99_ms", "ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms")


def ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def acceptance(
    requests: int | None, verify_steps: int | None, draft_tokens: int | None, accepted_tokens: int | None
) -> dict[str, Any]:
    """Pooled acceptance rate p = accepted / drafted; mean acceptance length = 1 + accepted / verify steps."""
    steps, drafted, accepted = int(verify_steps or 0), int(draft_tokens or 0), int(accepted_tokens or 0)
    return {
        "requests": int(requests or 0),
        "verify_steps": steps,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "p": ratio(accepted, drafted),
        "mean_acceptance_length": 1 + accepted / steps if steps else None,
    }


def truncation(
    verify_steps: int | None, rejected_at: Sequence[int | None], reached: Sequence[int | None]
) -> dict[str, Any]:
    """First rejections by position (index 0 is position 1); hazard = rejected there / reached it.

    A position without any entry was never drafted, and stays None.
    """
    return {
        "verify_steps": int(verify_steps or 0),
        "truncated_steps": sum(filter(None, rejected_at)),
        "rejected_at": list(rejected_at),
        "reached": list(reached),
        "hazard": [ratio(cut, seen) for cut, seen in zip(rejected_at, reached, strict=True)],
    }


def truncation_total(points: Sequence[dict[str, Any]], positions: int) -> dict[str, Any]:
    """The points of a series added up."""

    def add(name: str) -> list[int | None]:
        columns = [[point[name][i] for point in points] for i in range(positions)]
        return [sum(filter(None, column)) if any(value is not None for value in column) else None for column in columns]

    total = truncation(sum(point["verify_steps"] for point in points), add("rejected_at"), add("reached"))
    return {"at": None, "group": None, **total}


def first_position_share(total: dict[str, Any]) -> float | None:
    """Share of the truncated verify steps that were truncated at position 1."""
    first = total["rejected_at"][0] if total["rejected_at"] else None
    return ratio(first or 0, total["truncated_steps"])


def latency_side(requests: int = 0, values: dict[str, float | None] | None = None) -> dict[str, Any]:
    return {"requests": requests, **dict.fromkeys(LATENCY_FIGURES), **(values or {})}


def latency_ratio(speculative: dict[str, Any], autoregressive: dict[str, Any]) -> dict[str, Any]:
    """p95 with speculation / p95 without, or None and the reason."""
    short = [
        f"{side['requests']} of {MIN_FOR_RATIO} {name} requests"
        for name, side in (("speculative", speculative), ("autoregressive", autoregressive))
        if side["requests"] < MIN_FOR_RATIO
    ]
    if short:
        return {"ratio": None, "ratio_reason": "too few to compare: " + ", ".join(short)}
    value = ratio(speculative["p95_ms"], autoregressive["p95_ms"])
    return {"ratio": value, "ratio_reason": None if value is not None else "the autoregressive p95 is 0 ms"}
