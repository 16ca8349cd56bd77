from collections.abc import Iterator
from pathlib import Path

import pytest
from support.postgres import Cluster, cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """The server of this session; stop it only if you start it again."""
    with cluster() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that has no tables yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'specwatch.db'}"
    server: Cluster = request.getfixturevalue("postgres")
    return server.new_url()
