"""What the windows cost: `python tests/bench/windows.py [--records 10000000]`.

Records whose scenarios, models and k never end, as hostile clients send them, and others from a handful of scenarios,
in turn. Given are nanoseconds a record, in tenths of the run (later ones are to be no slower), and the process's
memory after each.
"""

import argparse
import random
import time

from sidecar.probes.truncation import positions
from sidecar.probes.windows import Windows
from sidecar.record import Acceptance, AcceptanceQuality, AcceptanceSource, Arm, Outcome, Record

KINDS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    number = parser.parse_args().records
    made = records()
    windows, now = Windows(), 1.8e9
    before = resident_kib()
    print(f"records {0:12,}   resident {before / 1024:8.1f} MiB")
    for part in range(1, 11):
        begun = time.thread_time_ns()
        for i in range(number // 10):
            now += 0.01  # a hundred a second
            windows.add(made[i % KINDS], now)
        each = (time.thread_time_ns() - begun) / (number // 10)
        print(
            f"records {part * number // 10:12,}   resident {resident_kib() / 1024:8.1f} MiB   {each:6.0f} ns a record"
        )
    slices = list(windows)
    print(f"{len(slices)} windows, {(resident_kib() - before) / len(slices):.1f} KiB each")
    begun = time.perf_counter()
    for _, _, window in slices:
        window.figures()
    print(f"figures {(time.perf_counter() - begun) / len(slices) * 1e6:6.1f} us a window")
    begun = time.perf_counter()
    for _, _, window in slices:
        positions(window)
    print(f"positions {(time.perf_counter() - begun) / len(slices) * 1e6:6.1f} us a window")


def records() -> list[Record]:
    rng, found = random.Random(1), []
    for i in range(KINDS):
        k, strange = rng.choice((3, 4, 8)), i % 2
        at = [rng.randrange(300) for _ in range(k + 1)]
        found.append(
            Record(
                request_id=str(i),
                started_at=0.0,
                instance="bench",
                upstream="speculative",
                arm=Arm.SPECULATIVE,
                endpoint="chat_completions",
                scenario=f"strange {i}" if strange else f"scenario {i % 10}",
                outcome=Outcome.OK,
                acceptance=Acceptance(
                    AcceptanceSource.ENGINE,
                    AcceptanceQuality.OK,
                    None,
                    rng.randrange(1000) if strange else k,
                    sum(at),
                    sum(at) * k,
                    sum(j * n for j, n in enumerate(at)),
                    tuple(at),
                    tuple(at[:-1]),
                    tuple(sum(at[j:]) for j in range(k)),
                ),
                model=f"model {i}" if strange else "model",
                temperature=rng.choice((None, 0.0, 0.2, 0.5, 1.0, 1.5)),
                prompt_tokens=int(rng.lognormvariate(7, 2)) + 1,
                concurrency=rng.randrange(1, 100),
            )
        )
    return found


def resident_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
