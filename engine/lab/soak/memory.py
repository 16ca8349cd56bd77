"""What the processes of an engine and of a sidecar take, and whether that grows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil  # type: ignore[import-untyped]
from scipy import stats  # type: ignore[import-untyped]

from .drift import NoTest, Trend

_MB = 1e6
#: A leak, where memory grows by more than both an hour: what fills a machine within a day, and is not the allocator's
#: own wandering.
LEAK_SHARE, LEAK_MB = 0.05, 20.0
#: Minutes behind the warm-up that it takes to tell.
LEAST = 12


@dataclass(frozen=True, slots=True)
class Tree:
    """A process with all below it: its resident memory in MB (what they share counts for each), and their ids."""

    mb: float
    pids: frozenset[int]


def tree(root: int | None) -> Tree | None:
    """None where there is no such process (any more), or none is named."""
    if root is None:
        return None
    with suppress(psutil.Error):
        process = psutil.Process(root)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        mb, pids = 0.0, set()
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                mb += each.memory_info().rss / _MB
                pids.add(each.pid)
        return Tree(mb, frozenset(pids))
    return None


def listener(url: str) -> int | None:
    """The process of this machine that listens at `url`, or the engine's launcher above it; None where none is seen."""
    parts = urlsplit(url)
    if parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    with suppress(psutil.Error):
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr.port == parts.port and each.pid:
                process = psutil.Process(each.pid)
                for above in process.parents():
                    with suppress(psutil.Error):
                        if "specwatch_engine.launch" in above.cmdline():
                            return int(above.pid)
                return int(each.pid)
    return None


def database_mb(file: Path | None) -> float | None:
    """A SQLite file with what goes with it (write-ahead log); None where there is none."""
    if file is None or not file.exists():
        return None
    return float(sum(each.stat().st_size for each in file.parent.glob(file.name + "*")) / _MB)


def growth(minutes: Sequence[float], mb: Sequence[float]) -> Trend | NoTest:
    """Theil-Sen's slope in MB an hour with its 99 % interval."""
    if len(mb) < LEAST:
        return NoTest(f"too few points: {len(mb)} minutes of the {LEAST} that it takes behind the warm-up")
    slope = stats.theilslopes(np.array(mb), np.array(minutes), 0.99)
    p_value = float(stats.kendalltau(minutes, mb).pvalue)
    low, high = sorted((float(slope.low_slope) * 60, float(slope.high_slope) * 60))
    return Trend(float(slope.slope) * 60, low, high, p_value)


def leaks(minutes: Sequence[float], mb: Sequence[float]) -> bool:
    """Whether memory grows for certain by more than the marks, and did not come to rest: so does its later half."""
    whole = growth(minutes, mb)
    if isinstance(whole, NoTest):
        return False
    half = len(mb) // 2
    limit = limit_mb(mb)
    later = stats.theilslopes(np.array(mb[half:]), np.array(minutes[half:]), 0.99)
    return whole.low > limit and float(later.slope) * 60 > limit


def limit_mb(mb: Sequence[float]) -> float:
    """MB an hour that are too many."""
    return max(LEAK_SHARE * float(np.median(mb)), LEAK_MB)
