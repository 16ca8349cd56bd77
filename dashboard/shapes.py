"""What the dashboard reads from `/api/v1`. Unknown fields are ignored, so a newer sidecar can be read.

Ratios are 0..1, times ms unless named `_s`; what is not known is None.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

Mode = Literal["auto", "speculative", "autoregressive"]
State = Literal["speculative", "autoregressive", "probing", "ineffective"]
MODES: tuple[Mode, ...] = ("auto", "speculative", "autoregressive")


class Shape(msgspec.Struct, kw_only=True):
    """Several pages may have one answer: nobody changes it."""


class AcceptanceFigures(Shape):
    requests: int
    verify_steps: int
    draft_tokens: int
    accepted_tokens: int
    p: float | None
    p_low: float | None
    p_high: float | None
    mean_acceptance_length: float | None
    num_speculative_tokens: int | None
    p_per_token: float | None


class LatencyFigures(Shape):
    requests: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p95_ms: float | None
    tpot_p99_ms: float | None
    under_800ms_ratio: float | None


class LatencyComparison(Shape):
    concurrency: str
    speculative: int
    baseline: int
    speculative_p95_ms: float | None
    baseline_p95_ms: float | None
    ratio: float | None
    reason: str | None


Baseline = Literal["true_ar", "spec_disabled"]


class Latency(Shape):
    speculative: LatencyFigures
    autoregressive: LatencyFigures
    baseline: Baseline | None
    ratio: float | None
    ratio_concurrency: str | None
    ratio_reason: str | None
    by_concurrency: list[LatencyComparison]
    baseline_share: float | None


class Traffic(Shape):
    requests: int
    ok: int
    outcomes: dict[str, int]
    requests_per_s: float
    completion_tokens_per_s: float
    streaming: int


class Truncation(Shape):
    truncation_rate: float | None
    first_position_share: float | None


class EngineCounters(Shape):
    upstream: str
    p: float | None
    rows_draft_tokens: int | None
    draft_tokens: int | None
    coverage: float | None
    reason: str | None


class Coverage(Shape):
    requests: float | None
    missing: dict[str, int]
    engines: list[EngineCounters]


class Slo(Shape):
    latency_under_800ms_ratio: float | None
    p95_latency_under_800ms_ratio: float | None


class SliceState(Shape):
    slice: str
    state: State
    since: datetime
    reason: str


class FallbackState(Shape):
    mode: Mode
    state: State
    since: datetime
    reason: str
    trigger: str
    evidence: dict[str, Any] | None
    can_fall_back: bool
    effective: bool | None
    dry_run: bool
    until: datetime | None
    slices: list[SliceState]
    fleet: str | None
    shared: bool | None
    decided_by: str


class Versions(Shape):
    specwatch: str
    fingerprint: str | None
    model: str | None
    draft_model: str | None
    num_speculative_tokens: int | None


class MovedToken(Shape):
    kind: Literal["same_text", "neighbour"]
    target_id: int
    draft_id: int
    target_text: str | None
    draft_text: str | None
    count: int
    share: float
    first_seen: datetime
    last_seen: datetime


class StaticCheckSummary(Shape):
    verdict: Literal["aligned", "misaligned", "unknown"]
    severity: Literal["none", "warning", "high", "critical"] | None
    sentences: list[str]
    share_at_moved: float | None
    unknown_ids: int | None


class AlignmentSummary(Shape):
    state: Literal["aligned", "misaligned", "unknown"]
    reason: str
    same_text_other_id: int | None
    moved_tokens: int
    moved: list[MovedToken]
    static: StaticCheckSummary


class StaticCheck(StaticCheckSummary, kw_only=True):
    #: What `specwatch tokenizers --json` prints.
    report: dict[str, Any] | None


class Alignment(AlignmentSummary, kw_only=True):
    since: datetime | None
    target_model: str | None
    draft_model: str | None
    requests: int
    positions: int
    rejections: int
    static: StaticCheck


class SimilarityFigures(Shape):
    pairs: int
    mean: float | None
    p10: float | None
    warning: int
    critical: int


class SimilarityState(Shape):
    model: str | None
    reason: str | None
    draft: SimilarityFigures
    replay: SimilarityFigures
    replay_equal: float | None
    dropped: int


class QualityFlag(Shape):
    flag: Literal["repetition", "garble", "p_near_one"]
    total: int
    share: float | None


class QualitySummary(Shape):
    requests: int
    flags: list[QualityFlag]


class FlaggedReply(Shape):
    at: datetime
    request_id: str
    flag: str
    evidence: str


class Quality(QualitySummary, kw_only=True):
    recent: list[FlaggedReply]


Severity = Literal["critical", "warning", "info"]


class FiringAlert(Shape):
    name: str
    severity: Severity
    labels: dict[str, str]
    summary: str
    since: datetime
    value: float | None


class ActiveAlert(Shape):
    name: str
    severity: Severity
    status: Literal["pending", "firing"]
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: datetime
    value: float | None
    stale: bool


class AlertRule(Shape):
    alert: str
    expr: str
    for_s: float
    severity: Severity
    has_data: bool | None
    firing: int


class Alerts(Shape):
    alerts: list[ActiveAlert]
    rules: list[AlertRule]


class Runbook(Shape):
    alerts: dict[str, str]


class DraftPosition(Shape):
    mark: Literal["accepted", "rejected", "discarded", "bonus", "not_drafted"]
    draft_id: int | None
    draft: str | None
    target_id: int | None
    target: str | None


class Draft(Shape):
    request_id: str
    at: datetime
    finish_reason: str
    output_tokens: int
    draft_tokens: int
    accepted_tokens: int
    p: float | None
    draft_text: str | None
    final_text: str | None
    reason: str | None
    steps: list[list[DraftPosition]]


class Drafts(Shape):
    drafts: list[Draft]


class Series(Protocol):
    """An answer that may be split by time."""

    @property
    def points(self) -> Sequence[Any]: ...
    @property
    def step_s(self) -> int | None: ...
    @property
    def since(self) -> datetime: ...
    @property
    def until(self) -> datetime: ...


class Answered(Shape):
    exact: bool
    resolution_s: int | None
    since: datetime
    until: datetime


class Summary(Answered, kw_only=True):
    generated_at: datetime
    window_s: int
    instance: str
    fallback: FallbackState
    last_100: AcceptanceFigures
    acceptance: AcceptanceFigures
    truncation: Truncation
    latency: Latency
    slo: Slo
    traffic: Traffic
    coverage: Coverage
    alignment: AlignmentSummary
    similarity: SimilarityState
    quality: QualitySummary
    alerts: list[FiringAlert]
    versions: Versions
    database: Literal["ok", "unavailable"]
    records_dropped: int


class AcceptancePoint(AcceptanceFigures, kw_only=True):
    at: datetime | None
    group: str | None


class AcceptanceSeries(Answered, kw_only=True):
    window_s: int
    step_s: int | None
    by: str | None
    points: list[AcceptancePoint]


class TruncationPoint(Shape):
    at: datetime | None
    group: str | None
    verify_steps: int
    truncated_steps: int
    rejected_at: list[int | None]
    reached: list[int | None]
    hazard: list[float | None]
    shape: Literal["decay", "cliff", "unknown"]
    cliff_at: int | None


class TruncationSeries(Answered, kw_only=True):
    window_s: int
    step_s: int | None
    by: str | None
    positions: int
    total: TruncationPoint
    first_position_share: float | None
    points: list[TruncationPoint]


class LatencyPoint(Shape):
    at: datetime | None
    group: str | None
    speculative: LatencyFigures
    autoregressive: LatencyFigures
    ratio: float | None


class LatencySeries(Answered, kw_only=True):
    window_s: int
    step_s: int | None
    by: str | None
    baseline: Baseline | None
    points: list[LatencyPoint]


class Quantiles(Shape):
    requests: int
    latency_ms: list[float] | None
    ttft_ms: list[float] | None
    tpot_ms: list[float] | None


class LatencyDistribution(Answered, kw_only=True):
    window_s: int
    baseline: Baseline | None
    shares: list[float]
    speculative: Quantiles
    autoregressive: Quantiles


class TrafficPoint(Traffic, kw_only=True):
    at: datetime | None
    group: str | None
    coverage: float | None
    latency_under_800ms_ratio: float | None
    minutes: int | None
    p95_latency_under_800ms_ratio: float | None


class TrafficSeries(Answered, kw_only=True):
    window_s: int
    step_s: int | None
    by: str | None
    points: list[TrafficPoint]


class SimilarityPoint(SimilarityFigures, kw_only=True):
    at: datetime | None
    group: str | None
    kind: Literal["draft", "replay"]
    unknown: int


class SimilaritySeries(Answered, kw_only=True):
    window_s: int
    step_s: int | None
    by: str | None
    last_100: SimilarityState
    points: list[SimilarityPoint]


class SimilarityHistogram(Answered, kw_only=True):
    window_s: int
    edges: list[float]
    draft: list[int]
    replay: list[int]


class SimilarityPair(Shape):
    at: datetime
    reply_id: str
    kind: Literal["draft", "replay"]
    score: float | None
    level: str
    first_divergence: int | None
    scenario: str | None


class SimilarityPairs(Answered, kw_only=True):
    window_s: int
    pairs: list[SimilarityPair]


class RequestRow(Shape):
    request_id: str
    reply_id: str | None
    started_at: datetime
    instance: str
    upstream: str
    arm: str
    model: str | None
    draft_model: str | None
    scenario: str
    endpoint: str
    stream: bool
    status: int | None
    outcome: str
    finish_reason: str | None
    temperature: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    num_speculative_tokens: int | None
    verify_steps: int | None
    draft_tokens: int | None
    accepted_tokens: int | None
    truncated_steps: int | None
    acceptance_histogram: list[int] | None
    rejected_at: list[int] | None
    reached: list[int] | None
    #: Two base-36 digits a verify step: draft tokens, accepted ones.
    steps: str | None
    acceptance_source: str
    acceptance_quality: str
    acceptance_reason: str | None
    ttft_ms: float | None
    latency_ms: float | None
    tpot_ms: float | None
    max_chunk_gap_ms: float | None
    queue_ms: float | None
    concurrency: int
    fingerprint: str | None
    bytes_in: int
    bytes_out: int


class RequestPage(Shape):
    requests: list[RequestRow]
    next_cursor: str | None


class StoredText(Shape):
    kind: Literal["prompt", "reply"]
    text: str
    cut: bool


class StoredTexts(Shape):
    texts: list[StoredText]


class Event(Shape):
    at: datetime
    instance: str
    kind: Literal["switch", "engine", "version", "alert", "alignment", "lab"]
    subject: str
    what: str
    words: str
    severity: Severity | None
    evidence: dict[str, Any] | None


class EventPage(Shape):
    events: list[Event]
    next_cursor: str | None


LabState = Literal["running", "done", "failed", "interrupted"]


class LabRunShort(Shape):
    id: str
    kind: str
    state: LabState
    verdict: str | None
    started_at: datetime
    ended_at: datetime | None
    updated_at: datetime
    instance: str
    model: str | None
    draft_model: str | None
    num_speculative_tokens: int | None
    folder: str
    version: str
    title: str | None
    reasons: list[str]


class LabRun(LabRunShort):
    fingerprint: dict[str, Any] | None
    #: Read by `frames.lab_summary`.
    summary: dict[str, Any] | None
    options: dict[str, Any] | None


class LabPage(Shape):
    runs: list[LabRunShort]
    next_cursor: str | None


class Transition(Shape):
    at: datetime
    instance: str
    mode: Mode
    from_state: State
    to_state: State
    reason: str
    slice: str
    trigger: str
    evidence: dict[str, Any] | None


class Fallback(FallbackState, kw_only=True):
    history: list[Transition]
