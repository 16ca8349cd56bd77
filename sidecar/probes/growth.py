"""What happened lately: events of the last seconds, and what a count has grown by. Pure; times are Unix seconds."""

from collections import deque

#: Looks at a count that are kept of one span.
_LOOKS = 60


class Lately:
    """How many events there were in the last `span_s` seconds, to a step of span_s / slots."""

    def __init__(self, span_s: float, slots: int = 60) -> None:
        self._slot_s = span_s / slots
        self._slots: deque[list[int]] = deque(maxlen=slots)

    def add(self, now: float) -> None:
        number, slots = int(now / self._slot_s), self._slots
        if not slots or slots[-1][0] != number:
            # After the clock was set back, what is newer than now is of no known time.
            while slots and slots[-1][0] > number:
                slots.pop()
            if not slots or slots[-1][0] != number:
                slots.append([number, 0])
        slots[-1][1] += 1

    def total(self, now: float) -> int:
        last = int(now / self._slot_s)
        first = last - (self._slots.maxlen or 0)
        return sum(count for number, count in self._slots if first < number <= last)


class Growth:
    """What a count that began at 0 has grown by in the last `span_s` seconds.

    It is looked at now and then, so that the span begins with the newest look that is as old as that, or with the start
    where none is. Looks within a sixtieth of the span are one.
    """

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._looks: deque[tuple[float, int]] = deque([(float("-inf"), 0)])

    def over(self, count: int, now: float) -> int:
        """Look at the count."""
        looks, span_s = self._looks, self._span_s
        if now < looks[-1][0]:
            # The clock was set back: the span begins anew with what it had begun with.
            base = looks[0][1]
            looks.clear()
            looks.append((now, base))
        while len(looks) > 1 and looks[1][0] <= now - span_s:
            looks.popleft()
        grown = count - looks[0][1]
        if now - looks[-1][0] >= span_s / _LOOKS:
            looks.append((now, count))
        return grown


class Longest:
    """The largest value of the last `span_s` seconds."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        #: Falling: a value that a later one exceeds is never the largest again.
        self._values: deque[tuple[float, float]] = deque()

    def add(self, value: float, now: float) -> None:
        values = self._values
        while values and values[-1][1] <= value:
            values.pop()
        values.append((now, value))
        self._expire(now)

    def of(self, now: float) -> float:
        """0 where there was none."""
        self._expire(now)
        return self._values[0][1] if self._values else 0.0

    def _expire(self, now: float) -> None:
        while self._values and self._values[0][0] <= now - self._span_s:
            self._values.popleft()
