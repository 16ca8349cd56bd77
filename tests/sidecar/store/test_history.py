"""Days of rows that come late, are rolled up and deleted: whatever is asked for, as many are counted as there were."""

from random import Random

import pytest
from support.records import record

from sidecar.settings import RETENTION_DAYS
from sidecar.store import queries
from sidecar.store.engine import writing_engine
from sidecar.store.expressions import Filters
from sidecar.store.inserts import Inserts
from sidecar.store.queries import Reader
from sidecar.store.refresh import Refresher, refresh_all
from sidecar.store.retention import Pruner
from sidecar.store.rows import request_row
from sidecar.store.upgrade import upgrade

DAY = 86_400
BEGIN = 1_800_000_000.0
#: Windows and steps, s.
ASKED = [(window, step) for window in (3600, 2 * DAY, 5 * DAY, 12 * DAY) for step in (None, 5400, DAY)]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "days",
    [
        {"requests": 3.0},
        {"requests": 3.0, "minutes": 4.0, "hours": 7.0},
        # Where rows are kept longest, hours and days are that are half deleted.
        {"requests": 5.0, "minutes": 3.1, "hours": 4.0},
    ],
    ids=lambda days: "-".join(f"{name}{number:g}" for name, number in days.items()),
)
def test_all_that_were_are_counted(
    database_url: str, monkeypatch: pytest.MonkeyPatch, days: dict[str, float], seed: int
) -> None:
    chance, engine, reader = Random(seed), writing_engine(database_url), Reader(database_url)
    upgrade(engine)
    inserts, refresher = Inserts(engine), Refresher(engine)
    pruner = Pruner(engine, refresher.reading, dict.fromkeys(RETENTION_DAYS) | days)
    times: list[float] = []
    for day in range(12):
        now = BEGIN + (day + chance.random()) * DAY
        late = [3 * DAY * chance.random() for _ in range(chance.choice((0, 3)))]
        ago = [*late, *(DAY * chance.random() for _ in range(chance.choice((0, 5, 30))))]
        fresh = [round(now - each, 6) for each in ago]
        with engine.begin() as connection:
            inserts.insert("requests", connection, [request_row(record(started_at=at)) for at in fresh])
        times += fresh
        refresh_all(engine, now)
        assert pruner.prune(now, float("inf"), lambda _: None)
        for most in (20_000, -1):
            monkeypatch.setattr(queries, "EXACT_ROWS", most)
            for window, step in chance.sample(ASKED, 4):
                found = reader.acceptance(window, step, None, Filters(), now)
                since, until = found["since"].timestamp(), found["until"].timestamp()
                counted = sum(point["requests"] for point in found["points"])
                assert counted == sum(since <= at < until for at in times), (day, window, step, found["exact"])
    reader.close()
    refresher.close()
    engine.dispose()
