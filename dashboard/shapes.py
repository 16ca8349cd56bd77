"""What the dashboard reads from `/api/v1`. Unknown fields are ignored, so a newer sidecar can be read.

Ratios are 0..1, times ms unless named `_s`; what is not known is None.
"""

from datetime import datetime
from typing import Literal

import msgspec

Mode = Literal["auto", "speculative", "autoregressive"]
State = Literal["speculative", "autoregressive", "probing", "ineffective"]
MODES: tuple[Mode, ...] = ("auto", "speculative", "autoregressive")


class Shape(msgspec.Struct, kw_only=True):
    pass


class AcceptanceFigures(Shape):
    requests: int
    verify_steps: int
    draft_tokens: int
    accepted_tokens: int
    p: float | None
    mean_acceptance_length: float | None


class LatencyFigures(Shape):
    requests: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None


class Latency(Shape):
    speculative: LatencyFigures
    autoregressive: LatencyFigures
    ratio: float | None
    ratio_reason: str | None


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


class Coverage(Shape):
    requests: float | None
    missing: dict[str, int]


class Slo(Shape):
    latency_under_800ms_ratio: float | None
    p95_latency_under_800ms_ratio: float | None


class SliceState(Shape):
    slice: str
    state: State


class FallbackState(Shape):
    mode: Mode
    state: State
    since: datetime
    reason: str
    can_fall_back: bool
    slices: list[SliceState]


class Versions(Shape):
    specwatch: str
    fingerprint: str | None
    model: str | None
    draft_model: str | None
    num_speculative_tokens: int | None


class MovedToken(Shape):
    target_id: int
    draft_id: int
    target_text: str | None
    draft_text: str | None
    count: int


class AlignmentSummary(Shape):
    state: Literal["aligned", "misaligned", "unknown"]
    reason: str
    moved_tokens: int
    moved: list[MovedToken]


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


class Summary(Shape):
    generated_at: datetime
    exact: bool
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
    versions: Versions
    database: Literal["ok", "unavailable"]
    records_dropped: int


class AcceptancePoint(AcceptanceFigures, kw_only=True):
    at: datetime | None
    group: str | None


class AcceptanceSeries(Shape):
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


class TruncationSeries(Shape):
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


class LatencySeries(Shape):
    window_s: int
    step_s: int | None
    by: str | None
    points: list[LatencyPoint]


class Transition(Shape):
    at: datetime
    instance: str
    mode: Mode
    from_state: State
    to_state: State
    reason: str
    slice: str


class Fallback(FallbackState, kw_only=True):
    history: list[Transition]
