"""Instruments: what records add to them, and that labels stay bounded. C30."""

import dataclasses
import time
from importlib.metadata import version

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from sidecar.metrics import AlertCounts, Live, Metrics
from sidecar.record import Acceptance, AcceptanceQuality, AcceptanceSource, Arm, Outcome, Record

LIVE = Live(
    outcomes={Outcome.OK: 3},
    refused=1,
    in_flight=2,
    tap_failures=0,
    dropped={"queue": 4},
    queue_length=5,
    database_up=True,
    acceptance_rate=None,
    mean_acceptance_length=None,
    window_requests=0,
    states={"speculative": True, "autoregressive": False},
)
FIGURES = Acceptance(
    source=AcceptanceSource.RESPONSE,
    quality=AcceptanceQuality.OK,
    num_speculative_tokens=3,
    verify_steps=43,
    draft_tokens=129,
    accepted_tokens=10,
    histogram=(39, 1, 0, 3),
    rejected_at=(39, 1, 0),
    reached=(43, 4, 3),
)
RECORD = Record(
    request_id="r",
    started_at=0.0,
    instance="i",
    upstream="speculative",
    arm=Arm.SPECULATIVE,
    endpoint="chat_completions",
    scenario="billing",
    outcome=Outcome.OK,
    acceptance=FIGURES,
    model="m",
    latency_ms=800.0,
)
SCENARIOS = ("billing", "default", "other")


def made(live: Live = LIVE) -> Metrics:
    return Metrics(
        CollectorRegistry(), lambda: live, upstreams=("speculative", "autoregressive"), scenarios=("billing",)
    )


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_c01_the_accepted_lengths_are_a_histogram_of_verify_steps() -> None:
    metrics = made()
    metrics.observe(RECORD)
    read = samples(metrics)
    name, upstream = "specwatch_accepted_length_tokens", "upstream=speculative"
    assert read[f"{name}_count", upstream] == 43
    assert read[f"{name}_sum", upstream] == 10
    assert [read[f"{name}_bucket", f"le={edge}", upstream] for edge in ("0.0", "1.0", "2.0", "3.0")] == [39, 40, 40, 43]
    assert read["specwatch_truncations_total", "position=1"] == 39
    assert read["specwatch_truncations_total", "position=2"] == 1
    assert read["specwatch_truncations_total", "position=3"] == 0
    billing = "scenario=billing", upstream
    assert read["specwatch_draft_tokens_total", *billing] == 129
    assert read["specwatch_accepted_tokens_total", *billing] == 10
    assert read["specwatch_verify_steps_total", *billing] == 43
    assert read["specwatch_request_latency_seconds_bucket", "arm=speculative", "le=0.8"] == 1


def test_figures_that_are_not_trusted_count_as_unknown_alone() -> None:
    metrics = made()
    metrics.observe(replace(RECORD, acceptance=replace(FIGURES, quality=AcceptanceQuality.INCONSISTENT)))
    read = samples(metrics)
    assert read["specwatch_acceptance_unknown_total", "quality=inconsistent"] == 1
    assert read["specwatch_draft_tokens_total", "scenario=billing", "upstream=speculative"] == 0


def test_aborted_requests_are_no_latencies() -> None:
    metrics = made()
    metrics.observe(replace(RECORD, outcome=Outcome.CLIENT_ABORT))
    assert samples(metrics)["specwatch_request_latency_seconds_count", "arm=speculative"] == 0


def test_c30_clients_cannot_make_series() -> None:
    metrics = made()
    metrics.models.add("m")
    metrics.observe(RECORD)
    metrics.observe(replace(RECORD, scenario="x", model="x"))
    before = len(samples(metrics))
    for number in range(10_000):
        metrics.observe(replace(RECORD, scenario=f"s{number}", model=f"m{number}", request_id=f"r{number}"))
    read = samples(metrics)
    assert len(read) == before
    key = ("arm=speculative", "model=other", "outcome=ok", "scenario=other", "upstream=speculative")
    assert read["specwatch_requests_total", *key] == 10_001
    of = "scenario=other", "upstream=speculative"
    for name, count in (("draft_tokens", 129), ("accepted_tokens", 10), ("verify_steps", 43)):
        assert read[f"specwatch_{name}_total", *of] == 10_001 * count


def test_c30_tokens_have_their_series_before_the_first_request() -> None:
    read = samples(made())
    for name in ("draft_tokens", "accepted_tokens", "verify_steps"):
        labels = {key[1:] for key in read if key[0] == f"specwatch_{name}_total"}
        assert labels == {
            (f"scenario={scenario}", f"upstream={upstream}")
            for scenario in SCENARIOS
            for upstream in ("speculative", "autoregressive")
        }


def test_the_tokens_of_scenarios_are_told_apart() -> None:
    metrics = made()
    for scenario, times in (("billing", 70), ("default", 3), ("elsewhere", 2)):
        for _ in range(times):
            metrics.observe(replace(RECORD, scenario=scenario))
    silent = replace(FIGURES, draft_tokens=50, accepted_tokens=7, verify_steps=10, histogram=None, rejected_at=None)
    metrics.observe(replace(RECORD, scenario="billing", acceptance=silent))
    read, upstream = samples(metrics), "upstream=speculative"
    for name, each, more in (("draft_tokens", 129, 50), ("accepted_tokens", 10, 7), ("verify_steps", 43, 10)):
        counted = {
            scenario: read[f"specwatch_{name}_total", f"scenario={scenario}", upstream] for scenario in SCENARIOS
        }
        assert counted == {"billing": 70 * each + more, "default": 3 * each, "other": 2 * each}, name
    # Of the whole upstream, where single steps are told.
    assert read["specwatch_accepted_length_tokens_count", upstream] == 75 * 43
    assert read["specwatch_truncations_total", "position=1"] == 75 * 39


def test_alerts_and_notifications() -> None:
    alerts = AlertCounts(
        firing={("AcceptanceLow", "critical"): 2, ("Slow", "warning"): 0},
        has_data={"AcceptanceLow": True, "Slow": False, "New": None},
        notifications={("chat", "sent"): 3, ("chat", "timeout"): 0},
    )
    read = samples(made(dataclasses.replace(LIVE, alerts=alerts)))
    assert read["specwatch_alerts_firing", "alert=AcceptanceLow", "severity=critical"] == 2
    assert read["specwatch_alerts_firing", "alert=Slow", "severity=warning"] == 0
    assert {key[1]: value for key, value in read.items() if key[0] == "specwatch_alert_has_data"} == {
        "alert=AcceptanceLow": 1,
        "alert=Slow": 0,
    }
    assert read["specwatch_notifications_total", "outcome=sent", "receiver=chat"] == 3
    assert read["specwatch_notifications_total", "outcome=timeout", "receiver=chat"] == 0


def test_the_sidecar_tells_of_itself() -> None:
    read = samples(made(dataclasses.replace(LIVE, late_streams=4, failures=5, loop_lag_s=0.25)))
    assert read["specwatch_build_info", f"version={version('specwatch')}"] == 1
    assert read["specwatch_late_streams_total",] == 4
    assert read["specwatch_failures_total",] == 5
    assert read["specwatch_event_loop_lag_seconds",] == 0.25
    assert read["process_resident_memory_bytes",] > 1e6
    assert read["process_cpu_seconds_total",] > 0
    assert 0 < read["process_start_time_seconds",] <= time.time()


def test_changes_of_slices_count_but_are_no_switches() -> None:
    metrics = made()
    metrics.transition("speculative", "autoregressive", "acceptance")
    metrics.transition("speculative", "autoregressive", "acceptance", "scenario=billing")
    labels = "from=speculative", "reason=acceptance", "to=autoregressive"
    assert samples(metrics)["specwatch_fallback_transitions_total", *labels] == 2
    assert metrics.switches == 1
    for before, after in (("autoregressive", "probing"), ("probing", "autoregressive"), ("probing", "speculative")):
        metrics.transition(before, after, "probes")
    assert metrics.switches == 2, "of a round of probes that failed, and one that went well"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("specwatch_acceptance_ratio", "acceptance_rate"),
        ("specwatch_mean_acceptance_length_tokens", "mean_acceptance_length"),
        ("specwatch_latency_ratio", "latency_ratio"),
    ],
)
def test_what_is_not_known_has_no_sample(name: str, field: str) -> None:
    assert name not in {key[0] for key in samples(made())}
    read = samples(made(dataclasses.replace(LIVE, **{field: 1.5})))
    assert [value for key, value in read.items() if key[0] == name] == [1.5]


def test_alignment_is_told_once_it_is_known() -> None:
    aligned, total = ("specwatch_tokenizer_aligned",), ("specwatch_same_text_other_id_total",)
    assert not {aligned, total} & samples(made()).keys()
    assert samples(made(dataclasses.replace(LIVE, same_text_other_id=0)))[total] == 0
    for holds in (True, False):
        read = samples(made(dataclasses.replace(LIVE, aligned=holds, same_text_other_id=3)))
        assert (read[aligned], read[total]) == (holds, 3)


def test_a_certificate_is_told_of_where_there_is_one() -> None:
    assert ("specwatch_certificate_valid",) not in samples(made())
    for valid in (True, False):
        read = samples(made(dataclasses.replace(LIVE, certificate_valid=valid)))
        assert read[("specwatch_certificate_valid",)] == valid


def test_a_fleet_is_told_of_where_there_is_one() -> None:
    assert ("specwatch_fleet_up",) not in samples(made())
    for up in (True, False):
        assert samples(made(dataclasses.replace(LIVE, fleet_up=up)))[("specwatch_fleet_up",)] == up


def test_the_state_is_one_hot() -> None:
    read = samples(made())
    assert read["specwatch_fallback_state", "state=speculative"] == 1
    assert read["specwatch_fallback_state", "state=autoregressive"] == 0


def test_what_the_keeper_does_is_told() -> None:
    read = samples(made(dataclasses.replace(LIVE, rollups_pending=7, pruned={"requests": 5, "texts": 0})))
    assert read["specwatch_rollups_pending",] == 7
    assert read["specwatch_rows_pruned_total", "table=requests"] == 5
    assert read["specwatch_rows_pruned_total", "table=texts"] == 0
