"""What somebody on call looks at first: are we within the promise, is speculation worth it, what fires."""

from grafana_foundation_sdk.builders import stat
from grafana_foundation_sdk.models.common import BigValueTextMode

from .. import promql, words
from ..board import board
from ..panels import Query, Size, at_least, at_most, clamped, columns, lines, rows_above_zero, single
from .latency import timely_minutes, timely_requests
from .runbook import UID as RUNBOOK

_SMALL = Size(4, 4)
_MIDDLE = Size(8, 9)

_LATENCY = "specwatch_request_latency_seconds"


def json() -> str:
    return board(
        "specwatch-overview",
        "Specwatch: overview",
        "Whether latency is within the promise, whether speculation is worth it, and which alerts fire.",
        [
            timely_minutes(Size(14, 9)),
            lines(
                "Acceptance rate p, last 100 requests",
                f"{words.P} Of the last 100 requests that speculated, one curve for each sidecar.",
                Query(promql.gauge("min", "specwatch_acceptance_ratio", by="instance"), "{{instance}}"),
                unit="none",
                size=Size(10, 9),
                steps=at_least(words.P_MIN),
                none=words.NOT_KNOWN,
                highest=1,
            ),
            *_now(),
            rows_above_zero(
                "Alerts that fire",
                "Alerts of the sidecars' own rules, and for how many groups each fires. A row leads to the runbook.",
                Query(
                    f"sort_desc({promql.gauge('sum', 'specwatch_alerts_firing', by='severity, alert')})", instant=True
                ),
                size=_MIDDLE,
                link=f"/d/{RUNBOOK}",
                names={"alert": "Alert", "severity": "Severity", "Value": "Groups"},
            ),
            columns(
                "Requests/s by outcome",
                "Generation requests that ended: ok, truncated (the reply broke off), upstream_error, client_abort, "
                "bad_gateway, timeout.",
                Query(promql.rate("specwatch_requests_total", by="outcome"), "{{outcome}}"),
                unit="reqps",
                size=_MIDDLE,
                none=words.NO_TRAFFIC,
            ),
            lines(
                "p95 latency with and without speculation",
                "Request head complete to last byte of an ok reply. Not at like concurrency: for a verdict see the "
                f"latency ratio. {words.QUANTILES}",
                Query(promql.quantile(0.95, _LATENCY, promql.SPECULATIVE), "with speculation"),
                Query(promql.quantile(0.95, _LATENCY, promql.PLAIN), "without"),
                unit="s",
                size=_MIDDLE,
                steps=at_most(0.8),
                mappings=clamped(words.LAST_LATENCY),
                none=words.NO_TRAFFIC,
            ),
        ],
    )


def _now() -> list[stat.Panel]:
    """Two rows of six."""
    return [
        single(
            "p, last 100 requests",
            f"{words.P} The lowest of the sidecars picked.",
            Query(promql.gauge("min", "specwatch_acceptance_ratio")),
            unit="none",
            size=_SMALL,
            steps=at_least(words.P_MIN),
            none=words.NOT_KNOWN,
            decimals=2,
        ),
        single(
            "State",
            f"How all traffic is served, the worst of the sidecars picked. {words.STATE}",
            Query(words.state("max")),
            unit="none",
            size=_SMALL,
            mappings=words.STATES,
        ),
        single(
            "Mean acceptance length",
            words.MEAN_LENGTH,
            Query(f"1 + {promql.mean('specwatch_accepted_length_tokens')}"),
            unit="none",
            size=_SMALL,
            none=words.NO_TRAFFIC,
            decimals=2,
        ),
        single(
            "Latency ratio",
            f"{words.RATIO} The highest of the sidecars picked.",
            Query(promql.gauge("max", "specwatch_latency_ratio")),
            unit="none",
            size=_SMALL,
            steps=at_most(1),
            none=words.NOT_KNOWN,
            decimals=2,
        ),
        single(
            "Similarity",
            f"{words.SIMILARITY} Mean of the last hour.",
            Query(promql.mean("specwatch_similarity", 'kind="draft"', window="1h")),
            unit="none",
            size=_SMALL,
            steps=((None, "red"), (words.SIMILARITY_CRITICAL, "orange"), (words.SIMILARITY_WARNING, "green")),
            none=words.NOT_KNOWN,
            decimals=2,
        ),
        single(
            "Tokenizers",
            f"{words.ALIGNMENT} The worst of the sidecars picked.",
            Query(promql.gauge("min", "specwatch_tokenizer_aligned")),
            unit="none",
            size=_SMALL,
            mappings=words.ALIGNED,
            none=words.NOT_KNOWN,
        ),
        single(
            "Critical alerts",
            "Groups for which a critical alert of the sidecars' own rules fires.",
            Query(promql.gauge("sum", "specwatch_alerts_firing", 'severity="critical"')),
            unit="none",
            size=_SMALL,
            steps=at_most(1),
        ),
        single(
            "Warnings",
            "Groups for which an alert of severity warning fires.",
            Query(promql.gauge("sum", "specwatch_alerts_firing", 'severity="warning"')),
            unit="none",
            size=_SMALL,
            steps=((None, "green"), (1, "orange")),
        ),
        single(
            "Upstreams",
            "Whether connections can be made to each upstream; down where one of the sidecars picked cannot.",
            Query(promql.gauge("min", "specwatch_upstream_up", by="upstream"), "{{upstream}}"),
            unit="none",
            size=_SMALL,
            mappings=words.UP,
            text=BigValueTextMode.VALUE_AND_NAME,
        ),
        single(
            "Coverage",
            f"{words.COVERAGE} The lowest of upstreams and sidecars.",
            Query(promql.gauge("min", "specwatch_coverage_ratio")),
            unit="percentunit",
            size=_SMALL,
            steps=at_least(words.COVERAGE_MIN),
            none=words.NOT_KNOWN,
            decimals=0,
        ),
        timely_requests(_SMALL),
        single(
            "Requests/s",
            "Generation requests that ended, whatever their outcome.",
            Query(promql.rate("specwatch_requests_total")),
            unit="reqps",
            size=_SMALL,
            none=words.NO_TRAFFIC,
        ),
    ]
