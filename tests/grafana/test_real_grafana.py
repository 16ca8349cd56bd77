"""The push against a real Grafana: opt-in, for whoever has one.

GRAFANA_URL=http://127.0.0.1:3000 GRAFANA_TOKEN=… python -m pytest tests/grafana/test_real_grafana.py

The token needs the role Admin. It makes folder `specwatch-test` and a data source of that name, which you may delete
afterwards; the dashboards and rules of this package are moved there if they were in another folder.
"""

import os

import pytest
from specwatch_grafana.connection import Grafana, target
from specwatch_grafana.push import Options, Outcome, Report, push
from specwatch_grafana.shipped import Shipped

URL, TOKEN = os.environ.get("GRAFANA_URL"), os.environ.get("GRAFANA_TOKEN")

pytestmark = pytest.mark.skipif(
    not (URL and TOKEN), reason="no Grafana at hand: set GRAFANA_URL and GRAFANA_TOKEN to run this against a real one"
)


def pushed(options: Options) -> Report:
    grafana = Grafana(target(URL or "", TOKEN or ""))
    try:
        report = push(grafana, Shipped(datasource="specwatch-test"), options)
    finally:
        grafana.close()
    assert not report.failures, [step.detail for step in report.failures]
    return report


@pytest.mark.parametrize("alerts", [False, True], ids=["dashboards", "alerts"])
def test_the_second_push_changes_nothing(alerts: bool) -> None:
    options = Options(folder="specwatch-test", prometheus_url="http://127.0.0.1:9090", alerts=alerts)
    pushed(options)
    second = pushed(options)
    assert [step.name for step in second.changed] == []
    assert not [step for step in second.steps if step.detail.startswith("Grafana stores otherwise")]


def test_a_dry_run_sees_what_is_there() -> None:
    pushed(Options(folder="specwatch-test", prometheus_url="http://127.0.0.1:9090"))
    report = pushed(Options(folder="specwatch-test", dry_run=True))
    assert {step.outcome for step in report.steps if step.kind == "dashboard"} == {Outcome.UNCHANGED}
