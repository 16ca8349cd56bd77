"""Pairs of texts by scenario, the bins of their scores, and those least alike: as a plain computation has them."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete
from support.postgres import Cluster
from support.records import NOW

from sidecar.api.models import SimilarityHistogram, SimilarityPairs
from sidecar.store import queries, schema, source
from sidecar.store.engine import writing_engine
from sidecar.store.expressions import MAX_GROUPS, Filters
from sidecar.store.inserts import Inserts
from sidecar.store.queries import Reader
from sidecar.store.refresh import refresh_all
from sidecar.store.rows import SimilarityRow, similarity_row
from sidecar.store.source import TooManyRows
from sidecar.store.upgrade import upgrade

from .test_rolled import ANY, HOUR, utc
from .test_traffic import reading

#: A whole minute, so that windows of rollups are those of rows.
LATER = NOW + 30
EDGES = [edge / 20 for edge in range(-20, 21)]


class Pairs:
    """A database of pairs, and their rollups."""

    def __init__(self, database_url: str) -> None:
        self.reader = Reader(database_url)
        self._engine = writing_engine(database_url)
        upgrade(self._engine)
        self._inserts = Inserts(self._engine)

    def hold(self, rows: Sequence[SimilarityRow]) -> None:
        with self._engine.begin() as connection:
            for table in (schema.similarities, schema.similarity_rollups, schema.rollups_due):
                connection.execute(delete(table))
            if rows:
                self._inserts.insert("similarities", connection, map(similarity_row, rows))
        refresh_all(self._engine, LATER)

    def close(self) -> None:
        self.reader.close()
        self._engine.dispose()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('pairs') / 'specwatch.db'}"
    else:
        server: Cluster = request.getfixturevalue("postgres")
        url = server.new_url()
    found = Pairs(url)
    yield found
    found.close()


def pair(number: int, score: float | None, kind: str = "draft", scenario: str | None = "chat") -> SimilarityRow:
    level = "unknown" if score is None else "critical" if score < 0.75 else "warning" if score < 0.82 else "ok"
    at = NOW - 1 - 40 * number
    return SimilarityRow(at, "test", f"r{number}", kind, score, level, None, "m", chunked=False, scenario=scenario)


# 0.15 and the like are no sums of powers of two.
scores = st.none() | st.sampled_from((-1.0, 1.0, 0.0, 0.15, 0.95, -0.95, math.nextafter(0.15, 0))) | st.floats(-1, 1)
scenarios = st.sampled_from(("chat", "chat", "it's", None))
rows_of = (
    st.lists(st.tuples(scores, st.sampled_from(("draft", "draft", "replay")), scenarios), min_size=8, max_size=40)
    | st.just([])
).map(lambda found: [pair(number, *each) for number, each in enumerate(found)])
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)


def bins(rows: Sequence[SimilarityRow], kind: str) -> list[int]:
    found = [0] * 40
    for row in rows:
        if row.kind == kind and row.score is not None:
            found[max(i for i in range(40) if EDGES[i] <= row.score)] += 1
    return found


@shared
@given(
    rows_of, st.sampled_from((None, 600, 3600)), st.sampled_from((None, "scenario")), st.sampled_from((None, "it's"))
)
def test_pairs_by_scenario_equal_a_plain_computation(
    store: Pairs, rows: list[SimilarityRow], step: int | None, by: str | None, scenario: str | None
) -> None:
    store.hold(rows)
    chosen = Filters(scenario=scenario, until=utc(NOW - 100))
    groups: dict[Any, list[SimilarityRow]] = defaultdict(list)
    for row in rows:
        if NOW - HOUR <= row.at < NOW - 100 and scenario in (None, row.scenario):
            at = None if step is None else utc(row.at // step * step)
            groups[at, None if by is None else row.scenario or "unknown", row.kind].append(row)
    found = store.reader.similarity(HOUR, step, NOW, by, chosen)
    assert (found["step_s"], found["by"], found["exact"]) == (step, by, True)
    points = {(point.pop("at"), point.pop("group"), point.pop("kind")): point for point in found["points"]}
    assert len(points) == len(found["points"])
    assert set(points) == set(groups)
    for key, of in groups.items():
        known = sorted(row.score for row in of if row.score is not None)
        assert points[key] == {
            "pairs": len(known),
            "mean": pytest.approx(sum(known) / len(known), abs=1e-9) if known else None,
            "p10": known[-(-len(known) // 10) - 1] if known else None,
            **{level: sum(row.level == level for row in of) for level in ("warning", "critical", "unknown")},
        }


@shared
@given(rows_of, st.sampled_from((None, "chat")))
def test_bins_equal_a_plain_computation(store: Pairs, rows: list[SimilarityRow], scenario: str | None) -> None:
    store.hold(rows)
    found = store.reader.similarity_histogram(HOUR, Filters(scenario=scenario), NOW)
    SimilarityHistogram.model_validate(found)
    assert (found["edges"], found["exact"]) == (EDGES, True)
    of = [row for row in rows if row.at >= NOW - HOUR and scenario in (None, row.scenario)]
    assert {kind: found[kind] for kind in ("draft", "replay")} == {kind: bins(of, kind) for kind in ("draft", "replay")}


#: Score, bin of rows.
AT_EDGES = [
    (-1.0, 0),
    (math.nextafter(-1, -2), 0),
    (-0.95, 1),
    (0.0, 20),
    (0.15, 23),
    (math.nextafter(0.15, 0), 22),
    (0.95, 39),
    (math.nextafter(0.95, 0), 38),
    (1.0, 39),
    (math.nextafter(1, 2), 39),
]


@pytest.mark.parametrize(("score", "wanted"), AT_EDGES)
def test_bins_at_their_edges(store: Pairs, score: float, wanted: int) -> None:
    store.hold([pair(1, score)])
    found = store.reader.similarity_histogram(HOUR, ANY, NOW)
    assert [i for i, number in enumerate(found["draft"]) if number] == [wanted]


def test_bins_of_sketches_are_whole_and_add_up(store: Pairs) -> None:
    # Few enough a kind for a sketch to have them all; edges are the same in single precision.
    rows = [pair(n, (n % 41 - 20) / 20, "replay" if n % 3 else "draft") for n in range(90)]
    store.hold(rows)
    with reading(rows=False):
        found = store.reader.similarity_histogram(HOUR, ANY, LATER)
        none = store.reader.similarity_histogram(HOUR, ANY, LATER - 10 * HOUR)
    SimilarityHistogram.model_validate(found)
    of = [row for row in rows if row.at >= LATER - HOUR]
    assert found["exact"] is False
    assert {kind: found[kind] for kind in ("draft", "replay")} == {kind: bins(of, kind) for kind in ("draft", "replay")}
    assert none["draft"] == none["replay"] == [0] * 40


def test_bins_of_many(store: Pairs) -> None:
    rows = [pair(n // 40, (n * 7919 % 9973) / 9973) for n in range(3600)]
    rows = [
        SimilarityRow(row.at, "test", f"m{n}", "draft", row.score, "ok", None, "m", False) for n, row in enumerate(rows)
    ]
    store.hold(rows)
    with reading(rows=False):
        found = store.reader.similarity_histogram(2 * HOUR, ANY, LATER)
    assert found["exact"] is False
    assert sum(found["draft"]) == 3600
    assert min(found["draft"]) >= 0
    assert found["draft"][:20] == [0] * 20
    # Up to each edge; four standard errors, which shrink towards the low end.
    for below, wanted in zip(accumulate(found["draft"]), accumulate(bins(rows, "draft")), strict=True):
        assert math.isclose(below, wanted, rel_tol=0.044, abs_tol=2)


@shared
@given(rows_of, st.sampled_from((None, "draft")), st.sampled_from((None, "chat")), st.sampled_from((1, 5, 100)))
def test_the_lowest_come_first(
    store: Pairs, rows: list[SimilarityRow], kind: str | None, scenario: str | None, limit: int
) -> None:
    store.hold(rows)
    with reading(rows=False):
        found = store.reader.similarity_pairs(HOUR, kind, limit, Filters(scenario=scenario, until=utc(NOW - 100)), NOW)
    SimilarityPairs.model_validate(found)
    assert found["exact"] is True
    wanted = [
        row
        for row in rows
        if NOW - HOUR <= row.at < NOW - 100
        and row.score is not None
        and kind in (None, row.kind)
        and scenario in (None, row.scenario)
    ]
    wanted.sort(key=lambda row: (row.score, -row.at))
    assert [(each["reply_id"], each["score"], each["kind"], each["scenario"]) for each in found["pairs"]] == [
        (row.request_id, row.score, row.kind, row.scenario) for row in wanted[:limit]
    ]


def test_small_scenarios_are_pooled(store: Pairs) -> None:
    names = [f"s{i:02}" for i in range(MAX_GROUPS + 5) for _ in range(1 if i % 2 else 2)]
    store.hold([pair(n, 0.9, scenario=name) for n, name in enumerate(names)])
    points = store.reader.similarity(2 * HOUR, None, NOW, "scenario")["points"]
    assert len(points) == MAX_GROUPS + 1
    assert (points[-1]["group"], points[-1]["pairs"]) == ("other", 5)
    assert Counter(point["pairs"] for point in points) == {2: 13, 1: 7, 5: 1}


def test_what_only_rows_tell_has_a_limit(store: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    store.hold([pair(n, 0.9) for n in range(60)])
    monkeypatch.setattr(source, "MOST_ROWS", 20)
    monkeypatch.setattr(queries, "EXACT_ROWS", 10)
    some = Filters(scenario="chat")
    asked = [
        (lambda window: store.reader.similarity(window, None, NOW, "scenario"), "one scenario each"),
        (lambda window: store.reader.similarity(window, None, NOW, None, some), "one scenario"),
        (lambda window: store.reader.similarity_histogram(window, some, NOW), "one scenario"),
        (lambda window: store.reader.similarity_pairs(window, None, 5, ANY, NOW), "single pairs"),
    ]
    for ask, what in asked:
        with pytest.raises(TooManyRows, match=rf"^figures of {what} are made of rows, .* ask for window=\d+m"):
            ask(HOUR)
        assert ask(600)["exact"] is True
    assert store.reader.similarity(HOUR, None, NOW)["exact"] is False
    assert store.reader.similarity_histogram(HOUR, ANY, NOW)["exact"] is False
