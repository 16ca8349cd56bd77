"""rules.yml in a real Prometheus that scrapes the sidecar's metrics with its token: no rule has an error, records have
values, and a sidecar that goes is told."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from specwatch_grafana import generate
from support.metric_names import _FULL
from support.records import record
from support.stack import missing, prometheus, wait_for

from sidecar.metrics import Metrics

RULES = generate.ROOM / "rules.yml"
TOKEN = "token-of-the-tests"

_MISSING = missing("prometheus")
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))


class Scraped:
    """Metrics of a sidecar, for whoever has the token; each scrape finds some more requests."""

    def __init__(self) -> None:
        metrics = Metrics(CollectorRegistry(), lambda: _FULL, upstreams=("speculative",), scenarios=())

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.headers.get("authorization") != f"Bearer {TOKEN}":
                    self.send_error(401)
                    return
                for _ in range(20):
                    metrics.observe(record(latency_ms=900.0))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(metrics.render())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    served = Scraped()
    yield served
    served.close()


def test_the_rules_hold_live(scraped: Scraped, tmp_path: Path) -> None:
    with prometheus(tmp_path / "prom", {"specwatch": [scraped.address]}, rules=[RULES], token=TOKEN) as prom:
        prom.wait_for("instance:specwatch_latency_under_800ms:ratio_rate5m")
        assert prom.value("instance:specwatch_latency_under_800ms:ratio_rate5m") == 0
        assert prom.value("up") == 1
        rules = [rule for group in prom.groups() for rule in group["rules"]]
        assert len(rules) > 40
        assert [rule["name"] for rule in rules if rule.get("lastError")] == []
        assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
        assert "SpecwatchSidecarDown" not in {each["labels"]["alertname"] for each in prom.alerts()}

        scraped.close()
        prom.wait_for("up == 0")
        down = wait_for(
            lambda: [each for each in prom.alerts() if each["labels"]["alertname"] == "SpecwatchSidecarDown"], bool
        )
        assert down[0]["labels"]["instance"] == scraped.address


def test_without_the_token_a_sidecar_counts_as_down(scraped: Scraped, tmp_path: Path) -> None:
    with prometheus(tmp_path / "prom", {"specwatch": [scraped.address]}, rules=[RULES]) as prom:
        prom.wait_for("up == 0")
        (target,) = prom.targets()
        assert "401" in target["lastError"]
