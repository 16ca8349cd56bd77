"""Groups of requests that are added up: numbers, positions, reasons, and the values that sketches are made of."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TypeVar

from sidecar.probes.truncation import MOST_POSITIONS

from .expressions import BUCKETS, OTHER

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

#: Columns of `rollups` that are sums, and whose sums therefore are those of longer spans.
NUMBERS = (
    "requests",
    "streaming",
    "completion_tokens",
    "trusted",
    "timed",
    "fast",
    "counted",
    "verify_steps",
    "draft_tokens",
    "accepted_tokens",
    "aa",
    "ad",
    "dd",
    "listed",
    "listed_steps",
    "truncated_steps",
)
FLOATS = ("aa", "ad", "dd")
SKETCHES = ("latency", "ttft", "tpot")
#: Columns that tell the groups of the base dimension apart.
NAMES = ("upstream", "arm", "outcome", "model", "draft_model", "scenario", "num_speculative_tokens")
#: What tells groups apart, but for the span and the dimension; null where a dimension does not.
KEY = (*NAMES, "bucket")
#: Of `rollups`: all requests by name, all as one, and by bucket.
DIMENSIONS = ("", "whole", *BUCKETS)

#: Groups of the base dimension in one span, and reasons of one group: clients choose names.
MOST_GROUPS = 200
MOST_REASONS = 20

#: The largest number of a database.
_MOST = 2**63 - 1
#: How long a thread may work on in Python before it lets the proxy's have its lock, and how long it takes to wake up.
_AT_A_TIME_S = 0.5e-3
_PAUSE_S = 50e-6


@dataclass(slots=True)
class Group:
    """What is known of some requests. `parts` are of each of SKETCHES: arrays of values, or sketches."""

    numbers: list[float] = field(default_factory=lambda: [0] * len(NUMBERS))
    rejected_at: list[int | None] = field(default_factory=list)
    reached: list[int | None] = field(default_factory=list)
    missing: Counter[str] = field(default_factory=Counter)
    parts: tuple[list[Any], ...] = field(default_factory=lambda: ([], [], []))

    @property
    def requests(self) -> int:
        return int(self.numbers[0])

    def add(self, other: "Group") -> None:
        self.numbers = [ours + theirs for ours, theirs in zip(self.numbers, other.numbers, strict=True)]
        self.rejected_at = _added(self.rejected_at, other.rejected_at)
        self.reached = _added(self.reached, other.reached)
        self.missing.update(other.missing)
        for ours, theirs in zip(self.parts, other.parts, strict=True):
            ours += theirs

    def columns(self, sketch: Callable[[list[Any]], bytes | None]) -> dict[str, object]:
        """The columns of `rollups` but for those that say of what it is; `sketch` is made of parts."""
        found: dict[str, object] = {
            name: value if name in FLOATS else min(round(value), _MOST)
            for name, value in zip(NUMBERS, self.numbers, strict=True)
        }
        positions = list(zip_longest(self.rejected_at[:MOST_POSITIONS], self.reached[:MOST_POSITIONS]))
        # As long as the longest draft of these requests: those of others may be longer.
        while positions and positions[-1] == (None, None):
            positions.pop()
        found["rejected_at"], found["reached"] = map(list, zip(*positions, strict=True)) if positions else (None, None)
        found["missing"] = dict(self.missing.most_common(MOST_REASONS)) or None
        for name, parts in zip(SKETCHES, self.parts, strict=True):
            found[name] = sketch(parts) if parts else None
        return found


def _added(ours: Sequence[int | None], theirs: Sequence[int | None]) -> list[int | None]:
    """Element by element; None is what is not known."""
    pairs = zip_longest(ours, theirs)
    return [b if a is None else a if b is None else a + b for a, b in pairs]


def added_up(groups: Iterable[tuple[K, Group]]) -> dict[K, Group]:
    """One group a key."""
    found: dict[K, Group] = {}
    for key, group in groups:
        if key in found:
            found[key].add(group)
        else:
            found[key] = group
    return found


def pooled(groups: dict[tuple[Any, ...], Group]) -> dict[tuple[Any, ...], Group]:
    """MOST_GROUPS groups of the base dimension at most: scenario and model of the smallest are pooled as OTHER.

    More only where there are as many without scenario and model.
    """
    if len(groups) <= MOST_GROUPS:
        return groups
    ordered = sorted(groups, key=lambda key: (-groups[key].requests, *map(str, key)))
    kept, rest = len(ordered), set[tuple[Any, ...]]()
    while kept and kept + len(rest) > MOST_GROUPS:
        kept -= 1
        rest.add(_without_names(ordered[kept]))
    return added_up((key if i < kept else _without_names(key), groups[key]) for i, key in enumerate(ordered))


def _without_names(key: tuple[Any, ...]) -> tuple[Any, ...]:
    upstream, arm, outcome, _, draft_model, _, *rest = key
    return upstream, arm, outcome, OTHER, draft_model, OTHER, *rest


def gently(items: Iterable[T]) -> Iterator[T]:
    """`items`, with pauses where there are other threads: one waits 5 ms for Python's lock while another works on."""
    begun = time.monotonic()
    for item in items:
        yield item
        if time.monotonic() - begun > _AT_A_TIME_S:
            if threading.active_count() > 1:
                time.sleep(_PAUSE_S)
            begun = time.monotonic()
