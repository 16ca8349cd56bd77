"""Kubernetes manifests: valid, of one mind with the product, made of the rules and dashboards that are shipped."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from specwatch_grafana import generate
from support.manifest_faults import faults

FOLDER = generate.ROOM / "kubernetes"


def test_the_manifests_have_no_faults() -> None:
    assert faults(FOLDER) == []


DEPLOYMENT, MONITOR, RULE = "deployment.yaml", "servicemonitor.yaml", "prometheusrule.yaml"


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (DEPLOYMENT, "apiVersion: apps/v1", "apiVersion: apps/v1beta1", "apps/v1beta1"),
        (DEPLOYMENT, "failureThreshold: 60", "failureTreshold: 60", "failureTreshold"),
        (DEPLOYMENT, "containerPort: 8001", "containerPort: admin", "containerPort"),
        (DEPLOYMENT, "restartPolicy: Always", "restartPolicy: OnFailure", "would be waited for"),
        (DEPLOYMENT, "SPECWATCH_LISTEN", "SPECWATCH_LISTENS", "no setting SPECWATCH_LISTENS"),
        (DEPLOYMENT, "value: 0.0.0.0:8001", "value: 0.0.0.0:9001", "is not what the port admin has"),
        (DEPLOYMENT, "value: 0.0.0.0:8000", "value: 127.0.0.1:8000", "is not what the port http has"),
        (DEPLOYMENT, "--port=8200", "--port=8100", "SPECWATCH_UPSTREAM: vLLM listens on"),
        (DEPLOYMENT, "path: /readyz", "path: /metrics", "/metrics wants a token"),
        (DEPLOYMENT, "port: admin", "port: metrics", "no port metrics"),
        (
            DEPLOYMENT,
            "port: 8000\n            periodSeconds: 5",
            "port: 8200\n            periodSeconds: 5",
            "cannot reach",
        ),
        (DEPLOYMENT, "mountPath: /run/specwatch", "mountPath: /run/events", "is in no volume of both"),
        (DEPLOYMENT, "- name: events\n          emptyDir", "- name: event\n          emptyDir", "no volume events"),
        (DEPLOYMENT, "plugin.control.Control", "plugin.control.Controls", "no Controls in"),
        (DEPLOYMENT, "key: engine-token", "key: engine", "nobody is told to create specwatch/engine"),
        (DEPLOYMENT, "targetPort: admin", "targetPort: metrics", "no port metrics in the pod"),
        (
            DEPLOYMENT,
            "kind: Service\nmetadata:\n  name: specwatch",
            "kind: Service\nmetadata:\n  name: sidecar",
            "not sidecar",
        ),
        (MONITOR, "port: admin", "port: metrics", "no port metrics"),
        (MONITOR, "port: admin", "port: http", "of the admin port"),
        (MONITOR, "endpoints:", "endpoint:", "'endpoint' was unexpected"),
        (MONITOR, "key: admin-read-token", "key: admin-token", "sends another token"),
        (MONITOR, "interval: 15s", "interval: 15", "is not of type 'string'"),
        (
            MONITOR,
            "matchLabels:\n      app.kubernetes.io/name: specwatch",
            "matchLabels:\n      app: specwatch",
            "does not select",
        ),
        (RULE, "keep_firing_for: 2m", "keep_firing_for: 2 m", "does not match"),
        (RULE, "- alert: SpecwatchErrors", "- alarm: SpecwatchErrors", "'alarm' was unexpected"),
        ("dashboards.yaml", "grafana_dashboard: '1'", "grafana_dashboards: '1'", "without the label grafana_dashboard"),
        ("kustomization.yaml", "- servicemonitor.yaml", "- monitor.yaml", "resources are"),
        ("kustomization.yaml", "newTag: 0.1.0", "newTag: latest", "no tag for each image"),
    ],
)
def test_mutations_are_caught(file: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "kubernetes"
    shutil.copytree(FOLDER, folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    assert [fault for fault in faults(folder) if said in fault], faults(folder)


def test_the_rules_are_those_of_prometheus() -> None:
    (rule,) = yaml.safe_load_all((FOLDER / RULE).read_text())
    assert rule["spec"] == yaml.safe_load((generate.ROOM / "rules.yml").read_text())


def test_the_dashboards_are_all_that_there_are() -> None:
    maps = list(yaml.safe_load_all((FOLDER / "dashboards.yaml").read_text()))
    found = {file: json.loads(text) for each in maps for file, text in each["data"].items()}
    assert found == {path.name: json.loads(path.read_text()) for path in (generate.ROOM / "dashboards").glob("*.json")}


def test_what_is_made_is_what_is_checked_in() -> None:
    made = generate.files()
    kinds = ("rules.yml", "prometheus-compose.yml", "provisioning/", "kubernetes/")
    assert [path for path in generate.differing(made, generate.ROOM) if path.startswith(kinds)] == []
