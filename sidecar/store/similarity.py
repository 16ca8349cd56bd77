"""Pairs of texts that were compared, over a window: by kind, and by steps of time."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, func, literal, select

from .expressions import check_steps, epoch, utc
from .schema import similarities

_s = similarities.c


def similarity_series(connection: Connection, window_s: int, step_s: int | None, now: float) -> dict[str, Any]:
    """`SimilaritySeries`. Raises ValueError where it would have too many points."""
    check_steps(window_s, step_s, None)
    seconds = epoch(_s.at)
    at = (literal(0) if step_s is None else seconds - seconds % literal(step_s, Integer)).label("step_at")
    rows = select(at, _s.kind, _s.score, _s.level).where(_s.at >= utc(now - window_s), _s.at < utc(now)).subquery()
    keys = (rows.c.step_at, rows.c.kind)
    ranked = select(
        rows,
        func.row_number().over(partition_by=keys, order_by=(rows.c.score.is_(None), rows.c.score)).label("rank"),
        func.count(rows.c.score).over(partition_by=keys).label("scores"),
    ).subquery()
    r = ranked.c

    def of(level: str) -> ColumnElement[int]:
        return func.count().filter(r.level == level)

    found = connection.execute(
        select(
            r.step_at,
            r.kind,
            func.count(r.score).label("pairs"),
            func.avg(r.score).label("mean"),
            # Nearest rank: the lowest from rank n / 10, rounded up, on.
            func.min(r.score).filter(r.rank * 10 >= r.scores).label("p10"),
            *(of(level).label(level) for level in ("warning", "critical", "unknown")),
        )
        .group_by(r.step_at, r.kind)
        .order_by(r.step_at, r.kind)
    ).mappings()
    points = [dict(row) for row in found]
    for point in points:
        start = point.pop("step_at")
        point["at"] = None if step_s is None else utc(start)
    return {"window_s": window_s, "step_s": step_s, "points": points}
