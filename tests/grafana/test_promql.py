"""What the boards' expressions give, by promtool, for series that are written down here. C31."""

from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from specwatch_grafana import promql, words
from specwatch_grafana.boards import vllm
from support.panels import substitute
from support.stack import missing, run

pytestmark = pytest.mark.skipif(missing("promtool") is not None, reason=str(missing("promtool")))

LATENCY = "specwatch_request_latency_seconds"
TRANSITIONS = "specwatch_fallback_transitions_total"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
HOUR = {"__rate_interval": "1h", "__range": "1h", "model_name": "m"}
MINUTES = {"__rate_interval": "5m", "__range": "5m", "model_name": "m"}
SCRAPED = 'job="specwatch",instance="a"'


class Case(NamedTuple):
    expr: str
    #: series -> values, in promtool's notation, one every `interval`
    series: dict[str, str]
    #: labels -> value at the end of the hour; empty: no series
    given: dict[str, float]
    macros: dict[str, str] = HOUR
    interval: str = "1m"


def histogram(metric: str, counts: dict[str, int], labels: str = "", *, steps: int = 60) -> dict[str, str]:
    """Cumulative counts of one minute by bound, every minute the same; the last one is the count."""
    series = {f'{metric}_bucket{{{SCRAPED}{labels},le="{le}"}}': f"0+{count}x{steps}" for le, count in counts.items()}
    return series | {f"{metric}_count{{{SCRAPED}{labels}}}": f"0+{[*counts.values()][-1]}x{steps}"}


def sides(ours: dict[str, int], theirs: dict[str, int], *, steps: int = 60) -> dict[str, str]:
    return histogram(LATENCY, ours, ',arm="speculative"', steps=steps) | histogram(
        LATENCY, theirs, ',arm="baseline"', steps=steps
    )


FAST = {"0.5": 40, "1.0": 80, "2.0": 100, "+Inf": 100}
SLOW = {"0.5": 10, "1.0": 30, "2.0": 90, "4.0": 100, "+Inf": 100}
IDLE = dict.fromkeys(FAST, 0)
RATIO = promql.quantile_ratio(0.95, LATENCY, words.LAST_LATENCY, "1h")
P95 = promql.quantile(0.95, LATENCY)
WITHIN = promql.minutes_within("0.8", LATENCY, window="1h")
SWITCHED = promql.grown(TRANSITIONS, by="reason")
THERE = {f"specwatch_window_requests{{{SCRAPED}}}": "1x60"}


def minutes(within: str, every: str) -> dict[str, str]:
    return {
        f'{LATENCY}_bucket{{{SCRAPED},arm="speculative",le="0.8"}}': within,
        f'{LATENCY}_count{{{SCRAPED},arm="speculative"}}': every,
    }


CASES = {
    "a quantile is interpolated inside its bucket": Case(
        P95, histogram(LATENCY, {"1.0": 50, "2.5": 90, "5.0": 100, "+Inf": 100}), {"": 3.75}
    ),
    "a quantile beyond the last bound is that bound": Case(
        P95, histogram(LATENCY, {"60.0": 90, "120.0": 94, "+Inf": 100}), {"": 120}
    ),
    "no traffic: no quantile": Case(P95, histogram(LATENCY, IDLE), {}),
    "no series: no quantile": Case(P95, {}, {}),
    "quantiles are of all sidecars together, never a mean of theirs": Case(
        P95,
        histogram(LATENCY, {"1.0": 100, "2.0": 100, "+Inf": 100})
        | {
            name.replace('instance="a"', 'instance="b"'): values
            for name, values in histogram(LATENCY, {"1.0": 0, "2.0": 1, "+Inf": 1}).items()
        },
        {"": 95.95 / 100},
    ),
    "the ratio of the p95": Case(RATIO, sides(FAST, SLOW), {"": 1.75 / 3}),
    "3 requests on a side: no ratio": Case(RATIO, sides(FAST, dict.fromkeys(SLOW, 1), steps=3), {}),
    "no baseline: no ratio": Case(RATIO, sides(FAST, IDLE), {}),
    "no requests that speculated: no ratio": Case(RATIO, sides(IDLE, SLOW), {}),
    "beyond the last bound: no ratio": Case(RATIO, sides(FAST, {"60.0": 1, "120.0": 2, "+Inf": 100}), {}),
    "share within 800 ms": Case(
        promql.share_within("0.8", LATENCY), histogram(LATENCY, {"0.8": 3, "1.0": 4, "+Inf": 4}), {"": 0.75}
    ),
    "no traffic: no share": Case(promql.share_within("0.8", LATENCY), histogram(LATENCY, {"0.8": 0, "+Inf": 0}), {}),
    "minutes within: half of the hour was slow": Case(WITHIN, minutes("0+10x30 305+5x29", "0+10x60"), {"": 0.5}),
    "minutes within: 95 of 100 are enough": Case(WITHIN, minutes("0+95x60", "0+100x60"), {"": 1}),
    "minutes within: 94 of 100 are not": Case(WITHIN, minutes("0+94x60", "0+100x60"), {"": 0}),
    "minutes within: idle minutes do not count": Case(WITHIN, minutes("0+10x30 300x30", "0+10x30 300x30"), {"": 1}),
    # One slow request comes in minute 21, and nothing after it: minutes 21 and 22 count, 23 to 25 do not.
    "minutes within: nor do those that look back on a busy one": Case(
        WITHIN, minutes("0+10x81 810x158", "0+10x82 820x157"), {"": 20 / 22}, interval="15s"
    ),
    "minutes within: an idle hour is not known": Case(WITHIN, minutes("5x60", "5x60"), {}),
    "p by scenario": Case(
        promql.acceptance_rate(by="scenario"),
        {
            f'specwatch_accepted_tokens_total{{{SCRAPED},scenario="billing"}}': "0+30x60",
            f'specwatch_draft_tokens_total{{{SCRAPED},scenario="billing"}}': "0+40x60",
            f'specwatch_accepted_tokens_total{{{SCRAPED},scenario="idle"}}': "0x60",
            f'specwatch_draft_tokens_total{{{SCRAPED},scenario="idle"}}': "0x60",
        },
        {'{scenario="billing"}': 0.75},
    ),
    "a first switch counts": Case(
        SWITCHED,
        THERE | {f'{TRANSITIONS}{{{SCRAPED},from="a",to="b",reason="change"}}': "_x58 1x2"},
        {'{reason="change"}': 1},
        MINUTES,
    ),
    "a switch of long ago does not": Case(
        SWITCHED,
        THERE | {f'{TRANSITIONS}{{{SCRAPED},from="a",to="b",reason="change"}}': "1x60"},
        {'{reason="change"}': 0},
        MINUTES,
    ),
    "those of before the first scrape do not": Case(
        SWITCHED,
        {
            f"specwatch_window_requests{{{SCRAPED}}}": "_x58 1x2",
            f'{TRANSITIONS}{{{SCRAPED},from="a",to="b",reason="change"}}': "_x58 7x2",
        },
        {'{reason="change"}': 0},
        MINUTES,
    ),
    "the state of the worst sidecar": Case(
        words.state("max"),
        {
            f'specwatch_fallback_state{{job="specwatch",instance="{instance}",state="{state}"}}': (
                "1x60" if state == holds else "0x60"
            )
            for instance, holds in (("a", "speculative"), ("b", "autoregressive"))
            for state in ("speculative", "autoregressive", "probing", "ineffective")
        },
        {"": 2},
    ),
    "accepted lengths from vLLM's own counters": Case(
        vllm.accepted_lengths(),
        {f'vllm:spec_decode_num_drafts_total{{{SCRAPED},model_name="m",engine="0"}}': "0+100x60"}
        | {
            f'{PER_POSITION}{{{SCRAPED},model_name="m",engine="0",position="{at}"}}': f"0+{accepted}x60"
            for at, accepted in enumerate((70, 50, 40))
        },
        {'{le="0.0"}': 1800, '{le="1.0"}': 3000, '{le="2.0"}': 3600, '{le="+Inf"}': 6000},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_expressions_give(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    expr = substitute(case.expr, case.macros)
    expected = [{"labels": labels, "value": round(1e6 * value)} for labels, value in case.given.items()]
    test = {
        "interval": case.interval,
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        # Floats are compared bit by bit.
        "promql_expr_test": [{"expr": f"round(1e6 * ({expr}))", "eval_time": "60m", "exp_samples": expected}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [test]}))
    code, told = run("promtool", "test", "rules", tmp_path / "test.yml")
    assert code == 0, told
