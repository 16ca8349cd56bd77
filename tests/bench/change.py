"""How well `probes.change` tells a drop: `python tests/bench/change.py [--streams 40] [--longest 20000]`.

Synthetic streams: each request has a p of its own (beta distributed, by the intraclass correlation), a length
(lognormal, over two orders) and k = 4. Given are requests between false alarms while nothing changes (a stream without
one counts with its whole length, so that the mean is a lower bound), and requests until a drop is told, beside those
until the pooled p of the last 100 falls below 0.65. `early`: drops whose alarm was there before they were.
"""

import argparse
import random
import statistics
from collections.abc import Iterator

from sidecar.probes.acceptance import Counted, CountWindow, one
from sidecar.probes.change import REFERENCE, Change

K = 4
MARK = 0.65


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--longest", type=int, default=20_000)
    options = parser.parse_args()
    print("pooled p   correlation   requests between false alarms (alarms in requests)")
    for p in (0.70, 0.75, 0.85):
        for correlation in (0.02, 0.1, 0.3):
            runs = [false_alarm(p, correlation, seed, options.longest) for seed in range(options.streams)]
            alarms, requests = sum(alarm for alarm, _ in runs), sum(length for _, length in runs)
            print(f"{p:8.2f}   {correlation:11.2f}   {requests / max(alarms, 1):8.0f} ({alarms} in {requests:,})")
    print("from   to     correlation   told after (median, 90 %)   window after (median, 90 %)   early")
    for before, after in ((0.75, 0.60), (0.75, 0.50), (0.75, 0.30), (0.85, 0.60)):
        for correlation in (0.02, 0.1, 0.3):
            drops = [drop(before, after, correlation, seed) for seed in range(5 * options.streams)]
            both = [each for each in drops if each is not None]
            told, window = (sorted(each[i] for each in both) for i in (0, 1))
            print(
                f"{before:.2f}   {after:.2f}   {correlation:11.2f}"
                f"   {statistics.median(told):10.0f} {told[len(told) * 9 // 10]:6d}         "
                f"   {statistics.median(window):12.0f} {window[len(window) * 9 // 10]:6d}"
                f"{len(drops) - len(both):22d}"
            )


def false_alarm(p: float, correlation: float, seed: int, longest: int) -> tuple[bool, int]:
    """Whether there was one, and after how many requests."""
    change, rows = Change(), requests(random.Random(seed), p, correlation)
    for i in range(longest):
        row = next(rows)
        if change.add(row.accepted_tokens, row.draft_tokens):
            return True, i + 1 - REFERENCE
    return False, longest - REFERENCE


def drop(before: float, after: float, correlation: float, seed: int, limit: int = 3000) -> tuple[int, int] | None:
    """Requests until a drop is told, and until the window shows it; None if an alarm came before the drop."""
    rng = random.Random(seed)
    change, window = Change(), CountWindow()
    rows = requests(rng, before, correlation)
    for _ in range(300):
        row = next(rows)
        window.put(row)
        if change.add(row.accepted_tokens, row.draft_tokens):
            return None
    told = shown = None
    rows = requests(rng, after, correlation)
    for i in range(1, limit):
        row = next(rows)
        window.put(row)
        if change.add(row.accepted_tokens, row.draft_tokens) and told is None:
            told = i
        if shown is None and (window.figures().p or 0) < MARK:
            shown = i
        if told and shown:
            break
    return told or limit, shown or limit


def requests(rng: random.Random, pooled: float, correlation: float) -> Iterator[Counted]:
    """Requests of a stream whose pooled p is near `pooled`; accepted tokens of a step stop at the first rejection."""
    mean = _per_token(pooled)
    size = 1 / correlation - 1
    while True:
        own = rng.betavariate(mean * size, (1 - mean) * size)
        steps = 1 + int(rng.lognormvariate(3, 1))
        yield one(steps, steps * K, sum(_accepted(rng, own) for _ in range(steps)), K)


def _accepted(rng: random.Random, p: float) -> int:
    for i in range(K):
        if rng.random() >= p:
            return i
    return K


def _per_token(pooled: float) -> float:
    """The chance of a token that gives a pooled p of steps of K tokens."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(1, K + 1)) / K < pooled else (low, middle)
    return low


if __name__ == "__main__":
    main()
