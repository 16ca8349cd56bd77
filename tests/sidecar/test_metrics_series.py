"""The text of `/metrics` is that of prometheus_client's own instruments, counted one by one."""

from collections.abc import Iterable
from importlib.metadata import version

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from support.records import figures, record, records

from sidecar.metrics import (
    LATENCY_BUCKETS,
    POSITIONS,
    SIMILARITY_BUCKETS,
    TPOT_BUCKETS,
    TTFT_BUCKETS,
    Live,
    Metrics,
)
from sidecar.probes.similarity import Kind, Level
from sidecar.record import AcceptanceQuality, Arm, Outcome, Record

UPSTREAMS = ("speculative", "autoregressive")
SCENARIOS = ("chat", "小说")
MODELS = ("code", "it's")
NOTHING_LIVE = Live({}, 0, 0, 0, {}, 0, True, None, None, 0, {})

#: (name, help, labels, buckets or None), in the order of the text.
INSTRUMENTS = (
    (
        "specwatch_requests",
        "Generation requests that ended.",
        ("upstream", "model", "scenario", "arm", "outcome"),
        None,
    ),
    ("specwatch_draft_tokens", "Draft tokens proposed.", ("upstream", "scenario"), None),
    (
        "specwatch_accepted_tokens",
        "Draft tokens accepted; over the draft tokens, this is p.",
        ("upstream", "scenario"),
        None,
    ),
    ("specwatch_verify_steps", "Verify steps of the target model.", ("upstream", "scenario"), None),
    (
        "specwatch_truncations",
        "Verify steps whose first rejection was at the position (1-based).",
        ("position",),
        None,
    ),
    (
        "specwatch_request_latency_seconds",
        "Request head complete to last byte of an ok reply.",
        ("arm",),
        LATENCY_BUCKETS,
    ),
    (
        "specwatch_time_to_first_token_seconds",
        "Request head complete to first content byte of a stream.",
        ("arm",),
        TTFT_BUCKETS,
    ),
    ("specwatch_time_per_output_token_seconds", "Time per output token after the first.", ("arm",), TPOT_BUCKETS),
    (
        "specwatch_acceptance_unknown",
        "Speculative ok requests whose acceptance figures are missing or disagree.",
        ("quality",),
        None,
    ),
    (
        "specwatch_fallback_transitions",
        "Changes between speculative and autoregressive serving.",
        ("from", "to", "reason"),
        None,
    ),
    (
        "specwatch_similarity",
        "Cosine of the embeddings of two texts, at least 0: draft and final one, or replies with and without.",
        ("kind",),
        SIMILARITY_BUCKETS,
    ),
    ("specwatch_similarity_pairs", "Pairs of texts sampled.", ("kind", "level"), None),
    ("specwatch_accepted_length_tokens", "Draft tokens accepted per verify step.", ("upstream",), range(POSITIONS + 1)),
)

BUILD = "1; the version of this sidecar is its label."
COMPARED = (("draft", "ok", 1.0), ("draft", "critical", 0.74), ("draft", "critical", -0.1), ("replay", "unknown", None))


def by_instruments(items: Iterable[Record]) -> str:
    """What `/metrics` must say before its live figures."""
    prometheus_client.disable_created_metrics()
    registry = CollectorRegistry()
    (
        requests,
        drafted,
        accepted,
        steps,
        truncations,
        latency,
        ttft,
        tpot,
        unknown,
        transitions,
        scores,
        pairs,
        lengths,
    ) = (
        Counter(name, words, labels, registry=registry)
        if buckets is None
        else Histogram(name, words, labels, buckets=buckets, registry=registry)
        for name, words, labels, buckets in INSTRUMENTS
    )
    for position in (*range(1, POSITIONS + 1), "more"):
        truncations.labels(position)
    for arm in Arm:
        for histogram in (latency, ttft, tpot):
            histogram.labels(arm)
    for quality in (AcceptanceQuality.UNKNOWN, AcceptanceQuality.INCONSISTENT):
        unknown.labels(quality)
    for kind in Kind:
        scores.labels(kind)
        for level in Level:
            pairs.labels(kind, level)
    for upstream in UPSTREAMS:
        for scenario in (*SCENARIOS, "default", "other"):
            for counter in (drafted, accepted, steps):
                counter.labels(upstream, scenario)
        lengths.labels(upstream)
    build = Gauge("specwatch_build_info", BUILD, ("version",), registry=registry)
    build.labels(version("specwatch")).set(1)
    for item in items:
        known, ok = item.acceptance, item.outcome is Outcome.OK
        model = item.model if item.model in MODELS else "other"
        scenario = item.scenario if item.scenario in (*SCENARIOS, "default") else "other"
        requests.labels(item.upstream or "none", model, scenario, item.arm, item.outcome).inc()
        for histogram, ms in ((latency, item.latency_ms), (ttft, item.ttft_ms), (tpot, item.tpot_ms)):
            if ok and ms is not None:
                histogram.labels(item.arm).observe(ms / 1e3)
        if known.quality is AcceptanceQuality.OK:
            drafted.labels(item.upstream, scenario).inc(known.draft_tokens)
            accepted.labels(item.upstream, scenario).inc(known.accepted_tokens)
            steps.labels(item.upstream, scenario).inc(known.verify_steps)
            for position, cut in enumerate(known.rejected_at or (), start=1):
                truncations.labels(position if position <= POSITIONS else "more").inc(cut)
            for length, count in enumerate(known.histogram or ()):
                for _ in range(count):
                    lengths.labels(item.upstream).observe(length)
        elif ok and item.arm in (Arm.SPECULATIVE, Arm.PROBE):
            unknown.labels(known.quality).inc()
    transitions.labels("speculative", "autoregressive", "manual").inc()
    for kind, level, score in COMPARED:
        pairs.labels(kind, level).inc()
        if score is not None:
            scores.labels(kind).observe(max(score, 0.0))  # the sum never falls
    return generate_latest(registry).decode()


LONG = record(acceptance=figures(tuple(range(POSITIONS + 3))))
UNANSWERED = record(upstream="", outcome=Outcome.BAD_GATEWAY, acceptance=figures((0, 0), quality="unknown"))


@given(st.lists(records | st.sampled_from((LONG, UNANSWERED)), max_size=20), st.sampled_from((1, 15)))
def test_all_series_are_those_of_the_instruments(items: list[Record], times: int) -> None:
    metrics = Metrics(CollectorRegistry(), lambda: NOTHING_LIVE, upstreams=UPSTREAMS, scenarios=SCENARIOS)
    metrics.models.update(MODELS)
    for item in times * items:
        metrics.observe(item)
    metrics.render()
    for item in items:
        metrics.observe(item)
    metrics.transition("speculative", "autoregressive", "manual")
    for pair in COMPARED:
        metrics.compared(*pair)
    text, _, live = metrics.render().decode().partition("# HELP specwatch_relay_requests_total ")
    assert text == by_instruments((times + 1) * items)
    assert live
