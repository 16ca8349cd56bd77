"""The acceptance windows of one upstream: the last requests of all its traffic and of each slice, and the last hour.

What slices did over time is asked of the database.

Memory is bounded whatever the requests say of themselves, and a record takes the same few microseconds at any time
(`tests/bench/windows.py`).
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from typing import NamedTuple

from ..record import Arm, Outcome, Record
from .acceptance import CountWindow, Figures, TimeWindow, counted
from .slices import DIMENSIONS, slices_of

#: Slices of one dimension; the one that had no request for longest goes. Clients choose scenarios and models.
MOST_SLICES = 64


class NotDrafted(NamedTuple):
    """Of the last ok requests that should have been speculated for: how many have no figures, and why."""

    requests: int
    without: int
    #: Most frequent first.
    reasons: dict[str, int]


class Windows:
    def __init__(self, size: int = 100) -> None:
        """`size`: requests of each count window."""
        self._size = size
        self.whole = CountWindow(size)
        self.hour = TimeWindow()
        self._slices: dict[str, OrderedDict[str, CountWindow]] = {name: OrderedDict() for name in DIMENSIONS}
        self._reasons: deque[str | None] = deque(maxlen=size)

    def add(self, record: Record, now: float) -> bool:
        """Whether the record counted; `now` is when its request ended, Unix seconds."""
        row = counted(record)
        if record.outcome is Outcome.OK and record.arm in (Arm.SPECULATIVE, Arm.PROBE):
            known = record.acceptance.reason or record.acceptance.quality
            self._reasons.append(None if row is not None else known)
        if row is None:
            return False
        self.whole.put(row)
        self.hour.put(row, now)
        for slices, value in zip(self._slices.values(), slices_of(record), strict=True):
            window = slices.get(value)
            if window is None:
                window = slices[value] = CountWindow(self._size)
                if len(slices) > MOST_SLICES:
                    slices.popitem(last=False)
            else:
                slices.move_to_end(value)
            window.put(row)
        return True

    def get(self, dimension: str = "", value: str = "") -> CountWindow | None:
        """The window of a slice, of all traffic where none is named; None where no request was of it lately."""
        return self._slices[dimension].get(value) if dimension else self.whole

    def figures(self, dimension: str = "", value: str = "") -> Figures | None:
        """Of the last requests."""
        window = self.get(dimension, value)
        return None if window is None else window.figures()

    def __iter__(self) -> Iterator[tuple[str, str, CountWindow]]:
        """(dimension, value, window) of all slices; all traffic has empty names and comes first."""
        yield "", "", self.whole
        for dimension, slices in self._slices.items():
            for value, window in slices.items():
                yield dimension, value, window

    def not_drafted(self) -> NotDrafted:
        reasons = Counter(reason for reason in self._reasons if reason is not None)
        return NotDrafted(len(self._reasons), reasons.total(), dict(reasons.most_common()))
