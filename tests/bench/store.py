"""What writing costs: `python tests/bench/store.py [--rows 300000] [--database sqlite|postgresql|both]`.

Realistic records (k = 4, every figure known, 20 to 200 verify steps, a handful of names, ids that are random) go
through `Writer`, as fast as the database takes them, into a SQLite file and a PostgreSQL of its own with the settings
it has by default (fsync on; `--no-fsync` for the difference). Given are rows a second, the processor time of the
writer's thread and of the server, how long another thread of Python, which does nothing but look at the clock, stood
still (a proxy would), and how many bytes a row takes.
"""

import argparse
import random
import sqlite3
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import psycopg
from msgspec.structs import replace

sys.path.append(str(Path(__file__).parents[1]))
from support import postgres
from support.records import figures, record

from sidecar.record import Record
from sidecar.store.writer import Writer

_TEMPLATES = 5000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rate", type=float, help="records put a second; without, as fast as they are taken")
    parser.add_argument("--database", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--no-fsync", action="store_true")
    given = parser.parse_args()
    if given.database != "postgresql":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bench.db"
            print("SQLite")
            measure(f"sqlite:///{path}", given.rows, given.rate)
            sizes_of_sqlite(path, given.rows)
    if given.database != "sqlite":
        if not given.no_fsync:
            postgres._NOT_DURABLE = ()
        with postgres.cluster() as server:
            print(f"PostgreSQL, fsync {'off' if given.no_fsync else 'on'}")
            url = server.new_url()
            before = server_seconds(server.folder)
            measure(url, given.rows, given.rate)
            time.sleep(0.5)  # until the server has taken leave of the process that served us
            used = server_seconds(server.folder) - before
            print(f"  {used / given.rows * 1e6:8.1f} us of the server's processor time a row")
            sizes_of_postgresql(url, given.rows)


def measure(url: str, rows: int, rate: float | None) -> None:
    templates = list(records())
    writer = Writer(url, capacity=1_000_000)
    writer.start()
    while not writer.healthy:
        time.sleep(0.01)
    clock = Clock()
    clock.start()
    processor = thread_seconds("specwatch-writer")
    begun = time.monotonic()
    fed = 0
    while writer.written < rows:
        due = rows if rate is None else min(rows, int((time.monotonic() - begun) * rate))
        while fed < due and writer.queue_length < 8000:
            now = time.time()
            for _ in range(min(100, due - fed)):
                name = uuid.uuid4().hex
                ids = {"request_id": name, "reply_id": f"chatcmpl-{name}"}
                writer.put(replace(templates[fed % _TEMPLATES], started_at=now, **ids))
                now += 1e-5
                fed += 1
        time.sleep(0.001)
    took = time.monotonic() - begun
    processor = thread_seconds("specwatch-writer") - processor
    clock.stop()
    assert (writer.dropped, writer.refused) == (0, 0)
    writer.close(10)
    print(f"  {rows} rows in {took:.1f} s: {rows / took:.0f} rows/s")
    print(f"  {processor / rows * 1e6:8.1f} us of the writer's processor time a row, {processor / took:.0%} of a core")
    print(f"  stood still: {clock.told(took)}")


class Clock:
    """A thread that wakes up each millisecond: how late it is, it waited for a processor or for Python's lock."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def told(self, took: float) -> str:
        late = sorted(self._late)
        at = {share: late[int(len(late) * share)] * 1e3 for share in (0.5, 0.99, 0.999)}
        ends = ", ".join(f"p{share * 100:g} {ms:.2f} ms" for share, ms in at.items())
        return f"{ends}, longest {late[-1] * 1e3:.1f} ms, {sum(late) / took:.1%} of the time in all"

    def _run(self) -> None:
        while not self._stop.is_set():
            begun = time.perf_counter()
            time.sleep(0.001)
            self._late.append(time.perf_counter() - begun - 0.001)


def records() -> list[Record]:
    found = random.Random(7)
    made = []
    for _ in range(_TEMPLATES):
        steps = found.randint(20, 200)
        parts = [found.random() for _ in range(5)]
        histogram = tuple(round(steps * part / sum(parts)) for part in parts)
        tokens = sum((number + 1) * count for number, count in enumerate(histogram))
        told = [f"4{number}" for number, count in enumerate(histogram) for _ in range(count)]
        found.shuffle(told)
        made.append(
            record(
                instance="bench-1",
                acceptance=figures(histogram, steps="".join(["00", *told])),
                scenario=found.choice(("billing", "code", "chat", "fault_report")),
                stream=found.random() < 0.7,
                finish_reason="stop",
                temperature=found.choice((0.0, 0.2, 0.7, 1.0)),
                prompt_tokens=found.randint(50, 4000),
                completion_tokens=tokens,
                ttft_ms=found.uniform(20, 200),
                latency_ms=found.uniform(200, 4000),
                tpot_ms=found.uniform(4, 20),
                max_chunk_gap_ms=found.uniform(5, 90),
                queue_ms=found.uniform(0, 5),
                concurrency=found.randint(1, 40),
                fingerprint="0.32.0 draft k=4",
                bytes_in=found.randint(300, 9000),
                bytes_out=found.randint(800, 60_000),
            )
        )
    return made


def thread_seconds(name: str) -> float:
    """Processor time of a thread of this process."""
    (thread,) = (thread for thread in threading.enumerate() if thread.name == name)
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))  # type: ignore[arg-type]


def server_seconds(folder: Path) -> float:
    """Processor time of a cluster's processes that are still there, and of those that have ended."""
    (pid, *_) = (folder / "data/postmaster.pid").read_text().split()
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if stat.parent.name == pid:
            total += sum(map(int, fields[11:15]))
        elif fields[1] == pid:
            total += sum(map(int, fields[11:13]))
    return total / 100


def sizes_of_sqlite(path: Path, rows: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (pages,), (size,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    print(f"  {pages * size / rows:8.0f} bytes a row in all")
    try:
        found = connection.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC").fetchall()
    except sqlite3.OperationalError:
        found = []  # built without it
    for name, taken in found[:4]:
        print(f"  {taken / rows:8.0f} bytes a row: {name}")
    connection.close()


def sizes_of_postgresql(url: str, rows: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT relname, pg_relation_size(oid) FROM pg_class WHERE relkind IN ('r', 'i', 't') "
            "AND relnamespace = 'public'::regnamespace ORDER BY 2 DESC LIMIT 4"
        ).fetchall()
        (written,) = connection.execute("SELECT sum(wal_bytes) FROM pg_stat_wal").fetchone() or (0,)
    for name, taken in found:
        print(f"  {taken / rows:8.0f} bytes a row: {name}")
    print(f"  {int(written) / rows:8.0f} bytes a row written ahead")


if __name__ == "__main__":
    main()
