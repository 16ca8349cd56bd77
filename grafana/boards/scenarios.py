"""Traffic by scenario: one may draft badly while the whole looks fine."""

from .. import promql, words
from ..board import board, pick
from ..panels import Query, Size, at_least, bars, columns, lines

_SCENARIO = 'scenario=~"$scenario"'
_NAMED = "{{scenario}}"
_FAILED = 'outcome=~"upstream_error|truncated|bad_gateway|timeout"'
_THIRD = Size(8, 9)
_LIMITED = "Scenarios that are not configured (`scenarios`) are `other`, requests that name none `default`."


def json() -> str:
    return board(
        "specwatch-scenarios",
        "Specwatch: scenarios",
        "Acceptance, volume and errors of each scenario.",
        [
            lines(
                "p by scenario",
                f"{words.P} {_LIMITED}",
                Query(promql.acceptance_rate(_SCENARIO, by="scenario"), _NAMED),
                unit="none",
                size=Size(16, 10),
                steps=at_least(words.P_MIN),
                none=words.NO_TRAFFIC,
                highest=1,
            ),
            bars(
                "p by scenario, over the time range",
                words.P,
                Query(
                    f"sort({promql.acceptance_rate(_SCENARIO, by='scenario', window=promql.RANGE)})",
                    _NAMED,
                    instant=True,
                ),
                unit="none",
                size=Size(8, 10),
                steps=at_least(words.P_MIN),
            ),
            columns(
                "Requests/s by scenario",
                f"Generation requests that ended, whatever their outcome. {_LIMITED}",
                Query(promql.rate("specwatch_requests_total", _SCENARIO, by="scenario"), _NAMED),
                unit="reqps",
                size=_THIRD,
                none=words.NO_TRAFFIC,
            ),
            lines(
                "Share that an upstream failed, by scenario",
                "Requests that ended as upstream_error (a status of 400 or more, or an error inside a reply), "
                "truncated, bad_gateway or timeout / all that ended.",
                Query(_failed(), _NAMED),
                unit="percentunit",
                size=_THIRD,
                none=words.NO_TRAFFIC,
            ),
            lines(
                "Mean acceptance length by scenario",
                words.MEAN_LENGTH,
                Query(_mean_length(), _NAMED),
                unit="none",
                size=_THIRD,
                steps=at_least(1),
                none=words.NO_TRAFFIC,
            ),
            columns(
                "Draft tokens/s by scenario",
                "Tokens that the draft model proposed. The extra token of a verify step is not counted.",
                Query(promql.rate("specwatch_draft_tokens_total", _SCENARIO, by="scenario"), _NAMED),
                unit="ops",
                size=Size(12, 8),
                none=words.NO_TRAFFIC,
            ),
            columns(
                "Requests/s by scenario and arm",
                "How requests were served: speculative, autoregressive (fallen back, or ordered), baseline (a small "
                "share without speculation, to compare with), probe (a small share with it, during a fallback).",
                Query(promql.rate("specwatch_requests_total", _SCENARIO, by="scenario, arm"), "{{scenario}}, {{arm}}"),
                unit="reqps",
                size=Size(12, 8),
                none=words.NO_TRAFFIC,
            ),
        ],
        picks=[pick("specwatch_draft_tokens_total", "scenario", "job", "instance")],
    )


def _failed() -> str:
    """A scenario without a failed request has no such series: it is 0, not unknown."""
    every = promql.growth("specwatch_requests_total", _SCENARIO, by="scenario")
    failed = promql.growth("specwatch_requests_total", _SCENARIO, _FAILED, by="scenario")
    return promql.ratio(f"({failed} or 0 * {every})", every)


def _mean_length() -> str:
    accepted = promql.growth("specwatch_accepted_tokens_total", _SCENARIO, by="scenario")
    steps = promql.growth("specwatch_verify_steps_total", _SCENARIO, by="scenario")
    return f"1 + {promql.ratio(accepted, steps)}"
