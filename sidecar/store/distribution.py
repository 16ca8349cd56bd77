"""How latencies of ok requests are spread: the values of nearest rank at the same shares of each side."""

from typing import Any

from sqlalchemy import Connection

from sidecar.probes.latency import Side

from . import sketched
from .expressions import r
from .latency import at_shares, in_order, side_of_row
from .sketched import BASELINE, MEASURES
from .source import Source

#: Per mille.
_SHARES = (*range(10, 1000, 10), 995, 999, 1000)

_Sides = dict[str, dict[str, Any]]


def distribution(connection: Connection, source: Source) -> dict[str, Any]:
    """`LatencyDistribution`."""
    baseline, sides = (_of_rows if source.pieces is None else _of_rollups)(connection, source)
    return {
        "window_s": source.window_s,
        **source.head,
        "baseline": baseline,
        "shares": [share / 1000 for share in _SHARES],
        **{label: sides.get(label) or _quantiles(0) for label in (Side.SPECULATIVE.value, BASELINE)},
    }


def _of_rows(connection: Connection, source: Source) -> tuple[Side | None, _Sides]:
    where = [*source.rows(), r.outcome == "ok"]
    baseline, labels, sizes = in_order(connection, [], where)
    where.append(side_of_row.in_([side for side in labels if side is not None]))
    sides = {labels[group.side]: _quantiles(group.latency_ms) for group in sizes}
    for measure in MEASURES:
        column = f"{measure}_ms"
        found = at_shares(connection, [side_of_row], sizes, column, where, _SHARES)
        for i, group in enumerate(sizes):
            if getattr(group, column):
                sides[labels[group.side]][column] = [found[i, share] for share in _SHARES]
    return baseline, sides


def _of_rollups(connection: Connection, source: Source) -> tuple[Side | None, _Sides]:
    baseline, _, groups = sketched.in_groups(connection, source)
    sides: _Sides = {}
    for label, side in ((Side.SPECULATIVE.value, Side.SPECULATIVE), (BASELINE, baseline)):
        if (group := groups.get((side,))) is not None:
            values = {
                f"{measure}_ms": sketched.quantiles(blobs, [share / 10 for share in _SHARES]) if blobs else None
                for measure, blobs in zip(MEASURES, group.sketches, strict=True)
            }
            sides[label] = _quantiles(group.timed) | values
    return baseline, sides


def _quantiles(requests: int) -> dict[str, Any]:
    """`Quantiles` without values."""
    return {"requests": requests, **dict.fromkeys(f"{measure}_ms" for measure in MEASURES)}
