"""Ten million requests: how long every query of `/api/v1` takes, and in what memory.

    python tests/bench/years.py fill --database-url sqlite:////tmp/years.db --rows 10000000 --days 30
    python tests/bench/years.py ask --database-url sqlite:////tmp/years.db
    python tests/bench/years.py ask --database-url sqlite:////tmp/years.db --exact     # as without rollups

`fill` makes the rows in SQL, of some thousand different ones, spread evenly over the days before now, and then the
rollups. `ask` starts a sidecar on them and asks it by HTTP, each query several times. PostgreSQL is whatever the URL
names. The dashboard's pages over the same rows: `board.py`.
"""

import argparse
import contextlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from sqlalchemy import Connection, text

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from support.chain import free_ports
from support.records import figures, record

from sidecar.record import Arm, Outcome, Record
from sidecar.store.engine import writing_engine
from sidecar.store.inserts import Inserts
from sidecar.store.keeper import catch_up
from sidecar.store.partitions import ensure
from sidecar.store.rows import COLUMNS, TABLE_COLUMNS, SimilarityRow, request_row, similarity_row
from sidecar.store.upgrade import upgrade

_TEMPLATES = 5000
_SCENARIOS = ("chat", "code", "summarise", "translate", "billing", "fault_report")
_DAY = 86_400
#: Sidecars with `--exact` read rows for every window.
_EXACT = "import sidecar.store.queries as q; q.EXACT_ROWS = 10**12; from sidecar.cli import main; main()"


def templates() -> Iterator[Record]:
    found = random.Random(7)
    for number in range(_TEMPLATES):
        scenario = found.choices(_SCENARIOS, (40, 20, 15, 15, 9, 1))[0]
        arm = found.choices((Arm.SPECULATIVE, Arm.BASELINE, Arm.AUTOREGRESSIVE), (95, 3, 2))[0]
        outcome = found.choices((Outcome.OK, Outcome.CLIENT_ABORT, Outcome.UPSTREAM_ERROR), (970, 25, 5))[0]
        steps, p = found.randint(10, 120), 0.5 + 0.06 * _SCENARIOS.index(scenario)
        lengths = found.choices(range(5), [p**n * (1 - p if n < 4 else 1) for n in range(5)], k=steps)
        histogram = tuple(map(lengths.count, range(5)))
        speculates = arm is Arm.SPECULATIVE and outcome is Outcome.OK
        latency = found.lognormvariate(6.0, 0.6) * (1.0 if arm is Arm.SPECULATIVE else 1.9)
        yield record(
            request_id=f"template-{number}",
            started_at=float(number),
            arm=arm,
            scenario=scenario,
            outcome=outcome,
            stream=found.random() < 0.8,
            status=200,
            temperature=found.choice((None, 0.0, 0.2, 0.7, 1.0)),
            prompt_tokens=int(found.lognormvariate(6.5, 1.1)),
            completion_tokens=steps + sum(histogram[n] * n for n in range(5)),
            **({"acceptance": figures(histogram)} if speculates else {}),
            latency_ms=latency,
            ttft_ms=latency * found.uniform(0.05, 0.3),
            tpot_ms=found.uniform(4, 20),
            concurrency=min(80, int(found.expovariate(0.12)) + 1),
            fingerprint="0.32.0 draft k=4",
            bytes_in=found.randint(300, 9000),
            bytes_out=found.randint(800, 60_000),
        )


def fill(database_url: str, rows: int, days: int) -> None:
    upgrade(database_url)
    engine = writing_engine(database_url)
    inserts = Inserts(engine)
    begun = time.monotonic()
    end = datetime.now(UTC).replace(microsecond=0)
    per_day = rows // days
    with engine.connect() as connection:
        with connection.begin():
            inserts.insert("requests", connection, map(request_row, templates()))
            _template_table(connection, "requests", COLUMNS)
            pairs = (
                SimilarityRow(0.5 + n, "bench", f"t-{n}", "draft", 0.7 + 0.3 * (n % 97) / 97, "ok", None, "m", False)
                for n in range(_TEMPLATES)
            )
            inserts.insert("similarities", connection, map(similarity_row, pairs))
            _template_table(connection, "similarities", TABLE_COLUMNS["similarities"])
        for day in range(days, 0, -1):
            start = end - timedelta(days=day)
            with connection.begin():
                _make(connection, inserts, "requests", COLUMNS, "started_at", start, per_day)
                pairs_columns = TABLE_COLUMNS["similarities"]
                _make(connection, inserts, "similarities", pairs_columns, "at", start, min(per_day // 20, 80_000))
            print(f"\r{days - day + 1} of {days} days, {time.monotonic() - begun:.0f} s", end="", flush=True)
        with connection.begin():
            for family, column in (("requests", "started_at"), ("similarities", "at")):
                connection.execute(text(f"INSERT INTO rollups_due {_due(connection, family, column)}"))
    print(f"\n{rows} rows in {time.monotonic() - begun:.0f} s")
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    engine.dispose()
    begun = time.monotonic()
    catch_up(database_url)
    print(f"rollups in {time.monotonic() - begun:.0f} s")


def _template_table(connection: Connection, table: str, columns: tuple[str, ...]) -> None:
    numbered = f"SELECT row_number() OVER () - 1 AS n, {', '.join(columns)} FROM {table}"
    connection.execute(text(f"CREATE TEMPORARY TABLE t_{table} AS {numbered}"))
    connection.execute(text(f"CREATE INDEX t_{table}_n ON t_{table} (n)"))
    connection.execute(text(f"DELETE FROM {table}"))
    connection.execute(text("DELETE FROM rollups_due"))


def _make(
    connection: Connection,
    inserts: Inserts,
    table: str,
    columns: tuple[str, ...],
    time_column: str,
    start: datetime,
    count: int,
) -> None:
    """`count` rows over the day that begins at `start`."""
    if connection.dialect.name == "postgresql":
        ensure(connection, {(start + timedelta(days=more)).date().isoformat() for more in (0, 1)})
        at = "CAST(:start AS timestamptz) + i * :gap * interval '1 second'"
        series, key = "generate_series(0, :count - 1) AS s(i)", "md5(i::text || :start)"
    else:
        at = "strftime('%Y-%m-%d %H:%M:%f', julianday(:start) + i * :gap / 86400.0) || '000'"
        series = (
            "(WITH RECURSIVE s(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM s WHERE i < :count - 1) SELECT i FROM s)"
        )
        key = "lower(hex(randomblob(12)))"
    made = {time_column: at, "request_id": f"'cmpl-' || {key}"}
    values = ", ".join(made.get(name, f"t.{name}") for name in columns)
    connection.execute(
        text(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {series} "
            f"JOIN t_{table} AS t ON t.n = (CAST(i AS BIGINT) * 7919) % {_TEMPLATES} ORDER BY i"
        ),
        {"start": start.isoformat(" ").removesuffix("+00:00"), "gap": _DAY / count, "count": count},
    )


def _due(connection: Connection, family: str, column: str) -> str:
    postgresql = connection.dialect.name == "postgresql"
    minute = f"date_trunc('minute', {column})" if postgresql else f"substr({column}, 1, 16) || '\\:00.000000'"
    return f"SELECT DISTINCT '{family}', 60, {minute}, '', 0 FROM {family}"


WINDOWS = {"1h": "1m", "24h": "15m", "7d": "2h", "30d": "6h"}
_BY = ("scenario", "model", "temperature", "prompt_length", "concurrency", "k")


def queries() -> Iterator[tuple[str, dict[str, str]]]:
    for window, step in WINDOWS.items():
        yield "summary", {"window": window}
        yield "summary", {"window": window, "scenario": "code"}
        yield "latency/distribution", {"window": window}
        yield "latency/distribution", {"window": window, "scenario": "code"}
        for name in ("acceptance", "truncation", "latency", "traffic"):
            yield name, {"window": window}
            yield name, {"window": window, "step": step}
            yield name, {"window": window, "step": step, "by": "scenario"}
            yield name, {"window": window, "step": step, "scenario": "code"}
            for by in _BY:
                yield name, {"window": window, "by": by}
        yield "similarity", {"window": window}
        yield "similarity", {"window": window, "step": step}
        yield "similarity", {"window": window, "by": "scenario"}
        yield "similarity/histogram", {"window": window}
        yield "similarity/pairs", {"window": window}
        yield "events", {"window": window}
    yield "requests", {}
    yield "requests", {"limit": "500"}
    yield "requests", {"scenario": "fault_report", "outcome": "upstream_error"}
    yield "requests", {"scenario": "nobody"}
    yield "requests", {"truncated_at": "4"}
    yield "requests", {"p_below": "0.01"}
    yield "requests", {"latency_over_ms": "100000"}
    yield "requests", {"reply_id": "nobody's"}
    yield "requests/no-such-id", {}
    for name in ("fallback", "alerts", "windows", "alignment", "quality", "engine"):
        yield name, {}


@contextmanager
def sidecar(database_url: str, folder: Path, *, exact: bool = False) -> Iterator[tuple[str, int]]:
    """Gives the address of its admin port, and its process id."""
    proxy, admin = free_ports(2)
    names = ("requests", "similarities", "minutes", "hours")
    config = folder / "specwatch.yaml"
    config.write_text(
        f"upstream: http://127.0.0.1:9\nlisten: 127.0.0.1:{proxy}\nadmin: 127.0.0.1:{admin}\nsimilarity: none\n"
        f"database_url: {database_url}\nspool: {folder}/spool\nadmin_per_second: 1000\n"
        f"retention_days: {{{', '.join(f'{name}: none' for name in names)}}}\n"
    )
    run = ["-c", _EXACT] if exact else ["-m", "sidecar.cli"]
    process = subprocess.Popen([sys.executable, *run, "sidecar", "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{admin}"
        for _ in range(300):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{address}/readyz").json()["database"] == "ok":
                    break
            time.sleep(0.1)
        yield address, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def ask(database_url: str, repeats: int, only: str, *, exact: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, sidecar(database_url, Path(folder), exact=exact) as (address, pid):
        client = httpx.Client(base_url=f"{address}/api/v1/", timeout=60)
        print(f"resident memory at the start: {resident(pid)} MiB")
        slow: list[tuple[float, float, float, str]] = []
        everything: list[float] = []
        for path, query in queries():
            name = f"{path} {' '.join(f'{k}={v}' for k, v in query.items())}"
            if only not in name:
                continue
            took, status = [], 0
            for _ in range(repeats):
                begun = time.monotonic()
                status = client.get(path, params=query).status_code
                took.append(1000 * (time.monotonic() - begun))
            everything += took
            slow.append((_p95(took), statistics.median(took), took[0], f"{name} -> {status}"))
        for p95, median, first, name in sorted(slow, reverse=True)[:25]:
            print(f"p95 {p95:7.0f} ms, median {median:7.0f}, first {first:7.0f}  {name}")
        over = sum(each[0] > 1000 for each in slow)
        print(f"{len(slow)} queries, {over} of them with a p95 over 1 s; all together p50 ", end="")
        print(
            f"{statistics.median(everything):.0f} ms, p95 {_p95(everything):.0f} ms, longest {max(everything):.0f} ms"
        )
        print(f"resident memory at the end: {resident(pid)} MiB, at most {resident(pid, 'VmHWM')} MiB")


def _p95(values: list[float]) -> float:
    return sorted(values)[-(-95 * len(values) // 100) - 1]


def resident(pid: int, name: str = "VmRSS") -> int:
    """Memory of a process, MiB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fill", "ask"))
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--only", default="", help="ask what has this in its name, as `summary window=7d`")
    parser.add_argument("--exact", action="store_true", help="read rows for every window, as without rollups")
    given = parser.parse_args()
    match given.what:
        case "fill":
            fill(given.database_url, given.rows, given.days)
        case "ask":
            ask(given.database_url, given.repeats, given.only, exact=given.exact)


if __name__ == "__main__":
    main()
