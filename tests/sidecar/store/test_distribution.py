"""How latencies are spread: the ranks of sorted lists, on both databases, of rows and of rollups."""

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.records import NOW, record, records

from sidecar.api.models import LatencyDistribution
from sidecar.record import Arm, Outcome, Record
from sidecar.store.expressions import Filters

from .test_queries import baseline_of, kind, timed
from .test_rolled import ANY, DAY, Rolled, inside, store, utc
from .test_traffic import both, reading

__all__ = ["store"]

WINDOW = 7200
PER_MILLE = [*range(10, 1000, 10), 995, 999, 1000]

shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def spread(items: Sequence[Record], name: str, *, exact: bool) -> list[float] | None:
    """By nearest rank; in the precision of sketches where these are asked."""
    values = sorted(value for item in items if (value := getattr(item, name)) is not None)
    if not values:
        return None
    # In whole numbers, so that no rounding decides.
    found = [values[-(-len(values) * share // 1000) - 1] for share in PER_MILLE]
    return found if exact else [float(np.float32(value)) for value in found]


@both
@shared
@given(
    st.lists(records.filter(lambda item: item.started_at < NOW), max_size=50),
    st.sampled_from(
        (ANY, Filters(scenario="chat"), Filters(upstream="autoregressive"), Filters(until=utc(NOW - 1830.5)))
    ),
)
def test_values_are_those_of_sorted_lists(store: Rolled, rows: bool, items: list[Record], chosen: Filters) -> None:
    store.hold(items)
    with reading(rows=rows):
        found = store.reader.distribution(WINDOW, chosen, NOW)
    LatencyDistribution.model_validate(found)
    assert found["shares"] == [share / 1000 for share in PER_MILLE]
    of = [item for item in inside(items, found, chosen) if item.outcome is Outcome.OK]
    assert found["baseline"] == baseline_of(of)
    for name, side in (("speculative", "speculative"), ("autoregressive", found["baseline"])):
        values = [item for item in of if kind(item) == side]
        assert found[name] == {
            "requests": len(timed(of, side)),
            **{each: spread(values, each, exact=found["exact"]) for each in ("latency_ms", "ttft_ms", "tpot_ms")},
        }


@both
def test_every_rank_of_a_few_values(store: Rolled, rows: bool) -> None:
    """Also where the share times their number would be rounded up to the next rank."""
    for size in range(1, 72):
        store.hold([record(latency_ms=float(i)) for i in range(1, size + 1)])
        with reading(rows=rows):
            found = store.reader.distribution(WINDOW, ANY, NOW)["speculative"]["latency_ms"]
        assert found == [float(-(-size * share // 1000)) for share in PER_MILLE], size


def test_many_values(store: Rolled) -> None:
    values = np.random.default_rng(5).lognormal(6, 0.8, 20_000)
    others = [record(arm=Arm.BASELINE, latency_ms=50.0, started_at=NOW - DAY + i) for i in range(60)]
    store.hold(
        [*others, *(record(latency_ms=float(ms), started_at=NOW - 2 * DAY + i * 8) for i, ms in enumerate(values))]
    )
    found = store.reader.distribution(3 * DAY, ANY, NOW)
    assert found["exact"] is False
    assert (found["baseline"], found["autoregressive"]["latency_ms"]) == ("spec_disabled", [50.0] * len(PER_MILLE))
    ours = found["speculative"]
    assert (ours["requests"], ours["ttft_ms"]) == (len(values), None)
    assert ours["latency_ms"] == sorted(ours["latency_ms"])
    assert ours["latency_ms"][-1] == np.float32(values.max())
    for share, value in zip(found["shares"], ours["latency_ms"], strict=True):
        # Four standard errors, which shrink towards the high end.
        assert math.isclose(np.mean(values <= value), share, abs_tol=0.044 * (1 - share) + 2 / len(values))
