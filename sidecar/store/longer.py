"""Rollups of hours, made of those of minutes, and of days, made of those of hours."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Select, select

from .expressions import utc
from .groups import DIMENSIONS, KEY, NUMBERS, SKETCHES, Group, added_up, gently, pooled
from .rollups import PAIRS, Spans
from .schema import rollups, similarity_rollups
from .sketch import merged

#: Rows that are fetched at a time, for which a driver holds Python's lock.
_AT_A_TIME = 200
_LISTS = ("missing", "rejected_at", "reached")


def requests_of(connection: Connection, at: int, span_s: int, parts_s: int) -> Spans:
    """Rows of `rollups` for the span of `span_s` seconds from `at`, Unix s, made of those of `parts_s` seconds."""
    t = rollups.c
    columns = select(*(t[name] for name in (*KEY, *NUMBERS, *_LISTS, *SKETCHES)))
    inside = columns.where(t.span_s == parts_s, t.at >= utc(at), t.at < utc(at + span_s))
    found: Spans = defaultdict(list)
    for dimension in DIMENSIONS:
        groups = added_up(map(_group, _rows(connection, inside.where(t.dimension == dimension))))
        for key, group in gently((groups if dimension else pooled(groups)).items()):
            named = dict(zip(KEY, key, strict=True))
            of = {"span_s": span_s, "at": utc(at), "dimension": dimension}
            found[at].append(of | named | group.columns(_merged))
    return found


def similarities_of(connection: Connection, at: int, span_s: int, parts_s: int) -> Spans:
    """The same of `similarity_rollups`."""
    t = similarity_rollups.c
    inside = select(t.kind, *(t[name] for name in PAIRS), t.scores).where(
        t.span_s == parts_s, t.at >= utc(at), t.at < utc(at + span_s)
    )
    sums: dict[str, list[Any]] = {}
    sketches: dict[str, list[bytes]] = defaultdict(list)
    for kind, *numbers, scores in _rows(connection, inside):
        sums[kind] = [a + b for a, b in zip(sums.get(kind, [0] * len(PAIRS)), numbers, strict=True)]
        if scores is not None:
            sketches[kind].append(scores)
    found: Spans = defaultdict(list)
    for kind, numbers in sums.items():
        of = {"span_s": span_s, "at": utc(at), "kind": kind, "scores": _merged(sketches[kind])}
        found[at].append(of | dict(zip(PAIRS, numbers, strict=True)))
    return found


def _rows(connection: Connection, query: Select[Any]) -> Iterator[Any]:
    return gently(chain.from_iterable(connection.execute(query).partitions(_AT_A_TIME)))


def _group(row: Any) -> tuple[tuple[Any, ...], Group]:
    key, rest = tuple(row[: len(KEY)]), row[len(KEY) :]
    numbers, (missing, rejected_at, reached, *sketches) = rest[: len(NUMBERS)], rest[len(NUMBERS) :]
    parts = tuple([] if sketch is None else [sketch] for sketch in sketches)
    return key, Group(list(numbers), rejected_at or [], reached or [], Counter(missing), parts)


def _merged(sketches: list[bytes]) -> bytes | None:
    whole = merged(sketches)
    return None if whole is None else bytes(whole.serialize())
