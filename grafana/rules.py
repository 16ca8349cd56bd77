"""rules.yml: Prometheus's recording and alerting rules.

The alerts are those of alerts/defaults.yaml, from where severity, `for`, `keep_firing_for`, labels and annotations
come; the expressions are PromQL here, and a few alerts more can only be seen from outside the sidecar.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import yaml

from .burn import BURNS, OBJECTIVE, Burn, threshold
from .recording import GROUPS, INTERVALS, Record, timed_requests, under_800ms

_DEFAULTS = Path(__file__).parents[1] / "alerts" / "defaults.yaml"

_HEAD = """\
# Recording and alerting rules for Prometheus 2.42 and later; made by grafana/generate.py, so change them there.
# The alerts are the sidecar's own (alerts/RUNBOOK.md tells what to do); have one of the two notify you, not both.
# Scrape every 15 s or so: the shortest window is a minute.
#
# No traffic, or no data, raises none of them. It does not end them where the figure is one of the sidecar's own, as the
# acceptance rate of the last 100 requests, which stands still then. Where it is a share of a time window, no data ends
# the alert after keep_firing_for, once the window is empty: Prometheus knows no third state. So does a sidecar that is
# gone, and SpecwatchSidecarDown fires instead. The sidecar's own alerts, and the Grafana rules, keep their state.
"""


@dataclass(frozen=True)
class Meta:
    """What an alert has beside its expression."""

    severity: str
    for_: str = "0s"
    keep_firing_for: str = "0s"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class Condition(NamedTuple):
    """Holds for each series of `value` that stands to `limit` as `op` says."""

    value: str
    op: str
    limit: float


@dataclass(frozen=True)
class Alert:
    """Fires for the labels for which all conditions hold; the first one's value is told.

    Without a series of each condition and each guard there is no data.
    """

    name: str
    conditions: tuple[Condition, ...]
    guards: tuple[str, ...] = ()
    #: Digits behind the point of the value where it is told: none for counts.
    digits: int = 3
    #: None: from alerts/defaults.yaml.
    own: Meta | None = None

    @property
    def expr(self) -> str:
        comparisons = (f"{value} {op} {limit:g}" for value, op, limit in self.conditions)
        return "\nand ".join((*comparisons, *self.guards))

    @property
    def meta(self) -> Meta:
        return self.own or _shipped()[self.name]


_DRAFTED = "instance_scenario:specwatch_speculative_requests:increase30m"
_REQUESTS = "instance:specwatch_requests:increase5m"
_REPLIES = "instance:specwatch_replies:increase30m"
_ENOUGH_DRAFTED = f"sum without (scenario) ({_DRAFTED}) >= 50"
_SIMILARITY = 'max without (kind) (instance_kind:specwatch_similarity:mean30m{kind="draft"})'
_ENOUGH_PAIRS = 'max without (kind) (increase(specwatch_similarity_count{kind="draft"}[30m])) >= 50'


def _alert(name: str, value: str, op: str, limit: float, *guards: str, digits: int = 3) -> Alert:
    return Alert(name, (Condition(value, op, limit),), guards, digits)


def _flagged(flag: str) -> Condition:
    return Condition(
        f'max without (flag) (instance_flag:specwatch_output_flags:ratio_rate30m{{flag="{flag}"}})', ">=", 0.05
    )


ALERTS = (
    # The draft model.
    _alert(
        "SpecwatchAcceptanceLow",
        'max without (window) (specwatch_acceptance_ratio{window="100"})',
        "<",
        0.65,
        "specwatch_window_requests >= 50",
    ),
    _alert(
        "SpecwatchAcceptanceLowInScenario",
        "instance_scenario:specwatch_acceptance_high:ratio_rate30m",
        "<",
        0.65,
        f"{_DRAFTED} >= 20",
    ),
    Alert(
        "SpecwatchFirstPositionTruncations",
        (
            Condition("instance:specwatch_truncation_first_position:ratio_rate30m", ">", 0.15),
            Condition("instance:specwatch_truncation:ratio_rate30m", ">", 0.05),
        ),
        (_ENOUGH_DRAFTED,),
    ),
    _alert("SpecwatchTruncationsMany", "instance:specwatch_truncation:ratio_rate30m", ">", 0.35, _ENOUGH_DRAFTED),
    _alert("SpecwatchTokenizersMisaligned", "specwatch_tokenizer_aligned", "<", 1),
    _alert("SpecwatchDraftsTimeOut", "increase(specwatch_late_streams_total[1m])", ">=", 3, digits=0),
    _alert(
        "SpecwatchFiguresMissing",
        "sum without (quality) (increase(specwatch_acceptance_unknown_total[30m]))\n"
        f"/ (sum without (scenario) ({_DRAFTED}) > 0)",
        ">",
        0.5,
        _ENOUGH_DRAFTED,
    ),
    # The fallback.
    _alert(
        "SpecwatchFallbackIneffective",
        'max without (state) (specwatch_fallback_state{state="ineffective"})',
        ">",
        0,
    ),
    # A round of probes that fails is no change.
    _alert(
        "SpecwatchFallbackFlapping",
        'max without (state) (changes(specwatch_fallback_state{state="speculative"}[1h]))',
        ">=",
        6,
        digits=0,
    ),
    _alert("SpecwatchFellBack", "specwatch_fell_back", ">", 0),
    _alert("SpecwatchSliceFellBack", "specwatch_fallback_open_slices", ">", 0, digits=0),
    # Without a certificate there is no such series.
    _alert("SpecwatchCertificateInvalid", "specwatch_certificate_valid", "<", 1),
    # What comes out.
    _alert("SpecwatchSimilarityCritical", _SIMILARITY, "<", 0.75, _ENOUGH_PAIRS),
    _alert("SpecwatchSimilarityLow", _SIMILARITY, "<", 0.82, _ENOUGH_PAIRS),
    Alert("SpecwatchRepetition", (_flagged("repetition"), _flagged("p_near_one")), (f"{_REPLIES} >= 50",)),
    Alert("SpecwatchGarble", (_flagged("garble"),), (f"{_REPLIES} >= 50",)),
    # Latency and errors.
    Alert(
        "SpecwatchLatencyGoalMissed",
        (
            Condition(under_800ms("1h"), "<", OBJECTIVE),
            Condition("instance:specwatch_p95_latency_under_800ms:ratio1h", "<", OBJECTIVE),
        ),
        (f"{timed_requests('1h')} >= 100",),
    ),
    _alert("SpecwatchSlowerThanPlain", "specwatch_latency_ratio", ">", 1),
    _alert(
        "SpecwatchErrors",
        f"increase(specwatch_failures_total[5m]) / ({_REQUESTS} > 0)",
        ">",
        0.1,
        f"{_REQUESTS} >= 50",
    ),
    _alert("SpecwatchUpstreamDown", "specwatch_upstream_up", "<", 1),
    # Specwatch itself.
    _alert("SpecwatchCoverageLow", "specwatch_coverage_ratio", "<", 0.9),
    _alert(
        "SpecwatchRecordsDropped",
        "sum without (stage) (increase(specwatch_records_dropped_total[5m]))",
        ">",
        0,
        digits=0,
    ),
    _alert("SpecwatchDatabaseDown", "specwatch_database_up", "<", 1),
    # Without engine_events there is no such series.
    _alert(
        "SpecwatchEngineFeedLost",
        "specwatch_engine_feed_connected_cores",
        "<",
        1,
        f"{_REQUESTS} > 0",
        'max without (state) (specwatch_fallback_state{state="autoregressive"}) < 1',
    ),
    _alert(
        "SpecwatchNotificationsFail",
        'sum without (receiver, outcome) (increase(specwatch_notifications_total{outcome!="sent"}[5m]))',
        ">",
        0,
        digits=0,
    ),
    _alert("SpecwatchTapFailures", "increase(specwatch_tap_failures_total[5m])", ">", 0, digits=0),
)

_SIDECAR_DOWN = Meta(
    "critical",
    "1m",
    "2m",
    annotations={
        "summary": "A sidecar cannot be scraped",
        "description": "Requests may not be served, and no other alert of it can fire. If no sidecar is known at all, "
        "its scrape job is not named specwatch.",
        "runbook": "RUNBOOK.md#specwatchsidecardown",
    },
)


def _burning(burn: Burn) -> Alert:
    limit = round(1 - threshold(OBJECTIVE, burn.factor), 9)
    speed = f"{burn.factor:g} times as fast as" if burn.factor > 1 else "faster than"
    description = (
        f"Of the requests of the last {burn.long} a share of {{{{ value }}}} took at most 800 ms, and about as few of "
        f"the last {burn.short}; {OBJECTIVE:g} should."
    )
    return Alert(
        burn.alert,
        tuple(Condition(under_800ms(window), "<", limit) for window in (burn.long, burn.short)),
        (f"{timed_requests(burn.long)} >= {burn.least}",),
        own=Meta(
            burn.severity,
            burn.for_,
            burn.keep_firing_for,
            annotations={
                "summary": f"The latency budget burns {speed} it may",
                "description": description,
                "runbook": f"RUNBOOK.md#{burn.alert.lower()}",
            },
        ),
    )


#: Seen from outside the sidecar, or over longer than it remembers.
OUTSIDE = (
    Alert(
        "SpecwatchSidecarDown",
        # Of no sidecar at all, absent makes one that is down.
        (Condition('(up{job="specwatch"} or absent(up{job="specwatch"}) - 1)', "<", 1),),
        own=_SIDECAR_DOWN,
    ),
    *map(_burning, BURNS),
)


def files() -> dict[str, str]:
    """Path below this folder -> text."""
    return {"rules.yml": _HEAD + _explained(dump({"groups": groups()}))}


def _explained(text: str) -> str:
    """With what each record is above it."""
    for record in (each for records in GROUPS.values() for each in records):
        lines = "".join(f"      # {line}\n" for line in wrap(record.about, 112))
        begins = f"      - record: {record.name}\n"
        text = text.replace(begins, lines + begins)
    return text


def groups() -> list[dict[str, Any]]:
    """The groups of rules.yml."""
    return [
        *(_records(name, records) for name, records in GROUPS.items()),
        {"name": "specwatch-alerts", "rules": [_alerting(each) for each in (*ALERTS, *OUTSIDE)]},
    ]


def _records(name: str, records: Iterable[Record]) -> dict[str, Any]:
    interval = {"interval": INTERVALS[name]} if name in INTERVALS else {}
    return {"name": name, **interval, "rules": [_recording(each) for each in records]}


def dump(value: object) -> str:
    """YAML in the order given, text of several lines as such."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def _recording(record: Record) -> dict[str, Any]:
    return {"record": record.name, "expr": record.expr}


def _alerting(alert: Alert) -> dict[str, Any]:
    meta = alert.meta
    times = {"for": meta.for_, "keep_firing_for": meta.keep_firing_for}
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **{key: value for key, value in times.items() if value != "0s"},
        "labels": {"severity": meta.severity, **meta.labels},
        "annotations": templated(alert),
    }


def templated(alert: Alert, value: str = "$value") -> dict[str, str]:
    """The annotations, with the sidecar's placeholders as Go's templates; `value` is what the value is called there."""
    shown = f'{{{{ printf "%.{alert.digits}f" {value} }}}}'
    texts = {key: re.sub(r"\{\{\s*value\s*\}\}", shown, text) for key, text in alert.meta.annotations.items()}
    return {key: re.sub(r"\{\{\s*([a-z_]+)\s*\}\}", r"{{ $labels.\1 }}", text) for key, text in texts.items()}


@cache
def _shipped() -> dict[str, Meta]:
    rules = yaml.safe_load(_DEFAULTS.read_text(encoding="utf-8"))["rules"]
    return {
        rule["alert"]: Meta(
            rule["severity"],
            rule.get("for", "0s"),
            rule.get("keep_firing_for", "0s"),
            rule.get("labels", {}),
            rule["annotations"],
        )
        for rule in rules
    }


class _Dumper(yaml.SafeDumper):
    """Indents lists, and repeats what is there twice, as one writes by hand."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
