"""The latency goal over the last hour, from memory: what `sidecar.store.minutes` asks the database for. Pure.

The goal is a p95 of 800 ms. By nearest rank, p95 is within it exactly when at least 95 % of the requests are, so that
counts are enough.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..record import Outcome, Record

GOAL_MS = 800
WINDOW_S = 3600
#: Minutes whose p95 a minute is held to, itself included.
TRAILING = 5
#: Minutes that are kept: those of the window, which may begin within one, and those before it that count in its first.
_KEPT = WINDOW_S // 60 + TRAILING
#: Rows have whole microseconds, to which a time is rounded.
_HALF_A_MICROSECOND = 5e-7


def within_goal(minutes: Iterable[int], counts: Mapping[int, tuple[int, int]]) -> int:
    """How many of `minutes` reach the goal together with those before them that they are held to.

    `counts`: by minute, requests and those of them that took GOAL_MS at most.
    """
    reached = 0
    for at in minutes:
        trailing = [counts.get(at - back, (0, 0)) for back in range(TRAILING)]
        reached += 100 * sum(fast for _, fast in trailing) >= 95 * sum(n for n, _ in trailing)
    return reached


class Reached(NamedTuple):
    """Of the ok requests that started in the last hour. Ratios are 0..1, None without a request."""

    requests: int
    #: Share of them that took GOAL_MS at most.
    under: float | None
    #: Share of the minutes with traffic whose p95, together with that of the four minutes before, was within GOAL_MS.
    minutes: float | None
    #: Start of the oldest of these minutes, Unix seconds.
    since: int | None = None


class _Minute:
    """Requests by the second in which they started."""

    __slots__ = ("fast", "requests")

    def __init__(self) -> None:
        self.requests = [0] * 60
        self.fast = [0] * 60

    def sums(self, since: int, until: int) -> tuple[int, int]:
        """Requests, and those within the goal, of the seconds since (inclusive) .. until (exclusive)."""
        return sum(self.requests[since:until]), sum(self.fast[since:until])


class Goal:
    def __init__(self) -> None:
        self._minutes: dict[int, _Minute] = {}

    def add(self, record: Record, now: float) -> None:
        """Take in a request that ended at `now`, Unix seconds."""
        took_ms = record.latency_ms
        if record.outcome is not Outcome.OK or took_ms is None:
            return
        number, second = divmod(int(record.started_at + _HALF_A_MICROSECOND), 60)
        minute = self._minutes.get(number)
        if minute is None:
            oldest = int(now) // 60 - _KEPT + 1
            if number < oldest:
                return
            self._minutes = {at: kept for at, kept in self._minutes.items() if at >= oldest}
            minute = self._minutes[number] = _Minute()
        minute.requests[second] += 1
        if took_ms <= GOAL_MS:
            minute.fast[second] += 1

    def reached(self, now: float) -> Reached:
        """Up to the last whole second before `now`, Unix seconds."""
        until = int(now)
        since = until - WINDOW_S
        first, offset = divmod(since, 60)
        counts = {
            at: counted
            for at, minute in self._minutes.items()
            if at > first - TRAILING and until > 60 * at and (counted := minute.sums(0, until - 60 * at))[0]
        }
        # Of the first minute, only a part may lie in the window.
        inside = {at: counted for at, counted in counts.items() if at > first}
        if first in counts and (part := self._minutes[first].sums(offset, 60))[0]:
            inside[first] = part
        requests, fast = (sum(counted[i] for counted in inside.values()) for i in (0, 1))
        if not requests:
            return Reached(0, None, None)
        return Reached(requests, fast / requests, within_goal(inside, counts) / len(inside), 60 * min(inside))
