"""Whether the replies are all right: similarity, tokenizers, repetition, garble."""

from grafana_foundation_sdk.models.common import BigValueTextMode

from .. import promql, words
from ..board import board
from ..panels import Query, Size, at_most, columns, heat_map, lines, single, states

_SIMILARITY = "specwatch_similarity"
_DRAFT = 'kind="draft"'
_SMALL = Size(6, 5)
_HALF = Size(12, 9)
_KINDS = "Kind draft: draft text and final text; kind replay: replies with and without speculation."
_FLAGS = (
    "Replies that look broken: repetition (a loop at their end), garble (nearly all tokens different ones), "
    "p_near_one (98 % of 512 draft tokens or more accepted, which is worth a look: a target that repeats itself is "
    "easily guessed)."
)


def json() -> str:
    return board(
        "specwatch-quality",
        "Specwatch: quality",
        "Similarity of draft and final texts, alignment of the tokenizers, replies that look broken.",
        [
            *(
                single(
                    title,
                    f"Share of the compared pairs of the last hour whose similarity is at most {limit}. "
                    f"{words.SIMILARITY}",
                    Query(promql.share_within(f"{limit}", _SIMILARITY, _DRAFT, window="1h")),
                    unit="percentunit",
                    size=_SMALL,
                    none=words.NOT_KNOWN,
                    decimals=1,
                )
                for title, limit in (
                    ("Pairs with a warning", words.SIMILARITY_WARNING),
                    ("Critical pairs", words.SIMILARITY_CRITICAL),
                )
            ),
            single(
                "Tokenizers",
                f"{words.ALIGNMENT} One value for each sidecar.",
                Query(promql.gauge("min", "specwatch_tokenizer_aligned", by="instance"), "{{instance}}"),
                unit="none",
                size=_SMALL,
                mappings=words.ALIGNED,
                none=words.NOT_KNOWN,
                text=BigValueTextMode.VALUE_AND_NAME,
            ),
            single(
                "Same text, other id",
                "Rejected draft tokens over the time range that were the target's own by another id. Any is a fault of "
                "the pair.",
                Query(promql.growth("specwatch_same_text_other_id_total", window=promql.RANGE), instant=True),
                unit="short",
                size=_SMALL,
                steps=at_most(1),
                none=words.NOT_KNOWN,
                decimals=0,
            ),
            heat_map(
                "Similarity of draft and final texts",
                f"{words.SIMILARITY} A row reaches from the bound of the row below to its own.",
                Query(promql.growth(f"{_SIMILARITY}_bucket", _DRAFT, by="le"), "{{le}}"),
                unit="none",
                size=Size(24, 10),
                scheme="Blues",
                none="No pairs",
            ),
            lines(
                "Mean similarity over the last hour",
                f"{words.SIMILARITY} {_KINDS}",
                Query(promql.mean(_SIMILARITY, by="kind", window="1h"), "{{kind}}"),
                unit="none",
                size=_HALF,
                steps=((None, "red"), (words.SIMILARITY_CRITICAL, "orange"), (words.SIMILARITY_WARNING, "green")),
                none="No pairs",
                highest=1,
            ),
            lines(
                "Low tail over the last hour",
                f"Share of the compared pairs whose similarity is at most {words.SIMILARITY_WARNING}, and at most "
                f"{words.SIMILARITY_CRITICAL}: it shows what a mean hides. {_KINDS}",
                *(
                    Query(
                        promql.share_within(f"{limit}", _SIMILARITY, by="kind", window="1h"),
                        f"{{{{kind}}}}, at most {limit}",
                    )
                    for limit in (words.SIMILARITY_WARNING, words.SIMILARITY_CRITICAL)
                ),
                unit="percentunit",
                size=_HALF,
                none="No pairs",
                highest=1,
            ),
            columns(
                "Pairs by level",
                f"Pairs of texts that were sampled; `unknown` have no score, as no model could compare them. {_KINDS}",
                Query(promql.growth("specwatch_similarity_pairs_total", by="kind, level"), "{{kind}}, {{level}}"),
                unit="short",
                size=_HALF,
                none="No pairs",
            ),
            columns(
                "Sampled pairs that were not compared",
                "By reason. Pairs are dropped rather than let the comparison fall behind.",
                Query(promql.growth("specwatch_similarity_dropped_total", by="reason"), "{{reason}}"),
                unit="short",
                size=_HALF,
                none="None",
            ),
            columns(
                "Replies that look broken",
                _FLAGS,
                Query(promql.growth("specwatch_output_flags_total", by="flag"), "{{flag}}"),
                unit="short",
                size=_HALF,
                none="None",
            ),
            states(
                "Tokenizers aligned",
                f"{words.ALIGNMENT} A band for each sidecar; none while it is not known.",
                Query(promql.gauge("min", "specwatch_tokenizer_aligned", by="instance"), "{{instance}}"),
                size=_HALF,
                mappings=words.ALIGNED,
                none=words.NOT_KNOWN,
            ),
        ],
    )
