"""Rollups of minutes, made of rows: groups and sums in SQL, and in Python only what is one value a group.

One statement answers for all dimensions, from columns that are worked out once a row. It gives the values of a group's
sketches as one value, blocks of rows at a time, so that taking them apart holds Python's lock for some milliseconds.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from msgspec import json
from numpy.typing import NDArray
from sqlalchemy import (
    CTE,
    ColumnElement,
    CompoundSelect,
    Connection,
    Float,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    literal_column,
    null,
    select,
    union_all,
)

from sidecar.probes.goal import GOAL_MS

from .cover import MINUTE
from .expressions import BUCKETS, OTHER, counted, epoch_minute, group_name, positions, r, speculating, utc
from .groups import KEY, MOST_GROUPS, NAMES, NUMBERS, SKETCHES, Group, added_up, gently, pooled
from .schema import similarities
from .sketch import make

#: Rows of spans, ready for the table, by the span's start in Unix s.
Spans = dict[int, list[dict[str, object]]]

#: Rows whose values come as one.
_BLOCK = 8192
#: Groups a statement may answer with. Of more, names that few requests have are pooled in SQL.
_MOST_ANSWERS = 6000
#: Rows that are fetched at a time, for which a driver holds Python's lock.
_AT_A_TIME = 100
#: What stands between two names, and for none; names of neither kind are in use.
_BETWEEN, _NONE = "\x1f", "\x1e"

_ok = r.outcome == "ok"
_told = and_(counted, r.rejected_at.is_not(None), r.reached.is_not(None))
_where = (r.started_at >= bindparam("since"), r.started_at < bindparam("until"))
_pair = r.scenario + _BETWEEN + func.coalesce(r.model, _NONE)
#: The pairs of scenario and model that most requests have.
_common = (
    select(_pair.label("pair")).where(*_where).group_by("pair").order_by(func.count().desc(), "pair").limit(MOST_GROUPS)
)


class TooManyGroups(Exception):
    """More than a statement should answer with: take fewer minutes."""


def requests_of(connection: Connection, since: int, until: int) -> Spans:
    """Rows of `rollups` for the minutes of [since, until), Unix s. Raises TooManyGroups, for several minutes only."""
    try:
        groups = _groups(connection, since, until, most=_MOST_ANSWERS)
    except TooManyGroups:
        if until - since > MINUTE:
            raise
        groups = _groups(connection, since, until, most=None)
    base: dict[int, dict[tuple[Any, ...], Group]] = defaultdict(dict)
    wholes: dict[int, Group] = defaultdict(Group)
    found: Spans = defaultdict(list)
    for (dimension, at, *key), group in gently(groups.items()):
        if dimension:
            found[at].append(_row(at, dimension, tuple(key), group))
        else:
            base[at][tuple(key)] = group
            wholes[at].add(group)
    for at, whole in gently(wholes.items()):
        whole.missing.clear()
        found[at].append(_row(at, "whole", (None,) * len(KEY), whole))
        found[at] += [_row(at, "", key, group) for key, group in gently(pooled(base[at]).items())]
    return found


def similarities_of(connection: Connection, since: int, until: int) -> Spans:
    """Rows of `similarity_rollups` for the minutes of [since, until), Unix s."""
    s = similarities.c
    values = _Values(connection.dialect.name == "postgresql")
    levels = ("warning", "critical", "unknown")
    answer = connection.execute(
        select(
            epoch_minute(s.at).label("minute"),
            s.kind.label("of_kind"),
            (s.id // _BLOCK).label("block"),
            func.count(s.score).label("pairs"),
            func.coalesce(func.sum(s.score), 0.0).label("total"),
            *(func.count().filter(s.level == level).label(level) for level in levels),
            values.together(s.score).label("scores"),
        )
        .where(s.at >= utc(since), s.at < utc(until))
        .group_by("minute", "of_kind", "block")
    )
    sums: dict[tuple[int, str], dict[str, Any]] = {}
    for row in gently(answer.mappings()):
        key = row["minute"] * MINUTE, row["of_kind"]
        entry = sums.setdefault(key, {"scores": [], **dict.fromkeys(PAIRS, 0)})
        for name in PAIRS:
            entry[name] += row[name]
        if row["scores"] is not None:
            entry["scores"].append(values.apart(row["scores"]))
    found: Spans = defaultdict(list)
    for (at, kind), entry in sums.items():
        scores = make(np.concatenate(entry["scores"]), high=False) if entry["scores"] else None
        found[at].append({"span_s": MINUTE, "at": utc(at), "kind": kind, **entry, "scores": scores})
    return found


#: Columns of `similarity_rollups` that are sums.
PAIRS = ("pairs", "total", "warning", "critical", "unknown")


def _row(at: int, dimension: str, key: tuple[Any, ...], group: Group) -> dict[str, object]:
    of = {"span_s": MINUTE, "at": utc(at), "dimension": dimension}
    return of | dict(zip(KEY, key, strict=True)) | group.columns(_sketch)


def _sketch(parts: list[NDArray[np.float64]]) -> bytes | None:
    return make(np.concatenate(parts))


def _groups(connection: Connection, since: int, until: int, most: int | None) -> dict[tuple[Any, ...], Group]:
    """By dimension, minute's start, and the columns of KEY. None: scenario and model only where many requests have it.

    Raises TooManyGroups where there are more than `most`.
    """
    values = _Values(connection.dialect.name == "postgresql")
    span: dict[str, object] = {"since": utc(since), "until": utc(until)}
    number = connection.scalar(select(positions(postgresql=values.postgresql)).where(*_where, _told), span) or 0
    if most is None:
        span["common"] = list(connection.scalars(_common, span))
        answer = connection.execute(_statement(values, number, pooled=True), span)
    else:
        answer = connection.execute(_statement(values, number, pooled=False), span | {"most": most + 1})
    pieces = list(gently(chain.from_iterable(answer.partitions(_AT_A_TIME))))
    if most is not None and len(pieces) > most:
        raise TooManyGroups
    return added_up(gently(map(values.group, pieces)))


@cache
def _statement(values: "_Values", number: int, *, pooled: bool) -> CompoundSelect[Any]:
    """Rows as `_Values.group` takes them, with so many positions, and `most` at most.

    `pooled`: all rows, but only `common` pairs of scenario and model.
    """
    rows = _rows(values, number, _pair.in_(bindparam("common", expanding=True)) if pooled else None)
    answer = union_all(*(_grouped(rows, dimension, values, number) for dimension in ("", *BUCKETS)))
    return answer if pooled else answer.limit(bindparam("most", type_=Integer))


def _rows(values: "_Values", number: int, common: ColumnElement[bool] | None) -> CTE:
    """What is summed up, a row per request; null where a request does not count in it."""
    names = {
        name: r[name] if common is None or name not in ("scenario", "model") else case((common, r[name]), else_=OTHER)
        for name in NAMES
    }

    def as_float(name: str) -> ColumnElement[Any]:
        # In floats: sums of the largest counts are no whole numbers of a database.
        return cast(r[name], Float(53))

    columns: dict[str, ColumnElement[Any]] = {
        "minute": epoch_minute(r.started_at),
        "block": r.id // _BLOCK,
        **names,
        **{dimension: group_name(dimension, []) for dimension in BUCKETS},
        "stream": r.stream,
        "completion_tokens": as_float("completion_tokens"),
        "acceptance_quality": r.acceptance_quality,
        **{name: case((_ok, r[f"{name}_ms"])) for name in SKETCHES},
        **{name: case((counted, as_float(name))) for name in ("verify_steps", "draft_tokens", "accepted_tokens")},
        "listed": case((_told, 1)),
        **{f"rejected_{i}": case((_told, values.element(r.rejected_at, i))) for i in range(number)},
        **{f"reached_{i}": case((_told, values.element(r.reached, i))) for i in range(number)},
        "reason": case(
            (
                and_(_ok, speculating, r.acceptance_quality != "ok"),
                func.coalesce(r.acceptance_reason, r.acceptance_quality),
            )
        ),
    }
    query = select(*(column.label(f"the_{name}") for name, column in columns.items())).where(*_where)
    return query.cte("counted_rows").prefix_with("MATERIALIZED")


def _grouped(rows: CTE, dimension: str, values: "_Values", number: int) -> Select[Any]:
    """One dimension: columns as `_Values.group` takes them."""
    c = {name.removeprefix("the_"): column for name, column in rows.c.items()}
    accepted, drafted = c["accepted_tokens"], c["draft_tokens"]
    sums: dict[str, ColumnElement[Any]] = {
        "requests": func.count(),
        "streaming": func.count().filter(c["stream"]),
        "completion_tokens": func.sum(c["completion_tokens"]),
        "trusted": func.count().filter(c["acceptance_quality"] == "ok"),
        "timed": func.count(c["latency"]),
        "fast": func.count().filter(c["latency"] <= GOAL_MS),
        "counted": func.count(c["verify_steps"]),
        **{name: func.sum(c[name]) for name in ("verify_steps", "draft_tokens", "accepted_tokens")},
        "aa": func.sum(accepted * accepted),
        "ad": func.sum(accepted * drafted),
        "dd": func.sum(drafted * drafted),
        "listed": func.count(c["listed"]),
        "listed_steps": func.sum(c["verify_steps"]).filter(c["listed"].is_not(None)),
    }
    keys = {name: c[name] for name in ("minute", "block", "upstream", "arm", "outcome")}
    more = {name: c[name] for name in (("num_speculative_tokens",) if dimension else NAMES[3:])}
    if dimension:
        more["bucket"] = c[dimension]
    kinds = {"num_speculative_tokens": Integer}
    absent = {name: cast(null(), kinds.get(name, Text)) for name in KEY}
    key = absent | {name: column for name, column in (keys | more).items() if name in absent}
    return select(
        literal(dimension, Text).label("dimension"),
        c["minute"],
        *(column.label(name) for name, column in key.items()),
        *sums.values(),
        *(values.together(c[name]) for name in SKETCHES),
        cast(null(), Text) if dimension else values.texts(c["reason"]),
        *(func.sum(c[f"rejected_{i}"]) for i in range(number)),
        *(func.sum(c[f"reached_{i}"]) for i in range(number)),
    ).group_by(*keys.values(), *more.values())


@dataclass(frozen=True, slots=True)
class _Values:
    """Values of many rows as one value of an answer, as each database does it best."""

    postgresql: bool

    def together(self, column: Any) -> ColumnElement[Any]:
        """The numbers of a column that are not null; null where there are none."""
        if self.postgresql:
            return func.string_agg(func.float8send(column), literal_column("''::bytea"))
        return func.aggregate_strings(column, ",")

    def apart(self, value: Any) -> NDArray[np.float64]:
        """What `together` put together."""
        if self.postgresql:
            return np.frombuffer(value, ">f8")
        return np.array(json.decode(f"[{value}]", type=list[float]))

    def element(self, column: Any, index: int) -> ColumnElement[Any]:
        """Of a JSON list of whole numbers; null where it is shorter."""
        if self.postgresql:
            return cast(column[index].as_string(), Float(53))
        # Written out: SQLAlchemy would cast to text and back, which takes as long as all the rest.
        return cast(func.json_extract(column, f"$[{index}]"), Float(53))

    def texts(self, column: Any) -> ColumnElement[Any]:
        """The texts of a column that are not null, as JSON; null where there are none."""
        gathered = func.json_agg(column) if self.postgresql else func.json_group_array(column)
        return case((func.count(column) > 0, cast(gathered.filter(column.is_not(None)), Text)))

    def group(self, row: Any) -> tuple[tuple[Any, ...], Group]:
        """A group and its key, of a row of `_grouped`."""
        dimension, minute, *rest = row
        key, rest = rest[: len(KEY)], rest[len(KEY) :]
        numbers, rest = rest[: len(NUMBERS) - 1], rest[len(NUMBERS) - 1 :]
        latency, ttft, tpot, reasons, *told = rest
        counts = [None if count is None else int(count) for count in told]
        rejected_at, reached = counts[: len(counts) // 2], counts[len(counts) // 2 :]
        group = Group([number or 0 for number in numbers], rejected_at, reached)
        group.numbers.append(sum(filter(None, rejected_at)))
        if reasons is not None:
            group.missing = Counter(json.decode(reasons, type=list[str]))
        for parts, value in zip(group.parts, (latency, ttft, tpot), strict=True):
            if value is not None:
                parts.append(self.apart(value))
        return (dimension, int(minute) * MINUTE, *key), group
