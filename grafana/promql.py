"""The idioms of PromQL that boards share, as text.

Selectors carry the variables of the board. What is divided by is `(… > 0)`, so that without traffic there is no value
instead of NaN. The label `le` of a bound is written as prometheus_client does (`1.0`).
"""

#: What Grafana puts there is long enough for a rate at any zoom and any scrape interval.
RATE = "$__rate_interval"
#: The time range that is shown.
RANGE = "$__range"

#: Sidecars and engines are picked by these.
PICKED = ('job=~"$job"', 'instance=~"$instance"')

#: Arms of requests that were drafted for, and of those that were not.
SPECULATIVE = 'arm=~"speculative|probe"'
PLAIN = 'arm=~"baseline|autoregressive"'

#: Requests that each side of a latency ratio needs.
MIN_FOR_RATIO = 50


def select(metric: str, *matchers: str) -> str:
    return f"{metric}{{{','.join((*PICKED, *matchers))}}}"


def gauge(how: str, metric: str, *matchers: str, by: str = "") -> str:
    """One value over the sidecars that are picked, or one for each value of the labels `by`; `how` is as `min`."""
    return f"{how}{_by(by)}({select(metric, *matchers)})"


def rate(metric: str, *matchers: str, by: str = "", window: str = RATE) -> str:
    """Growth of a counter a second, added up."""
    return f"sum{_by(by)}(rate({select(metric, *matchers)}[{window}]))"


def growth(metric: str, *matchers: str, by: str = "", window: str = RATE) -> str:
    """Growth of a counter in the window, added up."""
    return f"sum{_by(by)}(increase({select(metric, *matchers)}[{window}]))"


def ratio(above: str, below: str) -> str:
    return f"{above} / ({below} > 0)"


def share_within(bound: str, metric: str, *matchers: str, by: str = "", window: str = RATE) -> str:
    """Share of the observations of a histogram that are at most `bound`, which is one of its bounds."""
    return ratio(
        growth(f"{metric}_bucket", *matchers, f'le="{bound}"', by=by, window=window),
        growth(f"{metric}_count", *matchers, by=by, window=window),
    )


def mean(metric: str, *matchers: str, by: str = "", window: str = RATE) -> str:
    """Of the observations of a histogram."""
    return ratio(
        growth(f"{metric}_sum", *matchers, by=by, window=window),
        growth(f"{metric}_count", *matchers, by=by, window=window),
    )


def acceptance_rate(*matchers: str, by: str = "", window: str = RATE) -> str:
    return ratio(
        growth("specwatch_accepted_tokens_total", *matchers, by=by, window=window),
        growth("specwatch_draft_tokens_total", *matchers, by=by, window=window),
    )


def quantile(q: float, metric: str, *matchers: str, window: str = RATE) -> str:
    """A quantile of a histogram: interpolated inside its bucket, no value without observations.

    Where it lies above the last finite bound, that bound is the value (see `panels.clamped`).
    """
    buckets = rate(f"{metric}_bucket", *matchers, by="le", window=window)
    return f"histogram_quantile({q}, {buckets}) and on () ({rate(f'{metric}_count', *matchers, window=window)} > 0)"


def quantile_ratio(q: float, metric: str, last_bound: float, window: str) -> str:
    """A quantile with speculation / the same without it.

    No value where either lies beyond the last finite bound of the histogram, or has less than `MIN_FOR_RATIO`
    observations.
    """
    ours, theirs = (
        f"(histogram_quantile({q}, {rate(f'{metric}_bucket', side, by='le', window=window)}) < {last_bound:g})"
        for side in (SPECULATIVE, PLAIN)
    )
    enough = " and on () ".join(
        f"({growth(f'{metric}_count', side, window=window)} >= {MIN_FOR_RATIO})" for side in (SPECULATIVE, PLAIN)
    )
    return f"{ratio(ours, theirs)} and on () {enough}"


def minutes_within(bound: str, metric: str, *matchers: str, window: str, share: float = 0.95) -> str:
    """Share of the minutes with traffic in which that share of the last 5 minutes' observations was at most `bound`.

    For 0.95 that is p95 <= bound, exactly (by nearest rank). A minute has traffic where an observation came in it or
    in the minute before, which is seen at scrape intervals of up to a minute.
    """
    within = share_within(bound, metric, *matchers, window="5m")
    traffic = growth(f"{metric}_count", *matchers, window="2m")
    return f"avg_over_time(({within} >= bool {share} and on () ({traffic} > 0))[{window}:1m])"


def grown(metric: str, *matchers: str, by: str, window: str = RATE) -> str:
    """As `growth`, for counters whose series begin with their first event, which `increase` does not see.

    Such a series counts as it is if its sidecar was there a window ago.
    """
    series, known = select(metric, *matchers), select("specwatch_window_requests")
    new = f"({series} unless {series} offset {window}) and on (job, instance) {known} offset {window}"
    return f"sum{_by(by)}({new} or increase({series}[{window}]))"


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""
