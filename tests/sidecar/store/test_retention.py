"""What is older than it is to be kept goes, and nothing else; in slices, within a time, past who holds it."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert, text
from support.postgres import Cluster
from support.records import NOW, record
from support.rolled import rollups

from sidecar.settings import RETENTION_DAYS
from sidecar.store import retention, schema
from sidecar.store.engine import reading_engine, writing_engine
from sidecar.store.queries import Reader
from sidecar.store.refresh import refresh_all
from sidecar.store.retention import Pruner
from sidecar.store.rows import TABLE_COLUMNS

from .test_rollups import Base

DAY = 86_400
NONE = dict.fromkeys(RETENTION_DAYS)
ALL = tuple(name for name in schema.metadata.tables if name != "shared_states")


class Kept(Base):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url
        self.reading = reading_engine(url)

    def pruner(self, **days: float) -> Pruner:
        return Pruner(self.engine, self.reading, NONE | days)

    def prune(self, **days: float) -> dict[str, int]:
        """All of it, without pauses; the rows that were deleted."""
        pruner = self.pruner(**days)
        expected = pruner.old(NOW)
        assert pruner.prune(NOW, float("inf"), lambda _: None)
        deleted = {name: number for name, number in pruner.pruned.items() if number}
        assert deleted == {name: number for name, number in expected.items() if number}
        assert sum(pruner.old(NOW).values()) == 0
        return deleted

    def empty(self) -> None:
        with self.engine.begin() as connection:
            for name in ALL:
                connection.execute(delete(schema.metadata.tables[name]))

    def add(self, table: str, **values: Any) -> None:
        """A row of defaults, with `values`; `ago` in days is its time."""
        ago = values.pop("ago")
        at = datetime.fromtimestamp(NOW - ago * DAY, UTC)
        columns = {name: default(schema.metadata.tables[table].c[name]) for name in TABLE_COLUMNS[table]}
        with self.engine.begin() as connection:
            connection.execute(insert(schema.metadata.tables[table]), [columns | {"at": at} | values])


def default(column: Any) -> object:
    if column.nullable:
        return None
    if isinstance(column.type, schema.UtcDateTime):
        return datetime.fromtimestamp(NOW, UTC)
    return {} if column.type is schema.JsonText else column.type.python_type()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('retention') / 'specwatch.db'}"
    else:
        server: Cluster = request.getfixturevalue("postgres")
        url = server.new_url()
    made = Kept(url)
    yield made
    made.reading.dispose()
    made.engine.dispose()


@pytest.fixture
def kept(shared: Kept) -> Kept:
    shared.empty()
    return shared


@pytest.mark.parametrize("table", ["texts", "similarities", "counters", "alignments", "audit", "versions"])
def test_rows_go_by_their_age_to_the_second(kept: Kept, table: str) -> None:
    for i, ago in enumerate((0, 2.99, 3 + 1 / DAY, 4, 400)):
        kept.add(table, ago=ago, instance=f"i{i}")
    assert kept.prune(**{table: 3}) == {table: 3}
    assert sorted(row["instance"] for row in kept.rows(schema.metadata.tables[table])) == ["i0", "i1"]


def test_for_ever_is_for_ever(kept: Kept) -> None:
    kept.add("alignments", ago=10_000)
    kept.put([record(started_at=NOW - 1000 * DAY)])
    refresh_all(kept.engine, NOW)
    assert kept.prune() == {}


def test_requests_go_and_their_figures_stay(kept: Kept) -> None:
    items = [record(started_at=NOW - ago * DAY - i) for ago in (0, 29, 32, 40) for i in range(5)]
    kept.put(items)
    refresh_all(kept.engine, NOW)
    before = kept.rows(schema.rollups)
    assert kept.prune(requests=30) == {"requests": 10}
    assert len(kept.rows(schema.requests)) == 10
    # A sidecar that was away brings a row of that time: it counts as little as those that are gone.
    kept.put([record(started_at=NOW - 40 * DAY)])
    refresh_all(kept.engine, NOW)
    assert kept.rows(schema.rollups) == before


def test_rows_wait_for_their_rollups_but_not_for_ever(kept: Kept) -> None:
    kept.put([record(started_at=NOW - ago * DAY) for ago in (40, 50, 70)])
    assert kept.prune(requests=30) == {"requests": 1}
    refresh_all(kept.engine, NOW)
    assert kept.prune(requests=30) == {"requests": 2}
    whole = [row for row in kept.rows(schema.rollups) if row["dimension"] == "whole" and row["span_s"] == 60]
    assert len(whole) == 2


def test_minutes_wait_for_their_hours_and_days_stay(kept: Kept) -> None:
    items = [record(started_at=NOW - ago * DAY) for ago in (1, 100, 800)]
    with kept.engine.begin() as connection:
        connection.execute(insert(schema.rollups), rollups(items))
        hour = datetime.fromtimestamp((NOW - 100 * DAY) // 3600 * 3600, UTC)
        due = {"family": "requests", "span_s": 3600, "at": hour, "instance": "", "stamp": 1}
        connection.execute(insert(schema.rollups_due), [due])
        old = {"at": datetime.fromtimestamp(NOW - 800 * DAY, UTC), "kind": "draft", "pairs": 1, "total": 0.5}
        levels = {"warning": 0, "critical": 0, "unknown": 0, "scores": None}
        connection.execute(insert(schema.similarity_rollups), [{"span_s": 60} | old | levels])
    assert kept.prune(minutes=90, hours=730) == {"minutes": 6, "hours": 5}
    with kept.engine.begin() as connection:
        connection.execute(delete(schema.rollups_due))
    assert kept.prune(minutes=90, hours=730) == {"minutes": 5}
    spans = sorted(row["span_s"] for row in kept.rows(schema.rollups) if row["dimension"] == "whole")
    assert spans == [60, 3600, 3600, DAY, DAY, DAY]


decisions = st.lists(
    st.tuples(
        st.sampled_from((1, 5, 9)),
        st.sampled_from(("here", "there")),
        st.sampled_from(("", "scenario=billing")),
        st.sampled_from(("operator", "engine", "effect", "acceptance")),
    ),
    max_size=12,
)
LAWS = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@LAWS
@given(decisions)
def test_a_restart_finds_the_decisions_in_force(shared: Kept, made: list[tuple[int, str, str, str]]) -> None:
    shared.empty()
    for i, (_, instance, of, trigger) in enumerate(made):
        shared.add("transitions", ago=made[0][0] * 9 - i, instance=instance, slice=of, trigger=trigger, reason=str(i))
    reader = Reader(shared.url)
    before = {instance: reader.last_decisions(instance) for instance in ("here", "there")}
    shared.prune(transitions=0.001)
    assert {instance: reader.last_decisions(instance) for instance in before} == before
    reader.close()
    left = [(row["instance"], row["slice"], row["reason"]) for row in shared.rows(schema.transitions)]
    newest = {(instance, of): str(i) for i, (_, instance, of, _) in enumerate(made)}
    assert {(instance, of, reason) for (instance, of), reason in newest.items()} <= set(left)
    assert len(left) <= 3 * len(newest)


happenings = st.lists(
    st.tuples(
        st.sampled_from(("here", "there")),
        st.sampled_from(("a", "b")),
        st.sampled_from(("firing", "resolved", "notified", "notified", "failed")),
        st.sampled_from(("one", "two")),
    ),
    max_size=14,
)


@LAWS
@given(happenings)
def test_a_restart_finds_the_alerts_that_fire_and_who_was_told(
    shared: Kept, made: list[tuple[str, str, str, str]]
) -> None:
    shared.empty()
    for i, (instance, fingerprint, event, receiver) in enumerate(made):
        of = receiver if event in ("notified", "failed") else ""
        shared.add("alerts", ago=100 - i, instance=instance, fingerprint=fingerprint, event=event, receiver=of)
    reader = Reader(shared.url)
    before = {instance: reader.last_alerts(instance, NOW) for instance in ("here", "there")}
    shared.prune(alerts=0.001)
    assert {instance: reader.last_alerts(instance, NOW) for instance in before} == before
    reader.close()
    assert len(shared.rows(schema.alerts)) <= 2 * 2 + 2 * 2 * 2 + 2 * 2


def test_in_slices_and_within_its_time(kept: Kept) -> None:
    kept.put([record(started_at=NOW - 40 * DAY + i) for i in range(1500)])
    refresh_all(kept.engine, NOW)
    kept.add("texts", ago=40)
    pauses: list[float] = []
    pruner = kept.pruner(requests=30, texts=30)
    assert not pruner.prune(NOW, time.monotonic(), pauses.append)
    assert sum(pruner.pruned.values()) == 0
    assert pruner.prune(NOW, float("inf"), pauses.append)
    assert pruner.pruned["requests"] == 1500
    assert pruner.pruned["texts"] == 1
    assert min(pauses) >= retention._PAUSE_S


def test_a_crash_between_slices_loses_nothing_else(kept: Kept) -> None:
    kept.put([record(started_at=NOW - ago * DAY + i) for ago in (1, 40) for i in range(900)])
    refresh_all(kept.engine, NOW)

    def crash(_: float) -> None:
        raise KeyboardInterrupt

    kept.add("texts", ago=40)
    with pytest.raises(KeyboardInterrupt):
        kept.pruner(requests=30, texts=30).prune(NOW, float("inf"), crash)
    assert 900 <= len(kept.rows(schema.requests)) < 1800
    kept.prune(requests=30, texts=30)
    assert len(kept.rows(schema.requests)) == 900


@pytest.fixture
def cluster(postgres: Cluster) -> Iterator[Kept]:
    made = Kept(postgres.new_url())
    yield made
    made.reading.dispose()
    made.engine.dispose()


def test_a_day_that_is_read_goes_later(cluster: Kept) -> None:
    """Who reads is not waited for, nor are those that come meanwhile."""
    cluster.put([record(started_at=NOW - 40 * DAY)])
    refresh_all(cluster.engine, NOW)
    pruner = cluster.pruner(requests=30)
    with cluster.reading.begin() as reader:
        reader.execute(text("SELECT * FROM requests")).all()
        begun = time.monotonic()
        assert not pruner.prune(NOW, float("inf"))
        assert time.monotonic() - begun < 10
        assert pruner.pruned["requests"] == 0
    assert pruner.prune(NOW, float("inf"))
    assert pruner.pruned["requests"] == 1
    assert cluster.rows(schema.requests) == []


def test_two_that_prune_at_once(cluster: Kept) -> None:
    """The one that comes second leaves it to the first."""
    cluster.add("texts", ago=40)
    other = writing_engine(cluster.url)
    with other.begin() as first:
        first.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": retention._LOCK})
        assert not cluster.pruner(texts=30).prune(NOW, float("inf"))
    assert cluster.prune(texts=30) == {"texts": 1}
    other.dispose()
