"""What several boards say and show alike: goals, states, descriptions, as README's "What is measured" defines them."""

from typing import Final

from .panels import words
from .promql import gauge

P_MIN: Final = 0.65
GOAL: Final = 0.95
FIRST_POSITION_MAX: Final = 0.15
TRUNCATION_MAX: Final = 0.35
SIMILARITY_WARNING: Final = 0.82
SIMILARITY_CRITICAL: Final = 0.75
COVERAGE_MIN: Final = 0.9

NO_TRAFFIC: Final = "No traffic"
NOT_KNOWN: Final = "Not known"

UP: Final = words({1: ("up", "green"), 0: ("down", "red")})
CONNECTED: Final = words({1: ("connected", "green"), 0: ("none", "text")})
ALIGNED: Final = words({1: ("aligned", "green"), 0: ("misaligned", "red")})
STATES: Final = words(
    {0: ("speculative", "green"), 1: ("probing", "blue"), 2: ("autoregressive", "orange"), 3: ("ineffective", "red")}
)

#: Last finite bounds of the sidecar's histograms, s.
LAST_LATENCY: Final = 120.0
LAST_TTFT: Final = 25.6
LAST_TPOT: Final = 0.8

QUANTILES: Final = (
    "Quantiles come from the buckets of a histogram and are interpolated inside one; above its last bound they are "
    "shown as >bound. Those of /api/v1/latency are exact."
)
P: Final = (
    "Acceptance rate p: accepted / drafted tokens, pooled; the target's own token never counts. p falls as k grows, so "
    f"compare it at one k. Below {P_MIN} speculation is at risk of costing more than it saves."
)
MEAN_LENGTH: Final = (
    "Tokens that a verify step gives: 1 + accepted tokens / verify steps. At 1 speculation gains nothing."
)
MINUTES: Final = (
    "Of the minutes with traffic in the last hour, the share in which p95 latency over 5 minutes was at most 800 ms. "
    f"Ok requests of every arm count; the goal is {GOAL:.0%}. A minute has traffic where a request ended in 2 minutes, "
    "it and the one before."
)
TIMELY: Final = "Share of ok requests, served in whatever way, that took at most 800 ms."
STATE: Final = (
    "speculative; autoregressive: all traffic fell back to plain decoding; probing: a few requests are served with "
    "speculation to see whether it can return; ineffective: tokens are drafted though decoding fell back."
)
RATIO: Final = (
    "p95 latency with speculation / without it, at like concurrency. Below 1 speculation is faster. It needs 50 "
    "requests on both sides."
)
SIMILARITY: Final = (
    "Cosine of the embeddings of draft text and final text of sampled requests: how far the draft's wrong guesses are "
    f"from the meaning. Below {SIMILARITY_WARNING} it is a warning, below {SIMILARITY_CRITICAL} critical."
)
ALIGNMENT: Final = (
    "Whether draft model and target model know the tokens by the same ids, as seen in the engine's events: aligned "
    "after 1,000 draft positions that showed no other, and not known before."
)
COVERAGE: Final = (
    "Draft tokens in records / in the upstream's own counters, over the last 15 minutes. Below 1 where requests reach "
    "the engine by another way, or replies tell no figures."
)


def state(how: str, by: str = "") -> str:
    """The state as one number, of those of `STATES`; of several sidecars, `how` is as `max`: the worst."""
    held = {
        name: gauge("sum", "specwatch_fallback_state", f'state="{name}"', by="job, instance")
        for name in ("probing", "autoregressive", "ineffective")
    }
    numbered = f"{held['probing']} + 2 * {held['autoregressive']} + 3 * {held['ineffective']}"
    return f"{how}{f' by ({by}) ' if by else ''}({numbered})"
