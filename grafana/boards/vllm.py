"""What plain vLLM counts itself: for engines without a sidecar before them, or to hold beside one."""

from grafana_foundation_sdk.builders import stat, timeseries

from .. import promql, words
from ..board import ALERTS, board, pick
from ..panels import Query, Size, at_least, at_most, clamped, heat_map, lines, single

_DRAFTS = "vllm:spec_decode_num_drafts_total"
_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_LATENCY = "vllm:e2e_request_latency_seconds"

_MODEL = 'model_name="$model_name"'
_SMALL = Size(6, 5)
_HALF = Size(12, 9)
_THIRD = Size(8, 9)

_MIXED = "All requests count, those that did not speculate and those of other scenarios too."
_K = "Engines of different k under one name cannot be told apart here."


def json() -> str:
    return board(
        "specwatch-vllm",
        "Specwatch: vLLM",
        "Speculative decoding by vLLM's own counters, without a sidecar. What needs requests told apart (scenarios, "
        "speculation against baseline, similarity, fallback) is on the other boards.",
        [
            *_now(),
            heat_map(
                "Verify steps by accepted draft tokens",
                "Each row is a number of draft tokens that a verify step accepted before the first rejection: row 0 is "
                f"a rejection at position 1, the topmost row (+Inf) is full acceptance. {_K}",
                Query(accepted_lengths(), "{{le}}"),
                unit="none",
                size=Size(24, 10),
                none="No drafts",
            ),
            lines(
                "p",
                f"{words.P} {_MIXED}",
                Query(acceptance_rate(promql.RATE), "p"),
                unit="none",
                size=_HALF,
                steps=at_least(words.P_MIN),
                none="No drafts",
                highest=1,
            ),
            lines(
                "Acceptance by position",
                "Share of the verify steps that accepted the draft token at each position (0 is the first), and so all "
                f"before it. {_K}",
                Query(
                    f"{promql.rate(_BY_POSITION, _MODEL, by='position')} / on () group_left () "
                    f"({promql.rate(_DRAFTS, _MODEL)} > 0)",
                    "{{position}}",
                ),
                unit="percentunit",
                size=_HALF,
                none="No drafts",
                highest=1,
            ),
            _quantiles("Latency", "Arrival at the engine's server to the last token.", _LATENCY, 7680),
            _quantiles("TTFT", "Time to first token.", "vllm:time_to_first_token_seconds", 2560),
            _quantiles(
                "TPOT",
                "Time per output token after the first, of whole requests.",
                "vllm:request_time_per_output_token_seconds",
                80,
            ),
            lines(
                "Requests running and waiting",
                "In the engines' batches, and in their queues. Speculation pays less the fuller the batch is.",
                Query(promql.gauge("sum", "vllm:num_requests_running", _MODEL), "running"),
                Query(promql.gauge("sum", "vllm:num_requests_waiting", _MODEL), "waiting"),
                unit="none",
                size=_THIRD,
            ),
            lines(
                "Share of requests within 800 ms",
                f"800 ms is a bound of vLLM's own buckets, so the share is exact. At {words.GOAL:.0%} and above, p95 "
                "is within 800 ms.",
                Query(promql.share_within("0.8", _LATENCY, _MODEL), "within 800 ms"),
                unit="percentunit",
                size=_THIRD,
                steps=at_least(words.GOAL),
                none=words.NO_TRAFFIC,
                highest=1,
            ),
            lines(
                "Tokens/s",
                "Draft tokens proposed and accepted; all tokens generated.",
                Query(promql.rate(_DRAFTED, _MODEL), "drafted"),
                Query(promql.rate(_ACCEPTED, _MODEL), "accepted"),
                Query(promql.rate("vllm:generation_tokens_total", _MODEL), "generated"),
                unit="ops",
                size=_THIRD,
            ),
        ],
        picked_by="vllm:num_requests_running",
        picks=[pick("vllm:num_requests_running", "model_name", "job", "instance", several=False)],
        marks=[ALERTS],
    )


def _now() -> list[stat.Panel]:
    return [
        single(
            "p",
            f"{words.P} Over the time range. {_MIXED}",
            Query(acceptance_rate(promql.RANGE), instant=True),
            unit="none",
            size=_SMALL,
            steps=at_least(words.P_MIN),
            none="No drafts",
            decimals=2,
        ),
        single(
            "Mean acceptance length",
            f"{words.MEAN_LENGTH} Over the time range.",
            Query(
                "1 + "
                + promql.ratio(
                    promql.growth(_ACCEPTED, _MODEL, window=promql.RANGE),
                    promql.growth(_DRAFTS, _MODEL, window=promql.RANGE),
                ),
                instant=True,
            ),
            unit="none",
            size=_SMALL,
            none="No drafts",
            decimals=2,
        ),
        single(
            "Share of requests within 800 ms",
            "Of the requests over the time range, as vLLM measures them.",
            Query(promql.share_within("0.8", _LATENCY, _MODEL, window=promql.RANGE), instant=True),
            unit="percentunit",
            size=_SMALL,
            steps=at_least(words.GOAL),
            none=words.NO_TRAFFIC,
            decimals=1,
        ),
        single(
            "Requests/s",
            "Requests that ended, by the count of their latencies.",
            Query(promql.rate(f"{_LATENCY}_count", _MODEL)),
            unit="reqps",
            size=_SMALL,
            none=words.NO_TRAFFIC,
        ),
    ]


def acceptance_rate(window: str) -> str:
    accepted, drafted = (promql.growth(each, _MODEL, window=window) for each in (_ACCEPTED, _DRAFTED))
    return promql.ratio(accepted, drafted)


def accepted_lengths() -> str:
    """Buckets as `specwatch_accepted_length_tokens` has them: vLLM counts the steps that accepted position j (from 0
    on), so drafts less these accepted at most j tokens.
    """
    drafts = promql.growth(_DRAFTS, _MODEL)
    at_most_j = f"{drafts} - on () group_right () {promql.growth(_BY_POSITION, _MODEL, by='position')}"
    labelled = f'label_replace({at_most_j}, "le", "$1.0", "position", "(.+)")'
    return f'sum by (le) ({labelled}) or label_replace({drafts}, "le", "+Inf", "", "")'


def _quantiles(title: str, about: str, metric: str, bound: float) -> timeseries.Panel:
    return lines(
        f"{title}, p50, p95 and p99",
        f"{about} {words.QUANTILES}",
        *(Query(promql.quantile(q, metric, _MODEL), f"p{q * 100:.0f}") for q in (0.5, 0.95, 0.99)),
        unit="s",
        size=_THIRD,
        steps=at_most(0.8) if metric == _LATENCY else (),
        mappings=clamped(bound),
        none=words.NO_TRAFFIC,
    )
