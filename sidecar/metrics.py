"""Every Prometheus instrument. Labels come from configured sets, so the number of series is bounded."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from .record import AcceptanceQuality, Arm, Outcome, Record

CONTENT_TYPE = CONTENT_TYPE_LATEST

# They double the series of a scrape and say when a process started, which `up` tells too.
disable_created_metrics()  # type: ignore[no-untyped-call]

#: Seconds. 0.8 is an edge: it is the latency goal.
LATENCY_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0)
TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6)
TPOT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.4, 0.8)

#: Positions that get a label of their own; a longer draft counts its later ones as `more`.
POSITIONS = 16


@dataclass(frozen=True, slots=True)
class Live:
    """Figures read at each scrape."""

    outcomes: Mapping[Outcome, int]
    refused: int
    in_flight: int
    tap_failures: int
    dropped: Mapping[str, int]
    queue_length: int
    database_up: bool
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    window_requests: int
    #: state -> whether it holds
    states: Mapping[str, bool]


class Metrics:
    """Counts records. `render()` gives the text that `/metrics` serves."""

    def __init__(
        self,
        registry: CollectorRegistry,
        live: Callable[[], Live],
        *,
        upstreams: Collection[str],
        scenarios: Collection[str],
    ) -> None:
        self._registry = registry
        self._scenarios = frozenset((*scenarios, "default"))
        #: Served model names, as the upstreams report them.
        self.models: set[str] = set()
        self._requests = Counter(
            "specwatch_requests",
            "Generation requests that ended.",
            ("upstream", "model", "scenario", "arm", "outcome"),
            registry=registry,
        )
        self._draft_tokens = Counter(
            "specwatch_draft_tokens", "Draft tokens proposed.", ("upstream",), registry=registry
        )
        self._truncations = Counter(
            "specwatch_truncations",
            "Verify steps whose first rejection was at the position (1-based).",
            ("position",),
            registry=registry,
        )
        self._latency = Histogram(
            "specwatch_request_latency_seconds",
            "Request head complete to last byte of an ok reply.",
            ("arm",),
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._ttft = Histogram(
            "specwatch_time_to_first_token_seconds",
            "Request head complete to first content byte of a stream.",
            ("arm",),
            buckets=TTFT_BUCKETS,
            registry=registry,
        )
        self._tpot = Histogram(
            "specwatch_time_per_output_token_seconds",
            "Time per output token after the first.",
            ("arm",),
            buckets=TPOT_BUCKETS,
            registry=registry,
        )
        self._unknown = Counter(
            "specwatch_acceptance_unknown",
            "Speculative ok requests whose acceptance figures are missing or disagree.",
            ("quality",),
            registry=registry,
        )
        self._transitions = Counter(
            "specwatch_fallback_transitions",
            "Changes between speculative and autoregressive serving.",
            ("from", "to", "reason"),
            registry=registry,
        )
        self._lengths = _AcceptedLengths(upstreams)
        registry.register(self._lengths)
        registry.register(_LiveCollector(live))
        for name in upstreams:
            self._draft_tokens.labels(name)
        for position in range(1, POSITIONS + 1):
            self._truncations.labels(str(position))
        self._truncations.labels("more")
        for arm in Arm:
            for histogram in (self._latency, self._ttft, self._tpot):
                histogram.labels(arm)
        for quality in (AcceptanceQuality.UNKNOWN, AcceptanceQuality.INCONSISTENT):
            self._unknown.labels(quality)

    def observe(self, record: Record) -> None:
        """Count one record."""
        scenario = record.scenario if record.scenario in self._scenarios else "other"
        model = record.model if record.model in self.models else "other"
        arm = record.arm
        self._requests.labels(record.upstream or "none", model, scenario, arm, record.outcome).inc()
        if record.outcome is Outcome.OK:
            if record.latency_ms is not None:
                self._latency.labels(arm).observe(record.latency_ms / 1e3)
            if record.ttft_ms is not None:
                self._ttft.labels(arm).observe(record.ttft_ms / 1e3)
            if record.tpot_ms is not None:
                self._tpot.labels(arm).observe(record.tpot_ms / 1e3)
        figures = record.acceptance
        if figures.quality is not AcceptanceQuality.OK:
            if record.outcome is Outcome.OK and arm in (Arm.SPECULATIVE, Arm.PROBE):
                self._unknown.labels(figures.quality).inc()
            return
        self._draft_tokens.labels(record.upstream).inc(figures.draft_tokens or 0)
        self._lengths.add(record)
        for position, count in enumerate(figures.rejected_at or (), start=1):
            if count:
                self._truncations.labels(str(position) if position <= POSITIONS else "more").inc(count)

    def transition(self, before: str, after: str, reason: str) -> None:
        """Count a change of state; `reason` is of a fixed set, as `manual`."""
        self._transitions.labels(before, after, reason).inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _AcceptedLengths(Collector):
    """Histogram of accepted draft tokens per verify step: whole histograms are added at once."""

    def __init__(self, upstreams: Collection[str]) -> None:
        self._counts = {name: [0] * (POSITIONS + 2) for name in upstreams}
        self._sums = dict.fromkeys(upstreams, 0)

    def add(self, record: Record) -> None:
        counts = self._counts.get(record.upstream)
        histogram = record.acceptance.histogram
        if counts is None or histogram is None:
            return
        for length, steps in enumerate(histogram):
            counts[min(length, POSITIONS + 1)] += steps
        self._sums[record.upstream] += record.acceptance.accepted_tokens or 0

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "specwatch_accepted_length_tokens",
            "Draft tokens accepted per verify step.",
            labels=("upstream",),
        )
        for name, counts in self._counts.items():
            total = 0
            buckets: list[tuple[str, float]] = []
            for length, steps in enumerate(counts[:-1]):
                total += steps
                buckets.append((f"{float(length)}", total))
            buckets.append(("+Inf", total + counts[-1]))
            family.add_metric((name,), buckets, self._sums[name])
        yield family


class _LiveCollector(Collector):
    def __init__(self, live: Callable[[], Live]) -> None:
        self._live = live

    def describe(self) -> list[Metric]:
        return []  # collected only when asked: the parts it reads may not be built yet

    def collect(self) -> Iterator[Metric]:
        live = self._live()
        relayed = CounterMetricFamily(
            "specwatch_relay_requests", "Requests of any path that ended.", labels=("outcome",)
        )
        for outcome in Outcome:
            relayed.add_metric((outcome,), live.outcomes.get(outcome, 0))
        yield relayed
        yield CounterMetricFamily(
            "specwatch_relay_refused", "Requests refused as no valid HTTP/1.1.", value=live.refused
        )
        yield GaugeMetricFamily("specwatch_relay_in_flight", "Requests in flight.", value=live.in_flight)
        yield CounterMetricFamily(
            "specwatch_tap_failures", "Requests served unread because their tap failed.", value=live.tap_failures
        )
        dropped = CounterMetricFamily(
            "specwatch_records_dropped", "Records that did not reach the database.", labels=("stage",)
        )
        for stage, count in live.dropped.items():
            dropped.add_metric((stage,), count)
        yield dropped
        yield GaugeMetricFamily(
            "specwatch_writer_queue_length", "Records waiting for the database.", value=live.queue_length
        )
        yield GaugeMetricFamily(
            "specwatch_database_up", "1 while the database takes rows.", value=int(live.database_up)
        )
        if live.acceptance_rate is not None:
            ratio = GaugeMetricFamily(
                "specwatch_acceptance_ratio",
                "Acceptance rate p, pooled over the last requests that speculated.",
                labels=("window",),
            )
            ratio.add_metric(("100",), live.acceptance_rate)
            yield ratio
        if live.mean_acceptance_length is not None:
            yield GaugeMetricFamily(
                "specwatch_mean_acceptance_length_tokens",
                "1 + accepted tokens per verify step, over the same window.",
                value=live.mean_acceptance_length,
            )
        yield GaugeMetricFamily("specwatch_window_requests", "Requests in that window.", value=live.window_requests)
        states = GaugeMetricFamily("specwatch_fallback_state", "1 for the state that holds.", labels=("state",))
        for state, holds in live.states.items():
            states.add_metric((state,), int(holds))
        yield states
