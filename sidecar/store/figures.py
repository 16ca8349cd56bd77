"""Figures from sums. Ratios are 0..1; a ratio with nothing below its line is None, never 0 or NaN."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import RowMapping

from sidecar.probes.acceptance import Counted, Figures
from sidecar.probes.latency import MIN_FOR_RATIO, Comparison, comparison, headline
from sidecar.probes.truncation import shape

_SUMS = (
    "requests",
    "verify_steps",
    "draft_tokens",
    "accepted_tokens",
    "truncated_steps",
    "listed",
    "aa",
    "ad",
    "dd",
    "k_told",
)
LATENCY_FIGURES = (
    *("p50_ms", "p95_ms", "p99_ms"),
    *("ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms"),
    *("tpot_p50_ms", "tpot_p95_ms", "tpot_p99_ms"),
)


def ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def acceptance(found: Figures) -> dict[str, Any]:
    """`AcceptanceFigures`."""
    return {
        "requests": found.requests,
        "verify_steps": found.verify_steps,
        "draft_tokens": found.draft_tokens,
        "accepted_tokens": found.accepted_tokens,
        "p": found.p,
        "p_low": found.low,
        "p_high": found.high,
        "mean_acceptance_length": found.mean_acceptance_length,
        "num_speculative_tokens": found.num_speculative_tokens,
        "p_per_token": found.p_per_token,
    }


def summed(sums: RowMapping) -> Figures:
    """Of the sums that `series.ACCEPTANCE` names."""
    # PostgreSQL adds up in decimals, and where there are no rows sums are null.
    n, steps, drafted, accepted, cut, listed, aa, ad, dd, k_told = (int(sums[name] or 0) for name in _SUMS)
    one_k = k_told == n and sums["k_least"] == sums["k_most"]
    found = Counted(n, steps, drafted, accepted, cut, n - listed, aa, ad, dd)
    return found.figures(sums["k_least"] if one_k else None)


def truncation(
    verify_steps: int | None, rejected_at: Sequence[int | None], reached: Sequence[int | None]
) -> dict[str, Any]:
    """First rejections by position (index 0 is position 1); hazard = rejected there / reached it.

    A position without any entry was never drafted, and stays None.
    """
    kind, cliff_at, _ = shape(rejected_at, reached)
    return {
        "verify_steps": int(verify_steps or 0),
        "truncated_steps": sum(filter(None, rejected_at)),
        "rejected_at": list(rejected_at),
        "reached": list(reached),
        "hazard": [ratio(cut, seen) for cut, seen in zip(rejected_at, reached, strict=True)],
        "shape": kind,
        "cliff_at": cliff_at,
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


def latency_side(timed: int = 0, fast: int = 0, values: dict[str, float | None] | None = None) -> dict[str, Any]:
    """`LatencyFigures` of `timed` ok requests of known latency, of which `fast` took GOAL_MS at most."""
    sums = {"requests": timed, "under_800ms_ratio": ratio(fast, timed)}
    return {**sums, **dict.fromkeys(LATENCY_FIGURES), **(values or {})}


def p95_ratio(speculative: dict[str, Any], baseline: dict[str, Any]) -> float | None:
    """Of two `LatencyFigures`, whatever their concurrency; None where one has too few requests."""
    enough = min(speculative["requests"], baseline["requests"]) >= MIN_FOR_RATIO
    return ratio(speculative["p95_ms"], baseline["p95_ms"]) if enough else None


def no_ratio(reason: str) -> dict[str, Any]:
    return {"ratio": None, "ratio_concurrency": None, "ratio_reason": reason, "by_concurrency": []}


def latency_ratio(speculative: int, baseline: int, found: Sequence[Comparison]) -> dict[str, Any]:
    """p95 with speculation / p95 without at the concurrency that has most requests, or None and the reason.

    `speculative` and `baseline` requests are those at any concurrency.
    """
    best, reason = headline(found), None
    if best is None:
        reason = comparison("", speculative, baseline, None, None).reason
        reason = reason or f"at no concurrency have both sides {MIN_FOR_RATIO} requests"
    return {
        "ratio": best and best.ratio,
        "ratio_concurrency": best and best.concurrency,
        "ratio_reason": reason,
        "by_concurrency": [asdict(each) for each in found],
    }
