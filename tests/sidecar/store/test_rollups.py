"""Rollups of rows equal a plain computation over the records, whatever came late, twice or meanwhile."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, delete, event, select
from support.postgres import Cluster
from support.records import NOW, figures, record, records
from support.rolled import rollups

from sidecar.record import Acceptance, Record
from sidecar.store import due, refresh, schema
from sidecar.store.engine import writing_engine
from sidecar.store.groups import MOST_GROUPS
from sidecar.store.inserts import Inserts
from sidecar.store.refresh import Refresher, refresh_all
from sidecar.store.rows import SimilarityRow, request_row, similarity_row
from sidecar.store.sketch import merged, quantile
from sidecar.store.upgrade import upgrade

MINUTE, HOUR, DAY = 60, 3600, 86_400
#: When all spans of NOW are over.
LATER = NOW + 2 * DAY
_KEY = (
    "span_s",
    "at",
    "dimension",
    "bucket",
    "upstream",
    "arm",
    "outcome",
    "model",
    "draft_model",
    "scenario",
    "num_speculative_tokens",
)
_SKETCHES = ("latency", "ttft", "tpot")


class Base:
    """A database of rows and rollups."""

    def __init__(self, url: str) -> None:
        self.engine = writing_engine(url)
        upgrade(self.engine)
        self.inserts = Inserts(self.engine)

    def clear(self) -> None:
        with self.engine.begin() as connection:
            for name in ("requests", "similarities", "rollups", "similarity_rollups", "rollups_due"):
                connection.execute(delete(schema.metadata.tables[name]))

    def put(self, items: Iterable[Record]) -> None:
        with self.engine.begin() as connection:
            self.inserts.insert("requests", connection, [request_row(item) for item in items])

    def put_pairs(self, items: Iterable[SimilarityRow]) -> None:
        with self.engine.begin() as connection:
            self.inserts.insert("similarities", connection, map(similarity_row, items))

    def rows(self, table: Table, *where: Any) -> list[dict[str, Any]]:
        with self.engine.begin() as connection:
            return [dict(row) for row in connection.execute(select(table).where(*where)).mappings()]

    def due(self) -> dict[tuple[str, int], int]:
        return dict(Counter((row["family"], row["span_s"]) for row in self.rows(schema.rollups_due)))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Base]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('rollups') / 'specwatch.db'}"
    else:
        server: Cluster = request.getfixturevalue("postgres")
        url = server.new_url()
    found = Base(url)
    yield found
    found.engine.dispose()


@pytest.fixture
def empty(base: Base) -> Base:
    base.clear()
    return base


def values_of(blob: bytes | None) -> list[tuple[float, int]] | None:
    """With their weights; of many, only how many."""
    sketch = None if blob is None else merged([blob])
    if sketch is None:
        return None
    return [(0.0, sketch.n)] if sketch.is_estimation_mode() else sorted(sketch)


def plain(rows: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by what they are of, with the values of sketches."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        values = {name: row[name] for name in row if name not in (*_KEY, "id")}
        for name in values.keys() & {*_SKETCHES}:
            values[name] = values_of(values[name])
        key = tuple(row[name] for name in _KEY)
        assert key not in found
        found[key] = values
    return found


def check(base: Base, items: Sequence[Record]) -> None:
    assert plain(base.rows(schema.rollups)) == plain(rollups(items))
    assert base.due() == {}


LAWS = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@LAWS
@given(first=st.lists(records, max_size=40), late=st.lists(records, max_size=10), again=st.integers(0, 10))
def test_equal_a_plain_computation_after_late_rows_and_doubles(
    base: Base, first: list[Record], late: list[Record], again: int
) -> None:
    base.clear()
    base.put(first)
    refresh_all(base.engine, LATER)
    check(base, first)
    base.put([*late, *first[:again]])
    refresh_all(base.engine, LATER)
    check(base, first + late)
    assert refresh_all(base.engine, LATER) == 0
    check(base, first + late)


def test_names_and_drafts_of_any_kind(empty: Base) -> None:
    """Names that look like the pool's, like separators, like nothing; k of 70, of which 64 positions are kept."""
    names = ("other", "", "it's", "写代码 🙂", "a\x1fb", "a\x1eb", "%", "null", "x" * 500)
    items = [record(scenario=name, model=model) for name in names for model in ("other", "a\x1fb", None)]
    items += [record(acceptance=figures((1,) * 71)), record(acceptance=figures((0, 3, 2)))]
    items += [record(acceptance=Acceptance(reason=f"reason {i % 30} {name}")) for i, name in enumerate(names * 5)]
    empty.put(items)
    refresh_all(empty.engine, LATER)
    found, expected = plain(empty.rows(schema.rollups)), plain(rollups(items))
    assert found.keys() == expected.keys()
    for key, values in found.items():
        assert len(values["missing"] or ()) <= 20
        for name in ("requests", "counted", "draft_tokens", "latency", "listed", "verify_steps"):
            assert values[name] == expected[key][name]
        assert values["rejected_at"] == (expected[key]["rejected_at"] or [])[:64] or values["rejected_at"] is None
        assert values["reached"] == (expected[key]["reached"] or [])[:64] or values["reached"] is None
    (whole,) = empty.rows(schema.rollups, schema.rollups.c.dimension == "whole", schema.rollups.c.span_s == DAY)
    assert len(whole["reached"]) == 64
    assert whole["missing"] is None


@pytest.mark.parametrize("many", [500, 7000])
def test_of_many_names_those_of_most_requests_are_kept(empty: Base, many: int) -> None:
    """Also where they are too many for one answer, and in hours, whose minutes have kept others."""
    often = [record(scenario=f"often {i % 50}", model="m") for i in range(150)]
    seldom = [record(scenario=f"name {i}", model=f"model {i % 7}", started_at=NOW - 60 * (i % 2)) for i in range(many)]
    empty.put(often + seldom)
    refresh_all(empty.engine, LATER)
    for span in (MINUTE, HOUR, DAY):
        rows = empty.rows(schema.rollups, schema.rollups.c.span_s == span, schema.rollups.c.dimension == "")
        for at in {row["at"] for row in rows}:
            assert len([row for row in rows if row["at"] == at]) <= MOST_GROUPS
        assert sum(row["requests"] for row in rows) == many + 150
        assert sum(row["requests"] for row in rows if row["scenario"].startswith("often")) == 150
        assert {row["model"] for row in rows if row["scenario"] == "other"} == {"other"}
        assert sum(merged([row["latency"]]).n for row in rows) == many + 150
    bucket = schema.rollups.c.dimension == "concurrency"
    assert sum(row["requests"] for row in empty.rows(schema.rollups, bucket)) == 3 * (many + 150)


def test_spans_begin_where_utc_says(empty: Base) -> None:
    """Also at the ends of hours and days, to the last microsecond, and in years of any number."""
    midnight = 1_800_057_600
    times = [midnight - 1e-6, midnight, midnight + 3599.999999, midnight + 3600, 0.0, 86_399.9997, 253_402_128_000.0]
    items = [record(started_at=at) for at in times]
    empty.put(items)
    refresh_all(empty.engine, 253_402_128_000.0 + DAY + HOUR)
    check(empty, items)


def test_a_span_that_is_not_over_waits(empty: Base) -> None:
    empty.put([record(started_at=NOW), record(started_at=NOW - HOUR)])
    refresh_all(empty.engine, NOW)
    spans = Counter(row["span_s"] for row in empty.rows(schema.rollups, schema.rollups.c.dimension == "whole"))
    assert spans == {MINUTE: 2, HOUR: 1}
    assert empty.due() == {("requests", HOUR): 1, ("requests", DAY): 1}
    with empty.engine.begin() as connection:
        assert due.closed(connection, NOW) == 0
        assert due.closed(connection, LATER) == 2


def test_quantiles_of_a_day_are_near(empty: Base) -> None:
    items = [record(started_at=NOW - 7 * i, latency_ms=float(i % 1009)) for i in range(5000)]
    empty.put(items)
    refresh_all(empty.engine, LATER)
    rows = empty.rows(schema.rollups, schema.rollups.c.span_s == DAY, schema.rollups.c.dimension == "whole")
    sketch = merged(row["latency"] for row in rows)
    assert sketch.n == 5000
    ranked = sorted(item.latency_ms or 0 for item in items)
    for q, most in ((0.5, 0.03), (0.95, 0.004), (0.99, 0.001)):
        value = quantile(sketch, q)
        assert value is not None
        below, within = sum(x < value for x in ranked) / 5000, sum(x <= value for x in ranked) / 5000
        assert below - most <= q <= within + most


def test_a_mark_that_comes_between_reading_and_writing_stays(empty: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    first, late = record(), record()
    empty.put([first])
    late_written: list[Record] = []

    def write(connection: Any, spans: Any, found: Any) -> None:
        if not late_written:
            late_written.append(late)
            empty.inserts.insert("requests", connection, [request_row(late)])
        due.write(connection, spans, found)

    monkeypatch.setattr(refresh, "write", write)
    refresh_all(empty.engine, LATER)
    check(empty, [first, late])


def test_who_is_late_does_not_undo_what_another_has_done(empty: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper read a minute; meanwhile rows came and another keeper refreshed it."""
    first, late = record(), record()
    empty.put([first])
    with empty.engine.begin() as connection:
        spans = due.due_minutes(connection)
        old = refresh.found_of(connection, spans)
    empty.put([late])
    refresh_all(empty.engine, LATER)
    with empty.engine.begin() as connection:
        due.write(connection, spans, old)
    check(empty, [first, late])


def test_a_minute_whose_rows_were_pruned_keeps_its_figures(empty: Base) -> None:
    items = [record() for _ in range(5)]
    empty.put(items)
    refresh_all(empty.engine, LATER)
    with empty.engine.begin() as connection:
        connection.execute(delete(schema.requests))
    straggler = record()
    empty.put([straggler])
    refresh_all(empty.engine, LATER)
    check(empty, items)


def test_a_crash_before_the_commit_changes_nothing(empty: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [record(started_at=NOW - 60 * i) for i in range(5)]
    empty.put(items)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(due, "_unmark", fail)
        with pytest.raises(KeyboardInterrupt):
            refresh_all(empty.engine, LATER)
    assert empty.rows(schema.rollups) == []
    assert empty.due() == {("requests", MINUTE): 5}
    refresh_all(empty.engine, LATER)
    check(empty, items)


def test_where_one_piece_of_work_takes_a_whole_turn_others_have_theirs(empty: Base) -> None:
    """Rows of the minute under way come all the time."""
    items = [record(started_at=NOW - 60 * i) for i in (100, 95, 90, 1)]
    empty.put(items)
    refresher = Refresher(empty.engine)
    for _ in range(20):
        items.append(record(started_at=NOW))
        empty.put(items[-1:])
        assert refresher.refresh(LATER, until=0) > 0
    refresher.close()
    assert empty.due().get(("requests", MINUTE), 0) <= 1
    refresh_all(empty.engine, LATER)
    check(empty, items)


def test_marks_go_without_a_look_at_those_that_stay(tmp_path: Path) -> None:
    """Nobody can write to SQLite meanwhile, and after an upgrade there are those of years."""
    engine = writing_engine(f"sqlite:///{tmp_path / 'a.db'}")
    upgrade(engine)
    plans: list[str] = []

    def note(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("DELETE FROM rollups_due"):
            plan = connection.connection.driver_connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(row[-1] for row in plan)

    event.listen(engine, "before_cursor_execute", note)
    with engine.begin() as connection:
        Inserts(engine).insert("requests", connection, [request_row(record())])
    refresh_all(engine, LATER)
    engine.dispose()
    assert plans
    assert {plan.split()[0] for plan in plans if "due" in plan or " d " in plan} == {"SEARCH"}


def test_what_cannot_be_refreshed_does_not_keep_the_others_from_it(
    empty: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [record(started_at=NOW - 60 * i) for i in range(5)]
    empty.put(items)
    bad = int(NOW - 60) // 60 * 60
    plainly = refresh._MINUTES["requests"]

    def requests_of(connection: Any, since: int, until: int) -> Any:
        if since <= bad < until:
            raise ValueError("no such JSON")
        return plainly(connection, since, until)

    refresher = Refresher(empty.engine)
    with monkeypatch.context() as patch:
        patch.setitem(refresh._MINUTES, "requests", requests_of)
        patch.setattr(refresh, "_ASIDE_S", 0.05)
        end = time.monotonic() + 20
        while empty.due().get(("requests", MINUTE)) != 1:
            assert time.monotonic() < end
            with contextlib.suppress(ValueError):
                refresher.refresh(LATER)
    refresher.close()
    refresh_all(empty.engine, LATER)
    check(empty, items)


def test_keepers_and_writers_at_once(base: Base) -> None:
    """Two keepers work while two writers, of names of their own, write the same minutes."""
    base.clear()
    items = [
        [record(instance=name, started_at=NOW - 60 * (i % 7), request_id=f"{name}-{i}") for i in range(300)]
        for name in ("one", "two")
    ]
    written = threading.Event()
    url = base.engine.url.render_as_string(hide_password=False)
    failed: list[Exception] = []

    def keep() -> None:
        engine = writing_engine(url)
        refresher = Refresher(engine)
        last = False
        while not last:
            last = written.is_set()
            try:
                refresher.refresh(LATER)
            except Exception as error:
                failed.append(error)
        refresher.close()
        engine.dispose()

    def write(part: list[Record]) -> None:
        own = Base(url)
        for i in range(0, len(part), 10):
            own.put(part[i : i + 10])
        own.engine.dispose()

    keepers = [threading.Thread(target=keep) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(part,)) for part in items]
    for thread in keepers + writers:
        thread.start()
    for thread in writers:
        thread.join(60)
    written.set()
    for thread in keepers:
        thread.join(60)
    assert not failed
    refresh_all(base.engine, LATER)
    check(base, items[0] + items[1])


pairs = st.builds(
    SimilarityRow,
    at=st.integers(0, 5000).map(lambda ago: NOW - ago),
    instance=st.just("here"),
    request_id=st.uuids().map(str),
    kind=st.sampled_from(("draft", "replay")),
    score=st.none() | st.floats(-1, 1),
    level=st.sampled_from(("ok", "warning", "critical")),
    reason=st.none(),
    model=st.just("m"),
    chunked=st.booleans(),
).map(lambda pair: pair if pair.score is not None else unknown(pair))


def unknown(pair: SimilarityRow) -> SimilarityRow:
    return SimilarityRow(pair.at, pair.instance, pair.request_id, pair.kind, None, "unknown", "why", "m", False)


@LAWS
@given(st.lists(pairs, max_size=40))
def test_similarities_equal_a_plain_computation(base: Base, found: list[SimilarityRow]) -> None:
    base.clear()
    half = len(found) // 2
    for part in (found[:half], found[half:], found[:3]):
        base.put_pairs(part)
        refresh_all(base.engine, LATER)
    assert base.due() == {}
    rows = base.rows(schema.similarity_rollups)
    assert len(rows) == len({(row["span_s"], row["at"], row["kind"]) for row in rows})
    expected = {(span, int(pair.at) // span * span, pair.kind) for pair in found for span in (MINUTE, HOUR, DAY)}
    assert {(row["span_s"], int(row["at"].timestamp()), row["kind"]) for row in rows} == expected
    for row in rows:
        of = [
            pair for pair in found if pair.kind == row["kind"] and 0 <= pair.at - row["at"].timestamp() < row["span_s"]
        ]
        scores = [pair.score for pair in of if pair.score is not None]
        assert row["pairs"] == len(scores)
        assert row["total"] == pytest.approx(sum(scores), abs=1e-9)
        for level in ("warning", "critical", "unknown"):
            assert row[level] == sum(pair.level == level for pair in of)
        assert len(values_of(row["scores"]) or ()) == len(scores)
