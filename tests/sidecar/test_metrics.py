"""Instruments: what records add to them, and that labels stay bounded. C30."""

import dataclasses

from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from sidecar.metrics import Live, Metrics
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


def test_what_is_not_known_has_no_sample() -> None:
    names = {key[0] for key in samples(made())}
    assert "specwatch_acceptance_ratio" not in names
    assert "specwatch_acceptance_ratio" in {
        key[0] for key in samples(made(dataclasses.replace(LIVE, acceptance_rate=0.5)))
    }


def test_alignment_is_told_once_it_is_known() -> None:
    aligned, total = ("specwatch_tokenizer_aligned",), ("specwatch_same_text_other_id_total",)
    assert not {aligned, total} & samples(made()).keys()
    assert samples(made(dataclasses.replace(LIVE, same_text_other_id=0)))[total] == 0
    for holds in (True, False):
        read = samples(made(dataclasses.replace(LIVE, aligned=holds, same_text_other_id=3)))
        assert (read[aligned], read[total]) == (holds, 3)


def test_the_state_is_one_hot() -> None:
    read = samples(made())
    assert read["specwatch_fallback_state", "state=speculative"] == 1
    assert read["specwatch_fallback_state", "state=autoregressive"] == 0
