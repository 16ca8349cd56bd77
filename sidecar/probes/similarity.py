"""How alike two texts are: levels, the last scores, where replies part, and how often pairs may be compared. Pure."""

import re
from collections import deque
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

_word = re.compile(r"\S+")


class Kind(StrEnum):
    #: The draft's own choice at every position, and the final text.
    DRAFT = "draft"
    #: Two replies to one request, with and without speculation.
    REPLAY = "replay"


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    #: There is no score.
    UNKNOWN = "unknown"


class Limits(NamedTuple):
    warning: float
    critical: float

    def level(self, score: float | None) -> Level:
        if score is None:
            return Level.UNKNOWN
        if score < self.critical:
            return Level.CRITICAL
        return Level.WARNING if score < self.warning else Level.OK


class Scores(Struct, frozen=True):
    """Of the last pairs that have a score."""

    pairs: int
    #: None before the first.
    mean: float | None
    #: The tenth percentile by nearest rank.
    p10: float | None
    warning: int
    critical: int


class ScoreWindow:
    """The last `size` scores."""

    def __init__(self, limits: Limits, size: int = 100) -> None:
        self._limits = limits
        self._scores: deque[float] = deque(maxlen=size)

    def add(self, score: float) -> None:
        self._scores.append(score)

    def clear(self) -> None:
        self._scores.clear()

    def figures(self) -> Scores:
        ordered = sorted(self._scores)
        if not ordered:
            return Scores(0, None, None, 0, 0)
        levels = [self._limits.level(score) for score in ordered]
        return Scores(
            len(ordered),
            sum(ordered) / len(ordered),
            ordered[-(-len(ordered) // 10) - 1],
            levels.count(Level.WARNING),
            levels.count(Level.CRITICAL),
        )


class Budget:
    """At most `per_minute` a minute, and those of ten seconds at once. Times are s of one monotonic clock."""

    def __init__(self, per_minute: float) -> None:
        self._per_s = per_minute / 60
        self._most = max(1.0, 10 * self._per_s)
        self._left = self._most
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Whether there was one left, which is gone then."""
        if self._at is not None:
            self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Divergence(NamedTuple):
    """Where two texts part: what they have in common before."""

    characters: int
    words: int


def first_divergence(a: str, b: str) -> Divergence | None:
    """None where they are equal. A text that goes on where the other ends parts there."""
    if a == b:
        return None
    low, high = 0, min(len(a), len(b))
    # By halves, which compares in C.
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    # A word that both began is not in common, unless it ends in both.
    words = len(_word.findall(a[:low]))
    cut = low > 0 and not a[low - 1].isspace() and any(text[low : low + 1].strip() for text in (a, b))
    return Divergence(low, words - cut)
