"""Rollups of records by a plain computation, as the tables `rollups` and `rollups_due` hold them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

import numpy as np

from sidecar.probes.slices import CONCURRENCIES, PROMPT_LENGTHS, TEMPERATURES, UNKNOWN, UNSET
from sidecar.record import AcceptanceQuality, Arm, Outcome, Record
from sidecar.store.sketch import make

SPANS = (60, 3600, 86_400)

_BUCKETS: dict[str, Callable[[Record], str]] = {
    "temperature": lambda item: TEMPERATURES.name(item.temperature, UNSET),
    "prompt_length": lambda item: PROMPT_LENGTHS.name(item.prompt_tokens, UNKNOWN),
    "concurrency": lambda item: CONCURRENCIES.name(item.concurrency),
}
_NAMES = ("upstream", "arm", "outcome", "bucket", "model", "draft_model", "scenario", "num_speculative_tokens")


def rollups(items: Iterable[Record], spans: Sequence[int] = SPANS) -> list[dict[str, Any]]:
    """All of them, of the given spans."""
    groups: dict[Hashable, list[Record]] = defaultdict(list)
    for item in items:
        served: dict[str, Any] = {"upstream": item.upstream, "arm": item.arm.value, "outcome": item.outcome.value}
        served["num_speculative_tokens"] = item.acceptance.num_speculative_tokens
        base = {name: getattr(item, name) for name in ("model", "draft_model", "scenario")}
        for span in spans:
            at = int(round(item.started_at, 6) // span * span)
            keys = [("", served | base), ("whole", {})]
            keys += [(dimension, served | {"bucket": name(item)}) for dimension, name in _BUCKETS.items()]
            for dimension, names in keys:
                groups[span, at, dimension, *(names.get(name) for name in _NAMES)].append(item)
    return [_row(key, found) for key, found in groups.items()]


def _row(key: Any, items: list[Record]) -> dict[str, Any]:
    span, at, dimension, *names = key
    ok = [item for item in items if item.outcome is Outcome.OK]
    timed = [item.latency_ms for item in ok if item.latency_ms is not None]
    told = [
        item.acceptance
        for item in items
        if item.acceptance.quality is AcceptanceQuality.OK
        and item.acceptance.draft_tokens
        and item.outcome in (Outcome.OK, Outcome.TRUNCATED)
    ]
    pairs = [(each.accepted_tokens or 0, each.draft_tokens or 0) for each in told]
    listed = [each for each in told if each.rejected_at is not None]
    served = [item.acceptance for item in ok if item.arm in (Arm.SPECULATIVE, Arm.PROBE)]
    lost = [each for each in served if each.quality is not AcceptanceQuality.OK]
    return {
        "span_s": span,
        "at": datetime.fromtimestamp(at, UTC),
        "dimension": dimension,
        **dict(zip(_NAMES, names, strict=True)),
        "requests": len(items),
        "streaming": sum(item.stream for item in items),
        "completion_tokens": sum(item.completion_tokens or 0 for item in items),
        "trusted": sum(item.acceptance.quality is AcceptanceQuality.OK for item in items),
        "missing": dict(Counter(each.reason or each.quality.value for each in lost))
        if lost and not dimension
        else None,
        "timed": len(timed),
        "fast": sum(ms <= 800 for ms in timed),
        "counted": len(told),
        "verify_steps": sum(each.verify_steps or 0 for each in told),
        "draft_tokens": sum(drafted for _, drafted in pairs),
        "accepted_tokens": sum(accepted for accepted, _ in pairs),
        "aa": float(sum(a * a for a, _ in pairs)),
        "ad": float(sum(a * d for a, d in pairs)),
        "dd": float(sum(d * d for _, d in pairs)),
        "listed": len(listed),
        "listed_steps": sum(each.verify_steps or 0 for each in listed),
        "truncated_steps": sum(sum(each.rejected_at or ()) for each in listed),
        "rejected_at": _added(each.rejected_at or () for each in listed),
        "reached": _added(each.reached or () for each in listed),
        **{name: _sketch(ok, f"{name}_ms") for name in ("latency", "ttft", "tpot")},
    }


def _added(lists: Iterable[Sequence[int]]) -> list[int] | None:
    return [sum(n for n in column if n is not None) for column in zip_longest(*lists)] or None


def _sketch(items: Sequence[Record], name: str) -> bytes | None:
    return make(np.array([value for item in items if (value := getattr(item, name)) is not None], dtype=float))
