"""What rollups answer equals what rows do, but for the windows' edges and for quantiles of many values."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert
from support.postgres import Cluster
from support.records import NOW, figures, record, records
from support.rolled import SPANS, rollups

from sidecar.api.models import AcceptanceSeries, LatencySeries, TruncationSeries
from sidecar.probes.slices import DIMENSIONS
from sidecar.record import Arm, Outcome, Record
from sidecar.store import queries, schema, source
from sidecar.store.expressions import Filters
from sidecar.store.source import TooManyRows

from .test_queries import (
    Store,
    acceptance_of,
    baseline_of,
    counts,
    groups,
    keyed,
    kind,
    latency_point_of,
    passes,
    ratio,
    truncation_of,
)

ANY = Filters()
MINUTE, HOUR, DAY = SPANS


class Rolled(Store):
    """Also with rollups. Due minutes are marked with the stamps that are given."""

    def hold(self, items: Sequence[Record], spans: Sequence[int] = SPANS, late: Sequence[Record] = ()) -> None:
        """`late`: rows that are in no rollup."""
        super().hold([*items, *late])
        with self._engine.begin() as connection:
            for table in (schema.rollups, schema.rollups_due):
                connection.execute(delete(table))
            if rows := rollups(items, spans):
                connection.execute(insert(schema.rollups), rows)

    def due(self, span_s: int, *starts: float, stamp: int = 0) -> None:
        rows = [
            {"family": "requests", "span_s": span_s, "at": utc(at), "instance": "", "stamp": stamp} for at in starts
        ]
        if rows:
            with self._engine.begin() as connection:
                connection.execute(insert(schema.rollups_due), rows)

    def forget(self, table: Any, *where: Any) -> None:
        with self._engine.begin() as connection:
            connection.execute(delete(table).where(*where))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rolled]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('rolled') / 'specwatch.db'}"
    else:
        server: Cluster = request.getfixturevalue("postgres")
        url = server.new_url()
    found = Rolled(url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "EXACT_ROWS", -1)
        yield found
    found.close()


def utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def inside(items: Sequence[Record], found: dict[str, Any], chosen: Filters = ANY) -> list[Record]:
    """Those of the window as answered."""
    return [
        item
        for item in items
        if found["since"].timestamp() <= round(item.started_at, 6) < found["until"].timestamp() and passes(item, chosen)
    ]


def single(sides: dict[str, Any]) -> dict[str, Any]:
    """Figures of one side or of both in the precision of sketches."""
    return {
        name: single(value)
        if isinstance(value, dict)
        else float(np.float32(value))
        if name.endswith("_ms") and value is not None
        else value
        for name, value in sides.items()
    }


#: Nothing begins after now.
past = records.filter(lambda item: item.started_at < NOW)
windows = st.sampled_from((60, 3600, 5400, 7200, 2 * DAY))
splits = st.tuples(st.sampled_from((None, 60, 90, 600, 3600)), st.sampled_from((None, *DIMENSIONS))).map(
    lambda split: (None if split[1] else split[0], split[1]) if split[0] == 60 else split
)
filters = st.builds(
    Filters,
    scenario=st.none() | st.sampled_from(("chat", "it's")),
    model=st.none() | st.just("code"),
    upstream=st.none() | st.just("speculative"),
    arm=st.none() | st.just("speculative"),
    outcome=st.none() | st.just("ok"),
    until=st.none() | st.sampled_from((NOW - 60, NOW - 1830.5, NOW - 90_000)).map(utc),
)
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@shared
@given(st.lists(past, max_size=40), windows, splits, filters)
def test_series_equal_a_plain_computation(
    store: Rolled, items: list[Record], window: int, split: tuple[int | None, str | None], chosen: Filters
) -> None:
    store.hold(items)
    step, by = split
    if window == 2 * DAY and step:
        step *= 60
    only_rows = by in ("temperature", "prompt_length", "concurrency") and (chosen.scenario or chosen.model)
    found = store.reader.acceptance(window, step, by, chosen, NOW)
    AcceptanceSeries.model_validate(found)
    assert found["exact"] == (found["resolution_s"] is None)
    pooled = (chosen.scenario or chosen.model) and any(item.scenario == item.model == "other" for item in items)
    assert found["exact"] == bool(only_rows) or found["since"] >= found["until"] or pooled
    step = found["step_s"]
    rows = inside(items, found, chosen)
    if found["exact"]:
        assert found["since"] == utc(NOW - window)
    else:
        assert utc(NOW - window) - timedelta(minutes=1) < found["since"] <= utc(NOW - window)
    wanted = groups([item for item in rows if counts(item)], step, by)
    assert keyed(found["points"]) == {key: acceptance_of(of) for key, of in wanted.items()}

    found = store.reader.latency(window, step, by, chosen, NOW)
    LatencySeries.model_validate(found)
    names = "latency_ms", "ttft_ms", "tpot_ms"
    measured = [
        item for item in rows if item.outcome is Outcome.OK and any(getattr(item, name) is not None for name in names)
    ]
    baseline = baseline_of(rows)
    assert found["baseline"] == baseline
    wanted = groups([item for item in measured if kind(item) in ("speculative", baseline)], step, by)
    precise = dict if found["exact"] else single
    assert keyed(found["points"]) == {key: precise(latency_point_of(of, baseline)) for key, of in wanted.items()}

    found = store.reader.truncation(window, step, by, chosen, NOW)
    TruncationSeries.model_validate(found)
    cut = [item for item in rows if counts(item) and item.acceptance.reached is not None]
    positions = max((len(item.acceptance.reached or ()) for item in cut), default=0)
    assert found["positions"] == positions
    wanted = groups(cut, step, by)
    assert keyed(found["points"]) == {key: truncation_of(of, positions) for key, of in wanted.items()}
    assert keyed([found["total"]])[None, None] == truncation_of(cut, positions)


@shared
@given(st.lists(records, max_size=60), st.sampled_from((1800, 3600, 7200)))
def test_summary_equals_that_of_rows(store: Rolled, items: list[Record], window: int) -> None:
    store.hold(items)
    # A whole minute, so that both windows are the same.
    now = NOW + 30
    found = store.reader.summary(window, now)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "EXACT_ROWS", 1000)
        rows = store.reader.summary(window, now)
    assert (found.pop("exact"), found.pop("resolution_s")) == (False, 60)
    assert (rows.pop("exact"), rows.pop("resolution_s")) == (True, None)
    rows["latency"] = single(rows["latency"])
    assert found == rows


def test_by_concurrency(store: Rolled) -> None:
    sides = [(Arm.SPECULATIVE, 60, 400.0), (Arm.BASELINE, 55, 800.0)]
    store.hold(
        [
            record(arm=arm, latency_ms=ms + i, concurrency=3, started_at=NOW - 300 - i)
            for arm, many, ms in sides
            for i in range(many)
        ]
    )
    latency = store.reader.summary(3600, NOW)["latency"]
    assert (latency["baseline"], latency["ratio_concurrency"]) == ("spec_disabled", "2-4")
    assert latency["ratio"] == (400 + 56) / (800 + 52)


def test_no_rows_and_no_rollups(store: Rolled) -> None:
    store.hold([])
    found = store.reader.summary(30 * DAY, NOW)
    assert (found["exact"], found["traffic"]["requests"], found["acceptance"]["p"]) == (False, 0, None)
    assert found["slo"] == dict.fromkeys(("latency_under_800ms_ratio", "p95_latency_under_800ms_ratio"))
    assert found["coverage"] == {"requests": None, "missing": {}}
    assert store.reader.acceptance(30 * DAY, 7200, "scenario", ANY, NOW)["points"] == []


def test_unknown_is_not_zero(store: Rolled) -> None:
    untold = figures((4, 1), histogram=None, rejected_at=None, reached=None)
    store.hold([record(acceptance=figures((4, 1))), record(acceptance=untold, latency_ms=None)])
    (point,) = store.reader.acceptance(3600, None, None, ANY, NOW)["points"]
    assert (point["requests"], point["p"], point["p_per_token"]) == (2, 0.2, None)
    found = store.reader.latency(3600, None, None, ANY, NOW)
    assert found["points"][0]["speculative"]["ttft_p50_ms"] is None
    assert found["points"][0]["autoregressive"]["p95_ms"] is None
    assert found["baseline"] is None


def test_positions_that_a_filter_leaves_nothing_of(store: Rolled) -> None:
    short, long = (record(acceptance=figures(lengths), scenario=str(len(lengths))) for lengths in ((4, 1), (5, 0, 2)))
    store.hold([short, long])
    assert store.reader.truncation(3600, None, None, ANY, NOW)["positions"] == 2
    assert store.reader.truncation(3600, None, None, Filters(scenario="2"), NOW)["positions"] == 1


def test_p_per_token_of_rows_from_before_there_was_a_column(store: Rolled) -> None:
    store.hold([record(), record(acceptance=figures((3, 1, 1)))])
    with store._engine.begin() as connection:
        connection.execute(schema.requests.update().values(truncated_steps=None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "EXACT_ROWS", 1000)
        (point,) = store.reader.acceptance(3600, None, None, ANY, NOW)["points"]
    assert point["p_per_token"] == (75 + 3) / (75 + 3 + 20 + 4)


def test_quantiles_of_many(store: Rolled) -> None:
    values = np.random.default_rng(3).lognormal(6, 0.8, 20_000)
    items = [
        record(latency_ms=float(ms), ttft_ms=float(ms) / 4, started_at=NOW - 4 * DAY + i * 16, scenario=f"s{i % 5}")
        for i, ms in enumerate(values)
    ]
    store.hold(items)
    found = store.reader.latency(5 * DAY, None, None, ANY, NOW)["points"][0]["speculative"]
    assert found["requests"] == len(values)
    # Four standard errors.
    for name, q, error in (("p50_ms", 0.5, 0.022), ("p95_ms", 0.95, 0.0022), ("p99_ms", 0.99, 0.0004)):
        assert np.mean(values <= found[name]) == pytest.approx(q, abs=error + 2 / len(values))


# ---- what is due, late, gone


def test_what_is_due_is_answered_by_finer_spans(store: Rolled) -> None:
    items = [record(started_at=NOW - 2 * DAY + 1800 * i) for i in range(96)]
    store.hold(items)
    late = record(started_at=NOW - DAY)
    hour = late.started_at // HOUR * HOUR
    minute = late.started_at // MINUTE * MINUTE
    # The row came late: its minute is made already, its hour and day are not.
    store.hold([*items, late], [MINUTE])
    with store._engine.begin() as connection:
        connection.execute(insert(schema.rollups), rollups(items, [HOUR, DAY]))
    assert store.reader.summary(3 * DAY, NOW)["traffic"]["requests"] == 96
    store.due(HOUR, hour)
    assert store.reader.summary(3 * DAY, NOW)["traffic"]["requests"] == 97
    # Before the hour is even marked.
    store.forget(schema.rollups_due)
    store.due(MINUTE, minute)
    assert store.reader.summary(3 * DAY, NOW)["traffic"]["requests"] == 97


def test_rows_are_read_while_many_minutes_wait(store: Rolled) -> None:
    rolled = [record(started_at=NOW - 7000), record(started_at=NOW - 5000)]
    late = [record(started_at=NOW - 4000 + 60 * i) for i in range(11)]
    store.hold(rolled, late=late)
    fresh = int((NOW - 30) * 1e9)
    store.due(MINUTE, *(item.started_at // 60 * 60 for item in late), stamp=fresh)
    assert _requests(store, 7200) == (2, False)
    store.forget(schema.rollups_due)
    store.due(MINUTE, *(item.started_at // 60 * 60 for item in late[1:]))
    assert _requests(store, 7200) == (2, False)
    store.due(MINUTE, late[0].started_at // 60 * 60)
    assert _requests(store, 7200) == (13, True)
    # None of them is in this window.
    assert _requests(store, 1800) == (0, False)


def _requests(store: Rolled, window: int) -> tuple[int, bool]:
    found = store.reader.summary(window, NOW)
    return found["traffic"]["requests"], found["exact"]


def test_rows_that_are_gone_still_count(store: Rolled) -> None:
    old = [record(started_at=NOW - 3 * DAY - 60 * i) for i in range(5)]
    new = [record(started_at=NOW - 60 * i, instance="a") for i in range(1, 4)]
    store.hold([*old, *new])
    store.forget(schema.requests, schema.requests.c.started_at < utc(NOW - DAY))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "EXACT_ROWS", 1000)
        assert _requests(store, 4 * DAY) == (8, False)
        assert _requests(store, 2 * DAY) == (3, True)
        assert store.reader.acceptance(2 * DAY, None, None, Filters(instance="a"), NOW)["points"][0]["requests"] == 3
        with pytest.raises(TooManyRows, match=r"no longer all kept: ask for window=\d+m"):
            store.reader.acceptance(4 * DAY, None, None, Filters(instance="a"), NOW)


def test_where_minutes_are_gone_the_window_begins_with_an_hour(store: Rolled) -> None:
    items = [record(started_at=NOW - 5 * DAY + 1800 * i) for i in range(240)]
    store.hold(items)
    at = schema.rollups.c.at
    store.forget(schema.rollups, schema.rollups.c.span_s == MINUTE, at < utc(NOW - DAY))
    found = store.reader.acceptance(2 * DAY, 400, "k", Filters(until=utc(NOW - DAY - 7200)), NOW)
    assert (found["exact"], found["resolution_s"], found["step_s"]) == (False, 3600, 3600)
    assert found["since"] == utc((NOW - 2 * DAY) // HOUR * HOUR)
    assert sum(point["requests"] for point in found["points"]) == len(inside(items, found))
    # Hours are gone too.
    store.forget(schema.rollups, schema.rollups.c.span_s == HOUR, at < utc(NOW - 3 * DAY))
    found = store.reader.acceptance(4 * DAY, None, None, ANY, NOW)
    assert (found["resolution_s"], found["since"]) == (DAY, utc((NOW - 4 * DAY) // DAY * DAY))
    assert found["points"][0]["requests"] == len(inside(items, found))


def test_what_only_rows_tell_has_a_limit(store: Rolled, monkeypatch: pytest.MonkeyPatch) -> None:
    store.hold([record(started_at=NOW - 60 * i) for i in range(1, 21)])
    monkeypatch.setattr(source, "MOST_ROWS", 10)
    for chosen, by in ((Filters(instance="test"), None), (Filters(scenario="default"), "temperature")):
        with pytest.raises(TooManyRows, match=r"are 20, more than 10: ask for window=10m") as caught:
            store.reader.latency(3600, None, by, chosen, NOW)
        assert "\n" not in str(caught.value)
        found = store.reader.latency(600, None, by, chosen, NOW)
        assert (found["exact"], found["points"][0]["speculative"]["requests"]) == (True, 10)
    until = Filters(instance="test", until=utc(NOW))
    with pytest.raises(TooManyRows, match=r"ask for since=2027-01-15T08:20Z"):
        store.reader.truncation(3600, None, None, until, NOW)


@pytest.mark.parametrize("by", [None, "scenario"])
def test_names_that_may_be_among_the_pooled_are_looked_for_in_rows(
    store: Rolled, monkeypatch: pytest.MonkeyPatch, by: str | None
) -> None:
    """Rollups would tell of no requests where there are some."""
    pool = [record(scenario="other", model="other", started_at=NOW - 60 * i) for i in range(1, 4)]
    few, many = ([record(scenario=name) for _ in range(number)] for name, number in (("few", 5), ("many", 400)))
    store.hold([*pool, *few, *many])

    def asked(**names: str) -> tuple[bool, int]:
        found = store.reader.acceptance(3600, None, by, Filters(**names), NOW)
        return found["exact"], sum(point["requests"] for point in found["points"])

    assert asked(scenario="many") == (False, 400)
    assert asked(scenario="few") == (True, 5)
    assert asked(scenario="none") == (True, 0)
    assert asked(scenario="few", upstream="autoregressive") == (False, 0)
    assert asked(scenario="other") == (False, 3)
    assert asked(model="target") == (False, 405)
    monkeypatch.setattr(source, "MOST_ROWS", 10)
    with pytest.raises(TooManyRows, match="a scenario or model that few requests have are made of rows"):
        asked(scenario="few")


def test_pooled_names_are_one_group(store: Rolled) -> None:
    store.hold([record(scenario=f"s{i:02}") for i in range(25) for _ in range(1 if i % 2 else 2)])
    points = store.reader.acceptance(3600, None, "scenario", ANY, NOW)["points"]
    assert (len(points), points[-1]["group"], points[-1]["requests"]) == (21, "other", 5)


def test_an_hour_ago_is_a_share_of_minutes(store: Rolled) -> None:
    slow = record(started_at=NOW - 600, latency_ms=801.0)
    quick = [record(started_at=NOW - 600 + 60 * minute, latency_ms=800.0) for minute in (3, 4, 5, 6)]
    store.hold([slow, *quick])
    assert store.reader.summary(3600, NOW)["slo"]["p95_latency_under_800ms_ratio"] == ratio(2, 5)
    assert store.reader.summary(540, NOW)["slo"]["p95_latency_under_800ms_ratio"] == ratio(2, 4)
    assert math.isclose(store.reader.summary(3600, NOW)["traffic"]["requests_per_s"], 5 / 3630)
