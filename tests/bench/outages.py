"""The database in trouble for as long as one likes, under load: requests failed, rows lost, doubled and counted.

    python tests/bench/outages.py --seconds 300

Without root the full disk is left out. Each play has a sidecar, a scripted model and four clients as processes or
threads of their own; PostgreSQL is a throw-away cluster.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from support import outages
from support.outages import Count
from support.postgres import Cluster, cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="length of the outages of PostgreSQL")
    seconds = parser.parse_args().seconds

    with cluster() as server, tempfile.TemporaryDirectory(prefix="specwatch-outages-") as base:
        plays: dict[str, Callable[[Path], Count]] = {
            "SQLite locked for 8 s": lambda folder: outages.sqlite_locked(folder, 8),
            "killed, SQLite": lambda folder: outages.killed(folder, f"sqlite:///{folder}/specwatch.db", 20),
            "killed, PostgreSQL": lambda folder: outages.killed(folder, server.new_url(), 20),
            "killed while PostgreSQL is away": lambda folder: outages.killed_in_outage(folder, server, 20),
            "PostgreSQL absent at start": lambda folder: outages.postgres_absent(folder, server, 30),
            "PostgreSQL frozen for 90 s": lambda folder: outages.postgres_frozen(folder, server, 90),
            f"PostgreSQL away for {seconds:g} s": lambda folder: outages.postgres_away(folder, server, seconds),
            "the same, spool on a disk of 2 MB": lambda folder: _small(folder, server, seconds),
        }
        for number, (name, run) in enumerate(plays.items()):
            folder = Path(base) / str(number)
            folder.mkdir()
            try:
                print(f"{name}: {run(folder)}", flush=True)
            except subprocess.CalledProcessError as error:
                print(f"{name}: not played: {error}", flush=True)


def _small(folder: Path, server: Cluster, seconds: float) -> Count:
    with outages.small_disk(folder / "small", 2) as spool:
        return outages.postgres_away(folder, server, seconds, spool=str(spool))


if __name__ == "__main__":
    main()
