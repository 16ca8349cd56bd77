"""Every query of every dashboard and every recording rule, asked of a real Prometheus that scrapes a sidecar before a
real vLLM, and vLLM itself: none may be empty.
"""

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml
from specwatch_engine.demo.dialogues import dialogue
from specwatch_engine.demo.prepare import prepare
from support.engine import SMALL, engine
from support.panels import expressions
from support.receiver import Answer, receiver
from support.sidecar import Sidecar
from support.stack import Prometheus, missing, prometheus

RULES = Path(__file__).parents[2] / "grafana" / "rules.yml"
SCENARIOS = ("billing", "address_confirmation", "code", "product_qa", "fault_report")
#: As a young Prometheus with a scrape a second needs them.
MACROS = {"__rate_interval": "30s", "__range": "2m", "__interval": "1s"}

pytestmark = pytest.mark.skipif(missing("prometheus") is not None, reason=missing("prometheus") or "")


def send(sidecar: Sidecar, first: int, count: int) -> None:
    with httpx.Client(timeout=120) as client, ThreadPoolExecutor(8) as pool:

        def one(at: int) -> None:
            scenario = SCENARIOS[at % len(SCENARIOS)]
            messages = dialogue(f"panel-{at}", scenario, "en").messages[:-1]
            body = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 60, "stream": at % 2 == 0}
            headers = {"x-scenario": scenario}
            answer = client.post(f"{sidecar.proxy}/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text

        list(pool.map(one, range(first, first + count)))


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has seen traffic with and without speculation, a switch and back, and an alert."""
    folder = tmp_path_factory.mktemp("grafana")
    models = prepare(folder / "models", layers=4)
    speculation = {"method": "draft_model", "model": str(models["draft_generalist"]), "num_speculative_tokens": 4}
    config = {"model": str(models["target"]), **SMALL, "speculative_config": speculation}
    with engine(folder, config) as running, receiver() as hook:
        hook.answer = Answer(500)
        alerts = folder / "alerts.yaml"
        alerts.write_text(
            yaml.safe_dump(
                {
                    "interval": "1s",
                    "rules": [{"alert": "Busy", "expr": "requests > 10", "severity": "warning"}],
                    "receivers": [{"name": "hook", "type": "webhook", "url": hook.url}],
                    "route": {"receiver": "hook", "group_wait": "0s"},
                }
            )
        )
        sidecar = Sidecar(
            folder,
            running,
            alerts=str(alerts),
            baseline_share=0.4,
            counters_every_s=1,
            scenarios=list(SCENARIOS),
            similarity="universal-sentence-encoder",
            similarity_share=1,
            similarity_per_minute=600,
            first_byte_limit_s=60,
        )
        try:
            targets = {"specwatch": [sidecar.admin], "vllm": [running.url]}
            with prometheus(folder / "prometheus", targets, rules=[RULES]) as prom:
                send(sidecar, 0, 100)
                for mode in ("autoregressive", "auto"):
                    ordered = sidecar.command("fallback", mode)
                    assert ordered.returncode == 0, ordered.stderr
                    send(sidecar, 100, 20)
                # Some queries are of whole minutes.
                until = time.time() + 75
                while time.time() < until:
                    send(sidecar, 200, 20)
                yield prom
        finally:
            sidecar.stop()


def test_no_query_of_a_dashboard_is_empty(scraped: Prometheus) -> None:
    found = expressions(MACROS)
    assert len(found) > 50
    empty = []
    for board, panel, ref, expression in found:
        samples = scraped.query(expression)
        if not [value for _, value in samples if not math.isnan(value)]:
            empty.append(f"{board} / {panel} / {ref}: {len(samples)} samples of {' '.join(expression.split())}")
    print(f"{len(found)} queries of {len({board for board, *_ in found})} dashboards")
    assert not empty, "\n".join(empty)


def test_every_recording_rule_has_a_value_and_no_rule_is_at_fault(scraped: Prometheus) -> None:
    rules = [rule for group in scraped.groups() for rule in group["rules"]]
    assert not [rule for rule in rules if rule["health"] != "ok" or rule.get("lastError")]
    recorded = [rule["name"] for rule in rules if rule["type"] == "recording"]
    assert len(recorded) > 10
    assert not [name for name in recorded if not scraped.query(name)]
