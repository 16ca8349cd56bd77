from typing import Any

import numpy as np
import pytest
from specwatch_engine.lab import summary
from specwatch_engine.lab.soak.verdict import Ended, judge
from support.soak_rows import latency, row


def soak(minutes: int = 60, *, billing_from: int | None = None, seed: int = 1) -> list[dict[str, Any]]:
    """Two scenarios, of which one drops from 0.78 to 0.43."""
    rng = np.random.default_rng(seed)

    def requests(p: float) -> list[tuple[int, int]]:
        return [(int(rng.binomial(80, rng.beta(9 * p, 9 * (1 - p)))), 80) for _ in range(20)]

    rows = []
    for i in range(minutes):
        fallen = billing_from is not None and i >= billing_from
        noise = float(np.exp(0.03 * rng.normal()))
        rows.append(
            row(
                i,
                {"billing": requests(0.43 if fallen else 0.78), "code": requests(0.9)},
                speculative=latency(40, 400 * noise, 800 * noise),
                engine={"mb": 1500 + 2 * rng.normal(), "root": 7},
            )
        )
    return rows


def test_stable() -> None:
    found = judge(soak(), Ended(60))
    assert (found.verdict, found.title) == ("stable", "Soak of 60 minutes")
    assert found.reasons == [found.reasons[0]]
    assert found.reasons[0].startswith("Nothing drifted over 60 whole minutes: p was 0.8")
    assert {gate.name: gate.passed for gate in found.gates} == {
        "failed requests": True,
        "records dropped": True,
        "p of the mix": True,
        "p of billing": True,
        "p of code": True,
        "similarity": None,
        "p95 of the latency": True,
        "ratio of the median latency to that without speculation": True,
        "p95 of the time to first token": True,
        "ratio of the median time to first token to that without speculation": True,
        "memory of the engine": True,
        "memory of the sidecar": True,
    }
    assert next(gate for gate in found.gates if gate.name == "similarity").words == (
        "Cannot be told: no engine tells its drafts."
    )


def test_a_drop_of_one_scenario_is_drift() -> None:
    found = judge(soak(billing_from=30), Ended(60))
    assert found.verdict == "drift"
    assert any(
        reason.startswith("P of billing fell from 0.7") and reason.endswith("and began about minute 30.")
        for reason in found.reasons
    )
    assert not any("code" in reason for reason in found.reasons)
    assert found.tables[0].rows[-1][0] == "code"
    names = [series.name for series in found.plots[0].series]
    assert names == ["all", "billing", "code", "change of all found", "change of billing found"]
    dots = [i for i, y in enumerate(found.plots[0].series[-1].y) if y is not None]
    assert dots == [30]


def test_what_slows_with_the_baseline_is_no_drift() -> None:
    rows = soak()
    for each in rows[30:]:
        for side in ("speculative", "baseline"):
            each[side] = {name: v if name == "requests" else v * 2 for name, v in each[side].items()}
    found = judge(rows, Ended(60))
    assert found.verdict == "stable"
    assert any("p95 of the latency rose from" in reason and "does not count" in reason for reason in found.reasons)


@pytest.mark.parametrize("baseline", [True, False])
def test_what_slows_by_itself_is_drift(baseline: bool) -> None:
    rows = soak()
    for each in rows:
        if not baseline:
            each["baseline"] = latency(0, 0, 0)
    for each in rows[30:]:
        each["speculative"] = {name: v if name == "requests" else v * 2 for name, v in each["speculative"].items()}
    assert judge(rows, Ended(60)).verdict == "drift"


@pytest.mark.parametrize("creeping", [False, True])
def test_a_tail_that_grows_and_leaves_the_medians_is_a_doubt(creeping: bool) -> None:
    rows = soak()
    for i, each in enumerate(rows):
        factor = 1 + i / 60 if creeping else 1 + (i >= 30)
        each["speculative"] = {n: v * factor if "p95" in n else v for n, v in each["speculative"].items()}
    found = judge(rows, Ended(60))
    assert found.verdict == "cannot tell"
    assert found.reasons[0].startswith("The p95 of the latency rose ")
    assert "The median without speculation did not rise as much" in found.reasons[0]
    assert [gate.passed for gate in found.gates if gate.name.startswith("p95")] == [None, None]
    for each in rows:
        each["baseline"] = latency(0, 0, 0)
    assert judge(rows, Ended(60)).verdict == "drift"


def latencies(seed: int, *, slowed: float = 1.0, stalled: float = 0.0) -> list[dict[str, Any]]:
    """An hour of requests that a machine serves, with and without speculation alike.

    From minute 30 on it slows all by a factor, or stalls a share of them.
    """
    rng = np.random.default_rng(seed)
    rows = soak(seed=seed)
    for i, each in enumerate(rows):
        busy = float(np.exp(0.05 * rng.normal())) * (slowed if i >= 30 else 1.0)
        for side, number, usual in (("speculative", 95, 400.0), ("baseline", 5, 800.0)):
            ms = usual * busy * rng.lognormal(0, 0.4, number)
            ms *= np.where(rng.random(number) < (stalled if i >= 30 else 0.0), 4.0, 1.0)
            each[side] = latency(number, float(np.quantile(ms, 0.5)), float(np.quantile(ms, 0.95)))
    return rows


@pytest.mark.parametrize(
    ("machine", "verdicts"),
    [
        ({}, {"stable"}),
        ({"slowed": 1.5}, {"stable"}),
        # The medians say nothing of it, and it is not of speculation: a p95 that counted would be a false alarm here.
        ({"stalled": 0.15}, {"cannot tell"}),
    ],
    ids=["as it is", "slowed", "stalled"],
)
def test_a_machine_that_slows_both_alike_is_no_drift(machine: dict[str, float], verdicts: set[str]) -> None:
    assert {judge(latencies(seed, **machine), Ended(60)).verdict for seed in range(4)} == verdicts


def test_latency_that_creeps_up_is_drift() -> None:
    rows = soak()
    rng = np.random.default_rng(2)
    for i, each in enumerate(rows):
        factor = (1 + i / 60) * float(np.exp(0.15 * rng.normal()))
        each["speculative"] = {n: v if n == "requests" else v * factor for n, v in each["speculative"].items()}
    assert judge(rows, Ended(60)).verdict == "drift"


def test_a_leak_is_drift_and_a_new_engine_is_none() -> None:
    rows = soak()
    for i, each in enumerate(rows):
        each["engine"] = {"mb": 1500 + 5.0 * i, "root": 7}
    found = judge(rows, Ended(60))
    assert found.verdict == "drift"
    assert found.reasons[0].startswith(
        "The memory of the engine grows: 1,545 MB behind the warm-up, 1,795 MB at the end"
    )
    for i, each in enumerate(rows):
        each["engine"] = {"mb": 1500.0 + 400 * (i > 30), "root": i > 30}
    assert judge(rows, Ended(60)).verdict == "stable"


def test_failed() -> None:
    rows = soak()
    rows[12]["failures"] = {"status 502": 40}
    found = judge(rows, Ended(60))
    assert found.verdict == "failed"
    assert found.reasons[0] == (
        "40 of 2,400 requests failed (40 status 502), which is more than 1%; the first ones in minute 12."
    )
    rows[12]["failures"] = {"status 502": 20}
    assert judge(rows, Ended(60)).verdict == "stable"
    # However it went on.
    rows[20]["death"] = "The engine ended: cause: out of memory."
    found = judge(rows, Ended(60))
    assert (found.verdict, found.reasons[0]) == ("failed", "The engine ended: cause: out of memory.")


def test_records_that_are_dropped_meanwhile_are_a_failure() -> None:
    rows = soak()
    for i, each in enumerate(rows):
        # Before the soak, then in it, and a sidecar that begins anew.
        each["dropped"] = 7 if i < 40 else 0
    assert judge(rows, Ended(60)).verdict == "stable"
    for each in rows[50:]:
        each["dropped"] = 3
    found = judge(rows, Ended(60))
    assert (found.verdict, found.reasons[0]) == (
        "failed",
        "3 records did not reach the sidecar's database: the figures are without them.",
    )


@pytest.mark.parametrize("minutes", [0, 4])
def test_too_few_minutes(minutes: int) -> None:
    found = judge(soak(minutes), Ended(60))
    assert found.verdict == "cannot tell"
    assert found.reasons[0].startswith("Whether p drifts cannot be told: ")


def test_no_figures() -> None:
    rows = [row(i, {}, sent=40, missing={"no_usage": 40}) for i in range(20)]
    found = judge(rows, Ended(20))
    assert found.verdict == "cannot tell"
    assert "no request came with acceptance figures (no_usage 800 times)" in found.reasons[0]


def test_a_gap_is_told_and_is_no_drift() -> None:
    rows = soak()
    rows.insert(30, {"gap_s": 7200, "minute": 30.0, "at": 0})
    rows[31]["partial"] = True
    found = judge(rows, Ended(60))
    assert found.verdict == "stable"
    assert found.reasons[1] == "The soak stood still for 2 hours at minute 30 and went on."
    assert found.plots[0].x[29:31] == [29.0, 30.0]


def test_it_is_what_run_json_takes() -> None:
    found = judge(soak(billing_from=30), Ended(60, files={"minutes": "minutes.jsonl"}))
    assert summary.read(found.json()) == found


def test_another_draft_length_is_told() -> None:
    rows = soak()
    for each in rows[40:]:
        each["k"] = 2
    found = judge(rows, Ended(60))
    assert found.reasons[1].startswith("Draft tokens a step changed from 4 to 2 at minute 40: p depends on them")


def test_a_soak_of_which_little_was_read_is_not_stable() -> None:
    rows = soak()
    for each in rows[20:30]:
        each["unread"] = "refused"
    found = judge(rows, Ended(60))
    assert found.verdict == "cannot tell"
    assert "too many minutes have no figures" in found.reasons[0]
    assert "Of 10 minutes the sidecar told no figures." in found.reasons
