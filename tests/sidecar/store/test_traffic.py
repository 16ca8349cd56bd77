"""All requests of a window, and summaries of a part of them, equal a plain computation: of rows and of rollups."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import NOW, figures, record, records

from sidecar.api.models import TrafficSeries
from sidecar.probes.slices import DIMENSIONS
from sidecar.record import Arm, Outcome, Record
from sidecar.store import minutes, queries, schema, source, summary
from sidecar.store.expressions import Filters
from sidecar.store.source import EmptyWindow, TooManyRows

from .test_queries import acceptance_of, baseline_of, bucket, groups, kind, passes, quantile, ratio, sides_of, timed
from .test_rolled import ANY, DAY, HOUR, MINUTE, Rolled, inside, single, store, utc

__all__ = ["store"]

shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
#: Many are of a few kinds, and lie at the edges of minutes, steps and windows.
items_of = st.lists(
    st.builds(
        lambda item, scenario, outcome, instance: replace(item, scenario=scenario, outcome=outcome, instance=instance),
        records.filter(lambda item: item.started_at < NOW),
        st.sampled_from(("chat", "chat", "it's", "other")),
        st.sampled_from((Outcome.OK, Outcome.OK, Outcome.OK, Outcome.TIMEOUT)),
        st.sampled_from(("test", "b")),
    ),
    min_size=10,
    max_size=50,
) | st.just([])
filters = st.builds(
    lambda names, ends: Filters(**names, **ends),
    st.sampled_from(
        (
            {},
            {"scenario": "chat"},
            {"upstream": "speculative"},
            {"arm": "speculative"},
            {"outcome": "ok"},
            {"instance": "b"},
            {"scenario": "chat", "model": "code"},
            {"arm": "baseline", "outcome": "ok"},
        )
    ),
    st.sampled_from(
        ({}, {}, {"since": utc(NOW - 3300.5)}, {"until": utc(NOW - 3000)}, {"since": utc(NOW - 600), "until": utc(NOW)})
    ),
)
windows = st.sampled_from((3600, 3600, 5430))


@contextmanager
def reading(*, rows: bool) -> Iterator[None]:
    """Rows, or rollups wherever these know what is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "EXACT_ROWS", 10**6 if rows else -1)
        yield


both = pytest.mark.parametrize("rows", [True, False], ids=["rows", "rollups"])


# ---- the same figures, computed plainly


def traffic_of(items: Sequence[Record], seconds: float) -> dict[str, Any]:
    return {
        "requests": len(items),
        "ok": sum(item.outcome is Outcome.OK for item in items),
        "outcomes": dict(Counter(item.outcome.value for item in items)),
        "requests_per_s": len(items) / seconds,
        "completion_tokens_per_s": sum(item.completion_tokens or 0 for item in items) / seconds,
        "streaming": sum(item.stream for item in items),
    }


def served_of(items: Sequence[Record]) -> list[Any]:
    return [
        item.acceptance for item in items if item.outcome is Outcome.OK and item.arm in (Arm.SPECULATIVE, Arm.PROBE)
    ]


def coverage_of(items: Sequence[Record]) -> float | None:
    served = served_of(items)
    return ratio(sum(each.quality.value == "ok" for each in served), len(served))


def ms(items: Sequence[Record]) -> list[float]:
    return [item.latency_ms for item in items if item.outcome is Outcome.OK and item.latency_ms is not None]


def minutes_of(
    items: Sequence[Record], found: dict[str, Any], chosen: Filters, step: int | None = None
) -> dict[datetime | None, list[bool]]:
    """By step, whether each minute with traffic reaches the goal."""
    known = [item for item in items if passes(item, chosen) and ms([item])]
    counting = inside(known, found, chosen)
    by_step: dict[datetime | None, list[bool]] = defaultdict(list)
    for minute in {item.started_at // 60 for item in counting}:
        trailing = [
            item
            for item in known
            if minute - 4 <= item.started_at // 60 <= minute and item.started_at < found["until"].timestamp()
        ]
        first = min(item.started_at for item in counting if item.started_at // 60 == minute)
        at = None if step is None else utc(first // step * step)
        by_step[at].append((quantile(ms(trailing), 95) or 0) <= 800)
    return by_step


def slo_of(items: Sequence[Record], of_minutes: Sequence[bool]) -> dict[str, Any]:
    return {
        "latency_under_800ms_ratio": ratio(sum(value <= 800 for value in ms(items)), len(ms(items))),
        "p95_latency_under_800ms_ratio": ratio(sum(of_minutes), len(of_minutes)),
    }


def seconds_of(found: dict[str, Any], at: datetime | None) -> float:
    """The part of a step, or of all, that lies in the window as answered."""
    since, until = found["since"].timestamp(), found["until"].timestamp()
    if at is not None:
        since, until = max(since, at.timestamp()), min(until, at.timestamp() + found["step_s"])
    return float(until - since)


# ---- any traffic


@both
@shared
@given(items_of, windows, filters)
def test_a_summary_of_a_part_equals_a_plain_computation(
    store: Rolled, rows: bool, items: list[Record], window: int, chosen: Filters
) -> None:
    store.hold(items)
    with reading(rows=rows):
        found = store.reader.summary(window, NOW, chosen)
    assert found["exact"] or not (rows or chosen.instance)
    of = inside(items, found, chosen)
    precise = dict if found["exact"] else single
    assert found["acceptance"] == acceptance_of(of)
    if chosen.names:
        assert found["last_100"] == found["acceptance"]
    cut = [each for item in of if (each := item.acceptance).reached is not None and acceptance_of([item])["requests"]]
    steps, first, cuts = (
        sum(values)
        for values in (
            [each.verify_steps or 0 for each in cut],
            [each.rejected_at[0] for each in cut if each.rejected_at],
            [sum(each.rejected_at or ()) for each in cut],
        )
    )
    assert found["truncation"] == {"truncation_rate": ratio(cuts, steps), "first_position_share": ratio(first, cuts)}
    latency, baseline = found["latency"], baseline_of(of)
    assert latency["baseline"] == baseline
    assert {name: latency[name] for name in ("speculative", "autoregressive")} == precise(sides_of(of, baseline))
    assert latency["baseline_share"] == ratio(sum(item.arm is Arm.BASELINE for item in of), len(of))
    sizes = Counter(
        (bucket("concurrency", each), kind(each)) for side in ("speculative", baseline) for each in timed(of, side)
    )
    compared = {each["concurrency"]: (each["speculative"], each["baseline"]) for each in latency["by_concurrency"]}
    assert compared == (
        {name: (sizes[name, "speculative"], sizes[name, baseline]) for name, _ in sizes} if baseline else {}
    )
    assert found["slo"] == slo_of(of, minutes_of(items, found, chosen)[None])
    assert found["traffic"] == traffic_of(of, seconds_of(found, None))
    missing = Counter(each.reason or each.quality.value for each in served_of(of) if each.quality.value != "ok")
    assert found["coverage"] == {"requests": coverage_of(of), "missing": dict(missing)}


steps = st.tuples(st.sampled_from((None, 30, 60, 90, 600, 3600)), st.sampled_from((None, None, *DIMENSIONS)))


@both
@shared
@given(items_of, windows, steps, filters)
def test_traffic_equals_a_plain_computation_and_adds_up_to_a_summary(
    store: Rolled, rows: bool, items: list[Record], window: int, split: tuple[int | None, str | None], chosen: Filters
) -> None:
    store.hold(items)
    step, by = split if not split[1] or not split[0] or split[0] > 60 else (600, split[1])
    with reading(rows=rows):
        found = store.reader.traffic(window, step, by, chosen, NOW)
    TrafficSeries.model_validate(found)
    assert (found["window_s"], found["by"]) == (window, by)
    of, step = inside(items, found, chosen), found["step_s"]
    of_minutes = minutes_of(items, found, chosen, step)
    wanted = []
    for (at, group), part in groups(of, step, by).items():
        part_minutes = of_minutes[at]
        slo = slo_of(part, part_minutes)
        if by is not None:
            slo["p95_latency_under_800ms_ratio"] = None
        wanted.append(
            {
                "at": at,
                "group": group,
                "coverage": coverage_of(part),
                **traffic_of(part, seconds_of(found, at)),
                **slo,
                "minutes": None if by else len(part_minutes),
            }
        )
    order = [(point["at"], point["group"]) for point in found["points"]]
    assert len(set(order)) == len(order)
    assert [point["at"] for point in found["points"]] == sorted(point["at"] for point in wanted) if step else True
    assert sorted(found["points"], key=_place) == sorted(wanted, key=_place)
    with reading(rows=found["exact"]):
        whole = store.reader.summary(window, NOW, chosen)
    assert sum(point["requests"] for point in found["points"]) == whole["traffic"]["requests"]
    assert sum(point["streaming"] for point in found["points"]) == whole["traffic"]["streaming"]
    assert sum((Counter(point["outcomes"]) for point in found["points"]), Counter()) == whole["traffic"]["outcomes"]
    if by is None:
        reached = sum(point["minutes"] * (point["p95_latency_under_800ms_ratio"] or 0) for point in found["points"])
        number = sum(point["minutes"] for point in found["points"])
        assert whole["slo"]["p95_latency_under_800ms_ratio"] == (pytest.approx(reached / number) if number else None)
    if step is None and by is None:
        (point,) = found["points"]
        assert {name: point[name] for name in whole["traffic"]} == whole["traffic"]
        assert {name: point[name] for name in whole["slo"]} == whole["slo"]
        assert point["coverage"] == whole["coverage"]["requests"]


def _place(point: dict[str, Any]) -> tuple[float, str]:
    return (point["at"].timestamp() if point["at"] else 0.0), point["group"] or ""


# ---- cases


@both
def test_minutes_at_the_edges_of_steps(store: Rolled, rows: bool) -> None:
    """A step's first minutes are held to those before it, which are not its own."""
    hour = NOW // HOUR * HOUR
    slow = [record(started_at=hour - 30, latency_ms=801.0)]
    quick = [record(started_at=hour + 60 * minute, latency_ms=800.0) for minute in (0, 3, 4, 5)]
    store.hold(slow + quick)
    with reading(rows=rows):
        found = store.reader.traffic(HOUR, 600, None, ANY, NOW)["points"]
    assert [(point["at"], point["minutes"], point["p95_latency_under_800ms_ratio"]) for point in found] == [
        (utc(hour - 600), 1, 0.0),
        # The slow one still counts in the minutes 0 and 3.
        (utc(hour), 4, 2 / 4),
    ]
    assert [point["latency_under_800ms_ratio"] for point in found] == [0.0, 1.0]


@both
def test_requests_that_tell_no_latency_make_no_minute(store: Rolled, rows: bool) -> None:
    store.hold([record(outcome=Outcome.TIMEOUT, latency_ms=9e3), record(latency_ms=None)])
    with reading(rows=rows):
        (point,) = store.reader.traffic(HOUR, HOUR, None, ANY, NOW)["points"]
        assert store.reader.traffic(HOUR, HOUR, None, ANY, NOW - DAY)["points"] == []
    assert (point["requests"], point["ok"], point["minutes"]) == (2, 1, 0)
    assert (point["latency_under_800ms_ratio"], point["p95_latency_under_800ms_ratio"]) == (None, None)


def test_minutes_that_are_no_longer_kept_are_not_known(store: Rolled) -> None:
    store.hold([record(started_at=NOW - 2 * DAY), record()])
    at = schema.rollups.c.at
    store.forget(schema.rollups, schema.rollups.c.span_s == MINUTE, at < utc(NOW - DAY))
    store.forget(schema.requests, schema.requests.c.started_at < utc(NOW - DAY))
    old, new = store.reader.traffic(3 * DAY, DAY, None, ANY, NOW)["points"]
    assert (old["requests"], old["minutes"], old["p95_latency_under_800ms_ratio"]) == (1, None, None)
    assert (old["latency_under_800ms_ratio"], new["minutes"], new["p95_latency_under_800ms_ratio"]) == (1.0, 1, 1.0)
    before = store.reader.summary(3 * DAY, NOW, Filters(until=utc(NOW - DAY)))
    assert before["slo"] == {"latency_under_800ms_ratio": 1.0, "p95_latency_under_800ms_ratio": None}


def test_minutes_of_a_kind_that_are_too_many_are_not_known(store: Rolled, monkeypatch: pytest.MonkeyPatch) -> None:
    store.hold([record(started_at=NOW - 60 * i, scenario=name) for i in range(1, 9) for name in ("chat", "code")])
    some = Filters(scenario="chat")
    monkeypatch.setattr(minutes, "MOST_ROLLUPS", 16)
    assert store.reader.summary(HOUR, NOW, some)["slo"]["p95_latency_under_800ms_ratio"] == 1.0
    monkeypatch.setattr(minutes, "MOST_ROLLUPS", 15)
    found = store.reader.summary(HOUR, NOW, some)
    assert (found["traffic"]["requests"], found["slo"]["p95_latency_under_800ms_ratio"]) == (8, None)
    points = store.reader.traffic(HOUR, 60, None, some, NOW)["points"]
    assert {(point["requests"], point["minutes"]) for point in points} == {(1, None)}
    # Of all traffic there is one rollup a minute, of as many as there may be.
    monkeypatch.setattr(minutes, "MOST_ROLLUPS", 1)
    assert store.reader.summary(HOUR, NOW)["slo"]["p95_latency_under_800ms_ratio"] == 1.0


@both
def test_the_last_100_of_a_kind_are_those_in_the_window(store: Rolled, rows: bool) -> None:
    def some(scenario: str, ago: float, number: int) -> list[Record]:
        return [
            record(scenario=scenario, started_at=NOW - ago - i, acceptance=figures((1, i % 7))) for i in range(number)
        ]

    chat = some("chat", 60, 120)
    before = some("chat", 2 * HOUR, 30)
    store.hold([*chat, *before, *some("code", 1, 150)])
    with reading(rows=rows):
        found = store.reader.summary(HOUR, NOW, Filters(scenario="chat"))
        assert found["last_100"] == acceptance_of(chat[:100])
        assert found["acceptance"] == acceptance_of(chat)
        # Fewer, where there are no more in the window.
        until = Filters(scenario="chat", until=utc(NOW - HOUR))
        assert store.reader.summary(3 * HOUR, NOW, until)["last_100"] == acceptance_of(before)
        # Without a kind they are those before the end, however long ago.
        assert store.reader.summary(60, NOW, Filters(until=utc(NOW)))["last_100"] == store.reader.last_100(NOW)
        found = store.reader.summary(3 * HOUR, NOW, Filters(since=utc(NOW - HOUR - 600), until=utc(NOW - HOUR)))
        assert (found["acceptance"]["requests"], found["last_100"]) == (0, acceptance_of(before))


def test_the_look_for_the_last_100_of_a_kind_is_bounded(store: Rolled, monkeypatch: pytest.MonkeyPatch) -> None:
    rare = [record(scenario="chat", started_at=NOW - 1 - 2 * i, acceptance=figures((1, i % 7))) for i in range(120)]
    store.hold([*rare, *(record(started_at=NOW - 2 - 2 * i) for i in range(120))])
    monkeypatch.setattr(summary, "MOST_LOOKED_AT", 100)
    found = store.reader.summary(HOUR, NOW, Filters(scenario="chat"))
    assert (found["acceptance"]["requests"], found["last_100"]) == (120, acceptance_of(rare[:50]))
    # Where there are 100 in the window at most, the window tells.
    found = store.reader.summary(150, NOW, Filters(scenario="chat"))
    assert found["last_100"] == acceptance_of(rare[:75])


def test_concurrency_of_one_scenario_is_read_from_rows(store: Rolled, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = [(Arm.SPECULATIVE, 60, 400.0), (Arm.BASELINE, 55, 800.0)]
    store.hold(
        [
            record(arm=arm, latency_ms=ms + i, concurrency=3, started_at=NOW - 300 - i, scenario=scenario)
            for scenario, slower in (("chat", 1), ("code", 9))
            for arm, many, ms in ((arm, many, ms * slower) for arm, many, ms in sides)
            for i in range(many)
        ]
    )
    latency = store.reader.summary(HOUR, NOW, Filters(scenario="chat"))["latency"]
    assert (latency["ratio"], latency["ratio_concurrency"]) == ((400 + 56) / (800 + 52), "2-4")
    monkeypatch.setattr(source, "MOST_ROWS", 200)
    found = store.reader.summary(HOUR, NOW, Filters(scenario="chat"))
    assert found["exact"] is False
    assert (found["latency"]["ratio"], found["latency"]["by_concurrency"]) == (None, [])
    assert found["latency"]["speculative"]["p95_ms"] == 456
    words = (
        "figures of concurrency of one scenario or model are made of rows, and those of this window are 230, more than"
    )
    assert found["latency"]["ratio_reason"].startswith(words)
    assert "ask for window=" in found["latency"]["ratio_reason"]
    with pytest.raises(TooManyRows, match="one instance are made of rows"):
        store.reader.summary(HOUR, NOW, Filters(instance="test"))


@both
def test_a_fixed_range_counts_no_more_steps_than_it_has(store: Rolled, rows: bool) -> None:
    store.hold([record(started_at=NOW - 2 * DAY + 60 * i) for i in range(60)])
    chosen = Filters(since=utc(NOW - 2 * DAY), until=utc(NOW - 2 * DAY + HOUR))
    with reading(rows=rows):
        for read in (store.reader.traffic, store.reader.acceptance, store.reader.latency):
            assert len(read(366 * DAY, 60, None, chosen, NOW)["points"]) == 60
        with pytest.raises(ValueError, match=r"3600 s in steps of 1 s are more than 1500 points: .* at least 3 s"):
            store.reader.traffic(366 * DAY, 1, None, chosen, NOW)


@both
def test_a_window_that_ends_before_it_begins(store: Rolled, rows: bool) -> None:
    store.hold([record()])
    words = r"begins at 2027-01-15T08:30:30Z and ends at 2027-01-15T08:29:50Z: ask for an earlier since, a later until,"
    for chosen in (Filters(since=utc(NOW + 60)), Filters(until=utc(NOW - 2 * HOUR))):
        with reading(rows=rows), pytest.raises(EmptyWindow, match="begins at"):
            store.reader.summary(HOUR, NOW, chosen)
    with reading(rows=rows), pytest.raises(EmptyWindow, match=words):
        store.reader.traffic(HOUR, 60, None, Filters(since=utc(NOW), until=utc(NOW - 40)), NOW)
