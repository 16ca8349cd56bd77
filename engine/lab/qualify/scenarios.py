"""Which scenarios a draft may serve, by their own acceptance rate; and the acceptance rate of all together. Pure.

A global p hides what a scenario suffers: 0.53 hid one of 0.82 and one of 0.29 (the operators' guide of this project).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy.stats import t as student  # type: ignore[import-untyped]

from sidecar.probes.acceptance import Counted, Figures

from .pairs import Ratio

#: Requests below which nothing is said of a scenario: its interval is too rough then, see `Counted.interval`.
ENOUGH = 30
#: More prompts than this are no advice.
_MOST_MORE = 100_000


class Standing(StrEnum):
    """The worst first."""

    REJECTED = "rejected"
    UNCERTAIN = "uncertain"
    CERTIFIED = "certified"


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    #: Of the file's prompts, 0..1.
    share: float
    figures: Figures
    standing: Standing
    #: A sentence or two.
    why: str
    #: How many more prompts would tell, where it is uncertain and so many would.
    more: int | None
    #: p95 latency with speculation / without; None where it was not measured.
    latency: Ratio | None

    @property
    def certified(self) -> bool:
        return self.standing is Standing.CERTIFIED


@dataclass(frozen=True, slots=True)
class Overall:
    """p of traffic that is mixed as the file is."""

    p: float | None
    low: float | None
    high: float | None
    requests: int
    #: Scenarios of which no request tells p.
    left_out: tuple[str, ...]
    #: Of the same traffic, see `Figures`.
    p_per_token: float | None = None
    mean_acceptance_length: float | None = None


def judge(
    name: str,
    share: float,
    sums: Counted,
    limit: float,
    latency: Ratio | None = None,
    broken: Sequence[str] = (),
) -> Scenario:
    """`sums` of the scenario's requests; `limit` of p; `broken`: what is wrong with its replies, sentences."""
    figures = sums.figures(None)
    standing, why, more = _by_p(figures, limit)
    if standing is Standing.CERTIFIED and latency is not None and latency.low is not None and latency.low > 1:
        standing = Standing.REJECTED
        it = "it" if latency.scenario is not None else "traffic of all scenarios with few pairs, this one among them,"
        why += (
            f" But {it} is slower than plain decoding: p95 latency is {latency.ratio:.2f} times as long "
            f"({latency.low:.2f} to {latency.high:.2f}) at concurrency {latency.concurrency}."
        )
    if broken:
        standing, more = Standing.REJECTED, None
        why += f" Its replies are not as good as the plain ones: {' '.join(broken)}"
    return Scenario(name, share, figures, standing, why, more, latency)


def _by_p(figures: Figures, limit: float) -> tuple[Standing, str, int | None]:
    p, low, high, n = figures.p, figures.low, figures.high, figures.requests
    if n < ENOUGH or p is None or low is None or high is None:
        more = ENOUGH - n
        so_far = f" So far p is {p:.3f}." if p is not None else ""
        return Standing.UNCERTAIN, f"{n} of {ENOUGH} requests tell p: {more} more are needed.{so_far}", max(more, 1)
    said = f"p is {p:.3f} (95 % interval {low:.3f} to {high:.3f})"
    if low >= limit:
        return Standing.CERTIFIED, f"{said}, not below {limit:g}.", None
    if high < limit:
        return Standing.REJECTED, f"{said}, below {limit:g}.", None
    more_of_them = more_needed(p, low, high, n, limit)
    advice = (
        "p is so near to the limit that no number of prompts is likely to tell"
        if more_of_them is None
        else f"some {more_of_them} more prompts of it are likely to tell"
    )
    return Standing.UNCERTAIN, f"{said}, on both sides of {limit:g}: {advice}.", more_of_them


def more_needed(p: float, low: float, high: float, requests: int, limit: float) -> int | None:
    """Requests beyond those there are, until the interval no longer holds the limit if p stays as it is.

    Intervals shrink with the root of the number. None where more than 100,000 would be needed.
    """
    half, away = (p - low if p >= limit else high - p), abs(p - limit)
    if away * math.sqrt(_MOST_MORE) < half * math.sqrt(requests):
        return None
    more = math.ceil(requests * (half / away) ** 2) - requests
    return max(more, 1) if more <= _MOST_MORE else None


def overall(by_scenario: Mapping[str, Counted], shares: Mapping[str, float]) -> Overall:
    """p = S w a / S w d, of the means of accepted (a) and draft tokens (d) a request and the scenarios' shares w.

    What a sample by scenario tells of traffic that is mixed as the file is: the combined ratio estimator (Cochran,
    Sampling Techniques, 3rd ed., 6.11), of variance S w^2 var(a - p d) / n / (S w d)^2. A scenario of one request
    lends its squared deviation as its variance.
    """
    told = {name: sums for name, sums in by_scenario.items() if sums.requests and sums.draft_tokens}
    left_out = tuple(sorted(name for name, share in shares.items() if share and name not in told))
    weight = {name: shares.get(name, 0.0) / told[name].requests for name in told}
    drafted = math.fsum(weight[name] * sums.draft_tokens for name, sums in told.items())
    requests = sum(sums.requests for sums in told.values())
    if not drafted:
        return Overall(None, None, None, requests, left_out)
    accepted = math.fsum(weight[name] * sums.accepted_tokens for name, sums in told.items())
    p, steps = accepted / drafted, math.fsum(weight[name] * sums.verify_steps for name, sums in told.items())
    judged = accepted + math.fsum(weight[name] * sums.truncated_steps for name, sums in told.items())
    untold = any(sums.untold for sums in told.values())
    others = (None if untold or not judged else accepted / judged, 1 + accepted / steps if steps else None)
    freedom = requests - len(told)
    if freedom < 1:
        return Overall(p, None, None, requests, left_out, *others)
    error = math.sqrt(math.fsum(weight[name] ** 2 * _spread(sums, p) for name, sums in told.items())) / drafted
    half = float(student.ppf(0.975, freedom)) * error
    return Overall(p, max(p - half, 0.0), min(p + half, 1.0), requests, left_out, *others)


def _spread(sums: Counted, p: float) -> float:
    """n var(a - p d) of a scenario's n requests."""
    n = sums.requests
    squares = max(sums.aa - 2 * p * sums.ad + p * p * sums.dd, 0.0)
    if n == 1:
        return squares
    mean = (sums.accepted_tokens - p * sums.draft_tokens) / n
    return max(squares - n * mean * mean, 0.0) * n / (n - 1)


def worst_first(found: Sequence[Scenario]) -> list[Scenario]:
    """By standing, then by p; what is not known before what is."""
    order = list(Standing)
    return sorted(found, key=lambda each: (order.index(each.standing), each.figures.p or 0.0, each.name))
