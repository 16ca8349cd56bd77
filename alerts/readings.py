"""What a rule can read: name, unit, meaning, and the kinds of groups of which it is known.

`sidecar/readings.py` fills the table in. A reading that is not known (no traffic, too few requests, a part that is
off or away) is None or left out there, never 0.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

#: Kinds of groups a rule can be looked at by. "" is all traffic.
SLICES = ("scenario", "model", "temperature", "prompt_length", "concurrency")
KINDS = ("", "upstream", *SLICES)

_ALL = frozenset(("",))
_WINDOWS = frozenset(("", *SLICES))
_UPSTREAM = frozenset(("upstream",))


class Unit(StrEnum):
    RATIO = "ratio"
    TOKENS = "tokens"
    REQUESTS = "requests"
    COUNT = "count"
    #: 1 or 0.
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class Reading:
    name: str
    unit: Unit
    help: str
    #: Of KINDS, those by which it is known.
    kinds: frozenset[str]


_TABLE = (
    # The last 100 requests that speculated, of all traffic or of one slice.
    (_WINDOWS, "acceptance_rate", Unit.RATIO, "accepted / drafted tokens, pooled; it falls as k grows"),
    (_WINDOWS, "acceptance_rate_per_token", Unit.RATIO, "accepted / judged tokens, comparable across k"),
    (_WINDOWS, "acceptance_rate_high", Unit.RATIO, "upper end of the 95 % interval of acceptance_rate"),
    (_WINDOWS, "window_requests", Unit.REQUESTS, "requests in the window, at most 100"),
    (_WINDOWS, "window_draft_tokens", Unit.TOKENS, "draft tokens of these"),
    (_WINDOWS, "mean_acceptance_length", Unit.TOKENS, "tokens a verify step gave, the target's own included"),
    (_WINDOWS, "truncation_rate", Unit.RATIO, "verify steps of which a draft token was rejected"),
    (_WINDOWS, "first_position_share", Unit.RATIO, "of these, the share rejected at the first position"),
    # Speculation as a whole.
    (_ALL, "break_even_rate", Unit.RATIO, "acceptance rate at which speculation pays, where `draft_cost` is set"),
    (_ALL, "autoregressive", Unit.BOOL, "all traffic has fallen back"),
    (_ALL, "probing", Unit.BOOL, "it is being tried whether speculation can return"),
    (_ALL, "ineffective", Unit.BOOL, "it has fallen back, and requests are drafted for all the same"),
    (_ALL, "fell_back", Unit.BOOL, "all traffic has fallen back by itself, and no operator has ordered it"),
    (_ALL, "open_slices", Unit.COUNT, "slices that have fallen back by themselves"),
    (_ALL, "certificate_valid", Unit.BOOL, "the certificate holds for what runs, where `certificate` is set"),
    (_ALL, "switches", Unit.COUNT, "times in the last hour that all traffic began or ceased to speculate"),
    # What comes out.
    (_ALL, "similarity", Unit.RATIO, "mean similarity of draft text and final text, of the last pairs"),
    (_ALL, "similarity_pairs", Unit.COUNT, "pairs in that mean"),
    (_ALL, "replay_similarity", Unit.RATIO, "mean similarity of replies with and without speculation"),
    (_ALL, "replay_pairs", Unit.COUNT, "pairs in that mean"),
    (_ALL, "tokenizers_misaligned", Unit.BOOL, "draft model and target model know tokens by different ids"),
    (_ALL, "not_drafted_share", Unit.RATIO, "of the requests that could have been drafted for, those without figures"),
    (_ALL, "not_drafted_requests", Unit.REQUESTS, "requests in that share"),
    (_ALL, "repetition_share", Unit.RATIO, "of the last 100 replies, those that repeat themselves"),
    (_ALL, "garble_share", Unit.RATIO, "of these, those that look garbled"),
    (_ALL, "p_near_one_share", Unit.RATIO, "of these, those of which nearly every draft token was accepted"),
    (_ALL, "quality_replies", Unit.REQUESTS, "replies in these shares"),
    # Latency and errors.
    (
        _ALL,
        "latency_under_800ms_ratio",
        Unit.RATIO,
        "requests of the last hour that took at most 800 ms, from 15 minutes on",
    ),
    (
        _ALL,
        "p95_latency_under_800ms_ratio",
        Unit.RATIO,
        "minutes of it whose p95 was at most 800 ms, from 15 minutes on",
    ),
    (_ALL, "latency_requests", Unit.REQUESTS, "requests of the last hour that ended well"),
    (_ALL, "latency_ratio", Unit.RATIO, "p95 with speculation / p95 without; known from 50 requests a side"),
    (_ALL, "late_streams", Unit.COUNT, "streams of the last minute with no content in `first_byte_limit_s`"),
    (_ALL, "error_rate", Unit.RATIO, "requests of the last 5 minutes that an upstream failed"),
    (_ALL, "requests", Unit.REQUESTS, "requests of the last 5 minutes"),
    # Specwatch itself.
    (_ALL, "records_dropped", Unit.COUNT, "records lost in the last 5 minutes"),
    (_ALL, "tap_failures", Unit.COUNT, "requests of the last 5 minutes that could not be read"),
    (_ALL, "feed_steps_dropped", Unit.COUNT, "verify steps the engine could not tell in the last 5 minutes"),
    (_ALL, "similarity_dropped", Unit.COUNT, "pairs sampled in the last 5 minutes and not compared"),
    (_ALL, "notifications_failed", Unit.COUNT, "tries of the last 5 minutes to notify somebody that failed"),
    (_ALL, "database_up", Unit.BOOL, "rows can be written"),
    (_ALL, "feed_connected", Unit.COUNT, "engine cores that tell their verify steps, where `engine_events` is set"),
    (_ALL, "failed_tasks", Unit.COUNT, "parts of the sidecar that ended by an error"),
    # Upstreams.
    (_UPSTREAM, "upstream_up", Unit.BOOL, "the upstream can be reached"),
    (_UPSTREAM, "coverage", Unit.RATIO, "draft tokens in records / draft tokens the engine counted"),
    (_UPSTREAM, "engine_acceptance_rate", Unit.RATIO, "acceptance rate by the engine's own counters"),
)

READINGS: Mapping[str, Reading] = MappingProxyType(
    {name: Reading(name, unit, meaning, kinds) for kinds, name, unit, meaning in _TABLE}
)

#: Readings that say of how many requests or pairs others are. Too few are too little data.
SAMPLE_SIZES = frozenset(name for name, each in READINGS.items() if each.unit is Unit.REQUESTS) | {
    "window_draft_tokens",
    "similarity_pairs",
    "replay_pairs",
}


def shown(name: str, value: float | None) -> str:
    """A value as people read it, by the unit of its reading: ratios have three digits behind the point."""
    if value is None or not math.isfinite(value):
        return "unknown"
    match READINGS[name].unit:
        case Unit.RATIO:
            return f"{value:.3f}"
        case Unit.TOKENS:
            return f"{value:.2f}".rstrip("0").rstrip(".")
        case _:
            return f"{value:.0f}"
