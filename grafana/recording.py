"""Recording rules: figures that alerts read, and some for dashboards of your own, named level:metric:operation. The
dashboards of this package do without, so that they work where nobody loads the rules.

The level names the labels that tell series apart: `instance` stands for a sidecar with all labels of its scrape
(`without` keeps them, as namespace and pod). Every ratio divides by `(… > 0)`: without traffic there is no value,
neither 0 nor NaN.
"""

import re
from dataclasses import dataclass

#: Windows of the share within 800 ms; burn rates need them all. The long ones cost 17,000 samples a series and look.
SHORT_WINDOWS, LONG_WINDOWS = ("5m", "30m", "1h"), ("6h", "3d")
#: Requests a side before the p95s of two arms are compared.
MIN_A_SIDE = 50

_LATENCY = "specwatch_request_latency_seconds"
_BY_REQUEST = "without (upstream, model, arm, outcome)"
_SPECULATIVE, _BASELINE = 'arm="speculative"', 'arm="baseline"'


@dataclass(frozen=True)
class Record:
    name: str
    expr: str
    about: str
    #: Metrics of `expr` whose label tells the series of the record apart.
    by: tuple[str, ...] = ()

    def inline(self, matchers: str) -> str:
        """`expr` of the series that the matchers pick."""
        expr = self.expr
        for metric in self.by if matchers else ():
            expr = expr.replace(f"{metric}[", f"{metric}{{{matchers}}}[")
        return f"({expr})"


def under_800ms(window: str) -> str:
    """Name of the share of ok requests that took at most 800 ms."""
    return f"instance:specwatch_latency_under_800ms:ratio_rate{window}"


def timed_requests(window: str) -> str:
    """Name of the number of ok requests, those behind `under_800ms`."""
    return f"instance:specwatch_timed_requests:increase{window}"


def _timely(window: str) -> Record:
    return Record(
        under_800ms(window),
        _ratio(
            f'sum without (arm, le) (rate({_LATENCY}_bucket{{le="0.8"}}[{window}]))',
            f"sum without (arm) (rate({_LATENCY}_count[{window}]))",
        ),
        "latency_under_800ms_ratio: share of ok requests that took at most 800 ms.",
    )


def _timed(window: str) -> Record:
    return Record(
        timed_requests(window),
        f"sum without (arm) (increase({_LATENCY}_count[{window}]))",
        "ok requests in the window.",
    )


def _ratio(above: str, below: str) -> str:
    return f"{above}\n/\n({below} > 0)"


def _p95(matcher: str, window: str) -> str:
    return f"histogram_quantile(0.95, sum without (arm) (rate({_LATENCY}_bucket{{{matcher}}}[{window}])))"


def _enough(matcher: str) -> str:
    return f"(sum without (arm) (increase({_LATENCY}_count{{{matcher}}}[1h])) >= {MIN_A_SIDE})"


ACCEPTANCE = (
    Record(
        "instance:specwatch_acceptance:ratio_rate5m",
        _ratio(
            "sum without (upstream, scenario) (rate(specwatch_accepted_tokens_total[5m]))",
            "sum without (upstream, scenario) (rate(specwatch_draft_tokens_total[5m]))",
        ),
        "Acceptance rate p, pooled: accepted / drafted tokens.",
    ),
    Record(
        "instance_scenario:specwatch_acceptance:ratio_rate30m",
        _ratio(
            "sum without (upstream) (rate(specwatch_accepted_tokens_total[30m]))",
            "sum without (upstream) (rate(specwatch_draft_tokens_total[30m]))",
        ),
        "The same by scenario.",
    ),
    Record(
        "instance_scenario:specwatch_speculative_requests:increase30m",
        f'sum {_BY_REQUEST} (increase(specwatch_requests_total{{arm=~"speculative|probe",outcome="ok"}}[30m]))',
        "Requests that were drafted for.",
    ),
    Record(
        "instance_scenario:specwatch_acceptance_high:ratio_rate30m",
        "instance_scenario:specwatch_acceptance:ratio_rate30m\n"
        "+ 1.96 * sqrt(\n"
        "  instance_scenario:specwatch_acceptance:ratio_rate30m\n"
        "  * (1 - instance_scenario:specwatch_acceptance:ratio_rate30m)\n"
        "  / (instance_scenario:specwatch_speculative_requests:increase30m > 0)\n"
        ")",
        "Upper end of its 95 % interval, as if each request were one draw: tokens of a request resemble each other. "
        "The sidecar's own interval, which knows how much they do, is narrower.",
    ),
    Record(
        "instance:specwatch_truncation:ratio_rate30m",
        _ratio(
            "sum without (position) (rate(specwatch_truncations_total[30m]))",
            "sum without (upstream) (rate(specwatch_accepted_length_tokens_count[30m]))",
        ),
        "Truncation rate: verify steps of which a draft token was rejected.",
    ),
    Record(
        "instance:specwatch_truncation_first_position:ratio_rate30m",
        _ratio(
            'sum without (position) (rate(specwatch_truncations_total{position="1"}[30m]))',
            "sum without (position) (rate(specwatch_truncations_total[30m]))",
        ),
        "Of these, the share at the first position.",
    ),
)

LATENCY = (
    *map(_timely, SHORT_WINDOWS),
    _timed("1h"),
    Record(
        "instance:specwatch_p95_latency_under_800ms:ratio1h",
        f"avg_over_time(({under_800ms('5m')} >= bool 0.95)[1h:1m])",
        "p95_latency_under_800ms_ratio: share of minutes whose trailing 5-minute p95 is at most 800 ms, which it is "
        "exactly where 95 % of the requests are. Idle minutes have no value and do not count.",
    ),
    Record(
        "instance_arm:specwatch_request_latency_seconds:p95_rate5m",
        f"histogram_quantile(0.95, rate({_LATENCY}_bucket[5m]))\nand rate({_LATENCY}_count[5m]) > 0",
        "p95 per arm, interpolated inside a bucket; at most the last finite bound.",
    ),
    Record(
        "instance:specwatch_latency_p95:ratio_rate1h",
        f"{_p95(_SPECULATIVE, '1h')}\n/\n({_p95(_BASELINE, '1h')} > 0)\n"
        f"and {_enough(_SPECULATIVE)}\nand {_enough(_BASELINE)}",
        f"p95 with speculation / p95 without, from {MIN_A_SIDE} requests a side on; at any concurrency, unlike "
        "specwatch_latency_ratio.",
    ),
)

LONG_LATENCY = tuple(make(window) for window in LONG_WINDOWS for make in (_timely, _timed))

QUALITY = (
    Record(
        "instance_kind:specwatch_similarity:mean30m",
        _ratio("rate(specwatch_similarity_sum[30m])", "rate(specwatch_similarity_count[30m])"),
        "Mean similarity of the pairs; a cosine below 0 counts as 0.",
        by=("specwatch_similarity_sum", "specwatch_similarity_count"),
    ),
    Record(
        "instance:specwatch_replies:increase30m",
        'sum without (fate) (increase(specwatch_engine_feed_requests_total{fate="joined"}[30m]))',
        "Replies whose tokens the engine told, all of which are looked at.",
    ),
    Record(
        "instance_flag:specwatch_output_flags:ratio_rate30m",
        "increase(specwatch_output_flags_total[30m])\n"
        "/ ignoring (flag) group_left ()\n"
        "(instance:specwatch_replies:increase30m > 0)",
        "Of these, the share that looks broken, by what is seen.",
        by=("specwatch_output_flags_total",),
    ),
)

TRAFFIC = (
    Record(
        "instance:specwatch_requests:increase5m",
        "sum without (upstream, model, scenario, arm, outcome) (increase(specwatch_requests_total[5m]))",
        "Requests that ended.",
    ),
)

GROUPS = {
    "specwatch-traffic": TRAFFIC,
    "specwatch-acceptance": ACCEPTANCE,
    "specwatch-latency": LATENCY,
    "specwatch-latency-long": LONG_LATENCY,
    "specwatch-quality": QUALITY,
}

#: Of groups that are looked at less often than the others. With 5 minutes or more their series would have gaps.
INTERVALS = {"specwatch-latency-long": "2m"}

_BY_NAME = {record.name: record for records in GROUPS.values() for record in records}
_NAMED = re.compile(r"(instance\w*:\w+:\w+)(?:\{([^}]*)\})?")


def inline(expr: str) -> str:
    """An expression with what its records stand for, for where no Prometheus records them."""
    while _NAMED.search(expr):
        expr = _NAMED.sub(lambda found: _BY_NAME[found[1]].inline(found[2] or ""), expr)
    return expr
