"""What SQL answers equals a plain computation over the records, on both databases."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text
from support.postgres import Cluster
from support.records import NOW, figures, record, records

from sidecar.api.models import AcceptanceSeries, LatencySeries, RequestPage, Summary, TruncationSeries
from sidecar.probes.acceptance import CountWindow
from sidecar.probes.latency import Side
from sidecar.probes.slices import DIMENSIONS
from sidecar.probes.truncation import shape
from sidecar.record import AcceptanceQuality, Arm, Outcome, Record
from sidecar.store.cursor import BadCursor
from sidecar.store.engine import writing_engine
from sidecar.store.expressions import MAX_GROUPS, Filters
from sidecar.store.inserts import Inserts
from sidecar.store.queries import DatabaseUnavailable, Reader
from sidecar.store.rows import request_row
from sidecar.store.upgrade import upgrade

WINDOW = 3600


class Store:
    """A database to fill and read."""

    def __init__(self, database_url: str) -> None:
        self.reader = Reader(database_url)
        self._engine: Engine = writing_engine(database_url)
        self._inserts = Inserts(self._engine)
        upgrade(self._engine)

    def hold(self, items: Sequence[Record]) -> None:
        """Make `items` all that the database holds."""
        with self._engine.begin() as connection:
            connection.execute(text("DELETE FROM requests"))
            if items:
                self._inserts.insert("requests", connection, [request_row(item) for item in items])

    def close(self) -> None:
        self.reader.close()
        self._engine.dispose()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'specwatch.db'}"
    else:
        server: Cluster = request.getfixturevalue("postgres")
        url = server.new_url()
    found = Store(url)
    yield found
    found.close()


# ---- the same figures, computed plainly


def counts(item: Record) -> bool:
    found = item.acceptance
    return (
        found.quality is AcceptanceQuality.OK
        and bool(found.draft_tokens)
        and item.outcome in (Outcome.OK, Outcome.TRUNCATED)
    )


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def acceptance_of(items: Sequence[Record]) -> dict[str, Any]:
    found = [item.acceptance for item in items if counts(item)]
    steps, drafted, accepted = (
        sum(getattr(each, name) for each in found) for name in ("verify_steps", "draft_tokens", "accepted_tokens")
    )
    ks = {each.num_speculative_tokens for each in found}
    cuts = [each.rejected_at for each in found]
    window = CountWindow(1000)
    for item in items:
        window.add(item)
    low, high = window.interval() or (None, None)
    return {
        "requests": len(found),
        "verify_steps": steps,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "p": ratio(accepted, drafted),
        "p_low": low,
        "p_high": high,
        "mean_acceptance_length": 1 + accepted / steps if steps else None,
        "num_speculative_tokens": ks.pop() if len(ks) == 1 else None,
        "p_per_token": None if None in cuts else ratio(accepted, accepted + sum(sum(cut or ()) for cut in cuts)),
    }


def quantile(values: Sequence[float], percent: int) -> float | None:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1] if values else None


def latency_of(items: Sequence[Record]) -> dict[str, Any]:
    ok = [item for item in items if item.outcome is Outcome.OK]
    total, first, each = (
        [value for item in ok if (value := getattr(item, name)) is not None]
        for name in ("latency_ms", "ttft_ms", "tpot_ms")
    )
    return {
        "requests": len(total),
        **{f"p{q}_ms": quantile(total, q) for q in (50, 95, 99)},
        **{f"ttft_p{q}_ms": quantile(first, q) for q in (50, 95, 99)},
        **{f"tpot_p{q}_ms": quantile(each, q) for q in (50, 95, 99)},
        "under_800ms_ratio": ratio(sum(value <= 800 for value in total), len(total)),
    }


def timed(items: Sequence[Record], side: str | None) -> list[Record]:
    return [item for item in items if item.outcome is Outcome.OK and item.latency_ms is not None and kind(item) == side]


def kind(item: Record) -> str:
    if item.arm in (Arm.SPECULATIVE, Arm.PROBE):
        return "speculative"
    return "true_ar" if item.upstream == "autoregressive" else "spec_disabled"


def baseline_of(items: Sequence[Record]) -> str | None:
    """Fifty are enough; the true baseline where both have as many."""
    true, disabled = (min(50, len(timed(items, each))) for each in ("true_ar", "spec_disabled"))
    if not true and not disabled:
        return None
    return "true_ar" if true >= disabled else "spec_disabled"


def sides_of(items: Sequence[Record], baseline: str | None) -> dict[str, Any]:
    spec = [item for item in items if kind(item) == "speculative"]
    plain = [item for item in items if kind(item) == baseline]
    return {"speculative": latency_of(spec), "autoregressive": latency_of(plain)}


def latency_point_of(items: Sequence[Record], baseline: str | None) -> dict[str, Any]:
    sides = sides_of(items, baseline)
    ours, theirs = sides.values()
    enough = min(ours["requests"], theirs["requests"]) >= 50
    return {**sides, "ratio": ratio(ours["p95_ms"], theirs["p95_ms"]) if enough else None}


def truncation_of(items: Sequence[Record], positions: int) -> dict[str, Any]:
    found = [item.acceptance for item in items if counts(item) and item.acceptance.reached is not None]

    def add(name: str) -> list[int | None]:
        columns = [[row[i] for each in found if i < len(row := getattr(each, name))] for i in range(positions)]
        return [sum(column) if column else None for column in columns]

    rejected, reached = add("rejected_at"), add("reached")
    fall = shape(rejected, reached)
    return {
        "shape": fall.kind,
        "cliff_at": fall.cliff_at,
        "verify_steps": sum(each.verify_steps or 0 for each in found),
        "truncated_steps": sum(sum(each.rejected_at or ()) for each in found),
        "rejected_at": rejected,
        "reached": reached,
        "hazard": [
            ratio(a, b) if a is not None and b is not None else None for a, b in zip(rejected, reached, strict=True)
        ],
    }


def bucket(by: str, item: Record) -> str:
    def name(value: float | None, missing: str, bounds: Sequence[tuple[float, str]], last: str) -> str:
        if value is None:
            return missing
        return next((label for bound, label in bounds if value <= bound), last)

    match by:
        case "scenario":
            return item.scenario
        case "model":
            return "unknown" if item.model is None else item.model
        case "k":
            k = item.acceptance.num_speculative_tokens
            return "unknown" if k is None else str(k)
        case "temperature":
            bounds = [(0.0, "0"), (0.3, "0-0.3"), (0.7, "0.3-0.7"), (1.0, "0.7-1")]
            return name(item.temperature, "unset", bounds, ">1")
        case "prompt_length":
            bounds = [(512, "1-512"), (2048, "513-2048"), (8192, "2049-8192"), (32768, "8193-32768")]
            return name(item.prompt_tokens, "unknown", [*bounds, (131072, "32769-131072")], ">131072")
    bounds = [(1, "1"), (4, "2-4"), (8, "5-8"), (16, "9-16"), (32, "17-32"), (64, "33-64")]
    return name(item.concurrency, "unknown", bounds, ">64")


def groups(
    items: Sequence[Record], step: int | None, by: str | None
) -> dict[tuple[datetime | None, str | None], list[Record]]:
    found = defaultdict(list)
    for item in items:
        at = None if step is None else datetime.fromtimestamp(item.started_at // step * step, UTC)
        found[at, None if by is None else bucket(by, item)].append(item)
    if step is None and by is None and not items:
        found[None, None] = []
    return found


def passes(item: Record, filters: Filters) -> bool:
    return all(
        (want := getattr(filters, name)) is None or getattr(item, name) == want
        for name in ("scenario", "model", "upstream", "arm", "outcome", "instance")
    )


def keyed(points: Sequence[dict[str, Any]]) -> dict[tuple[datetime | None, str | None], dict[str, Any]]:
    found = {(point["at"], point["group"]): {**point} for point in points}
    assert len(found) == len(points)
    for point in found.values():
        del point["at"], point["group"]
    return found


splits = st.tuples(st.sampled_from((None, 60, 600, 3600)), st.sampled_from((None, *DIMENSIONS)))
filters = st.builds(
    Filters,
    scenario=st.none() | st.sampled_from(("chat", "it's")),
    upstream=st.none() | st.just("speculative"),
    arm=st.none() | st.just("speculative"),
    outcome=st.none() | st.just("ok"),
)
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@shared
@given(st.lists(records, max_size=40), splits, filters)
def test_series_equal_a_plain_computation(
    store: Store, items: list[Record], split: tuple[int | None, str | None], chosen: Filters
) -> None:
    store.hold(items)
    step, by = split
    inside = [item for item in items if NOW - WINDOW <= item.started_at < NOW and passes(item, chosen)]

    found = store.reader.acceptance(WINDOW, step, by, chosen, NOW)
    AcceptanceSeries.model_validate(found)
    wanted = groups([item for item in inside if counts(item)], step, by)
    assert keyed(found["points"]) == {key: acceptance_of(rows) for key, rows in wanted.items()}

    found = store.reader.latency(WINDOW, step, by, chosen, NOW)
    LatencySeries.model_validate(found)
    measured = [
        item
        for item in inside
        if item.outcome is Outcome.OK and (item.latency_ms, item.ttft_ms, item.tpot_ms) != (None, None, None)
    ]
    baseline = baseline_of(inside)
    assert found["baseline"] == baseline
    wanted = groups([item for item in measured if kind(item) in ("speculative", baseline)], step, by)
    assert keyed(found["points"]) == {key: latency_point_of(rows, baseline) for key, rows in wanted.items()}

    found = store.reader.truncation(WINDOW, step, by, chosen, NOW)
    TruncationSeries.model_validate(found)
    cut = [item for item in inside if counts(item) and item.acceptance.reached is not None]
    positions = max((len(item.acceptance.reached or ()) for item in cut), default=0)
    assert found["positions"] == positions
    wanted = groups(cut, step, by)
    assert keyed(found["points"]) == {key: truncation_of(rows, positions) for key, rows in wanted.items()}
    total = truncation_of(cut, positions)
    assert keyed([found["total"]])[None, None] == total
    first = total["rejected_at"][0] if positions else None
    assert found["first_position_share"] == ratio(first or 0, total["truncated_steps"])


def slo_of(items: Sequence[Record]) -> dict[str, Any]:
    ok = [item for item in items if item.outcome is Outcome.OK and item.latency_ms is not None]
    inside = [item for item in ok if NOW - WINDOW <= item.started_at < NOW]
    minutes = {item.started_at // 60 for item in inside}
    kept = 0
    for minute in minutes:
        trailing = [
            item.latency_ms or 0
            for item in ok
            if minute - 4 <= item.started_at // 60 <= minute and item.started_at < NOW
        ]
        kept += (quantile(trailing, 95) or 0) <= 800
    fast = sum((item.latency_ms or 0) <= 800 for item in inside)
    return {
        "latency_under_800ms_ratio": ratio(fast, len(inside)),
        "p95_latency_under_800ms_ratio": ratio(kept, len(minutes)),
    }


@shared
@given(st.lists(records, max_size=60))
def test_summary_equals_a_plain_computation(store: Store, items: list[Record]) -> None:
    store.hold(items)
    inside = [item for item in items if NOW - WINDOW <= item.started_at < NOW]
    found = store.reader.summary(WINDOW, NOW)
    assert found["acceptance"] == acceptance_of(inside)
    assert found["slo"] == slo_of(items)
    latency, baseline = found["latency"], baseline_of(inside)
    assert latency["baseline"] == baseline
    assert {name: latency[name] for name in ("speculative", "autoregressive")} == sides_of(inside, baseline)
    assert latency["baseline_share"] == ratio(sum(item.arm is Arm.BASELINE for item in inside), len(inside))
    sizes = Counter((bucket("concurrency", each), kind(each)) for side in Side for each in timed(inside, side))
    compared = {each["concurrency"]: (each["speculative"], each["baseline"]) for each in latency["by_concurrency"]}
    assert compared == (
        {
            name: (sizes[name, "speculative"], sizes[name, baseline])
            for name, side in sizes
            if side in ("speculative", baseline)
        }
        if baseline
        else {}
    )
    assert found["traffic"] == {
        "requests": len(inside),
        "ok": sum(item.outcome is Outcome.OK for item in inside),
        "outcomes": dict(Counter(item.outcome.value for item in inside)),
        "requests_per_s": len(inside) / WINDOW,
        "completion_tokens_per_s": sum(item.completion_tokens or 0 for item in inside) / WINDOW,
        "streaming": sum(item.stream for item in inside),
    }
    served = [
        item.acceptance for item in inside if item.outcome is Outcome.OK and item.arm in (Arm.SPECULATIVE, Arm.PROBE)
    ]
    missing = Counter(each.reason or each.quality.value for each in served if each.quality.value != "ok")
    covered = len(served) - missing.total()
    assert found["coverage"] == {"requests": ratio(covered, len(served)), "missing": dict(missing)}
    cut = truncation_of([item for item in inside if item.acceptance.reached is not None], 5)
    assert found["truncation"]["truncation_rate"] == ratio(cut["truncated_steps"], cut["verify_steps"])


# ---- cases


def test_an_empty_database_answers_in_nulls(store: Store) -> None:
    store.hold([])
    reader, none = store.reader, Filters()
    found = reader.summary(WINDOW, NOW)
    assert set(found) == set(Summary.model_fields) - {
        "generated_at",
        "window_s",
        "instance",
        "fallback",
        "database",
        "records_dropped",
        "alignment",
        "quality",
        "similarity",
        "alerts",
    }
    assert found["last_100"] == acceptance_of([])
    assert found["slo"] == dict.fromkeys(("latency_under_800ms_ratio", "p95_latency_under_800ms_ratio"))
    assert found["truncation"] == {"truncation_rate": None, "first_position_share": None}
    assert set(found["versions"].values()) == {None}
    assert found["latency"]["ratio"] is None
    (point,) = reader.acceptance(WINDOW, None, None, none, NOW)["points"]
    assert (point["p"], point["mean_acceptance_length"], point["requests"]) == (None, None, 0)
    assert reader.acceptance(WINDOW, 60, "k", none, NOW)["points"] == []
    assert reader.truncation(WINDOW, None, None, none, NOW)["positions"] == 0
    assert reader.latency(WINDOW, 60, None, none, NOW)["points"] == []
    assert reader.requests(none) == {"requests": [], "next_cursor": None}
    assert reader.request("x") == (None, None)
    assert reader.transitions() == []
    assert reader.alerts() == reader.last_alerts("test", NOW) == []


def test_c04_requests_without_drafts_do_not_count(store: Store) -> None:
    idle = figures((0, 0, 0, 0))
    store.hold(
        [record(acceptance=idle) for _ in range(200)] + [record(acceptance=figures((1, 0, 0, 0, 4))) for _ in range(20)]
    )
    assert store.reader.summary(WINDOW, NOW)["acceptance"]["p"] == 0.8
    assert store.reader.last_100(NOW)["requests"] == 20


def test_c05_impossible_figures_do_not_count(store: Store) -> None:
    more_than_drafted = figures(
        (0, 130), draft_tokens=129, quality=AcceptanceQuality.INCONSISTENT, raw="{}", reason="accepted > drafted"
    )
    store.hold([record(acceptance=more_than_drafted), record()])
    found = store.reader.summary(WINDOW, NOW)
    assert found["acceptance"] == acceptance_of([record()])
    assert found["coverage"] == {"requests": 0.5, "missing": {"accepted > drafted": 1}}


def test_c06_p_is_pooled(store: Store) -> None:
    one = figures((1, 0, 0, 0, 0, 0, 0, 0, 0, 0), verify_steps=1, draft_tokens=10, accepted_tokens=9)
    two = figures((9, 1), verify_steps=10, draft_tokens=90, accepted_tokens=1)
    store.hold([record(acceptance=one), record(acceptance=two)])
    assert store.reader.summary(WINDOW, NOW)["acceptance"]["p"] == 0.1


def test_c31_ratio_of_p95_by_nearest_rank(store: Store) -> None:
    def side(arm: Arm, *values: tuple[float, int]) -> list[Record]:
        return [record(arm=arm, latency_ms=value) for value, number in values for _ in range(number)]

    speculative = side(Arm.SPECULATIVE, (500, 40), (1000, 40), (1750, 20))
    plain = side(Arm.BASELINE, (500, 10), (1000, 20), (3000, 70))
    store.hold(speculative + plain)
    found = store.reader.summary(WINDOW, NOW)["latency"]
    assert (found["ratio"], found["ratio_concurrency"], found["ratio_reason"]) == (1750 / 3000, "1", None)
    assert found["baseline_share"] == 0.5

    store.hold(speculative + plain[:3])
    found = store.reader.summary(WINDOW, NOW)["latency"]
    assert found["ratio"] is None
    assert found["ratio_reason"] == "too few to compare: 3 of 50 baseline requests"


def test_c09_latencies_are_compared_at_like_concurrency_with_one_kind_of_baseline(store: Store) -> None:
    def some(number: int, latency_ms: float, concurrency: int, arm: Arm, upstream: str = "speculative") -> list[Record]:
        return [
            record(latency_ms=latency_ms, concurrency=concurrency, arm=arm, upstream=upstream) for _ in range(number)
        ]

    true = some(50, 3000, 1, Arm.BASELINE, "autoregressive") + some(50, 6000, 32, Arm.AUTOREGRESSIVE, "autoregressive")
    disabled = some(200, 5800, 32, Arm.BASELINE)
    fast, slow = some(60, 1750, 1, Arm.SPECULATIVE), some(70, 9000, 32, Arm.SPECULATIVE)
    lonely = some(90, 100, 4, Arm.SPECULATIVE)
    store.hold(true + disabled + fast + slow + lonely)
    found = store.reader.summary(WINDOW, NOW)["latency"]
    assert (found["baseline"], found["autoregressive"]["requests"]) == ("true_ar", 100)
    assert (found["ratio"], found["ratio_concurrency"]) == (1.5, "17-32")
    assert [(each["concurrency"], each["ratio"], each["reason"]) for each in found["by_concurrency"]] == [
        ("1", 1750 / 3000, None),
        ("2-4", None, "too few to compare: 0 of 50 baseline requests"),
        ("17-32", 1.5, None),
    ]

    store.hold(true[:49] + disabled + fast)
    found = store.reader.summary(WINDOW, NOW)["latency"]
    assert (found["baseline"], found["autoregressive"]["p95_ms"]) == ("spec_disabled", 5800)
    assert (found["ratio"], found["ratio_concurrency"]) == (None, None)
    assert found["ratio_reason"] == "at no concurrency have both sides 50 requests"


@pytest.mark.parametrize("split", [(None, None), (3600, "scenario")])
@pytest.mark.parametrize(("baselines", "p95_ms", "wanted"), [(50, 1000.0, 0.5), (49, 1000.0, None), (50, 0.0, None)])
def test_the_ratio_of_a_point_wants_fifty_a_side(
    store: Store, split: tuple[int | None, str | None], baselines: int, p95_ms: float, wanted: float | None
) -> None:
    """Whatever the concurrency of each side."""
    ours = [record(latency_ms=500.0, concurrency=1) for _ in range(50)]
    store.hold(ours + [record(arm=Arm.BASELINE, latency_ms=p95_ms, concurrency=20) for _ in range(baselines)])
    (point,) = store.reader.latency(WINDOW, *split, Filters(), NOW)["points"]
    assert point["ratio"] == wanted


@pytest.mark.parametrize("split", [(None, None), (3600, "scenario")])
@pytest.mark.parametrize(
    ("size", "ranks"), [(1, (1, 1, 1)), (2, (1, 2, 2)), (20, (10, 19, 20)), (100, (50, 95, 99)), (101, (51, 96, 100))]
)
def test_c31_ranks(store: Store, split: tuple[int | None, str | None], size: int, ranks: tuple[int, int, int]) -> None:
    others = [record(arm=Arm.PROBE, latency_ms=None, ttft_ms=0.0), record(arm=Arm.BASELINE, latency_ms=0.5)]
    store.hold([*others, *(record(latency_ms=float(i), tpot_ms=float(-i)) for i in range(size, 0, -1))])
    (point,) = store.reader.latency(WINDOW, *split, Filters(), NOW)["points"]
    found = point["speculative"]
    assert (found["requests"], found["p50_ms"], found["p95_ms"], found["p99_ms"]) == (size, *ranks)
    assert found["tpot_p50_ms"] == -size + math.ceil(size / 2) - 1
    assert found["ttft_p95_ms"] == 0.0
    assert point["autoregressive"]["p99_ms"] == 0.5


def test_a_minute_is_held_to_the_five_up_to_it(store: Store) -> None:
    slow = record(started_at=NOW - 600, latency_ms=801.0)
    quick = [record(started_at=NOW - 600 + 60 * minute, latency_ms=800.0) for minute in (3, 4, 5, 6)]
    store.hold([slow, *quick])
    found = store.reader.summary(WINDOW, NOW)["slo"]
    # The slow one still counts three and four minutes later, but not five.
    assert found == {"latency_under_800ms_ratio": 4 / 5, "p95_latency_under_800ms_ratio": 2 / 5}
    # Outside the window it is no minute of its own, yet counts for those after it.
    found = store.reader.summary(540, NOW)["slo"]
    assert found == {"latency_under_800ms_ratio": 1.0, "p95_latency_under_800ms_ratio": 2 / 4}


def test_a_minute_counts_only_for_traffic_inside_the_window(store: Store) -> None:
    # NOW is half past a minute, so this one began before the window, in the window's first minute.
    store.hold([record(started_at=NOW - 550, latency_ms=801.0), record(latency_ms=1.0)])
    assert store.reader.summary(540, NOW)["slo"]["p95_latency_under_800ms_ratio"] == 1.0
    assert store.reader.summary(560, NOW)["slo"]["p95_latency_under_800ms_ratio"] == 0.5


def test_last_100_reaches_back_beyond_any_window(store: Store) -> None:
    old = [record(started_at=NOW - 90_000 - i, acceptance=figures((1, i))) for i in range(150)]
    store.hold([*old, *(record(acceptance=figures((0, 0))) for _ in range(200))])
    assert store.reader.last_100(NOW) == acceptance_of(old[:100])


def test_versions_are_those_of_the_newest_request_that_speculated(store: Store) -> None:
    plain = figures((0, 0))
    store.hold(
        [
            record(started_at=NOW - 30, fingerprint="old"),
            record(started_at=NOW - 20, fingerprint="new"),
            record(started_at=NOW - 10, fingerprint="plain", acceptance=plain),
        ]
    )
    assert store.reader.summary(60, NOW)["versions"] == {
        "fingerprint": "new",
        "model": "target",
        "draft_model": "draft",
        "num_speculative_tokens": 3,
    }


def test_small_groups_are_pooled(store: Store) -> None:
    store.hold([record(scenario=f"s{i:02}") for i in range(MAX_GROUPS + 5) for _ in range(1 if i % 2 else 2)])
    points = store.reader.acceptance(WINDOW, None, "scenario", Filters(), NOW)["points"]
    assert len(points) == MAX_GROUPS + 1
    assert (points[-1]["group"], points[-1]["requests"]) == ("other", 5)
    assert {f"s{i:02}" for i in range(0, MAX_GROUPS + 5, 2)} < {point["group"] for point in points}


def test_groups_and_steps_are_in_order(store: Store) -> None:
    k_of = [record(started_at=NOW - 60 * i, acceptance=figures((1,) * (k + 1))) for i in (1, 2) for k in (10, 9, 2)]
    store.hold(k_of)
    points = store.reader.acceptance(WINDOW, 60, "k", Filters(), NOW)["points"]
    assert [point["group"] for point in points] == ["2", "9", "10"] * 2
    assert points[0]["at"] < points[-1]["at"]


def test_positions_reached_by_no_step_are_not_positions_never_drafted(store: Store) -> None:
    store.hold(
        [
            record(scenario="short", acceptance=figures((4, 1))),
            record(scenario="long", acceptance=figures((5, 0, 0, 0))),
        ]
    )
    found = store.reader.truncation(WINDOW, None, "scenario", Filters(), NOW)
    long, short = found["points"]
    assert (long["reached"], long["rejected_at"]) == ([5, 0, 0], [5, 0, 0])
    assert long["hazard"] == [1.0, None, None]
    assert (short["reached"], short["hazard"]) == ([5, None, None], [0.8, None, None])
    assert found["total"]["reached"] == [10, 0, 0]


def test_answers_that_would_get_too_long(store: Store) -> None:
    for read in (store.reader.acceptance, store.reader.truncation, store.reader.latency):
        with pytest.raises(ValueError, match="take a step of at least 58 s"):
            read(86_400, 1, None, Filters(), NOW)
        with pytest.raises(ValueError, match="at least 173 s"):
            read(86_400, 60, "k", Filters(), NOW)


def test_counts_beyond_32_bits_add_up(store: Store) -> None:
    huge = 3_000_000_000
    many = figures((huge, huge))
    store.hold([record(acceptance=many, completion_tokens=2**40) for _ in range(3)])
    found = store.reader.summary(WINDOW, NOW)
    assert found["acceptance"]["draft_tokens"] == 6 * huge
    assert store.reader.truncation(WINDOW, None, None, Filters(), NOW)["total"]["reached"] == [6 * huge]


# ---- rows


@shared
@given(st.lists(st.integers(0, 5), max_size=25), st.integers(1, 7), filters)
def test_pages_walk_all_rows_once(store: Store, times: list[int], limit: int, chosen: Filters) -> None:
    items = [record(started_at=NOW - at / 1e6, scenario="chat") for at in times]
    store.hold(items)
    walked: list[str] = []
    cursor = None
    while True:
        page = store.reader.requests(chosen, limit, cursor)
        RequestPage.model_validate(page)
        assert len(page["requests"]) <= limit
        walked += [row["request_id"] for row in page["requests"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        assert len(page["requests"]) == limit
    wanted = [item for item in items if passes(item, chosen)]
    # Stable, so that of equal times the last one stored comes first.
    wanted.reverse()
    newest = sorted(wanted, key=lambda item: -item.started_at)
    assert walked == [item.request_id for item in newest]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "\x00",
        "é",
        "bm9w",
        "MjAyNi0wMS0wMSAx",
        "MjAyNi0wMS0wMVQwMDowMDowMCswMDowMCAtMQ",
        # The ends of the calendar.
        "OTk5OS0xMi0zMVQyMzo1OTo1OS45OTk5OTkrMDA6MDAgNQ",
        "MDAwMS0wMS0wMVQwMDowMDowMCsxNDowMCA1",
    ],
)
def test_cursors_that_no_page_gave(store: Store, cursor: str) -> None:
    with pytest.raises(BadCursor, match="next_cursor"):
        store.reader.requests(Filters(), 10, cursor)


def test_times_and_odd_text_as_filters(store: Store) -> None:
    store.hold([record(started_at=NOW - i, scenario="a\0b" if i else "x") for i in range(5)])
    since, until = (datetime.fromtimestamp(NOW - ago, UTC) for ago in (3, 1))
    found = store.reader.requests(Filters(since=since, until=until, scenario="a\0b"))
    assert [row["started_at"].timestamp() for row in found["requests"]] == [NOW - 2, NOW - 3]


def test_the_newest_of_an_id(store: Store) -> None:
    store.hold([record(request_id="same", started_at=NOW - i, status=200 + i) for i in range(3)])
    found, rest = store.reader.request("same")
    assert (found is not None, rest) == (True, None)
    assert found["status"] == 200


@pytest.mark.parametrize(
    "make", [lambda path: f"sqlite:///{path}/none.db", lambda _: "postgresql://u:pw@127.0.0.1:1/x"]
)
def test_a_database_that_gives_no_answer(tmp_path: Path, make: Callable[[Path], str]) -> None:
    reader = Reader(make(tmp_path))
    with pytest.raises(DatabaseUnavailable) as caught:
        reader.summary(WINDOW, NOW)
    assert "\n" not in str(caught.value)
    assert "pw" not in str(caught.value)
    reader.close()


def test_a_database_without_tables(database_url: str) -> None:
    writing_engine(database_url).connect().close()
    reader = Reader(database_url)
    with pytest.raises(DatabaseUnavailable):
        reader.requests(Filters())
    reader.close()
