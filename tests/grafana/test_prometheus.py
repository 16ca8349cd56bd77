"""The scrape example names the ports that are served by default, and bounds what a scrape may bring."""

from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry
from support.metric_names import _FULL
from support.records import record

from sidecar.metrics import Metrics
from sidecar.record import Arm, Outcome
from sidecar.settings import load

CONFIG = yaml.safe_load((Path(__file__).parents[2] / "grafana" / "prometheus.yml").read_text())
JOBS = {job["job_name"]: job for job in CONFIG["scrape_configs"]}


def test_the_example_scrapes_the_default_ports() -> None:
    assert JOBS["specwatch"]["static_configs"][0]["targets"] == [load().admin]
    assert JOBS["vllm"]["static_configs"][0]["targets"] == [load().upstream.removeprefix("http://")]


def test_twenty_scenarios_in_every_arm_and_outcome_stay_below_its_limit() -> None:
    scenarios = [f"s{number}" for number in range(20)]
    metrics = Metrics(
        CollectorRegistry(), lambda: _FULL, upstreams=("speculative", "autoregressive"), scenarios=scenarios
    )
    for scenario in scenarios:
        for arm in Arm:
            for outcome in Outcome:
                metrics.observe(record(scenario=scenario, arm=arm, outcome=outcome))
    samples = [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    assert 500 < len(samples) < JOBS["specwatch"]["sample_limit"]
