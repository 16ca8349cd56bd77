"""Pairs of texts that were compared: how their scores are spread, and which are least alike."""

from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, func, select

from .schema import similarities, similarity_rollups
from .similarity import inside
from .sketched import fetched, shares_below
from .source import SIMILARITIES, Source, in_pieces

_s = similarities.c
_rolled = similarity_rollups.c
_KINDS = ("draft", "replay")
#: Of the bins, in twentieths.
_EDGES = [edge / 20 for edge in range(-20, 21)]
_PAIR = [
    *(_s[name] for name in ("at", "instance", "kind", "score", "level", "reason", "model", "chunked")),
    *(_s[name] for name in ("first_divergence", "scenario")),
    _s.request_id.label("reply_id"),
]


def histogram(connection: Connection, source: Source) -> dict[str, Any]:
    """`SimilarityHistogram`. What rounding puts beyond -1 or 1 is in the outermost bins."""
    below = (_below_of_rows if source.pieces is None else _below_of_rollups)(connection, source)
    bins = {kind: [0] * (len(_EDGES) - 1) for kind in _KINDS}
    for kind, counts in below.items():
        bins[kind] = [above - under for under, above in zip((0, *counts), counts, strict=False)]
    return {"window_s": source.window_s, **source.head, "edges": _EDGES, **bins}


def _below_of_rows(connection: Connection, source: Source) -> dict[str, list[int]]:
    """By kind, how many scores are below each edge but the outermost; and all."""
    below = [func.count().filter(_s.score < edge) for edge in _EDGES[1:-1]]
    query = select(_s.kind, *below, func.count()).where(*inside(source), _s.score.is_not(None)).group_by(_s.kind)
    return {kind: list(counts) for kind, *counts in connection.execute(query)}


def _below_of_rollups(connection: Connection, source: Source) -> dict[str, list[int]]:
    """The same of sketches."""
    pairs: dict[str, int] = defaultdict(int)
    blobs: dict[str, list[bytes]] = defaultdict(list)
    where = in_pieces(SIMILARITIES, source.pieces or (), SIMILARITIES.once)
    query = select(_rolled.kind, _rolled.pairs, _rolled.scores).where(where, _rolled.scores.is_not(None))
    for kind, number, scores in fetched(connection, query):
        pairs[kind] += number
        blobs[kind].append(scores)
    return {
        kind: [*(round(share * pairs[kind]) for share in shares_below(found, _EDGES[1:-1])), pairs[kind]]
        for kind, found in blobs.items()
    }


def lowest(connection: Connection, source: Source, kind: str | None, limit: int) -> dict[str, Any]:
    """`SimilarityPairs`, of rows."""
    where = [*inside(source), _s.score.is_not(None)]
    if kind is not None:
        where.append(_s.kind == kind)
    rows = connection.execute(select(*_PAIR).where(*where).order_by(_s.score, _s.at.desc(), _s.id).limit(limit))
    return {"window_s": source.window_s, **source.head, "pairs": [dict(row) for row in rows.mappings()]}
