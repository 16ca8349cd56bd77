"""What happened, of several tables: decisions and orders, alerts, what runs, tokens that moved, runs of the lab that
ended. Newest first, in pages.

A statement per source, each for no more rows than a page has. Of equal times events go by their source and the number
of their row, and so does a cursor: what is written meanwhile moves nothing that lies behind it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, Select, and_, case, func, literal, null, or_, select

from .cursor import BadCursor, read_cursor, write_cursor
from .schema import alerts, alignments, lab_runs, transitions, versions

MAX_EVENTS = 500
#: Names of `versions`: the sidecar, whose rows are its starts, and what those of its settings begin with.
SPECWATCH, SETTING = "specwatch", "settings."

Kind = Literal["switch", "engine", "version", "alert", "alignment", "lab"]

#: A cursor's number is that of a row, and above these bits that of its source.
_ROW_BITS = 56


@dataclass(frozen=True, slots=True)
class Happened:
    """A row, by column. One of `versions` has `before` beside its `value`, None for a setting that is or was at its
    default, and for what was not known before.
    """

    kind: Kind
    row: dict[str, Any]


def page(
    connection: Connection,
    since: datetime,
    until: datetime | None,
    kinds: frozenset[Kind],
    limit: int,
    cursor: str | None,
) -> tuple[list[Happened], str | None]:
    """Of [since, until) and of `kinds`, empty: all, at most `limit`; and the cursor of the next page, None on the last.

    Raises BadCursor.
    """
    limit = max(1, min(limit, MAX_EVENTS))
    end, source, number = None, 0, 0
    if cursor is not None:
        end, number = read_cursor(cursor)
        source, number = number >> _ROW_BITS, number & ((1 << _ROW_BITS) - 1)
        if source >= len(_SOURCES):
            raise BadCursor
    found: list[tuple[datetime, int, Happened]] = []
    for place, (kind, build) in enumerate(_SOURCES):
        if kinds and kind not in kinds:
            continue
        query = build()
        at, row = query.selected_columns["at"], query.selected_columns["id"]
        query = query.where(at >= since).order_by(at.desc(), row.desc()).limit(limit + 1)
        if until is not None:
            query = query.where(at < until)
        if end is not None:
            # Of the cursor's time, what lies behind it.
            behind = row < number if place == source else literal(place < source)
            query = query.where(at <= end, or_(at < end, behind))
        for each in connection.execute(query).mappings():
            columns = dict(each)
            key = (place << _ROW_BITS) | columns.pop("id")
            found.append((columns["at"], key, Happened(kind, columns)))
    found.sort(key=lambda each: each[:2], reverse=True)
    following = write_cursor(*found[limit - 1][:2]) if len(found) > limit else None
    return [each for *_, each in found[:limit]], following


def _switches() -> Select[Any]:
    return select(transitions).where(transitions.c.trigger != "engine")


def _engine_orders() -> Select[Any]:
    return select(transitions).where(transitions.c.trigger == "engine")


def _alerts() -> Select[Any]:
    return select(alerts).where(alerts.c.event.in_(("firing", "resolved")))


def _alignments() -> Select[Any]:
    return select(alignments)


def _lab() -> Select[Any]:
    """Runs that ended; one that was gone on with ends another time, and is told of once."""
    r = lab_runs.c
    names = (r.instance, r.kind, r.state, r.verdict, r.model, r.draft_model, r.folder)
    reasons = r.summary["reasons"].label("reasons")
    ended = (r.number.label("id"), r.ended_at.label("at"), r.id.label("run"))
    return select(*ended, *names, reasons).where(r.ended_at.is_not(None))


def _changed() -> Select[Any]:
    """Starts of sidecars, and what is another than before: a setting than at the start before, where there was one."""
    v, o = versions.alias("v"), versions.alias("o")
    is_setting = and_(v.c.upstream == "", v.c.name.startswith(SETTING))
    started, known = _start_before(v), versions.alias("k")
    same = (known.c.instance == v.c.instance, known.c.upstream == v.c.upstream, known.c.name == v.c.name)
    last = select(func.max(known.c.at)).where(*same, known.c.at < v.c.at).correlate(v).scalar_subquery()
    before = (
        select(o.c.value)
        .where(
            o.c.instance == v.c.instance,
            o.c.upstream == v.c.upstream,
            o.c.name == v.c.name,
            o.c.at == case((is_setting, started), else_=last),
        )
        .correlate(v)
        .scalar_subquery()
    )
    changed = and_(before.is_distinct_from(v.c.value), or_(~is_setting, started.is_not(None)))
    return select(v, before.label("before")).where(or_(v.c.name == SPECWATCH, changed))


def _ended() -> Select[Any]:
    """Settings that are at their default again with a start, and were not at the one before."""
    v, o, n = versions.alias("v"), versions.alias("o"), versions.alias("n")
    # As a value, since PostgreSQL makes a join of EXISTS: before it knows the table it would go through all for each.
    same = (n.c.at == v.c.at, n.c.instance == v.c.instance, n.c.upstream == "", n.c.name == o.c.name)
    still = select(n.c.id).where(*same).correlate(v, o).scalar_subquery()
    return (
        select(o.c.id, v.c.at, v.c.instance, v.c.upstream, o.c.name, null().label("value"), o.c.value.label("before"))
        .join_from(
            v,
            o,
            and_(
                o.c.at == _start_before(v),
                o.c.instance == v.c.instance,
                o.c.upstream == "",
                o.c.name.startswith(SETTING),
            ),
        )
        .where(v.c.upstream == "", v.c.name == SPECWATCH, still.is_(None))
    )


def _start_before(v: Any) -> Any:
    """When the sidecar of a row was started last before the row's time; null where it was not."""
    s = versions.alias("s")
    started = (s.c.instance == v.c.instance, s.c.upstream == "", s.c.name == SPECWATCH, s.c.at < v.c.at)
    return select(func.max(s.c.at)).where(*started).correlate(v).scalar_subquery()


#: In the order in which events of one time are told, the last one first.
_SOURCES: tuple[tuple[Kind, Callable[[], Select[Any]]], ...] = (
    ("alignment", _alignments),
    ("version", _ended),
    ("version", _changed),
    ("engine", _engine_orders),
    ("alert", _alerts),
    ("switch", _switches),
    ("lab", _lab),
)
