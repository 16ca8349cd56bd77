"""What an answer is read from: rows, as long as they are few, else rollups of minutes, hours and days."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, false, func, not_, or_, select, true
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from .cover import DAY, HOUR, MINUTE, SETTLED_S, Kept, Piece, cover, rounded, rounded_step
from .expressions import BUCKETS, OTHER, Columns, Filters, check_steps, epoch, r, utc
from .schema import requests, rollups, rollups_due, similarities, similarity_rollups

#: Rows that are read for what rollups do not know.
MOST_ROWS = 100_000
#: Minutes that may wait for their rollups for longer than _LATE_S before rows are read instead: after an upgrade, or
#: while nothing keeps the rollups.
_MOST_LATE, _LATE_S = 10, 60
#: A window with more pieces is one of rows that are being added all over it.
_MOST_PIECES = 100

#: Of the requests of one scenario or model, the largest share that may be among those that are pooled.
_MOST_HIDDEN = 0.01
#: Filters that rollups of any dimension know.
_EVERYWHERE = {"upstream", "arm", "outcome"}

_due = rollups_due.c
ANY = Filters()


class TooManyRows(ValueError):
    """What was asked for is only in the rows, and these are too many, or gone; says which window would do."""


class EmptyWindow(ValueError):
    """A window that ends before it begins; says where."""


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    #: When a row was.
    rows: Any
    columns: Columns
    #: Rollups that count each row once, and how many rows they are of.
    once: ColumnElement[bool]
    count: ColumnElement[int]


REQUESTS = Family("requests", requests.c.started_at, rollups.c, rollups.c.dimension == "whole", rollups.c.requests)
_pairs = similarity_rollups.c
SIMILARITIES = Family("similarities", similarities.c.at, _pairs, true(), _pairs.pairs + _pairs.unknown)


@dataclass(frozen=True, slots=True)
class Asked:
    """A window of `window_s` seconds up to `now` (Unix s), and how it is to be divided."""

    window_s: int
    now: float
    step_s: int | None = None
    by: str | None = None
    filters: Filters = ANY
    #: What no rollup knows, whatever the names and groups.
    only_rows: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """What an answer is read from, and how it is divided. Times are Unix seconds, `until` exclusive."""

    window_s: int
    by: str | None
    filters: Filters
    since: float
    until: float
    step_s: int | None
    #: None: rows are read.
    pieces: Sequence[Piece] | None = None
    resolution_s: int | None = None

    @property
    def head(self) -> dict[str, Any]:
        """The fields of `Answered`."""
        return {
            "since": utc(self.since),
            "until": utc(self.until),
            "exact": self.pieces is None,
            "resolution_s": self.resolution_s,
        }

    def rows(self) -> list[ColumnElement[bool]]:
        return [r.started_at >= utc(self.since), r.started_at < utc(self.until), *self.named(r)]

    def named(self, columns: ReadOnlyColumnCollection[str, Any]) -> list[ColumnElement[bool]]:
        """The filters but for times."""
        return [columns[name] == value for name, value in self.filters.names.items()]

    @property
    def dimension(self) -> str:
        """The fewest rollups that know what is asked for."""
        if self.by in BUCKETS:
            return str(self.by)
        # Any dimension of buckets would do; this one has the fewest.
        named = self.by in ("scenario", "model") or not self.filters.names.keys() <= _EVERYWHERE
        return "" if named else "temperature"

    def rollups(self, dimension: str) -> list[ColumnElement[bool]]:
        return [in_pieces(REQUESTS, self.pieces or (), rollups.c.dimension == dimension), *self.named(rollups.c)]


def in_pieces(family: Family, pieces: Sequence[Piece], which: ColumnElement[bool]) -> ColumnElement[bool]:
    c = family.columns
    # Each part on its own is a range of the index.
    parts = [and_(c.span_s == span, which, c.at >= utc(since), c.at < utc(until)) for span, since, until in pieces]
    return or_(*parts) if parts else false()


def choose(connection: Connection, asked: Asked, most_exact: int, family: Family = REQUESTS) -> Source:
    """Rows where there are at most `most_exact`, else rollups. Raises ValueError, also as TooManyRows."""
    filters, now = asked.filters, asked.now
    since, until = now - asked.window_s, now
    if filters.since is not None:
        since = max(since, filters.since.timestamp())
    if filters.until is not None:
        until = min(until, filters.until.timestamp())
    check_steps(round(until - since), asked.step_s, asked.by)
    exact = Source(asked.window_s, asked.by, filters, since, until, asked.step_s)
    if since >= until:
        return exact
    state = _State(connection, family, now)
    first, last = rounded(since, until, state.kept)
    gone = not state.has_all_rows(since, until)
    if not gone and state.late(first, last):
        return exact
    due = state.due(first, last)
    count = state.count(cover(first, last, kept=state.kept, due=due, complete=state.complete))
    if not gone and count <= most_exact:
        return exact
    only_rows_tell = asked.only_rows or _not_rolled(asked, family)
    finest = state.kept.finest(since)
    step_s = None if asked.step_s is None else rounded_step(asked.step_s, until - since, finest)
    pieces = cover(first, last, step_s=step_s, kept=state.kept, due=due, complete=state.complete)
    if only_rows_tell is None:
        if len(pieces) > _MOST_PIECES and not gone:
            return exact
        rolled = Source(asked.window_s, asked.by, filters, first, min(last, now), step_s, pieces, finest)
        if (only_rows_tell := _pooled(connection, rolled)) is None:
            return rolled
    if gone or count > MOST_ROWS:
        raise TooManyRows(state.advice(asked, only_rows_tell, since, until, count, gone=gone))
    return exact


def of_rows(connection: Connection, source: Source, by: str, now: float) -> Source:
    """The same window, from rows, for what rollups know by `by` alone. Raises TooManyRows."""
    if source.pieces is None:
        return source
    until = None if source.filters.until is None else utc(source.until)
    filters = replace(source.filters, since=utc(source.since), until=until)
    return choose(connection, Asked(ceil(now - source.since), now, by=by, filters=filters), 0)


def _not_rolled(asked: Asked, family: Family) -> str | None:
    """What is asked for that no rollup knows."""
    names = asked.filters.names.keys()
    if family is SIMILARITIES:
        return "one scenario" if names else asked.by and f"one {asked.by} each"
    if "instance" in names:
        return "one instance"
    if asked.by in BUCKETS and not names <= _EVERYWHERE:
        return f"{asked.by} of one scenario or model"
    return None


def _pooled(connection: Connection, source: Source) -> str | None:
    """What is asked for where too many of its requests may be among those whose scenario and model are pooled."""
    named = source.filters.names.keys() - _EVERYWHERE
    if not named:
        return None
    c = rollups.c
    wanted = and_(*(c[name] == source.filters.names[name] for name in named))
    unnamed = replace(source, filters=replace(source.filters, scenario=None, model=None))
    sizes = [
        func.coalesce(func.sum(c.requests).filter(of), 0)
        for of in (wanted, and_(c.scenario == OTHER, c.model == OTHER, not_(wanted)))
    ]
    found, hidden = connection.execute(select(*sizes).where(*unnamed.rollups(""))).one()
    return None if hidden <= _MOST_HIDDEN * float(found) else "a scenario or model that few requests have"


class _State:
    """What there is of a family."""

    def __init__(self, connection: Connection, family: Family, now: float) -> None:
        self._connection, self._family = connection, family
        self.now, self.complete = now, int(now) - SETTLED_S
        c = family.columns

        def oldest(span_s: int) -> Any:
            return select(func.min(c.at)).where(c.span_s == span_s, family.once).scalar_subquery()

        found = connection.execute(
            select(*(oldest(span) for span in (MINUTE, HOUR, DAY)), select(func.min(family.rows)).scalar_subquery())
        ).one()
        minute, hour, day, row = (None if at is None else at.timestamp() for at in found)
        self.kept = Kept(self._from(minute, hour, HOUR), self._from(hour, day, DAY))
        self._oldest_row = row
        self._oldest = min((at for at in (minute, hour, day) if at is not None), default=None)

    def _from(self, oldest: float | None, coarser: float | None, span_s: int) -> int:
        """From when on shorter spans are kept. They are deleted from their oldest on, maybe not up to a whole hour."""
        if coarser is None:
            return 0
        if oldest is None:
            return int(self.now // span_s * span_s)
        edge = int(oldest // span_s * span_s)
        if coarser > edge:
            return 0
        shorter = MINUTE if span_s == HOUR else HOUR
        whole, parts = (self.count([Piece(span, edge, edge + span_s)]) for span in (span_s, shorter))
        if whole > parts:
            return edge + span_s
        return edge if coarser < edge else 0

    def due(self, since: int, until: int) -> dict[int, set[int]]:
        """Starts of the hours and days that lack something, if only a minute."""
        seconds = epoch(_due.at)
        span = case((_due.span_s == MINUTE, HOUR), else_=_due.span_s)
        start = (seconds - seconds % span).label("start")
        rows = self._connection.execute(
            select(span.label("span"), start)
            .where(self._is_due, _due.span_s.in_((MINUTE, HOUR, DAY)), _due.at >= utc(since), _due.at < utc(until))
            .distinct()
        ).all()
        hours = {int(start) for span, start in rows if span == HOUR}
        days = {int(start) for span, start in rows if span == DAY}
        return {HOUR: hours, DAY: days | {start // DAY * DAY for start in hours}}

    def late(self, since: int, until: int) -> bool:
        """Whether closed minutes wait for so long, and so many, that rollups lack too much."""
        waits = [_due.span_s == MINUTE, _due.stamp < int((self.now - _LATE_S) * 1e9)]
        closed = [_due.at >= utc(since), _due.at < utc(min(until, self.now - MINUTE))]
        minutes = select(_due.at).where(self._is_due, *waits, *closed).distinct().limit(_MOST_LATE + 1)
        return len(self._connection.execute(minutes).all()) > _MOST_LATE

    @property
    def _is_due(self) -> ColumnElement[bool]:
        return _due.family == self._family.name

    def count(self, pieces: Sequence[Piece]) -> int:
        """How many rows were rolled up there."""
        where = in_pieces(self._family, pieces, self._family.once)
        return int(self._connection.scalar(select(func.sum(self._family.count)).where(where)) or 0)

    def has_all_rows(self, since: float, until: float) -> bool:
        """Whether no row of the window has been deleted."""
        oldest = until if self._oldest_row is None else min(until, self._oldest_row)
        if self._oldest is None or since >= oldest:
            return True
        # To the end of a minute or, where minutes are gone, of an hour or a day, of which a part may be deleted.
        first, last = rounded(since, oldest, self.kept)
        rolled = self.count(cover(first, last, kept=self.kept, due={}, complete=self.complete))
        rows = select(self._family.rows).where(self._family.rows >= utc(first), self._family.rows < utc(last))
        return rolled <= (self._connection.scalar(select(func.count()).select_from(rows.limit(rolled).subquery())) or 0)

    def advice(self, asked: Asked, what: str, since: float, until: float, count: int, *, gone: bool) -> str:
        """Why rows will not do for `what` is asked for, and for which window they would."""
        ends = self._family.columns.at < utc(until), self._family.columns.at >= utc(max(since, until - 7 * DAY))
        newest = (
            select(self._family.columns.at, self._family.count)
            .where(self._family.columns.span_s == MINUTE, self._family.once, *ends)
            .order_by(self._family.columns.at.desc())
        )
        left, start = MOST_ROWS, until
        for at, number in self._connection.execute(newest):
            left -= number
            if left < 0:
                break
            start = at.timestamp()
        if self._oldest_row is not None:
            start = max(start, self._oldest_row)
        held = "are no longer all kept" if gone else f"are {count:,}, more than {MOST_ROWS:,}"
        would = f"since={utc(-(-start // MINUTE) * MINUTE):%Y-%m-%dT%H:%MZ}"
        if asked.filters.until is None and (minutes := int((self.now - start) // MINUTE)):
            would = f"window={minutes}m"
        return f"figures of {what} are made of rows, and those of this window {held}: ask for {would}, or one shorter"
