"""The scrape example names the port that is served by default."""

from pathlib import Path

import yaml

from sidecar.settings import load


def test_the_example_scrapes_the_default_admin_port() -> None:
    text = (Path(__file__).parents[2] / "grafana" / "prometheus.yml").read_text()
    (job,) = yaml.safe_load(text)["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [load().admin]
