"""Response shapes of `/api/v1`. Ratios are 0..1, times ms unless named `_s`; what is not known is null."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

Mode = Literal["auto", "speculative", "autoregressive"]
#: ineffective: autoregressive was decided, and tokens are drafted all the same.
State = Literal["speculative", "autoregressive", "probing", "ineffective"]
EngineMode = Literal["hard", "soft", "cold"]


def as_json(answer: BaseModel, status: int = 200) -> Response:
    return Response(answer.model_dump_json(), status, media_type="application/json")


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Answered(Model):
    """What figures are made of: of many requests not of rows, but of what was added up by minute, hour and day.

    Sums are exact then. Quantiles of more than some 70 values are those of a rank beside it: of p50 by 1.1 % at most,
    of p95 by 0.11 %, of p99 by 0.02 %, 19 times of 20. What came late counts a minute later.
    """

    #: Whether they are of rows.
    exact: bool
    #: Else 60, or more where minutes are no longer kept: `since`, and `step_s` of the answer, are of whole ones.
    resolution_s: int | None
    #: The window, as answered; `until` exclusive.
    since: datetime
    until: datetime


class AcceptanceFigures(Model):
    """Sums over the requests that speculated, and what follows from them."""

    #: Requests with trusted acceptance figures and at least one draft token.
    requests: int
    verify_steps: int
    draft_tokens: int
    accepted_tokens: int
    #: Pooled acceptance rate p: accepted / drafted tokens. Null when nothing was drafted.
    p: float | None
    #: 95 % interval of p, which knows that tokens of one request resemble each other; null below two requests.
    p_low: float | None
    p_high: float | None
    #: 1 + accepted tokens / verify steps.
    mean_acceptance_length: float | None
    #: k, which pooled p depends on; null where the requests had different ones.
    num_speculative_tokens: int | None
    #: Accepted / judged tokens: those that were accepted, and the first rejected one of each step. Comparable across k.
    #: Null where one of the requests does not tell.
    p_per_token: float | None


class LatencyFigures(Model):
    """Quantiles of ok requests, by nearest rank."""

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
    #: Share of them with latency <= 800 ms.
    under_800ms_ratio: float | None


#: Served by an engine that never speculates, or by the speculative one without drafts. They are never mixed.
Baseline = Literal["true_ar", "spec_disabled"]


class LatencyComparison(Model):
    concurrency: str
    #: Requests.
    speculative: int
    baseline: int
    #: Null, as is the ratio, unless both sides have 50 requests.
    speculative_p95_ms: float | None
    baseline_p95_ms: float | None
    ratio: float | None
    reason: str | None


class Latency(Model):
    speculative: LatencyFigures
    #: Baseline and fallback requests served without speculation, of the kind `baseline`.
    autoregressive: LatencyFigures
    baseline: Baseline | None
    #: p95 speculative / p95 baseline at like concurrency: where most requests speculated, of those with 50 a side.
    ratio: float | None
    ratio_concurrency: str | None
    ratio_reason: str | None
    by_concurrency: list[LatencyComparison]
    #: Share of the requests that were served without speculation to compare with.
    baseline_share: float | None


class Traffic(Model):
    requests: int
    ok: int
    #: Every outcome seen, by name.
    outcomes: dict[str, int]
    requests_per_s: float
    completion_tokens_per_s: float
    streaming: int


class Truncation(Model):
    #: Truncated verify steps / verify steps.
    truncation_rate: float | None
    #: Share of the truncations at the first position.
    first_position_share: float | None


class EngineCounters(Model):
    """What an upstream counts by itself, beside the rows of the same time, which is 15 minutes at most."""

    upstream: str
    #: Its counters know no requests: figures are of all that it served, whoever asked.
    scope: Literal["server"]
    #: Null while there are no figures, for `reason`.
    span_s: float | None
    #: Engine cores that were added up.
    engines: int
    draft_tokens: int | None
    accepted_tokens: int | None
    p: float | None
    mean_acceptance_length: float | None
    #: Those of the rows with acceptance figures.
    rows_draft_tokens: int | None
    rows_accepted_tokens: int | None
    #: Draft tokens in rows / counted.
    coverage: float | None
    #: Times that its counters began anew, since the start.
    resets: int
    #: Why there are no figures, or no coverage, or what is wrong with them.
    reason: str | None


class Coverage(Model):
    """How much of the engine's own drafting the rows account for."""

    #: Rows with acceptance figures / ok generation requests served speculatively.
    requests: float | None
    #: Reasons of the rows without figures, with counts.
    missing: dict[str, int]
    #: Beside the engines' own counters, by upstream; empty where these are not read.
    engines: list[EngineCounters]


class Slo(Model):
    #: Share of ok requests with latency <= 800 ms.
    latency_under_800ms_ratio: float | None
    #: Share of one-minute slices with traffic whose trailing 5-minute p95 is <= 800 ms, as far as minutes are kept.
    #: Null also with filters on names where minutes are more than can be added up: some two days of busy traffic.
    p95_latency_under_800ms_ratio: float | None


class SliceState(Model):
    #: As `scenario=billing`.
    slice: str
    state: State
    since: datetime
    reason: str
    trigger: str
    evidence: dict[str, Any]
    until: datetime | None


class CertificateState(Model):
    """What `specwatch qualify` has certified, as it stands to what runs now."""

    file: str
    #: pending: the engine has not told yet what it is, and is taken to be as it was. Only where it is that or valid is
    #: any scenario certified.
    state: Literal["valid", "pending", "unusable", "expired", "other_engine"]
    #: The same in a sentence, with the remedy.
    words: str
    #: The rest is null where the file cannot be used.
    run: str | None
    verdict: str | None
    signed_off_by: str | None
    issued_at: datetime | None
    expires_at: datetime | None
    #: Scenarios that it names and that may begin with speculation now, and those that may not; nor may any other.
    certified: list[str]
    not_certified: list[str]
    #: What was not compared with the engine, as only one side knows it: vllm, method, k, device, target, target_digest,
    #: draft, draft_digest.
    not_compared: list[str]


class FallbackState(Model):
    mode: Mode
    state: State
    since: datetime
    reason: str
    #: What brought it about, as in `Transition`.
    trigger: str
    #: The figures it was decided on; null for an operator's order.
    evidence: dict[str, Any] | None
    #: False while there is neither an autoregressive upstream nor an engine with the plugin: nothing can be switched.
    can_fall_back: bool
    #: Whether requests that are to go without speculation are seen to; null where nothing tells.
    effective: bool | None
    #: Whether decisions are only recorded.
    dry_run: bool
    #: When probing begins at the earliest; null where nothing has fallen back by itself.
    until: datetime | None
    #: Slices with a decision of their own.
    slices: list[SliceState]
    #: The fleet that decides as one, and whether it can be told; null where there is none, or this one takes no part.
    fleet: str | None
    shared: bool | None
    #: Instance whose decision or order holds.
    decided_by: str
    #: Null where none is set.
    certificate: CertificateState | None = None


class Versions(Model):
    specwatch: str
    fingerprint: str | None
    model: str | None
    draft_model: str | None
    num_speculative_tokens: int | None


class MovedToken(Model):
    """A token that has another id in the draft than in the target."""

    #: same_text: the tokenizers say so; neighbour: they are equal, but the draft was trained on ids moved by one.
    kind: Literal["same_text", "neighbour"]
    target_id: int
    draft_id: int
    #: What the ids stand for in their own models' tokenizers; null where those are not known.
    target_text: str | None
    draft_text: str | None
    #: Rejected draft tokens of this pair of ids.
    count: int
    #: Of the draft positions where the target emitted the token, since the pair was first seen.
    share: float
    first_seen: datetime
    last_seen: datetime


class StaticCheckSummary(Model):
    """Whether draft and target know the tokens by the same ids, by the files of both."""

    #: unknown: the files cannot be read, or do not decide it.
    verdict: Literal["aligned", "misaligned", "unknown"]
    #: From high on, drafts are rejected that were right; null where there is no report.
    severity: Literal["none", "warning", "high", "critical"] | None
    #: What was found, the worst first; or why there is no report.
    sentences: list[str]
    #: Of the draft positions that the target judged, those where the draft was rejected and the target put a token
    #: that has another id in the draft.
    share_at_moved: float | None
    #: Verify steps in which the target emitted ids beyond those of its tokenizer.
    unknown_ids: int | None


class StaticCheck(StaticCheckSummary):
    #: What `specwatch tokenizers --json` prints: the fields of `sidecar.probes.tokenizer_check.report.Report`.
    report: dict[str, Any] | None

    def short(self) -> StaticCheckSummary:
        return StaticCheckSummary(**{name: getattr(self, name) for name in StaticCheckSummary.model_fields})


#: Where no engine tells its drafts.
_NO_DRAFTS = "no engine tells its drafts: engine_events is not set"


class AlignmentSummary(Model):
    state: Literal["aligned", "misaligned", "unknown"]
    reason: str
    #: Rejected draft tokens that were the target's own by another id, since the start; null without engine events.
    same_text_other_id: int | None
    #: How many tokens have another id, and the most frequent five.
    moved_tokens: int
    moved: list[MovedToken]
    static: StaticCheckSummary


class Alignment(AlignmentSummary):
    """Whether draft and target know the tokens by the same ids, as seen in the traffic since `since`."""

    since: datetime | None
    target_model: str | None
    draft_model: str | None
    #: Requests, draft positions that the target judged, and rejections among these.
    requests: int
    positions: int
    rejections: int
    #: Most frequent first, at most 100.
    moved: list[MovedToken]
    static: StaticCheck

    def short(self) -> AlignmentSummary:
        names = AlignmentSummary.model_fields
        shorter = {"moved": self.moved[:5], "static": self.static.short()}
        return AlignmentSummary(**{name: getattr(self, name) for name in names} | shorter)


NO_ALIGNMENT = Alignment(
    state="unknown",
    reason=_NO_DRAFTS,
    same_text_other_id=None,
    moved_tokens=0,
    moved=[],
    since=None,
    target_model=None,
    draft_model=None,
    requests=0,
    positions=0,
    rejections=0,
    static=StaticCheck(
        verdict="unknown", severity=None, sentences=[_NO_DRAFTS], share_at_moved=None, unknown_ids=None, report=None
    ),
)


class SimilarityFigures(Model):
    """Cosines of the embeddings of two texts, -1..1."""

    #: Pairs that have a score.
    pairs: int
    mean: float | None
    #: The tenth percentile by nearest rank.
    p10: float | None
    #: Pairs below similarity_warning, but for those below similarity_critical.
    warning: int
    critical: int


class SimilarityState(Model):
    """The last 100 pairs of each kind."""

    #: What embeds the texts; null where nothing does.
    model: str | None
    #: Why nothing is compared; null where it is.
    reason: str | None
    #: What the draft would have said, and what was said.
    draft: SimilarityFigures
    #: Replies to replayed requests, with and without speculation.
    replay: SimilarityFigures
    #: Share of these that were equal to the letter.
    replay_equal: float | None
    #: Sampled pairs that were not compared, since the start: beyond the budget, or while too many waited.
    dropped: int


class QualityFlag(Model):
    #: repetition: the reply ends in a loop, or says little else than before; garble: its tokens hardly ever repeat,
    #: which text does; p_near_one: the draft is hardly ever wrong, which is no sign of health by itself.
    flag: Literal["repetition", "garble", "p_near_one"]
    #: Replies since the start.
    total: int
    #: Of the last 100 replies; null before the first.
    share: float | None


class QualitySummary(Model):
    """Replies that look broken. Only an engine that tells its tokens lets it be seen."""

    #: Replies looked at since the start.
    requests: int
    flags: list[QualityFlag]


class FlaggedReply(Model):
    at: datetime
    #: The id in the reply.
    request_id: str
    flag: str
    #: What was seen, in words; none of the reply's own.
    evidence: str


class Quality(QualitySummary):
    #: Newest first, at most 50.
    recent: list[FlaggedReply]

    def short(self) -> QualitySummary:
        return QualitySummary(requests=self.requests, flags=self.flags)


class DraftPosition(Model):
    """One position of a verify step. Texts are null where the tokenizers are not known."""

    #: rejected: the first draft token of the step that the target did not take, beside its own; discarded: what was
    #: proposed behind it; bonus: the target's own token behind a fully accepted draft; not_drafted: plain decoding.
    mark: Literal["accepted", "rejected", "discarded", "bonus", "not_drafted"]
    #: -1: the engine could not see the id.
    draft_id: int | None
    draft: str | None
    target_id: int | None
    target: str | None


class Draft(Model):
    """What the draft proposed for one request."""

    #: The id in the reply.
    request_id: str
    #: When it finished.
    at: datetime
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    draft_tokens: int
    accepted_tokens: int
    p: float | None
    #: The draft's own choice at every position, given the true text before it.
    draft_text: str | None
    final_text: str | None
    #: Why a text is null or not whole; null where both are whole.
    reason: str | None
    #: Verify steps, up to the reply's end.
    steps: list[list[DraftPosition]]


class Drafts(Model):
    #: Newest first; fewer than asked for where replies are long.
    drafts: list[Draft]


Severity = Literal["critical", "warning", "info"]


class FiringAlert(Model):
    """In short, for those who look at everything at once."""

    name: str
    severity: Severity
    labels: dict[str, str]
    #: Its annotation `summary`, empty without one.
    summary: str
    #: When the rule began to hold.
    since: datetime
    #: The first reading of the rule's expression, as it last held.
    value: float | None


class ActiveAlert(Model):
    """A rule that holds for all traffic or for one group of it."""

    name: str
    severity: Severity
    #: pending: it holds, but not yet for the rule's `for`.
    status: Literal["pending", "firing"]
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: datetime
    value: float | None
    #: There was no data of late: the alert is as it was before.
    stale: bool


class AlertRule(Model):
    alert: str
    #: Kind of the groups that have an alert each, as `scenario`; empty: one for all traffic.
    by: str
    expr: str
    for_s: float
    severity: Severity
    #: Whether its readings are known; null before the first look.
    has_data: bool | None
    #: Alerts of it that fire.
    firing: int


class AlertEvent(Model):
    """A row of the table `alerts`."""

    at: datetime
    instance: str
    alert: str
    fingerprint: str
    severity: str
    labels: dict[str, str]
    annotations: dict[str, str]
    #: notified and failed are of one receiver.
    event: Literal["firing", "resolved", "notified", "failed"]
    receiver: str
    starts_at: datetime
    value: float | None
    #: Why a receiver was told, or could not be.
    detail: str


class Alerts(Model):
    #: The worst first; firing before pending.
    alerts: list[ActiveAlert]
    rules: list[AlertRule]
    #: Newest first, at most 100; empty while the database is away.
    history: list[AlertEvent]


class Summary(Answered):
    generated_at: datetime
    window_s: int
    instance: str
    fallback: FallbackState
    #: The last 100 requests that speculated before `until`, however long ago. With filters on names, the last 100 of
    #: that kind in the window; of more than 100 only those among the 200,000 requests there that speculated last.
    last_100: AcceptanceFigures
    #: The time window.
    acceptance: AcceptanceFigures
    truncation: Truncation
    latency: Latency
    slo: Slo
    traffic: Traffic
    coverage: Coverage
    alignment: AlignmentSummary
    similarity: SimilarityState
    quality: QualitySummary
    #: Those that fire, the worst first.
    alerts: list[FiringAlert]
    versions: Versions
    #: Whether the database took the latest rows; the proxy serves either way.
    database: Literal["ok", "unavailable"]
    records_dropped: int


class AcceptancePoint(AcceptanceFigures):
    #: Start of the step (UTC); null when the answer is not split by time.
    at: datetime | None
    #: Value of the `by` column; null when the answer is not split by one.
    group: str | None


class AcceptanceSeries(Answered):
    window_s: int
    step_s: int | None
    by: str | None
    points: list[AcceptancePoint]


class Positions(Model):
    """Verify steps by position in the draft."""

    verify_steps: int
    truncated_steps: int
    #: Index 0 is position 1. Same length in all points of an answer; null where never drafted.
    rejected_at: list[int | None]
    reached: list[int | None]
    #: rejected_at / reached.
    hazard: list[float | None]
    #: cliff: behind position `cliff_at` next to nothing is accepted, as of a draft model that is run wrongly; decay: no
    #: such fall; unknown: too few steps to tell.
    shape: Literal["decay", "cliff", "unknown"]
    cliff_at: int | None


class TruncationPoint(Positions):
    at: datetime | None
    group: str | None


class TruncationSeries(Answered):
    window_s: int
    step_s: int | None
    by: str | None
    positions: int
    total: TruncationPoint
    first_position_share: float | None
    points: list[TruncationPoint]


class WindowTruncation(Positions):
    truncation_rate: float | None
    first_position_share: float | None
    #: What is above the limits of 35 % and 15 %, in sentences.
    warnings: list[str]


class Window(AcceptanceFigures):
    #: Null: all traffic.
    group: str | None
    truncation: WindowTruncation


class NotDrafted(Model):
    """Of the last ok requests that were to be served with speculation."""

    requests: int
    #: Those without acceptance figures, and why.
    without: int
    share: float | None
    reasons: dict[str, int]


class Windows(Model):
    """The last requests that speculated, as the sidecar has them in memory: since its start, without a database."""

    whole: Window
    #: The last hour.
    hour: AcceptanceFigures
    by: str | None
    slices: list[Window]
    not_drafted: NotDrafted
    #: p at which speculation takes as long as it saves, by `draft_cost`: pooled, and per token of the k there is.
    break_even_p: float | None
    break_even_p_per_token: float | None


class Place(Model):
    #: Tokens of the reply before the verify step, as `32-127`.
    place: str
    draft_tokens: int
    accepted_tokens: int
    p: float | None
    truncation: WindowTruncation


class Places(Model):
    #: Of the last hour; those without a verify step are left out.
    places: list[Place]
    #: Why there can be none.
    reason: str | None


class LatencyPoint(Model):
    at: datetime | None
    group: str | None
    speculative: LatencyFigures
    autoregressive: LatencyFigures
    #: p95 speculative / p95 baseline, whatever their concurrency; null unless both sides have 50 requests.
    ratio: float | None


class LatencySeries(Answered):
    window_s: int
    step_s: int | None
    by: str | None
    #: What `autoregressive` is in all points.
    baseline: Baseline | None
    points: list[LatencyPoint]


class Quantiles(Model):
    """Values of ok requests at the `shares` of the answer; null where there is none."""

    requests: int
    latency_ms: list[float] | None
    ttft_ms: list[float] | None
    tpot_ms: list[float] | None


class LatencyDistribution(Answered):
    """How latencies are spread: each list holds the value of nearest rank at each of `shares`.

    Not `exact`, ranks near the low end are off by 2.2 % of the requests at most, 19 times of 20.
    """

    window_s: int
    baseline: Baseline | None
    shares: list[float]
    speculative: Quantiles
    autoregressive: Quantiles


class TrafficPoint(Traffic):
    #: Start of the step (UTC); null when the answer is not split by time.
    at: datetime | None
    #: Value of the `by` column; null when the answer is not split by one.
    group: str | None
    #: Rows with acceptance figures / ok generation requests served speculatively.
    coverage: float | None
    #: Share of ok requests with latency <= 800 ms.
    latency_under_800ms_ratio: float | None
    #: One-minute slices with ok requests, and the share of them whose trailing 5-minute p95 is <= 800 ms. A slice
    #: belongs to the step of its first request; trailing minutes may lie before it. Null with `by`, and as in `Slo`.
    minutes: int | None
    p95_latency_under_800ms_ratio: float | None


class TrafficSeries(Answered):
    window_s: int
    step_s: int | None
    by: str | None
    points: list[TrafficPoint]


class SimilarityPoint(SimilarityFigures):
    #: Start of the step (UTC); null when the answer is not split by time.
    at: datetime | None
    #: Scenario; null when the answer is not split by it.
    group: str | None
    kind: Literal["draft", "replay"]
    #: Pairs without a score.
    unknown: int


class SimilaritySeries(Answered):
    window_s: int
    step_s: int | None
    by: str | None
    #: Of this sidecar.
    last_100: SimilarityState
    points: list[SimilarityPoint]


class SimilarityHistogram(Answered):
    """How scores are spread: counts of the pairs with `edges[i]` <= score < `edges[i + 1]`, the last bin closed.

    Not `exact`, they are whole numbers that add up to the pairs, and nearly those of rows.
    """

    window_s: int
    edges: list[float]
    draft: list[int]
    replay: list[int]


class SimilarityPair(Model):
    """Two texts that were compared: a row of the table `similarities`."""

    at: datetime
    instance: str
    #: The id in the reply: `reply_id` of the request's row.
    reply_id: str
    kind: Literal["draft", "replay"]
    #: Null where there is none, for `reason`.
    score: float | None
    level: str
    reason: str | None
    #: What embedded the texts.
    model: str
    chunked: bool
    #: Characters that two replies have in common from their start on.
    first_divergence: int | None
    scenario: str | None


class SimilarityPairs(Answered):
    window_s: int
    #: Lowest score first; those without one are left out.
    pairs: list[SimilarityPair]


class RequestRow(Model):
    """One row of the `requests` table."""

    request_id: str
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
    acceptance_source: str
    acceptance_quality: str
    acceptance_reason: str | None
    acceptance_raw: str | None
    ttft_ms: float | None
    latency_ms: float | None
    tpot_ms: float | None
    max_chunk_gap_ms: float | None
    queue_ms: float | None
    concurrency: int
    fingerprint: str | None
    bytes_in: int
    bytes_out: int
    #: The id in the reply, which drafts and similarities go by; null where none was seen.
    reply_id: str | None
    #: Verify steps of the reply one after the other, the first 1,024: two base-36 digits each, of drafted tokens and of
    #: accepted ones; `00` drafted nothing. Null where the engine told none, where nothing was drafted, of replies that
    #: are several engine requests (n, prompts), and where a step drafted more than 35.
    steps: str | None


class RequestPage(Model):
    #: Newest first.
    requests: list[RequestRow]
    #: Pass as `cursor` for the next page; null on the last. The page itself may be short, or empty, all the same.
    next_cursor: str | None


class Event(Model):
    """Something that happened, told in one line."""

    at: datetime
    instance: str
    #: switch: of the fallback; engine: an order to an engine, or a change of it that was noticed; version: Specwatch,
    #: its settings, or what an upstream serves is another than before; alert: one began or ended; alignment: a token
    #: was found to have another id in the draft model; lab: a run of the lab ended.
    kind: Literal["switch", "engine", "version", "alert", "alignment", "lab"]
    #: What it happened to: a slice (empty: all traffic), an upstream, a setting, an alert's name, a token, a run.
    subject: str
    #: In a word or two, as `autoregressive`, `firing`, or a new value.
    what: str
    #: One sentence.
    words: str
    severity: Severity | None
    #: The figures behind it, as they were then; null where there are none.
    evidence: dict[str, Any] | None


class EventPage(Model):
    #: Newest first.
    events: list[Event]
    #: Pass as `cursor` for the next page; null on the last.
    next_cursor: str | None


class Runbook(Model):
    #: Markdown by name of the alert: what it means, what to look at, what to do.
    alerts: dict[str, str]


class Transition(Model):
    at: datetime
    instance: str
    mode: Mode
    from_state: State
    to_state: State
    reason: str
    #: Empty: all traffic; else as `scenario=billing`.
    slice: str
    #: operator, engine (an order to it was carried out), certificate, or one of `fallback_triggers` and the steps of a
    #: return.
    trigger: str
    #: The figures that it was decided on; null for an operator's order.
    evidence: dict[str, Any] | None


class Fallback(FallbackState):
    #: Newest first, at most 100.
    history: list[Transition]


class FallbackChange(Model):
    mode: Mode
    reason: str = ""


class EngineEvents(Model):
    """Steps that an engine core sent here, and those that it could not send."""

    sent: int
    dropped: int
    connected: bool


class EngineCore(Model):
    """One engine core. `method` is null where nothing is drafted, the rest of a core that does not speculate too."""

    engine: int
    vllm: str | None
    method: str | None
    #: As configured; `cap` null: all of them.
    num_speculative_tokens: int | None
    cap: int | None
    mode: str | None
    #: What a cap of 0 spares, in a sentence.
    at_zero: str | None
    target_model: str | None
    draft_model: str | None
    #: Of the content of both models' checkpoints; null where the plugin cannot read them, or is of an older version.
    target_digest: str | None
    draft_digest: str | None
    #: The accelerator's or processor's name, and how many there are.
    device: str | None
    #: Engine steps so far, and requests in them now; `opted_out` of them are served without speculation.
    step: int
    running: int
    waiting: int
    opted_out: int
    events: EngineEvents


class Engine(Model):
    upstream: str
    #: Whether the plugin answered; else why not.
    reachable: bool
    reason: str | None
    cores: list[EngineCore]


class Engines(Model):
    engines: list[Engine]


class CapOrder(Model):
    #: Most draft tokens a step; null: as the engine is configured.
    cap: Annotated[int, Field(strict=True, ge=0)] | None
    #: Null: as it is.
    mode: EngineMode | None = None
    reason: str = ""


class DraftOrder(Model):
    #: Folder on the engine's machine.
    checkpoint: Annotated[str, Field(min_length=1)]
    reason: str = ""


class SwapWorker(Model):
    """Checksums of the draft weights in memory, and how long staging and loading took."""

    before: str | None
    after: str | None
    stage_s: float | None
    commit_s: float | None


class Swap(Model):
    engine: int
    workers: list[SwapWorker]
    #: How long the engine core stood still.
    still_s: float


class Swaps(Model):
    upstream: str
    checkpoint: str
    cores: list[Swap]


class Health(Model):
    status: Literal["ok"]


class Ready(Model):
    status: Literal["ready", "not_ready"]
    database: Literal["ok", "unavailable"]
    #: Names of side tasks that have died; empty when all run.
    failed_tasks: list[str]
