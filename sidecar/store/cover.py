"""Which spans of rollups an answer is read from, so that few of them are. Pure; times are whole Unix seconds (UTC)."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

MINUTE, HOUR, DAY = 60, 3600, 86_400
#: How long after its end a span is taken for complete, s: late rows mark it again.
SETTLED_S = 120
#: Longest windows that are divided by minutes and by hours. Each span has up to 200 rows, of which a fleet's traffic
#: fills some 80: beyond these windows an answer would be of more than 200,000.
_BY_MINUTES_S, _BY_HOURS_S = 2 * DAY, 100 * DAY


class Piece(NamedTuple):
    """Spans of one length, one after the other: [since, until)."""

    span_s: int
    since: int
    until: int


class Kept(NamedTuple):
    """From when on there are minutes (the start of an hour), and hours (of a day): before, only what is coarser."""

    minutes: int = 0
    hours: int = 0

    def finest(self, at: float) -> int:
        """The shortest span there is at a time."""
        return DAY if at < self.hours else HOUR if at < self.minutes else MINUTE

    def since(self, span_s: int) -> int:
        return {MINUTE: self.minutes, HOUR: self.hours, DAY: 0}[span_s]


def rounded(since: float, until: float, kept: Kept) -> tuple[int, int]:
    """A window moved outwards to the starts of spans that there are."""
    first, last = kept.finest(since), kept.finest(until)
    return int(since // first * first), int(-(-until // last) * last)


def rounded_step(step_s: int, window_s: float, finest: int) -> int:
    """A step made longer, so that it is of whole spans, and these are not too many."""
    unit = MINUTE if window_s <= _BY_MINUTES_S else HOUR if window_s <= _BY_HOURS_S else DAY
    unit = max(unit, finest)
    return -(-step_s // unit) * unit


def cover(
    since: int,
    until: int,
    *,
    step_s: int | None = None,
    kept: Kept,
    due: Mapping[int, Collection[int]],
    complete: int,
) -> list[Piece]:
    """Days, hours and minutes that make up a window of `rounded`, in the order of time.

    Each lies within one step (of `rounded_step`). `due`: by span, starts of those that are to be made anew; they, and
    hours and days that end later than `complete`, are answered by shorter ones, where these are kept.
    """
    spans = [span for span in (DAY, HOUR, MINUTE) if step_s is None or step_s % span == 0]
    found: list[Piece] = []
    for piece in _pieces(since, until, spans, kept, due, complete):
        if found and found[-1].span_s == piece.span_s:
            piece = Piece(piece.span_s, found.pop().since, piece.until)
        found.append(piece)
    return found


def _pieces(
    since: int, until: int, spans: Sequence[int], kept: Kept, due: Mapping[int, Collection[int]], complete: int
) -> list[Piece]:
    if since >= until:
        return []
    span, *finer = spans
    if not finer:
        return [Piece(span, since, until)]
    divisible = kept.since(finer[0])
    first, last = -(-since // span) * span, until // span * span
    last = min(last, max(complete // span * span, divisible))
    if first >= last:
        return _pieces(since, until, finer, kept, due, complete)
    found = _pieces(since, first, finer, kept, due, complete)
    for at in sorted(start for start in due.get(span, ()) if max(first, divisible) <= start < last):
        if first < at:
            found.append(Piece(span, first, at))
        found += _pieces(at, at + span, finer, kept, due, complete)
        first = at + span
    if first < last:
        found.append(Piece(span, first, last))
    return found + _pieces(last, until, finer, kept, due, complete)
