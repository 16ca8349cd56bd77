"""Latency with speculation against latency without."""

from grafana_foundation_sdk.builders import stat

from .. import promql, words
from ..board import board
from ..panels import Query, Size, at_least, at_most, clamped, heat_map, lines, single

_LATENCY = "specwatch_request_latency_seconds"
_TTFT = "specwatch_time_to_first_token_seconds"
_TPOT = "specwatch_time_per_output_token_seconds"

_SIDES = (("with speculation", promql.SPECULATIVE), ("without", promql.PLAIN))
_SMALL = Size(6, 6)
_HALF = Size(12, 9)
_WITHOUT = (
    "Without speculation are requests of the arms baseline and autoregressive, be it on an engine that never "
    "speculates or on one that speculates for others."
)
_BUCKET_RATIO = (
    "p95 of the last hour with speculation / without it, from the buckets: not at like concurrency, and never a mean "
    "of ratios. No value with fewer than 50 requests on either side, or where either p95 lies beyond the last bound. "
    "Below 1 speculation is faster."
)


def json() -> str:
    return board(
        "specwatch-latency",
        "Specwatch: latency",
        "Requests that speculated against requests that did not: whole replies, first token, each token after it.",
        [
            timely_minutes(_SMALL),
            timely_requests(_SMALL),
            single(
                "Latency ratio at like concurrency",
                f"{words.RATIO} As each sidecar computes it; the highest of those picked.",
                Query(promql.gauge("max", "specwatch_latency_ratio")),
                unit="none",
                size=_SMALL,
                steps=at_most(1),
                none=words.NOT_KNOWN,
                decimals=2,
            ),
            single(
                "Ratio of the p95, last hour",
                _BUCKET_RATIO,
                Query(promql.quantile_ratio(0.95, _LATENCY, words.LAST_LATENCY, "1h")),
                unit="none",
                size=_SMALL,
                steps=at_most(1),
                none="Fewer than 50 requests on a side",
                decimals=2,
            ),
            *(
                lines(
                    f"Latency {side}",
                    f"Request head complete to last byte of an ok reply. {_WITHOUT} {words.QUANTILES}",
                    *(Query(promql.quantile(q, _LATENCY, arms), f"p{q * 100:.0f}") for q in (0.5, 0.95, 0.99)),
                    unit="s",
                    size=_HALF,
                    steps=at_most(0.8),
                    mappings=clamped(words.LAST_LATENCY),
                    none=words.NO_TRAFFIC,
                )
                for side, arms in _SIDES
            ),
            lines(
                "TTFT, p50 and p95",
                "Time to first token: request head complete to first content byte of a stream, at the sidecar. "
                f"{_WITHOUT} {words.QUANTILES}",
                *_both(_TTFT),
                unit="s",
                size=_HALF,
                mappings=clamped(words.LAST_TTFT),
                none=words.NO_TRAFFIC,
            ),
            lines(
                "TPOT, p50 and p95",
                f"Time per output token after the first: (end - first token) / (tokens - 1). {_WITHOUT} "
                f"{words.QUANTILES}",
                *_both(_TPOT),
                unit="s",
                size=_HALF,
                mappings=clamped(words.LAST_TPOT),
                none=words.NO_TRAFFIC,
            ),
            lines(
                "Share of ok requests within 800 ms",
                f"{words.TIMELY} At {words.GOAL:.0%} and above, p95 is within 800 ms. {_WITHOUT}",
                Query(promql.share_within("0.8", _LATENCY), "all"),
                *(Query(promql.share_within("0.8", _LATENCY, arms), side) for side, arms in _SIDES),
                unit="percentunit",
                size=_HALF,
                steps=at_least(words.GOAL),
                none=words.NO_TRAFFIC,
                highest=1,
            ),
            lines(
                "Ratio of the p95 over the last hour",
                _BUCKET_RATIO,
                Query(promql.quantile_ratio(0.95, _LATENCY, words.LAST_LATENCY, "1h"), "latency"),
                Query(promql.quantile_ratio(0.95, _TTFT, words.LAST_TTFT, "1h"), "TTFT"),
                Query(promql.quantile_ratio(0.95, _TPOT, words.LAST_TPOT, "1h"), "TPOT"),
                unit="none",
                size=_HALF,
                steps=at_most(1),
                none="Fewer than 50 requests on a side",
            ),
            *(
                heat_map(
                    f"Latencies {side}",
                    "Ok requests by how long they took. A row reaches from the bound of the row below to its own; the "
                    f"topmost has no upper bound. {_WITHOUT}",
                    Query(promql.growth(f"{_LATENCY}_bucket", arms, by="le"), "{{le}}"),
                    unit="s",
                    size=_HALF,
                    none=words.NO_TRAFFIC,
                )
                for side, arms in _SIDES
            ),
        ],
    )


def _both(metric: str) -> list[Query]:
    return [
        Query(promql.quantile(q, metric, arms), f"p{q * 100:.0f} {side}") for q in (0.5, 0.95) for side, arms in _SIDES
    ]


def timely_minutes(size: Size) -> stat.Panel:
    return single(
        "p95_latency_under_800ms_ratio",
        words.MINUTES,
        Query(promql.minutes_within("0.8", _LATENCY, window="1h")),
        unit="percentunit",
        size=size,
        steps=at_least(words.GOAL),
        none=words.NO_TRAFFIC,
        decimals=1,
    )


def timely_requests(size: Size) -> stat.Panel:
    return single(
        "latency_under_800ms_ratio",
        f"{words.TIMELY} Of the last hour.",
        Query(promql.share_within("0.8", _LATENCY, window="1h")),
        unit="percentunit",
        size=size,
        steps=at_least(words.GOAL),
        none=words.NO_TRAFFIC,
        decimals=1,
    )
