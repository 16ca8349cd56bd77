"""Rows of minutes as `minutes.Soak` writes them."""

from typing import Any

from sidecar.probes.acceptance import Counted, one


def told(requests: list[tuple[int, int]]) -> dict[str, Any]:
    """Acceptance of requests of (accepted, drafted) tokens, as the API tells it."""
    sums = Counted()
    for accepted, drafted in requests:
        sums.put(one(max(drafted // 4, 1), drafted, accepted, 4))
    low, high = sums.interval() or (None, None)
    return {
        "requests": len(requests),
        "accepted": sums.accepted_tokens,
        "drafted": sums.draft_tokens,
        "p": sums.accepted_tokens / sums.draft_tokens if requests else None,
        "low": low,
        "high": high,
    }


def latency(requests: int, p50: float, p95: float) -> dict[str, Any]:
    names = ("p50_ms", "p95_ms", "p99_ms", "ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms")
    values = (p50, p95, p95 * 1.2, p50 / 5, p95 / 5, p50 / 50)
    return {"requests": requests} | dict(zip(names, values if requests else (None,) * 6, strict=True))


def row(minute: float, scenarios: dict[str, list[tuple[int, int]]], **changes: Any) -> dict[str, Any]:
    every = [each for requests in scenarios.values() for each in requests]
    made = {
        "minute": minute,
        "at": 1_790_000_000 + 60 * minute,
        "seconds": 60.0,
        "partial": False,
        "sent": len(every),
        "failures": {},
        "pass": 1,
        "engine": {"mb": 1500.0, "root": 7},
        "sidecar": {"mb": 200.0, "root": 8},
        "database_mb": 1.0,
        "acceptance": {name: told(requests) for name, requests in scenarios.items() if requests},
        "mix": told(every),
        "k": 4,
        "seen": len(every),
        "ok": len(every),
        "outcomes": {"ok": len(every)},
        "speculative": latency(len(every), 400.0, 800.0),
        "baseline": latency(4, 800.0, 1600.0),
        "baseline_kind": "spec_disabled",
        "similarity": {"pairs": 0, "mean": None},
        "similarity_reason": "no engine tells its drafts",
        "coverage": 1.0,
        "missing": {},
        "dropped": 0,
        "state": "speculative",
    }
    return made | changes
