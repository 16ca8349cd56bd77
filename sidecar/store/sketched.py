"""Latency figures from the sketches of rollups: as `latency` has them of rows, but for quantiles of many values.

Python handles each rollup here, and none of the rows: 3 us a sketch, in C++. It does so gently, as the proxy wants
Python's lock too.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Select, case, or_, select

from sidecar.probes.latency import AUTOREGRESSIVE, BASELINES, MIN_FOR_RATIO, Comparison, Side, comparison

from . import figures, sketch
from .expressions import SPECULATING_ARMS, Columns, group_order
from .groups import gently
from .schema import rollups
from .series import keys, point
from .source import Source

#: By column of sketches: names of figures and percents.
MEASURES: dict[str, dict[str, int]] = {
    "latency": {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99},
    "ttft": {"ttft_p50_ms": 50, "ttft_p95_ms": 95},
    "tpot": {"tpot_p50_ms": 50},
}
#: What the baseline is called in answers, of whichever kind.
BASELINE = "autoregressive"

_c = rollups.c


def side_of(columns: Columns) -> Any:
    return case(
        (columns.arm.in_(SPECULATING_ARMS), Side.SPECULATIVE.value),
        (columns.upstream == AUTOREGRESSIVE, Side.TRUE_AR),
        else_=Side.SPEC_DISABLED,
    ).label("side")


_side = side_of(_c)


def baseline_of(sizes: dict[Side, int]) -> Side | None:
    """The kind of baseline that is answered for, by requests; the true one where it has enough."""
    best = max(BASELINES, key=lambda kind: min(sizes.get(kind, 0), MIN_FOR_RATIO))
    return best if sizes.get(best) else None


def fetched(connection: Connection, query: Select[Any]) -> Iterator[Any]:
    """The rows of an answer; so many at a time as a driver may hold Python's lock for."""
    return gently(chain.from_iterable(connection.execute(query).partitions(200)))


def quantile(blobs: Iterable[bytes], percent: int) -> float | None:
    """Of all that the sketches were made of."""
    return sketch.quantile(sketch.merged(gently(blobs)), percent / 100)


def latency(connection: Connection, source: Source) -> tuple[Side | None, list[dict[str, Any]]]:
    """The kind of baseline, and the points."""
    where = [*source.rollups(source.dimension), _c.outcome == "ok"]
    parts = keys(source, connection, where, _c.requests)
    sketches = [_c[measure] for measure in MEASURES]
    where.append(or_(*(column.is_not(None) for column in sketches)))
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    sizes: Counter[Side] = Counter()
    for row in fetched(connection, select(*parts, _side, _c.timed, *sketches).where(*where)):
        groups[row[: len(parts) + 1]].append(row)
        sizes[row.side] += row.timed
    baseline = baseline_of(sizes)
    labels = {Side.SPECULATIVE: Side.SPECULATIVE.value, baseline: BASELINE}
    none = dict.fromkeys((Side.SPECULATIVE.value, BASELINE), figures.latency_side())
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    if source.step_s is None and source.by is None:
        found[()] = {"at": None, "group": None, **none}
    for (*place, side), rows in groups.items():
        if side in labels:
            entry = found.setdefault(tuple(place), {**point(source, rows[0]), **none})
            entry[labels[side]] = _side_figures(rows)
    return baseline, list(found.values())


def by_concurrency(connection: Connection, source: Source, baseline: Side) -> list[Comparison]:
    """p95 of latency with and without speculation; only where both sides have enough requests."""
    sides = Side.SPECULATIVE, baseline
    where = [*source.rollups("concurrency"), _c.outcome == "ok", _c.latency.is_not(None), _side.in_(sides)]
    sizes: Counter[tuple[str, str]] = Counter()
    blobs: dict[tuple[str, str], list[bytes]] = defaultdict(list)
    for name, side, timed, blob in fetched(connection, select(_c.bucket, _side, _c.timed, _c.latency).where(*where)):
        sizes[name, side] += timed
        blobs[name, side].append(blob)
    found = []
    for name in sorted({name for name, _ in sizes}, key=lambda name: group_order("concurrency", name)):
        ours, theirs = ((name, side) for side in sides)
        enough = min(sizes[ours], sizes[theirs]) >= MIN_FOR_RATIO
        p95s = [quantile(blobs[key], 95) if enough else None for key in (ours, theirs)]
        found.append(comparison(name, sizes[ours], sizes[theirs], *p95s))
    return found


def _side_figures(rows: Sequence[Any]) -> dict[str, Any]:
    values: dict[str, float | None] = {}
    for measure, names in MEASURES.items():
        whole = sketch.merged(gently(blob for row in rows if (blob := getattr(row, measure)) is not None))
        values |= {name: sketch.quantile(whole, percent / 100) for name, percent in names.items()}
    return figures.latency_side(sum(row.timed for row in rows), values)
