"""Pairs of texts that were compared, over a window: by kind, by steps of time, by scenario."""

from collections import defaultdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, func, literal, select

from .expressions import MAX_GROUPS, group_name, step_start, utc
from .groups import gently
from .schema import similarities, similarity_rollups
from .series import point, series
from .sketched import fetched, quantiles
from .source import SIMILARITIES, Source, in_pieces

_s = similarities.c
_rolled = similarity_rollups.c
_LEVELS = ("warning", "critical", "unknown")


def similarity_series(connection: Connection, source: Source) -> dict[str, Any]:
    """`SimilaritySeries`, but for its `last_100`."""
    points = (_of_rows if source.pieces is None else _of_rollups)(connection, source)
    places = ("step_at", "step_group")
    return series(
        source,
        [point(source, each) | {name: value for name, value in each.items() if name not in places} for each in points],
    )


def inside(source: Source) -> list[ColumnElement[bool]]:
    """Rows of a window."""
    return [_s.at >= utc(source.since), _s.at < utc(source.until), *source.named(_s)]


def _of_rows(connection: Connection, source: Source) -> list[dict[str, Any]]:
    where = inside(source)
    group: ColumnElement[Any] = literal("")
    if source.by is not None:
        name = _s[source.by]
        sizes = select(name).where(*where, name.is_not(None)).group_by(name)
        largest = connection.scalars(sizes.order_by(func.count().desc(), name).limit(MAX_GROUPS)).all()
        group = group_name(source.by, list(largest), _s)
    columns = _step(source, _s.at), group.label("step_group"), _s.kind, _s.score, _s.level
    rows = select(*columns).where(*where).subquery()
    keys = (rows.c.step_at, rows.c.step_group, rows.c.kind)
    ranked = select(
        rows,
        func.row_number().over(partition_by=keys, order_by=(rows.c.score.is_(None), rows.c.score)).label("rank"),
        func.count(rows.c.score).over(partition_by=keys).label("scores"),
    ).subquery()
    r = ranked.c
    found = connection.execute(
        select(
            r.step_at,
            r.step_group,
            r.kind,
            func.count(r.score).label("pairs"),
            func.avg(r.score).label("mean"),
            # Nearest rank: the lowest from rank n / 10, rounded up, on.
            func.min(r.score).filter(r.rank * 10 >= r.scores).label("p10"),
            *(func.count().filter(r.level == level).label(level) for level in _LEVELS),
        )
        .group_by(r.step_at, r.step_group, r.kind)
        .order_by(r.step_at, r.step_group, r.kind)
    ).mappings()
    return [dict(row) for row in found]


def _of_rollups(connection: Connection, source: Source) -> list[dict[str, Any]]:
    sums = [_rolled[name] for name in ("pairs", "total", *_LEVELS, "scores")]
    where = in_pieces(SIMILARITIES, source.pieces or (), SIMILARITIES.once)
    groups: dict[tuple[int, str], list[Row[Any]]] = defaultdict(list)
    for row in fetched(connection, select(_step(source, _rolled.at), _rolled.kind, *sums).where(where)):
        groups[row.step_at, row.kind].append(row)
    return [_point(*key, groups[key]) for key in gently(sorted(groups))]


def _point(step_at: int, kind: str, rows: list[Row[Any]]) -> dict[str, Any]:
    pairs = sum(row.pairs for row in rows)
    return {
        "step_at": step_at,
        "kind": kind,
        "pairs": pairs,
        "mean": sum(row.total for row in rows) / pairs if pairs else None,
        "p10": quantiles([row.scores for row in rows if row.scores is not None], [10])[0],
        **{level: sum(getattr(row, level) for row in rows) for level in _LEVELS},
    }


def _step(source: Source, column: ColumnElement[Any]) -> ColumnElement[int]:
    return (literal(0) if source.step_s is None else step_start(source.step_s, column)).label("step_at")
