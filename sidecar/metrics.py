"""Every Prometheus metric. Labels come from configured sets, so the number of series is bounded.

Each request is counted, and a scrape comes every few seconds. So counting only adds to plain numbers, which costs
a tenth of what the instruments of prometheus_client do, and a scrape makes metric families of the numbers.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import accumulate, zip_longest
from operator import add

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from .probes.similarity import Kind, Level
from .record import Acceptance, AcceptanceQuality, Arm, Outcome, Record

CONTENT_TYPE = CONTENT_TYPE_LATEST

#: Seconds. 0.8 is an edge: it is the latency goal.
LATENCY_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0)
TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6)
#: 0.75 and 0.82 are edges: they are the limits by default.
SIMILARITY_BUCKETS = (0.0, 0.25, 0.5, 0.6, 0.7, 0.75, 0.82, 0.9, 0.95, 0.99, 1.0)
TPOT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.4, 0.8)

#: Positions that get a label of their own; a longer draft counts its later ones as `more`.
POSITIONS = 16
_POSITION_LABELS = (*(str(position) for position in range(1, POSITIONS + 1)), "more")
#: Buckets of draft tokens accepted in a verify step.
_LENGTHS = tuple(map(float, range(POSITIONS + 1)))

#: Figures that may wait to be added up. Adding up so many takes some 30 us, for which the event loop stands still.
_MOST_WAITING = 64


@dataclass(frozen=True, slots=True)
class FeedCounts:
    """The engine's events since the start; `connected` cores are those of now, None without `engine_events`."""

    connected: int | None = None
    steps: int = 0
    steps_dropped: int = 0
    joined: int = 0
    unjoined: int = 0
    incomplete: int = 0
    malformed: int = 0
    disagreements: int = 0


@dataclass(frozen=True, slots=True)
class AlertCounts:
    """Alerts and notifications. Whatever there may be has an entry from the start, so that a rise from 0 is seen."""

    #: (alert, severity) -> alerts that fire, for every rule.
    firing: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    #: Whether the last look at a rule had data; None: nobody has looked.
    has_data: Mapping[str, bool | None] = field(default_factory=dict)
    #: (receiver, outcome) -> notifications since the start.
    notifications: Mapping[tuple[str, ...], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Live:
    """Figures read at each scrape."""

    outcomes: Mapping[Outcome, int]
    refused: int
    in_flight: int
    tap_failures: int
    dropped: Mapping[str, int]
    #: Records that wait, in memory and on disk.
    queue_length: int
    database_up: bool
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    window_requests: int
    #: state -> whether it holds
    states: Mapping[str, bool]
    #: Those on disk.
    spool_records: int = 0
    spool_bytes: int = 0
    #: Spans that are over and whose rollups are due.
    rollups_pending: int = 0
    #: Rows that were deleted as retention has it, by setting of `retention_days`, since the start.
    pruned: Mapping[str, int] = field(default_factory=dict)
    feed: FeedCounts = FeedCounts()
    #: Whether no token has another id in the draft than in the target; None while that is not known.
    aligned: bool | None = None
    same_text_other_id: int | None = None
    opt_out_ineffective: int = 0
    #: Whether each can be reached.
    upstreams: Mapping[str, bool] = field(default_factory=dict)
    #: All traffic, and how many slices, go without speculation by decisions of their own.
    fell_back: bool = False
    open_slices: int = 0
    #: The certificate holds for what runs; None where there is none, or that is not known yet.
    certificate_valid: bool | None = None
    #: Pairs of texts that were sampled and not compared, by why.
    similarity_dropped: Mapping[str, int] = field(default_factory=dict)
    #: Replies that look broken, by what is seen.
    output_flags: Mapping[str, int] = field(default_factory=dict)
    #: By upstream: draft tokens in records / in its own counters, where that is known; and what these went through.
    coverage: Mapping[str, float] = field(default_factory=dict)
    counter_resets: Mapping[str, int] = field(default_factory=dict)
    counter_disagreements: Mapping[str, int] = field(default_factory=dict)
    #: Streams whose first content came later than first_byte_limit_s, since the start.
    late_streams: int = 0
    #: Requests that an upstream failed, since the start; one that refuses a wrong request (4xx) fails none.
    failures: int = 0
    #: p95 with speculation / p95 without, at like concurrency; None while that is not known.
    latency_ratio: float | None = None
    #: By how much the event loop was late, at most, in the last minute.
    loop_lag_s: float = 0.0
    alerts: AlertCounts = field(default_factory=AlertCounts)
    #: Decisions are shared; None where there is no fleet.
    fleet_up: bool | None = None


class Metrics:
    """Counts records. `render()` gives the text that `/metrics` serves. For use from one thread."""

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
        self._requests: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._latency: dict[str, _Distribution] = {arm: _Distribution(LATENCY_BUCKETS) for arm in Arm}
        self._ttft: dict[str, _Distribution] = {arm: _Distribution(TTFT_BUCKETS) for arm in Arm}
        self._tpot: dict[str, _Distribution] = {arm: _Distribution(TPOT_BUCKETS) for arm in Arm}
        self._speculation = {
            upstream: {scenario: _Speculation() for scenario in (*scenarios, "default", "other")}
            for upstream in upstreams
        }
        self._unknown = {AcceptanceQuality.UNKNOWN: 0, AcceptanceQuality.INCONSISTENT: 0}
        self._transitions: defaultdict[tuple[str, ...], int] = defaultdict(int)
        #: How often all traffic began or ceased to speculate; probes are neither.
        self.switches = 0
        self._similarity: dict[str, _Distribution] = {kind: _Distribution(SIMILARITY_BUCKETS) for kind in Kind}
        self._pairs: dict[tuple[str, ...], int] = {(kind, level): 0 for kind in Kind for level in Level}
        registry.register(_Collector(self._collect))
        registry.register(_Collector(lambda: _live_families(live())))
        self._build: dict[tuple[str, ...], int] = {(version("specwatch"),): 1}
        ProcessCollector(registry=registry)

    def observe(self, record: Record) -> None:
        """Count one record."""
        arm, outcome = record.arm, record.outcome
        scenario = record.scenario if record.scenario in self._scenarios else "other"
        model = record.model if record.model in self.models else "other"
        self._requests[record.upstream or "none", model, scenario, arm, outcome] += 1
        if outcome is Outcome.OK:
            if record.latency_ms is not None:
                self._latency[arm].add(record.latency_ms / 1e3)
            if record.ttft_ms is not None:
                self._ttft[arm].add(record.ttft_ms / 1e3)
            if record.tpot_ms is not None:
                self._tpot[arm].add(record.tpot_ms / 1e3)
        figures = record.acceptance
        if figures.quality is AcceptanceQuality.OK:
            self._speculation[record.upstream][scenario].add(figures)
        elif outcome is Outcome.OK and arm in (Arm.SPECULATIVE, Arm.PROBE):
            self._unknown[figures.quality] += 1

    def compared(self, kind: str, level: str, score: float | None) -> None:
        """Count a pair of texts."""
        self._pairs[kind, level] += 1
        if score is not None:
            # A sum that falls would be taken for a restart.
            self._similarity[kind].add(max(score, 0.0))

    def transition(self, before: str, after: str, reason: str, of: str = "") -> None:
        """Count a change of state; `reason` is of a fixed set, as `operator`, and `of` names a slice."""
        self._transitions[before, after, reason] += 1
        self.switches += not of and before != after and "speculative" in (before, after)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _collect(self) -> Iterator[Metric]:
        speculation: dict[tuple[str, ...], _Speculation] = {}
        lengths = {upstream: _Distribution(_LENGTHS) for upstream in self._speculation}
        for upstream, scenarios in self._speculation.items():
            for scenario, each in scenarios.items():
                each.add_up()
                lengths[upstream].put(each.lengths)
                speculation[upstream, scenario] = each
        yield _counter(
            "specwatch_requests",
            "Generation requests that ended.",
            ("upstream", "model", "scenario", "arm", "outcome"),
            self._requests,
        )
        by = ("upstream", "scenario")
        yield _counter(
            "specwatch_draft_tokens",
            "Draft tokens proposed.",
            by,
            {key: each.draft_tokens for key, each in speculation.items()},
        )
        yield _counter(
            "specwatch_accepted_tokens",
            "Draft tokens accepted; over the draft tokens, this is p.",
            by,
            {key: each.accepted_tokens for key, each in speculation.items()},
        )
        yield _counter(
            "specwatch_verify_steps",
            "Verify steps of the target model.",
            by,
            {key: each.verify_steps for key, each in speculation.items()},
        )
        yield _counter(
            "specwatch_truncations",
            "Verify steps whose first rejection was at the position (1-based).",
            ("position",),
            {
                (position,): sum(each.truncations[index] for each in speculation.values())
                for index, position in enumerate(_POSITION_LABELS)
            },
        )
        yield _histogram(
            "specwatch_request_latency_seconds",
            "Request head complete to last byte of an ok reply.",
            "arm",
            self._latency,
        )
        yield _histogram(
            "specwatch_time_to_first_token_seconds",
            "Request head complete to first content byte of a stream.",
            "arm",
            self._ttft,
        )
        yield _histogram(
            "specwatch_time_per_output_token_seconds",
            "Time per output token after the first.",
            "arm",
            self._tpot,
        )
        yield _counter(
            "specwatch_acceptance_unknown",
            "Speculative ok requests whose acceptance figures are missing or disagree.",
            ("quality",),
            {(quality,): count for quality, count in self._unknown.items()},
        )
        yield _counter(
            "specwatch_fallback_transitions",
            "Changes between speculative and autoregressive serving.",
            ("from", "to", "reason"),
            self._transitions,
        )
        yield _histogram(
            "specwatch_similarity",
            "Cosine of the embeddings of two texts, at least 0: draft and final one, or replies with and without.",
            "kind",
            self._similarity,
        )
        yield _counter("specwatch_similarity_pairs", "Pairs of texts sampled.", ("kind", "level"), self._pairs)
        yield _histogram(
            "specwatch_accepted_length_tokens",
            "Draft tokens accepted per verify step.",
            "upstream",
            lengths,
        )
        yield _gauge("specwatch_build_info", "1; the version of this sidecar is its label.", ("version",), self._build)


class _Distribution:
    """How many values lie at or below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        #: Of values above the bound before; the last one, of values above every bound.
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def put(self, other: "_Distribution") -> None:
        """Add one with the same bounds."""
        self.counts = [*map(add, self.counts, other.counts)]
        self.sum += other.sum


class _Speculation:
    """Sums over the trusted figures of one upstream and scenario.

    Figures wait until there are many: lists are added in C then, at half the cost of adding each by itself.
    """

    __slots__ = ("_accepted_tokens", "_verify_steps", "_waiting", "draft_tokens", "lengths", "truncations")

    def __init__(self) -> None:
        self._waiting: list[Acceptance] = []
        self.draft_tokens = 0
        #: Draft tokens accepted, of verify steps.
        self.lengths = _Distribution(_LENGTHS)
        #: Of figures that do not tell single steps.
        self._accepted_tokens = 0
        self._verify_steps = 0
        self.truncations = [0] * len(_POSITION_LABELS)

    @property
    def accepted_tokens(self) -> float:
        return self.lengths.sum + self._accepted_tokens

    @property
    def verify_steps(self) -> int:
        return sum(self.lengths.counts) + self._verify_steps

    def add(self, figures: Acceptance) -> None:
        waiting = self._waiting
        waiting.append(figures)
        if len(waiting) >= _MOST_WAITING:
            self.add_up()

    def add_up(self) -> None:
        """Bring the sums up to date."""
        waiting, self._waiting = self._waiting, []
        self.draft_tokens += sum([figures.draft_tokens or 0 for figures in waiting])
        detailed = [figures for figures in waiting if figures.histogram is not None]
        self.lengths.sum += sum([figures.accepted_tokens or 0 for figures in detailed])
        _add_lists(self.lengths.counts, [figures.histogram or () for figures in detailed])
        _add_lists(self.truncations, [figures.rejected_at or () for figures in waiting])
        if len(detailed) < len(waiting):
            others = [figures for figures in waiting if figures.histogram is None]
            self._accepted_tokens += sum([figures.accepted_tokens or 0 for figures in others])
            self._verify_steps += sum([figures.verify_steps or 0 for figures in others])


def _add_lists(totals: list[int], lists: Iterable[Collection[int]]) -> None:
    """Add up lists element by element; what lies behind the last total counts there."""
    last = len(totals) - 1
    for index, total in enumerate(map(sum, zip_longest(*lists, fillvalue=0))):
        totals[min(index, last)] += total


class _Collector(Collector):
    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def describe(self) -> list[Metric]:
        return []  # collected only when asked: the parts it reads may not be built yet

    def collect(self) -> Iterator[Metric]:
        return self._collect()


def _counter(name: str, help_text: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], float]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def _gauge(name: str, help_text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _histogram(name: str, help_text: str, label: str, distributions: Mapping[str, _Distribution]) -> Metric:
    family = HistogramMetricFamily(name, help_text, labels=(label,))
    for value, distribution in distributions.items():
        edges = [*map(floatToGoString, distribution.bounds), "+Inf"]
        family.add_metric((value,), list(zip(edges, accumulate(distribution.counts), strict=True)), distribution.sum)
    return family


def _live_families(live: Live) -> Iterator[Metric]:
    relayed = CounterMetricFamily("specwatch_relay_requests", "Requests of any path that ended.", labels=("outcome",))
    for outcome in Outcome:
        relayed.add_metric((outcome,), live.outcomes.get(outcome, 0))
    yield relayed
    yield CounterMetricFamily(
        "specwatch_relay_refused", "Requests refused as malformed or too slow.", value=live.refused
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
        "specwatch_writer_queue_length",
        "Records waiting for the database, in memory and in the spool.",
        value=live.queue_length,
    )
    yield GaugeMetricFamily("specwatch_spool_records", "Those of them in the spool.", value=live.spool_records)
    yield GaugeMetricFamily("specwatch_spool_bytes", "What the spool takes on disk.", value=live.spool_bytes)
    yield GaugeMetricFamily(
        "specwatch_rollups_pending",
        "Minutes, hours and days that are over and whose rollups are due.",
        value=live.rollups_pending,
    )
    pruned = CounterMetricFamily(
        "specwatch_rows_pruned", "Rows that were older than they are to be kept, and deleted.", labels=("table",)
    )
    for table, count in live.pruned.items():
        pruned.add_metric((table,), count)
    yield pruned
    yield GaugeMetricFamily("specwatch_database_up", "1 while the database takes rows.", value=int(live.database_up))
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
    yield GaugeMetricFamily(
        "specwatch_fell_back",
        "1 while all traffic but probes goes without speculation, by a decision of its own.",
        value=int(live.fell_back),
    )
    yield GaugeMetricFamily(
        "specwatch_fallback_open_slices",
        "Slices that are not served with speculation, by decisions of their own.",
        value=live.open_slices,
    )
    if live.certificate_valid is not None:
        yield GaugeMetricFamily(
            "specwatch_certificate_valid",
            "1 while the certificate holds for what runs; 0: no scenario is certified.",
            value=int(live.certificate_valid),
        )
    if live.fleet_up is not None:
        yield GaugeMetricFamily(
            "specwatch_fleet_up", "1 while decisions are shared with the fleet.", value=int(live.fleet_up)
        )
    up = GaugeMetricFamily("specwatch_upstream_up", "1 while connections can be made.", labels=("upstream",))
    for name, reached in live.upstreams.items():
        up.add_metric((name,), int(reached))
    yield up
    yield CounterMetricFamily(
        "specwatch_opt_out_ineffective",
        "Requests that were drafted for though they were to be served without speculation.",
        value=live.opt_out_ineffective,
    )
    yield _counter(
        "specwatch_similarity_dropped",
        "Sampled pairs of texts that were not compared.",
        ("reason",),
        {(reason,): count for reason, count in live.similarity_dropped.items()},
    )
    yield _counter(
        "specwatch_output_flags",
        "Replies that look broken, by what is seen.",
        ("flag",),
        {(flag,): count for flag, count in live.output_flags.items()},
    )
    yield CounterMetricFamily(
        "specwatch_late_streams",
        "Streams with speculation whose first content came later than first_byte_limit_s.",
        value=live.late_streams,
    )
    yield CounterMetricFamily(
        "specwatch_failures",
        "Requests that an upstream failed: a 5xx, no reply, a cut one or a timeout.",
        value=live.failures,
    )
    if live.latency_ratio is not None:
        yield GaugeMetricFamily(
            "specwatch_latency_ratio",
            "p95 of the latency with speculation / without, at the concurrency that has most requests.",
            value=live.latency_ratio,
        )
    yield GaugeMetricFamily(
        "specwatch_event_loop_lag_seconds",
        "By how much the event loop was late, at most, in the last minute.",
        value=live.loop_lag_s,
    )
    yield from _alert_families(live.alerts)
    yield from _counter_families(live)
    yield from _feed_families(live.feed)
    if live.aligned is not None:
        yield GaugeMetricFamily(
            "specwatch_tokenizer_aligned",
            "1 while no token is seen to have another id in the draft than in the target, 0 where one is.",
            value=int(live.aligned),
        )
    if live.same_text_other_id is not None:
        yield CounterMetricFamily(
            "specwatch_same_text_other_id",
            "Rejected draft tokens that were the target's own by another id.",
            value=live.same_text_other_id,
        )


def _alert_families(alerts: AlertCounts) -> Iterator[Metric]:
    yield _gauge("specwatch_alerts_firing", "Alerts that fire, by rule.", ("alert", "severity"), alerts.firing)
    yield _gauge(
        "specwatch_alert_has_data",
        "1 while the last look at a rule had data.",
        ("alert",),
        {(name,): int(known) for name, known in alerts.has_data.items() if known is not None},
    )
    yield _counter(
        "specwatch_notifications",
        "Notifications, by how they ended: sent, or why not.",
        ("receiver", "outcome"),
        alerts.notifications,
    )


def _counter_families(live: Live) -> Iterator[Metric]:
    coverage = GaugeMetricFamily(
        "specwatch_coverage_ratio",
        "Draft tokens in records / in the upstream's own counters, of the last 15 minutes.",
        labels=("upstream",),
    )
    for name, ratio in live.coverage.items():
        coverage.add_metric((name,), ratio)
    yield coverage
    yield _counter(
        "specwatch_engine_counter_resets",
        "Times that an upstream's own counters began anew, as where an engine was restarted.",
        ("upstream",),
        {(name,): count for name, count in live.counter_resets.items()},
    )
    yield _counter(
        "specwatch_engine_counter_disagreements",
        "Times that what an upstream's own counters grew by could not be true.",
        ("upstream",),
        {(name,): count for name, count in live.counter_disagreements.items()},
    )


def _feed_families(feed: FeedCounts) -> Iterator[Metric]:
    if feed.connected is not None:
        yield GaugeMetricFamily(
            "specwatch_engine_feed_connected_cores", "Engine cores that send their events.", value=feed.connected
        )
    yield CounterMetricFamily("specwatch_engine_feed_steps", "Engine steps received.", value=feed.steps)
    yield CounterMetricFamily(
        "specwatch_engine_feed_steps_dropped",
        "Engine steps that the engine could not send while it was connected.",
        value=feed.steps_dropped,
    )
    requests = CounterMetricFamily(
        "specwatch_engine_feed_requests",
        "Engine requests that ended: joined to a reply, of no reply seen here, or not seen in full.",
        labels=("fate",),
    )
    for fate, count in (("joined", feed.joined), ("unjoined", feed.unjoined), ("incomplete", feed.incomplete)):
        requests.add_metric((fate,), count)
    yield requests
    yield CounterMetricFamily(
        "specwatch_engine_feed_malformed_packets",
        "Packets of no known format; each has ended its connection.",
        value=feed.malformed,
    )
    yield CounterMetricFamily(
        "specwatch_engine_feed_disagreements",
        "Replies whose own acceptance figures were others than those of the engine's events.",
        value=feed.disagreements,
    )
