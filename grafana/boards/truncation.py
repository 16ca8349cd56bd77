"""Where in the draft the target's first rejection is."""

from .. import promql, words
from ..board import board, pick
from ..panels import Query, Size, at_least, bars, columns, heat_map, lines, single

_LENGTHS = "specwatch_accepted_length_tokens"
_TRUNCATIONS = "specwatch_truncations_total"
_UPSTREAM = 'upstream=~"$upstream"'
_SMALL = Size(6, 5)
_HALF = Size(12, 9)

_FIRST = (
    "Of the truncated verify steps, the share whose very first draft token was rejected. Good drafts may exceed "
    f"{words.FIRST_POSITION_MAX:.0%} too: look at p beside it."
)
_RATE = (
    "Verify steps with a rejection / all verify steps of which the positions are known. Good drafts may exceed "
    f"{words.TRUNCATION_MAX:.0%} too: it grows with k."
)
_ALL = "Of all upstreams."


def json() -> str:
    return board(
        "specwatch-truncation",
        "Specwatch: truncation",
        "Where in the draft the target model rejects first.",
        [
            heat_map(
                "Verify steps by accepted draft tokens",
                "Each column is a moment, each row a number of draft tokens that a verify step accepted before the "
                "first rejection: row 0 is a rejection at position 1. Steps in the row of k accepted all, which is no "
                "truncation. A row that stays dark where the one above begins is a cliff, a slow fading a decay.",
                Query(promql.growth(f"{_LENGTHS}_bucket", _UPSTREAM, by="le"), "{{le}}"),
                unit="none",
                size=Size(24, 11),
                none=words.NO_TRAFFIC,
            ),
            single(
                "First-position share",
                f"{_FIRST} {_ALL} Over the time range.",
                Query(_first_share(promql.RANGE), instant=True),
                unit="percentunit",
                size=_SMALL,
                steps=((None, "green"), (words.FIRST_POSITION_MAX, "orange")),
                none=words.NO_TRAFFIC,
            ),
            single(
                "Truncation rate",
                f"{_RATE} {_ALL} Over the time range.",
                Query(_truncation_rate(promql.RANGE), instant=True),
                unit="percentunit",
                size=_SMALL,
                steps=((None, "green"), (words.TRUNCATION_MAX, "orange")),
                none=words.NO_TRAFFIC,
            ),
            single(
                "Mean acceptance length",
                f"{words.MEAN_LENGTH} Over the time range.",
                Query(f"1 + {promql.mean(_LENGTHS, _UPSTREAM, window=promql.RANGE)}", instant=True),
                unit="none",
                size=_SMALL,
                none=words.NO_TRAFFIC,
                decimals=2,
            ),
            single(
                "p",
                f"{words.P} Over the time range.",
                Query(promql.acceptance_rate(_UPSTREAM, window=promql.RANGE), instant=True),
                unit="none",
                size=_SMALL,
                steps=at_least(words.P_MIN),
                none=words.NO_TRAFFIC,
                decimals=2,
            ),
            columns(
                "Truncated verify steps/s by position",
                f"Position of the first rejection, from 01 on; those from 17 on are `more`. {_ALL}",
                Query(_by_position(), "{{position}}"),
                unit="ops",
                size=_HALF,
                none=words.NO_TRAFFIC,
            ),
            lines(
                "First-position share and truncation rate",
                f"{_FIRST} {_RATE} {_ALL}",
                Query(_first_share(promql.RATE), "first-position share"),
                Query(_truncation_rate(promql.RATE), "truncation rate"),
                unit="percentunit",
                size=_HALF,
                none=words.NO_TRAFFIC,
                highest=1,
            ),
            bars(
                "Verify steps by accepted draft tokens, over the time range",
                "How many verify steps accepted 0, 1, 2 … draft tokens.",
                Query(
                    promql.growth(f"{_LENGTHS}_bucket", _UPSTREAM, by="le", window=promql.RANGE), "{{le}}", instant=True
                ),
                unit="short",
                size=_HALF,
                histogram=True,
            ),
            lines(
                "Mean acceptance length by upstream",
                words.MEAN_LENGTH,
                Query(f"1 + {promql.mean(_LENGTHS, _UPSTREAM, by='upstream')}", "{{upstream}}"),
                unit="none",
                size=_HALF,
                steps=at_least(1),
                none=words.NO_TRAFFIC,
            ),
        ],
        picks=[pick("specwatch_draft_tokens_total", "upstream", "job", "instance")],
    )


def _first_share(window: str) -> str:
    first, every = (promql.growth(_TRUNCATIONS, *at, window=window) for at in (('position="1"',), ()))
    return promql.ratio(first, every)


def _truncation_rate(window: str) -> str:
    return promql.ratio(promql.growth(_TRUNCATIONS, window=window), promql.growth(f"{_LENGTHS}_count", window=window))


def _by_position() -> str:
    """With two digits, as series are in the order of their labels' letters."""
    every = promql.rate(_TRUNCATIONS, by="position")
    return f'label_replace({every}, "position", "0$1", "position", "([0-9])")'
