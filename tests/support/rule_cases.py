"""Every alert of grafana/rules.yml, with the series that raise it, those that just do not, and those too few to tell.

Series are changes to those of a healthy sidecar, a sample each half minute: a float is a gauge that stays, an int or a
float behind `+` (as in "+20") a counter that grows by so much a sample, anything else promtool's own notation. None
takes a series away.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Value = float | str | None
Series = Mapping[str, Value]

STEP_S = 30

_OK = 'upstream="engine",model="m",scenario="billing",arm="speculative",outcome="ok"'
REQUESTS = f"specwatch_requests_total{{{_OK}}}"
BASELINE = REQUESTS.replace('"speculative"', '"baseline"')
DRAFTED = 'specwatch_draft_tokens_total{upstream="engine",scenario="billing"}'
ACCEPTED = 'specwatch_accepted_tokens_total{upstream="engine",scenario="billing"}'
P = 'specwatch_acceptance_ratio{window="100"}'
WINDOW = "specwatch_window_requests"
UNKNOWN = 'specwatch_acceptance_unknown_total{quality="unknown"}'
JOINED = 'specwatch_engine_feed_requests_total{fate="joined"}'
CORES = "specwatch_engine_feed_connected_cores"
STEPS = "specwatch_engine_feed_steps_total"
PAIRS = 'specwatch_similarity_count{kind="draft"}'
COSINES = 'specwatch_similarity_sum{kind="draft"}'
DROPPED = 'specwatch_records_dropped_total{stage="queue"}'
UNSENT = 'specwatch_notifications_total{receiver="hook",outcome="timeout"}'
TAP = "specwatch_tap_failures_total"
LATE = "specwatch_late_streams_total"
FAILURES = "specwatch_failures_total"
ALIGNED = "specwatch_tokenizer_aligned"
RATIO = "specwatch_latency_ratio"
FELL_BACK = "specwatch_fell_back"
SLICES = "specwatch_fallback_open_slices"
CERTIFICATE = "specwatch_certificate_valid"
DATABASE = "specwatch_database_up"
UPSTREAM = 'specwatch_upstream_up{upstream="engine"}'
COVERAGE = 'specwatch_coverage_ratio{upstream="engine"}'


def state(name: str) -> str:
    return f'specwatch_fallback_state{{state="{name}"}}'


def flag(name: str) -> str:
    return f'specwatch_output_flags_total{{flag="{name}"}}'


def cut_at(position: int) -> str:
    return f'specwatch_truncations_total{{position="{position}"}}'


def latency(what: str, arm: str = "speculative", le: str = "") -> str:
    bound = f',le="{le}"' if le else ""
    return f'specwatch_request_latency_seconds_{what}{{arm="{arm}"{bound}}}'


def timed(requests: float, fast: float, arm: str = "speculative") -> dict[str, Value]:
    """Requests a sample, and how many of them take at most 800 ms; the others take up to a second."""
    return {
        latency("bucket", arm, "0.4"): f"+{fast / 2:g}",
        latency("bucket", arm, "0.8"): f"+{fast:g}",
        latency("bucket", arm, "1.0"): f"+{requests:g}",
        latency("bucket", arm, "+Inf"): f"+{requests:g}",
        latency("count", arm): f"+{requests:g}",
    }


#: 40 requests a minute, and all is well.
HEALTHY: Series = {
    "up": 1.0,
    REQUESTS: "+20",
    BASELINE: "+1",
    DRAFTED: "+2000",
    ACCEPTED: "+1600",
    'specwatch_accepted_length_tokens_count{upstream="engine"}': "+500",
    cut_at(1): "+10",
    cut_at(2): "+90",
    UNKNOWN: "+1",
    'specwatch_acceptance_unknown_total{quality="inconsistent"}': "+0",
    P: 0.8,
    WINDOW: 100.0,
    **timed(20, 20),
    **timed(1, 1, "baseline"),
    RATIO: 0.6,
    COSINES: "+9",
    PAIRS: "+10",
    'specwatch_similarity_sum{kind="replay"}': "+0",
    'specwatch_similarity_count{kind="replay"}': "+0",
    flag("repetition"): "+0",
    flag("garble"): "+0",
    flag("p_near_one"): "+0",
    JOINED: "+20",
    CORES: 1.0,
    STEPS: "+500",
    state("speculative"): 1.0,
    state("autoregressive"): 0.0,
    state("probing"): 0.0,
    state("ineffective"): 0.0,
    FELL_BACK: 0.0,
    SLICES: 0.0,
    CERTIFICATE: 1.0,
    ALIGNED: 1.0,
    LATE: "+0",
    FAILURES: "+0",
    UPSTREAM: 1.0,
    COVERAGE: 0.99,
    DROPPED: "+0",
    UNSENT: "+0",
    'specwatch_notifications_total{receiver="hook",outcome="sent"}': "+1",
    TAP: "+0",
    DATABASE: 1.0,
}

#: Started, and asked for nothing so far: counters stand at 0, and what is not known is not there.
IDLE: Series = {
    name: "+0" if isinstance(value, str) else value
    for name, value in HEALTHY.items()
    if name not in (P, RATIO, ALIGNED, COVERAGE)
} | {WINDOW: 0.0}

#: 20 requests in ten minutes: too few for any share.
SLOW: Series = {REQUESTS: "+0.7", BASELINE: None, JOINED: "+0.7", **timed(0.7, 0.7), PAIRS: "+0.7", COSINES: "+0.63"}


@dataclass(frozen=True)
class Case:
    """Changes to HEALTHY. `near` and `few` raise nothing but what `beside` names."""

    bad: Series
    #: Of the alert beside alertname, severity, those of its rule and of its sidecar.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: On the other side of the limit.
    near: tuple[Series, ...] = ()
    #: As bad, of too few requests or without what makes it count.
    few: tuple[Series, ...] = ()
    #: Alerts that the bad series raise as well, and that the near ones raise.
    beside: tuple[str, ...] = ()
    near_raises: tuple[str, ...] = ()
    minutes: int = 13
    #: From the end of all series until the alert is over.
    over_after: int = 50


_GOAL = ("SpecwatchLatencyGoalMissed",)
_BILLING = {"scenario": "billing"}
_ENGINE = {"upstream": "engine"}
#: From the sixth minute on one in thirteen is slow: the hour is within its goal, and most of its minutes are not.
_MINUTES_MISSED = {
    **timed(20, 20),
    latency("bucket", le="0.8"): "0+20x12 258.5+18.5x20",
    latency("bucket", le="0.4"): "0+10x12 129+9x20",
}

#: 78 of them in a quarter of an hour.
_FEW_SLOW = {**timed(3, 0), **timed(0, 0, "baseline")}

CASES: Mapping[str, Case] = {
    "SpecwatchAcceptanceLow": Case({P: 0.64}, near=({P: 0.65},), few=({P: 0.3, WINDOW: 49.0},)),
    # Upper ends of the intervals at 520 requests: 0.58 + 0.042, 0.62 + 0.042.
    "SpecwatchAcceptanceLowInScenario": Case(
        {ACCEPTED: "+1160"},
        _BILLING,
        near=({ACCEPTED: "+1240"},),
        few=({ACCEPTED: "+0", **SLOW}, {ACCEPTED: "+0", DRAFTED: "+0"}),
    ),
    "SpecwatchFirstPositionTruncations": Case(
        {cut_at(1): "+16", cut_at(2): "+84"},
        # And of next to no truncations, whichever they are.
        near=({cut_at(1): "+14.9", cut_at(2): "+85.1"}, {cut_at(1): "+20", cut_at(2): "+5"}),
        few=({cut_at(1): "+90", cut_at(2): "+10", **SLOW},),
    ),
    "SpecwatchTruncationsMany": Case(
        {cut_at(2): "+168"}, near=({cut_at(2): "+162"},), few=({cut_at(2): "+400", **SLOW},)
    ),
    "SpecwatchTokenizersMisaligned": Case({ALIGNED: 0.0}, near=({ALIGNED: 1.0},)),
    "SpecwatchDraftsTimeOut": Case({LATE: "+1.6"}, near=({LATE: "+1.4"},)),
    "SpecwatchFiguresMissing": Case({UNKNOWN: "+10.3"}, near=({UNKNOWN: "+9.7"},), few=({UNKNOWN: "+0.7", **SLOW},)),
    "SpecwatchFallbackIneffective": Case({state("speculative"): 0.0, state("ineffective"): 1.0}),
    "SpecwatchFallbackFlapping": Case(
        {state("speculative"): "1 1 0 0 1 1 0 0 1 1 0 0 1x20", state("autoregressive"): "0 0 1 1 0 0 1 1 0 0 1 1 0x20"},
        near=(
            {state("speculative"): "1 1 0 0 1 1 0 0 1 1 0x20", state("autoregressive"): "0 0 1 1 0 0 1 1 0 0 1x20"},
            # Rounds of probes that fail.
            {state("speculative"): 0.0, state("probing"): "1 1 0 0 1 1 0 0 1 1 0 0 1x20"},
        ),
        over_after=80,
    ),
    "SpecwatchFellBack": Case({FELL_BACK: 1.0}),
    "SpecwatchSliceFellBack": Case({SLICES: 1.0}),
    "SpecwatchCertificateInvalid": Case({CERTIFICATE: 0.0}),
    "SpecwatchSimilarityCritical": Case(
        {COSINES: "+7.4"},
        near=({COSINES: "+7.6"},),
        few=({**SLOW, COSINES: "+0.3"},),
        beside=("SpecwatchSimilarityLow",),
        near_raises=("SpecwatchSimilarityLow",),
    ),
    "SpecwatchSimilarityLow": Case({COSINES: "+8.1"}, near=({COSINES: "+8.3"},), few=({**SLOW, COSINES: "+0.3"},)),
    "SpecwatchRepetition": Case(
        {flag("repetition"): "+1.1", flag("p_near_one"): "+1.1"},
        near=(
            {flag("repetition"): "+0.9", flag("p_near_one"): "+1.1"},
            {flag("repetition"): "+1.1", flag("p_near_one"): "+0.9"},
        ),
        few=({flag("repetition"): "+0.7", flag("p_near_one"): "+0.7", **SLOW},),
    ),
    "SpecwatchGarble": Case(
        {flag("garble"): "+1.1"}, near=({flag("garble"): "+0.9"},), few=({flag("garble"): "+0.7", **SLOW},)
    ),
    "SpecwatchLatencyGoalMissed": Case(
        timed(20, 18.7), near=(timed(20, 19), _MINUTES_MISSED), few=(timed(2, 0),), minutes=16, over_after=80
    ),
    "SpecwatchSlowerThanPlain": Case({RATIO: 1.01}, near=({RATIO: 1.0},)),
    "SpecwatchErrors": Case({FAILURES: "+2.2"}, near=({FAILURES: "+2"},), few=({FAILURES: "+0.7", **SLOW},)),
    "SpecwatchUpstreamDown": Case({UPSTREAM: 0.0}, _ENGINE),
    "SpecwatchCoverageLow": Case({COVERAGE: 0.89}, _ENGINE, near=({COVERAGE: 0.9},)),
    "SpecwatchRecordsDropped": Case({DROPPED: "0x20 1x20"}),
    "SpecwatchDatabaseDown": Case({DATABASE: 0.0}),
    # No step ever came, as where the sidecar was restarted; nobody asked for anything; engine_events is not set.
    "SpecwatchEngineFeedLost": Case(
        {CORES: 0.0, STEPS: "+0"},
        few=(
            {CORES: 0.0, REQUESTS: "+0", BASELINE: "+0"},
            {CORES: None, STEPS: "+0"},
            {CORES: 0.0, state("speculative"): 0.0, state("autoregressive"): 1.0},
        ),
    ),
    "SpecwatchNotificationsFail": Case({UNSENT: "0x20 1x20"}),
    "SpecwatchTapFailures": Case({TAP: "0x20 1x20"}),
    "SpecwatchLatencyBudgetFastBurn": Case(
        timed(20, 4.6), near=(timed(20, 5.2),), few=(_FEW_SLOW,), beside=_GOAL, near_raises=_GOAL, over_after=80
    ),
    "SpecwatchLatencyBudgetSlowBurn": Case(
        timed(20, 13),
        near=(timed(20, 14),),
        few=(timed(1, 0),),
        beside=_GOAL,
        near_raises=_GOAL,
        minutes=20,
        over_after=80,
    ),
    "SpecwatchLatencyBudgetTicket": Case(
        timed(20, 18.8),
        near=(timed(20, 19.1),),
        few=({**timed(0.3, 0), **timed(0.3, 0, "baseline")},),
        beside=_GOAL,
        minutes=75,
        over_after=430,
    ),
}


def notation(value: float | str, samples: int) -> str:
    """A value as promtool writes it."""
    if isinstance(value, float):
        return f"{value:g}x{samples}"
    if value.startswith("+"):
        return f"0{value}x{samples}"
    return value


def input_series(series: Series, minutes: int, gone_for: int = 0) -> list[dict[str, str]]:
    """As scraped from the one sidecar for so many minutes; then it is gone, and only `up` says so."""
    samples, missing = minutes * 60 // STEP_S, gone_for * 60 // STEP_S
    found = []
    for name, value in series.items():
        if value is None:
            continue
        values = notation(value, samples)
        if gone_for:
            # A scrape that fails ends every series at once.
            values += f" 0x{missing - 1}" if name == "up" else " stale"
        found.append({"series": _scraped(name), "values": values})
    return found


def _scraped(name: str) -> str:
    metric, brace, labels = name.partition("{")
    target = 'job="specwatch",instance="s1"'
    return f"{metric}{{{target},{labels}" if brace else f"{metric}{{{target}}}"


def firing(labels: list[Mapping[str, str]], minutes: float) -> dict[str, Any]:
    """That these alerts, and no others, fire."""
    alerts = [{"labels": _series({"alertstate": "firing", **each}), "value": 1} for each in labels]
    return {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{int(minutes * 60)}s", "exp_samples": alerts}


def _series(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"ALERTS{{{inside}}}"
