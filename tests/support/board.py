"""What the board's newer questions are answered by its scripted API."""

from datetime import UTC, datetime, timedelta
from typing import Any

Payload = dict[str, Any]

NOW = datetime(2026, 11, 29, 18, 30, tzinfo=UTC)
ANSWERED: Payload = {
    "exact": True,
    "resolution_s": None,
    "since": "2026-11-29T17:30:00Z",
    "until": "2026-11-29T18:30:00Z",
}
SHARES = [*(i / 100 for i in range(1, 100)), 0.995, 0.999, 1.0]
VOLUMES = {"chat": 210, "code": 120, "summarise": 80, "translate": 55, "untested": 8}
SILENT = range(17, 21)


def ago(**span: float) -> str:
    return (NOW - timedelta(**span)).isoformat()


def traffic_point(requests: int, **changes: Any) -> Payload:
    failed = requests // 20
    return {
        "at": None,
        "group": None,
        "requests": requests,
        "ok": requests - failed,
        "outcomes": {"ok": requests - failed} | ({"client_abort": failed} if failed else {}),
        "requests_per_s": requests / 60,
        "completion_tokens_per_s": requests * 2.5,
        "streaming": requests // 2,
        "coverage": 0.95 if requests else None,
        "latency_under_800ms_ratio": 0.97,
        "minutes": 1,
        "p95_latency_under_800ms_ratio": 1.0,
    } | changes


def traffic(by: str | None = None) -> Payload:
    """An hour by minutes with four silent ones, or one point per scenario."""
    if by is None:
        points = [
            traffic_point(8, at=ago(minutes=60 - i), p95_latency_under_800ms_ratio=0.0 if 30 <= i < 34 else 1.0)
            for i in range(60)
            if i not in SILENT
        ]
    else:
        names = VOLUMES if by == "scenario" else {"demo-target": 473} if by == "model" else {"0": 300, "0-0.5": 173}
        alone: Payload = {"minutes": None, "p95_latency_under_800ms_ratio": None}
        points = [traffic_point(number, group=name, **alone) for name, number in names.items()]
    return {"window_s": 3600, **ANSWERED, "step_s": None if by else 60, "by": by, "points": points}


def distribution() -> Payload:
    def side(requests: int, scale: float) -> Payload:
        return {
            "requests": requests,
            "latency_ms": [scale * (200 + 600 * share**3) for share in SHARES],
            "ttft_ms": [scale * (30 + 80 * share**2) for share in SHARES],
            "tpot_ms": [scale * (4 + 6 * share) for share in SHARES],
        }

    return {
        "window_s": 3600,
        **ANSWERED,
        "baseline": "true_ar",
        "shares": SHARES,
        "speculative": side(398, 0.9),
        "autoregressive": side(57, 1.3),
    }


def similarity_figures(pairs: int, mean: float | None, critical: int = 0) -> Payload:
    low = None if mean is None else mean - 0.12
    return {"pairs": pairs, "mean": mean, "p10": low, "warning": critical, "critical": critical}


def similarity_state() -> Payload:
    return {
        "model": "all-MiniLM-L6-v2",
        "reason": None,
        "draft": {"pairs": 100, "mean": 0.95, "p10": 0.81, "warning": 9, "critical": 2},
        "replay": {"pairs": 0, "mean": None, "p10": None, "warning": 0, "critical": 0},
        "replay_equal": None,
        "dropped": 0,
    }


def similarity(query: dict[str, str]) -> Payload:
    points = []
    if query.get("by") == "scenario":
        means = {"chat": 0.96, "code": 0.93, "translate": 0.78}
        points = [similarity_figures(40, mean, 3) | {"at": None, "group": name} for name, mean in means.items()]
    elif "step" in query:
        points = [
            similarity_figures(3, 0.95 - 0.002 * i) | {"at": ago(minutes=60 - i), "group": None}
            for i in range(60)
            if i not in SILENT
        ]
    else:
        points = [similarity_figures(168, 0.93, 4) | {"at": None, "group": None}]
    whole = [{"kind": "draft", "unknown": 0} | point for point in points]
    return {
        "window_s": 3600,
        **ANSWERED,
        "step_s": 60 if "step" in query else None,
        "by": query.get("by"),
        "last_100": similarity_state(),
        "points": whole,
    }


def histogram() -> Payload:
    draft = [0] * 40
    draft[30:] = [1, 2, 2, 4, 9, 15, 30, 44, 35, 26]
    edges = [round(-1 + 0.05 * i, 2) for i in range(41)]
    return {"window_s": 3600, **ANSWERED, "edges": edges, "draft": draft, "replay": [0] * 40}


def pairs() -> Payload:
    found = [
        {
            "at": ago(minutes=10 * i + 3),
            "instance": "sidecar-1",
            "reply_id": f"chatcmpl-{i}aa61d09b",
            "kind": "draft",
            "score": 0.51 + 0.06 * i,
            "level": "critical" if i < 4 else "warning",
            "reason": None,
            "model": "all-MiniLM-L6-v2",
            "chunked": False,
            "first_divergence": None,
            "scenario": "translate" if i % 2 else "chat",
        }
        for i in range(5)
    ]
    return {"window_s": 3600, **ANSWERED, "pairs": found}


def quality() -> Payload:
    return {
        "requests": 473,
        "flags": [
            {"flag": "repetition", "total": 3, "share": 0.02},
            {"flag": "garble", "total": 0, "share": 0.0},
            {"flag": "p_near_one", "total": 0, "share": 0.0},
        ],
        "recent": [
            {
                "at": ago(minutes=4),
                "request_id": "chatcmpl-0aa61d09b",
                "flag": "repetition",
                "evidence": "the last 96 tokens are a loop of 3",
            }
        ],
    }


def alerts(*firing: str) -> Payload:
    """Named alerts that fire."""
    return {
        "alerts": [
            {
                "name": name,
                "severity": "critical" if i == 0 else "warning",
                "status": "firing",
                "labels": {"alertname": name, "instance": "sidecar-1", "scenario": "translate"},
                "annotations": {
                    "summary": "Too few draft tokens are accepted",
                    "description": "The acceptance rate of the last 100 requests that speculated is 0.55, below 0.65.",
                    "runbook": f"RUNBOOK.md#{name.lower()}",
                },
                "starts_at": ago(minutes=12),
                "value": 0.55,
                "stale": False,
            }
            for i, name in enumerate(firing)
        ],
        "rules": [
            {
                "alert": "SpecwatchAcceptanceLow",
                "by": "",
                "expr": "acceptance_rate < 0.65 and window_requests >= 50",
                "for_s": 30.0,
                "severity": "critical",
                "has_data": True,
                "firing": len(firing),
            }
        ],
        "history": [],
    }


def runbook() -> Payload:
    return {"alerts": {"SpecwatchAcceptanceLow": "**Means.** Less than 0.65 of the draft tokens are accepted."}}


def event(minutes: float, kind: str, subject: str, what: str, words: str, **changes: Any) -> Payload:
    return {
        "at": ago(minutes=minutes),
        "instance": "sidecar-1",
        "kind": kind,
        "subject": subject,
        "what": what,
        "words": words,
        "severity": None,
        "evidence": None,
    } | changes


def events() -> Payload:
    return {
        "events": [
            event(
                3,
                "alert",
                "SpecwatchAcceptanceLowInScenario",
                "firing",
                "Alert SpecwatchAcceptanceLowInScenario fires (scenario translate): 0.55",
                severity="warning",
                evidence={"value": 0.55},
            ),
            event(
                4,
                "switch",
                "scenario=translate",
                "autoregressive",
                "Fell back to autoregressive (scenario=translate): p 0.54 over 23 requests is below 0.65",
                evidence={"p": 0.54, "requests": 23},
            ),
            event(40, "engine", "", "speculative", "Draft tokens no longer capped: ordered by an operator"),
            event(
                50,
                "alignment",
                "<|eot|>",
                "moved",
                "'<|eot|>' is id 4 in the target and 5 in the draft",
                evidence={"target_id": 4, "draft_id": 5, "count": 100},
            ),
            event(58, "version", "speculative", "k=4", "num_speculative_tokens of upstream speculative: 4, was 3"),
        ],
        "next_cursor": None,
    }


def row(number: int = 0, **changes: Any) -> Payload:
    """One request, with four verify steps: 4/4, 4/2, 4/0, 3/3."""
    return {
        "request_id": f"req-{number}",
        "reply_id": f"chatcmpl-{number}aa61d09b",
        "started_at": ago(minutes=3 + number),
        "instance": "sidecar-1",
        "upstream": "speculative",
        "arm": "speculative",
        "model": "demo-target",
        "draft_model": "demo-draft",
        "scenario": "translate" if number % 2 else "chat",
        "endpoint": "/v1/chat/completions",
        "stream": True,
        "status": 200,
        "outcome": "ok",
        "finish_reason": "stop",
        "temperature": 0.0,
        "prompt_tokens": 61,
        "completion_tokens": 14,
        "num_speculative_tokens": 4,
        "verify_steps": 4,
        "draft_tokens": 15,
        "accepted_tokens": 9,
        "truncated_steps": 2,
        "acceptance_histogram": [1, 0, 1, 1, 1],
        "rejected_at": [1, 0, 1, 0],
        "reached": [4, 3, 3, 2],
        "steps": "44424033",
        "acceptance_source": "engine",
        "acceptance_quality": "ok",
        "acceptance_reason": None,
        "acceptance_raw": None,
        "ttft_ms": 41.0,
        "latency_ms": 512.0,
        "tpot_ms": 36.2,
        "max_chunk_gap_ms": 80.0,
        "queue_ms": 1.0,
        "concurrency": 2,
        "fingerprint": "vllm 0.32.0, draft demo-draft, k=4",
        "bytes_in": 812,
        "bytes_out": 4110,
    } | changes


#: Without figures: an autoregressive request has none to tell.
PLAIN: Payload = dict.fromkeys(
    (
        *("draft_model", "num_speculative_tokens", "verify_steps", "draft_tokens", "accepted_tokens"),
        *("truncated_steps", "acceptance_histogram", "rejected_at", "reached", "steps"),
    )
) | {"arm": "autoregressive", "acceptance_source": "none", "acceptance_quality": "unknown"}


def requests(query: dict[str, str]) -> Payload:
    """Two pages of rows, the second short."""
    if query.get("cursor") == "second":
        return {"requests": [row(number) for number in range(5, 8)], "next_cursor": None}
    rows = [row(0), row(1, outcome="client_abort", latency_ms=None), row(2, **PLAIN), row(3), row(4)]
    return {"requests": rows, "next_cursor": "second"}
