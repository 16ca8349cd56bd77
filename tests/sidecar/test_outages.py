"""The database in trouble, under load on a real sidecar: no request fails, and each is in SQL once, or counted.

C28, C29. `tests/bench/outages.py` plays the same for as long as one likes.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.outages import (
    killed,
    killed_in_outage,
    postgres_absent,
    postgres_away,
    postgres_frozen,
    small_disk,
    sqlite_locked,
)
from support.postgres import Cluster, cluster

#: Requests that may be on their way from memory to the database when a sidecar is killed: those of some batches.
_IN_MEMORY = 600


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with cluster() as found:
        yield found


def test_c28_a_locked_sqlite_file_costs_nothing(tmp_path: Path) -> None:
    found = sqlite_locked(tmp_path, 8)
    print(found)
    assert found.failed == found.lost == found.doubled == 0
    assert not any(found.dropped.values())
    # Not the 8 s of the lock.
    assert found.slowest_ms < 4000


def test_c29_postgresql_killed_under_load(tmp_path: Path, server: Cluster) -> None:
    found = postgres_away(tmp_path, server, 6)
    print(found)
    assert found.failed == found.lost == found.doubled == 0
    assert not any(found.dropped.values())


def test_c29_postgresql_absent_at_start(tmp_path: Path, server: Cluster) -> None:
    found = postgres_absent(tmp_path, server, 4)
    print(found)
    assert found.answered
    assert found.failed == found.lost == found.doubled == 0


def test_c29_a_frozen_postgresql(tmp_path: Path, server: Cluster) -> None:
    found = postgres_frozen(tmp_path, server, 5)
    print(found)
    assert found.answered
    assert found.failed == found.lost == found.doubled == 0


def test_c29_a_full_disk_under_the_spool_is_counted(tmp_path: Path, server: Cluster) -> None:
    try:
        with small_disk(tmp_path / "small", 1) as spool:
            found = postgres_away(tmp_path, server, 15, spool=str(spool), queue_records=500)
    except subprocess.CalledProcessError:
        pytest.skip("a file system of its own may not be mounted here")
    print(found)
    assert found.failed == found.doubled == 0
    assert found.lost == sum(found.dropped.values()) > 0


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_killed_sidecar_loses_a_moment_and_doubles_nothing(tmp_path: Path, server: Cluster, kind: str) -> None:
    url = f"sqlite:///{tmp_path}/specwatch.db" if kind == "sqlite" else server.new_url()
    found = killed(tmp_path, url, 4)
    print(found)
    assert found.answered > _IN_MEMORY
    assert found.doubled == 0
    assert found.lost < _IN_MEMORY


def test_a_sidecar_killed_in_an_outage_has_its_spool(tmp_path: Path, server: Cluster) -> None:
    found = killed_in_outage(tmp_path, server, 5)
    print(found)
    assert found.answered > _IN_MEMORY
    assert found.doubled == 0
    assert found.lost < _IN_MEMORY
