"""How much of what an engine drafted the records tell. Pure: no clock, no I/O.

Counters and records meet in the intervals between scrapes; a record belongs to the one in which its request ended. What
a request drafted before a scrape and told after it is missing on one side there. So sums are compared between scrapes
at which nothing was in flight, where there are such. On an engine that never rests, what is in flight at both ends is
little beside what passed between them.
"""

from collections import deque
from dataclasses import dataclass, field

from ..record import AcceptanceQuality, Record
from .counters import Growth, Scrape, total

#: Figures are of the last so many seconds.
SPAN_S = 900.0
#: A record comes so long after its request's end at most: it waits half a second for the engine's events.
SETTLE_S = 1.0


@dataclass(slots=True)
class _Point:
    """A scrape. `at` is Unix time in s, to be compared with a record's; `monotonic` never jumps."""

    at: float
    monotonic: float
    #: Nothing was in flight.
    quiet: bool


@dataclass(slots=True)
class _Interval:
    """From a scrape to the next, `after`; None: it goes on."""

    before: _Point
    after: _Point | None = None
    growth: Growth = field(default_factory=Growth)
    #: 0 also where the engine is known to draft nothing; None: not told.
    drafted: int | None = None
    #: Of the requests that ended in it, by their records.
    draft_tokens: int = 0
    accepted_tokens: int = 0
    #: Requests that lie in it at least in part, and the last one of which all does.
    requests: int = 0
    whole: Record | None = None
    judged: bool = False


@dataclass(frozen=True, slots=True)
class Covered:
    """Sums of records and of counters over the same `span_s` seconds."""

    span_s: float
    draft_tokens: int
    accepted_tokens: int
    counted: Growth

    @property
    def ratio(self) -> float | None:
        """Draft tokens in records / in the counters; None where none were counted."""
        return self.draft_tokens / self.counted.draft_tokens if self.counted.draft_tokens else None


class Coverage:
    """One upstream's, over SPAN_S. Memory is bounded by the number of scrapes in that time."""

    def __init__(self) -> None:
        #: Without gaps; the last one goes on.
        self._intervals: deque[_Interval] = deque()

    def add(self, record: Record) -> None:
        """Take in a record of this upstream. Takes a microsecond."""
        start = record.started_at
        end = start + (record.latency_ms or 0.0) / 1e3
        for interval in reversed(self._intervals):
            before, after = interval.before, interval.after
            if before.at < end:
                interval.requests += 1
                if after is None or end <= after.at:
                    figures = record.acceptance
                    if figures.quality is AcceptanceQuality.OK:
                        interval.draft_tokens += figures.draft_tokens or 0
                        interval.accepted_tokens += figures.accepted_tokens or 0
                    if before.at < start:
                        interval.whole = record
                if start <= before.at:
                    before.quiet = False
            if before.at < start:
                return

    def scraped(self, scrape: Scrape, growth: Growth | None, now: float, monotonic: float) -> None:
        """Take in a scrape, and what `Meter.add` made of it."""
        intervals, point = self._intervals, _Point(now, monotonic, scrape.idle)
        if growth is None:
            intervals.clear()
        elif intervals:
            last = intervals[-1]
            last.after, last.growth = point, growth
            last.drafted = 0 if scrape.never_speculates else growth.draft_tokens
        intervals.append(_Interval(point))
        while (first := intervals[0].after) is not None and first.monotonic < monotonic - SPAN_S:
            intervals.popleft()

    def alone(self, now: float) -> list[tuple[Record, Growth]]:
        """Requests that made all that the counters grew by while they ran, each told once.

        Such a one began and ended between two scrapes at which nothing ran, no other was in between, and the engine
        counts as many ended requests as it asked for: so none passed the engine unseen.
        """
        found = []
        for interval in self._settled(now):
            record, growth, after = interval.whole, interval.growth, interval.after
            if interval.judged or record is None or after is None:
                continue
            interval.judged = True
            quiet = interval.before.quiet and after.quiet and interval.requests == 1 and not growth.reset
            if quiet and growth.draft_tokens is not None and growth.finished in (None, record.replies or 1):
                found.append((record, growth))
        return found

    def covered(self, now: float) -> Covered | None:
        """The sums since the engine's last restart, over SPAN_S at most; None before there are any."""
        intervals = self._settled(now)
        resets = [number for number, each in enumerate(intervals) if each.growth.reset]
        intervals = intervals[resets[-1] + 1 :] if resets else intervals
        if not intervals:
            return None
        quiet = _between_quiet(intervals)
        sums, inner = _sums(intervals), _sums(quiet) if quiet else None
        # Between two quiet scrapes long ago there may be too little to speak for now.
        if inner is not None and 2 * (inner.counted.draft_tokens or 0) >= (sums.counted.draft_tokens or 0):
            return inner
        return sums

    def drafted_since(self, monotonic: float) -> int | None:
        """Tokens that the engine drafted from the first scrape after that moment up to the last one.

        None: there are no two such scrapes, the engine does not tell, or it was restarted and what it drafted just
        before is lost. What is known to be drafted tells all the same.
        """
        intervals = [each for each in self._intervals if each.after is not None and each.before.monotonic >= monotonic]
        drafted = [each.drafted for each in intervals if each.drafted is not None]
        whole = len(drafted) == len(intervals) > 0 and not any(each.growth.reset for each in intervals)
        return sum(drafted) if whole or any(drafted) else None

    def _settled(self, now: float) -> list[_Interval]:
        """The intervals whose records are all here."""
        return [each for each in self._intervals if each.after is not None and each.after.at <= now - SETTLE_S]


def _between_quiet(intervals: list[_Interval]) -> list[_Interval]:
    """From the first quiet scrape to the last one."""
    starts = [number for number, each in enumerate(intervals) if each.before.quiet]
    ends = [number for number, each in enumerate(intervals) if each.after is not None and each.after.quiet]
    return intervals[starts[0] : ends[-1] + 1] if starts and ends else []


def _sums(intervals: list[_Interval]) -> Covered:
    first, last = intervals[0].before, intervals[-1].after
    assert last is not None
    return Covered(
        last.at - first.at,
        sum(each.draft_tokens for each in intervals),
        sum(each.accepted_tokens for each in intervals),
        total(each.growth for each in intervals),
    )
