"""Latency figures from the sketches of rollups: as `latency` has them of rows, but for quantiles of many values.

Python handles each rollup here, and none of the rows: 3 us a sketch, in C++. It does so gently, as the proxy wants
Python's lock too.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
    "ttft": {"ttft_p50_ms": 50, "ttft_p95_ms": 95, "ttft_p99_ms": 99},
    "tpot": {"tpot_p50_ms": 50, "tpot_p95_ms": 95, "tpot_p99_ms": 99},
}
#: What the baseline is called in answers, of whichever kind.
BASELINE = "autoregressive"

#: Sketches that are merged without a pause: 0.3 ms.
_MANY = 100

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
    return chain.from_iterable(gently(connection.execute(query).partitions(200)))


def quantiles(blobs: Sequence[bytes], percents: Iterable[float]) -> list[float | None]:
    """Of all that the sketches were made of."""
    whole = sketch.merged(blobs if len(blobs) < _MANY else gently(blobs))
    return [sketch.quantile(whole, percent / 100) for percent in percents]


def shares_below(blobs: Sequence[bytes], values: Sequence[float]) -> list[float]:
    """Which share of all that the sketches were made of is below each of `values`, which rise."""
    whole = sketch.merged(blobs if len(blobs) < _MANY else gently(blobs))
    return sketch.shares_below(whole, values)


def latency(connection: Connection, source: Source) -> tuple[Side | None, list[dict[str, Any]]]:
    """The kind of baseline, and the points."""
    baseline, names, groups = in_groups(connection, source)
    labels = {Side.SPECULATIVE: Side.SPECULATIVE.value, baseline: BASELINE}
    none = dict.fromkeys((Side.SPECULATIVE.value, BASELINE), figures.latency_side())
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    if source.step_s is None and source.by is None:
        found[()] = {"at": None, "group": None, **none}
    for (*place, side), group in gently(groups.items()):
        if side in labels:
            entry = found.setdefault(tuple(place), {**point(source, dict(zip(names, place, strict=True))), **none})
            entry[labels[side]] = group.figures()
    return baseline, list(found.values())


def in_groups(
    connection: Connection, source: Source
) -> tuple[Side | None, list[str], dict[tuple[Any, ...], "SketchedGroup"]]:
    """The kind of baseline; the names of `keys`; the groups by the values of these, and by side."""
    where = [*source.rollups(source.dimension), _c.outcome == "ok"]
    parts = [*keys(source, connection, where, _c.requests), _side]
    columns = [_c[measure] for measure in MEASURES]
    where.append(or_(*(column.is_not(None) for column in columns)))
    groups: dict[tuple[Any, ...], SketchedGroup] = defaultdict(SketchedGroup)
    for row in fetched(connection, select(*parts, _c.timed, _c.fast, *columns).where(*where)):
        group = groups[row[: len(parts)]]
        timed, fast, *found_blobs = row[len(parts) :]
        group.timed += timed
        group.fast += fast
        for blobs, blob in zip(group.sketches, found_blobs, strict=True):
            if blob is not None:
                blobs.append(blob)
    sizes: Counter[Side] = Counter()
    for key, group in groups.items():
        sizes[key[-1]] += group.timed
    return baseline_of(sizes), [part.name for part in parts[:-1]], groups


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
        (p95,), (other,) = (quantiles(blobs[key], [95]) if enough else [None] for key in (ours, theirs))
        found.append(comparison(name, sizes[ours], sizes[theirs], p95, other))
    return found


@dataclass(slots=True)
class SketchedGroup:
    """Of one side of one point: ok requests of known latency, those within the goal, and the sketches by measure."""

    timed: int = 0
    fast: int = 0
    sketches: tuple[list[bytes], ...] = field(default_factory=lambda: ([], [], []))

    def figures(self) -> dict[str, Any]:
        values: dict[str, float | None] = {}
        for names, blobs in zip(MEASURES.values(), self.sketches, strict=True):
            values |= zip(names, quantiles(blobs, names.values()), strict=True)
        return figures.latency_side(self.timed, self.fast, values)
