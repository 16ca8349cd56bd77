"""What happened, of several tables: each event once, in one order, however it is paged and whatever comes meanwhile."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete
from support.postgres import Cluster
from support.records import NOW

from alerts.model import Alert, Event, Happening, Status
from sidecar.store import events, schema
from sidecar.store.cursor import BadCursor, write_cursor
from sidecar.store.events import Happened, Kind
from sidecar.store.lab import _upsert, _values
from sidecar.store.rows import (
    MovedToken,
    Row,
    Transition,
    VersionRow,
    alert_row,
    alignment_row,
    transition_row,
    version_row,
)
from sidecar.store.writer import Writer

from .test_queries import Store

TABLES = (schema.transitions, schema.alerts, schema.versions, schema.alignments, schema.lab_runs)
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class LabRun(NamedTuple):
    """A run of the lab, still under way where `ended_at` is None; else Unix time in seconds."""

    id: str
    ended_at: float | None


class Events(Store):
    def begin(self) -> None:
        with self._engine.begin() as connection:
            for table in TABLES:
                connection.execute(delete(table))

    def add(self, items: Sequence[Any]) -> None:
        with self._engine.begin() as connection:
            for item in items:
                if isinstance(item, LabRun):
                    _upsert(connection, _values(run_json(item)))
                    continue
                table, row = row_of(item)
                self._inserts.insert(table, connection, [row])

    def all(self, kinds: frozenset[Kind] = frozenset(), since: float = NOW - 1000) -> list[Happened]:
        found, following = self.reader.events(utc(since), None, kinds, 500)
        assert following is None
        return found


def run_json(run: LabRun) -> dict[str, Any]:
    state = "running" if run.ended_at is None else "done"
    ends = {"started_at": NOW - 5, "ended_at": run.ended_at}
    found = {"verdict": "rejected", "summary": {"title": "T", "reasons": [f"why {run.id}"]}, "folder": "/f"}
    return {"id": run.id, "kind": "qualify", "state": state} | ends | found


def row_of(item: Any) -> tuple[str, Row]:
    match item:
        case Transition():
            return "transitions", transition_row(item)
        case Event():
            return "alerts", alert_row(item)
        case VersionRow():
            return "versions", version_row(item)
        case MovedToken():
            return "alignments", alignment_row(item)
    raise AssertionError(item)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Events]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('events') / 'specwatch.db'}"
    else:
        server: Cluster = request.getfixturevalue("postgres")
        url = server.new_url()
    found = Events(url)
    yield found
    found.close()


@pytest.fixture
def store(shared_store: Events) -> Events:
    shared_store.begin()
    return shared_store


# ---- what is an event


def start(at: float, version: str = "1", instance: str = "a", **settings: str) -> list[VersionRow]:
    told = [VersionRow(NOW + at, instance, "", f"settings.{name}", value) for name, value in settings.items()]
    return [*told, VersionRow(NOW + at, instance, "", "specwatch", version)]


def seen(at: float, name: str, value: str, upstream: str = "u", instance: str = "a") -> list[VersionRow]:
    return [VersionRow(NOW + at, instance, upstream, name, value)]


def versions(store: Events) -> list[tuple[Any, ...]]:
    """Oldest first: seconds, name, value, value before."""
    names = ("name", "value", "before")
    found = [(each.row["at"].timestamp() - NOW, *(each.row[name] for name in names)) for each in store.all()]
    return found[::-1]


CASES: dict[str, tuple[list[VersionRow], list[tuple[Any, ...]]]] = {
    "a first start changes no setting": (start(1, below="0.6"), [(1, "specwatch", "1", None)]),
    "a restart is told, and nothing else": (
        [*start(1, below="0.6"), *seen(2, "vllm", "0.32"), *start(3, below="0.6"), *seen(4, "vllm", "0.32")],
        [(1, "specwatch", "1", None), (2, "vllm", "0.32", None), (3, "specwatch", "1", "1")],
    ),
    "another version and another setting": (
        [*start(1, below="0.6"), *start(2, "2", below="0.5")],
        [(1, "specwatch", "1", None), (2, "settings.below", "0.5", "0.6"), (2, "specwatch", "2", "1")],
    ),
    "a setting that was at its default": (
        [*start(1), *start(2, below="0.6")],
        [(1, "specwatch", "1", None), (2, "settings.below", "0.6", None), (2, "specwatch", "1", "1")],
    ),
    "to its default and back": (
        [*start(1, below="0.6", above="1"), *start(2, above="1"), *start(3, above="1"), *start(4, below="0.6")],
        [
            (1, "specwatch", "1", None),
            (2, "settings.below", None, "0.6"),
            (2, "specwatch", "1", "1"),
            (3, "specwatch", "1", "1"),
            (4, "settings.above", None, "1"),
            (4, "settings.below", "0.6", None),
            (4, "specwatch", "1", "1"),
        ],
    ),
    "the end of a long list": (
        [*start(1, names="a" * 900 + "b"), *start(2, names="a" * 900 + "c")],
        [
            (1, "specwatch", "1", None),
            (2, "settings.names", "a" * 900 + "c", "a" * 900 + "b"),
            (2, "specwatch", "1", "1"),
        ],
    ),
    "instances, upstreams and names apart": (
        [
            *start(1, below="0.6"),
            *start(2, instance="b"),
            *seen(3, "vllm", "1"),
            *seen(4, "vllm", "1", upstream="w"),
            *seen(5, "vllm", "1", instance="b"),
            *seen(6, "draft_model", "1"),
            *seen(7, "vllm", "2"),
            *seen(8, "vllm", "1"),
        ],
        [
            (1, "specwatch", "1", None),
            (2, "specwatch", "1", None),
            *((at, name, "1", None) for at, name in ((3, "vllm"), (4, "vllm"), (5, "vllm"), (6, "draft_model"))),
            (7, "vllm", "2", "1"),
            (8, "vllm", "1", "2"),
        ],
    ),
    "an upstream that is called as the sidecar's own": (
        [*start(1), *start(2), *seen(3, "settings.x", "1"), *seen(4, "specwatch", "1"), *seen(5, "settings.x", "1")],
        [
            (1, "specwatch", "1", None),
            (2, "specwatch", "1", "1"),
            (3, "settings.x", "1", None),
            (4, "specwatch", "1", None),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_versions(store: Events, name: str) -> None:
    rows, expected = CASES[name]
    store.add(rows)
    assert versions(store) == expected


def test_what_was_before_the_window_is_known(store: Events) -> None:
    store.add(
        [*start(1, below="0.6"), *seen(1, "vllm", "1"), *start(50), *seen(51, "vllm", "1"), *seen(52, "vllm", "2")]
    )
    found = store.all(since=NOW + 50)
    told = [(each.row["name"], each.row["value"], each.row["before"]) for each in found]
    assert told == [("vllm", "2", "1"), ("specwatch", "1", "1"), ("settings.below", None, "0.6")]


def test_settings_of_many_starts_are_looked_up_one_by_one(store: Events) -> None:
    """By a join, a PostgreSQL that had not looked at the table yet took 25 s for those of 500 starts."""
    store.add([row for at in range(100) for row in start(at, one="1", other="2")])
    explain = "EXPLAIN " if store._engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "
    with store._engine.begin() as connection:
        sql = events._ended().compile(connection, compile_kwargs={"literal_binds": True}).string
        plan = connection.exec_driver_sql(explain + sql).all()
    assert "Anti Join" not in str(plan)


ALERT = Alert({"alertname": "Slow", "severity": "critical", "instance": "a"}, {"summary": "it is"}, Status.FIRING, NOW)
MOVED = MovedToken(NOW, "a", "u", "d", "same_text", 4, 5, "x", "y", 3, 0.75, NOW - 5)


def test_kinds(store: Events) -> None:
    """Notifications are told by /alerts alone."""
    store.add(
        [
            Transition(
                NOW, "a", "auto", "speculative", "autoregressive", "slow", "scenario=x", "acceptance", {"p": 0.5}
            ),
            Transition(NOW + 1, "a", "auto", "speculative", "speculative", "cap 2", trigger="engine"),
            Transition(NOW + 2, "a", "auto", "autoregressive", "ineffective", "drafted", trigger="effect"),
            *(Event(NOW + 3 + i, what, ALERT, "hook" * (i > 1)) for i, what in enumerate(Happening)),
            MOVED,
            *start(9),
            LabRun("a", NOW + 10),
            LabRun("b", None),
        ]
    )
    kinds: tuple[Kind, ...] = ("switch", "engine", "alert", "alignment", "version", "lab")
    assert [len(store.all(frozenset((kind,)))) for kind in kinds] == [2, 1, 2, 1, 1, 1]
    order = ["lab", "version", "alert", "alert", "switch", "engine", "switch", "alignment"]
    assert [each.kind for each in store.all()] == order
    assert len(store.all(frozenset(("switch", "engine")))) == 3
    (switch,) = store.all(frozenset(("switch",)))[1:]
    assert switch.row["evidence"] == {"p": 0.5}
    assert [each.row["event"] for each in store.all(frozenset(("alert",)))] == ["resolved", "firing"]
    (ended,) = store.all(frozenset(("lab",)))
    assert (ended.row["at"], ended.row["run"], ended.row["reasons"]) == (utc(NOW + 10), "a", ["why a"])


# ---- pages

times = st.sampled_from((0.0, 0.0, 1e-6, 1.0, 2.0, 60.0)).map(lambda at: NOW + at)
names = st.sampled_from("abc")
items = st.one_of(
    st.builds(
        lambda at, name, trigger: Transition(at, name, "auto", "speculative", "probing", "why", name, trigger),
        times,
        names,
        st.sampled_from(("engine", "effect", "acceptance")),
    ),
    st.builds(
        lambda at, name, what: Event(at, what, Alert(ALERT.labels | {"group": name}, {}, Status.FIRING, NOW)),
        times,
        names,
        st.sampled_from((Happening.FIRING, Happening.RESOLVED, Happening.FAILED)),
    ),
    st.builds(VersionRow, times, names, st.sampled_from(("u", "")), names, names),
    st.builds(
        lambda at, name: VersionRow(at, name, "", "specwatch", "1"),
        times,
        names,
    ),
    st.builds(lambda at, name: VersionRow(at, name, "", f"settings.{name}", "1"), times, names),
    st.builds(
        lambda at, i: MovedToken(at, "a", "u", "d", "same_text", i, 5, "x", "y", 3, 0.75, NOW), times, st.integers(0, 4)
    ),
    # Each has a name of its own: one that is written anew moves.
    st.builds(lambda at, name: LabRun(name, at), st.none() | times, st.uuids().map(str)),
)
KINDS: tuple[Kind, ...] = ("switch", "engine", "alert", "alignment", "version", "lab")


@shared
@given(
    st.lists(items, max_size=40),
    st.lists(items, max_size=10),
    st.integers(1, 6),
    st.frozensets(st.sampled_from(KINDS), max_size=2),
    st.none() | times,
)
def test_pages_walk_all_events_once(
    shared_store: Events,
    made: list[Any],
    meanwhile: list[Any],
    limit: int,
    kinds: frozenset[Kind],
    until: float | None,
) -> None:
    """What comes while they are walked, newer or of the same time, moves nothing of what was there."""
    store = shared_store
    store.begin()
    store.add(made)
    since, end = utc(NOW), None if until is None else utc(until)
    whole, _ = store.reader.events(since, end, kinds, 500)
    every = [each for each in store.all(kinds, NOW) if end is None or each.row["at"] < end]
    assert whole == every
    assert [each.row["at"] for each in whole] == sorted((each.row["at"] for each in whole), reverse=True)
    # What versions were before may change with what comes, but not while nobody writes.
    late = [item for item in meanwhile if not isinstance(item, VersionRow)]
    walked: list[Happened] = []
    cursor = None
    for _ in range(100):
        found, cursor = store.reader.events(since, end, kinds, limit, cursor)
        assert len(found) == limit or cursor is None
        walked += found
        if cursor is None:
            break
        store.add([late.pop()] if late else [])
    added = [each for each in store.all(kinds, NOW) if each not in whole]
    assert [each for each in walked if each not in added] == whole
    assert all(walked.count(each) == 1 for each in walked)


@pytest.mark.parametrize("cursor", ["", "x", write_cursor(utc(NOW), 7 << 56), write_cursor(utc(NOW), (1 << 63) - 1)])
def test_cursors_that_no_page_gave(store: Events, cursor: str) -> None:
    with pytest.raises(BadCursor):
        store.reader.events(utc(NOW), None, cursor=cursor)


# ---- rows


def test_rows_are_written_once_and_in_order(database_url: str) -> None:
    rows = [*start(1, below="0.6", above="0.7"), *seen(2, "vllm", "1")]
    for _ in range(2):
        # Sent again, as after a commit that was not confirmed.
        writer = Writer(database_url, max_age_s=0.02)
        for row in rows:
            writer.put_version(row)
        writer.start()
        deadline = time.monotonic() + 30
        while writer.queue_length and time.monotonic() < deadline:
            time.sleep(0.01)
        writer.close(10)
        assert (writer.dropped, writer.refused) == (0, 0)
    store = Events(database_url)
    with store._engine.begin() as connection:
        table = schema.versions.c
        found = connection.execute(schema.versions.select().order_by(table.id)).mappings().all()
    assert [(row["at"], row["name"], row["value"]) for row in found] == [
        (utc(row.at), row.name, row.value) for row in rows
    ]
    store.close()
