"""Manifests for Kubernetes, and the scrape configuration of compose.yaml.

The sidecar is a native sidecar container (Kubernetes 1.29 and later): an init container that goes on, so that it is
there before vLLM and ends after it.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from . import boards, rules

_HERE = Path(__file__).parent
NAME = "specwatch"
_LABELS = {"app.kubernetes.io/name": NAME}
#: Where both containers see the socket of the engine's events.
_EVENTS = "/run/specwatch"
_USER = 10001

_MADE = "# Made by grafana/generate.py, so change it there, or with a patch of kustomize.\n"
_DEPLOYMENT_HEAD = f"""\
{_MADE}# Before: build and push both images of grafana/Dockerfile and name them in kustomization.yaml; have a claim
# `models` with target and draft; create the secret:
#   kubectl create secret generic specwatch --from-literal=admin-token=… --from-literal=admin-read-token=… \\
#     --from-literal=engine-token=… --from-literal=database-url=postgresql://…
# vLLM listens on loopback, so that nobody passes the sidecar by; it is asked whether it is ready through the sidecar.
# The sidecar's socket lets in its own user and root, which vLLM's image runs as.
"""
_RULES_HEAD = (
    f"{_MADE}# kube-prometheus-stack reads it with the label `release` that its Prometheus selects rules by.\n"
)
_MONITOR_HEAD = f"{_MADE}# The same holds of scrapes. SpecwatchSidecarDown knows the job by the service's name.\n"
_DASHBOARDS_HEAD = (
    f"{_MADE}# For the dashboard sidecar of Grafana's Helm chart, which picks config maps by this label.\n"
)
_KUSTOMIZATION = {
    "apiVersion": "kustomize.config.k8s.io/v1beta1",
    "kind": "Kustomization",
    "resources": ["deployment.yaml", "servicemonitor.yaml", "prometheusrule.yaml", "dashboards.yaml"],
    "images": [
        {"name": "specwatch", "newName": "registry.example/specwatch", "newTag": "0.1.0"},
        {"name": "specwatch-engine", "newName": "registry.example/specwatch-engine", "newTag": "0.1.0"},
    ],
}


def files() -> dict[str, str]:
    """Path below this folder -> text."""
    return {
        "prometheus-compose.yml": _compose_prometheus(),
        "kubernetes/deployment.yaml": _DEPLOYMENT_HEAD + _documents(_deployment(), _service()),
        "kubernetes/servicemonitor.yaml": _MONITOR_HEAD + _documents(_service_monitor()),
        "kubernetes/prometheusrule.yaml": _RULES_HEAD + _documents(_prometheus_rule()),
        "kubernetes/dashboards.yaml": _DASHBOARDS_HEAD + _documents(*_dashboards()),
        "kubernetes/kustomization.yaml": _MADE + rules.dump(_KUSTOMIZATION),
    }


def _compose_prometheus() -> str:
    """prometheus.yml with the names of compose.yaml in place of loopback, and the token that reads."""
    config = yaml.safe_load((_HERE / "prometheus.yml").read_text(encoding="utf-8"))
    sidecar, vllm = config["scrape_configs"]
    sidecar["authorization"] = {"credentials_file": "/run/secrets/admin_read_token"}
    sidecar["static_configs"] = [{"targets": ["sidecar:8001"]}]
    vllm["static_configs"] = [{"targets": ["host.docker.internal:8200"]}]
    config["alerting"]["alertmanagers"][0]["static_configs"] = [{"targets": ["alertmanager:9093"]}]
    return f"# prometheus.yml as compose.yaml needs it; made by grafana/generate.py.\n{rules.dump(config)}"


def _documents(*documents: dict[str, Any]) -> str:
    return "---\n".join(map(rules.dump, documents))


def _metadata(name: str = NAME, **more: Any) -> dict[str, Any]:
    return {"name": name, "labels": {**_LABELS, **more.pop("labels", {})}, **more}


def _secret(variable: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": NAME, "key": key}}}


def _deployment() -> dict[str, Any]:
    pod = {
        "enableServiceLinks": False,
        # The group may write to the folder of the socket.
        "securityContext": {"fsGroup": _USER, "seccompProfile": {"type": "RuntimeDefault"}},
        # Longer than both need for replies in flight, one after the other.
        "terminationGracePeriodSeconds": 90,
        "initContainers": [_sidecar()],
        "containers": [_engine()],
        "volumes": [
            {"name": "events", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
            {"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": _LABELS},
            "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": _LABELS}, "spec": pod},
        },
    }


def _sidecar() -> dict[str, Any]:
    def probe(path: str, period_s: int, failures: int) -> dict[str, Any]:
        return {"httpGet": {"path": path, "port": "admin"}, "periodSeconds": period_s, "failureThreshold": failures}

    return {
        "name": "specwatch",
        "image": "specwatch",
        "restartPolicy": "Always",
        "args": ["sidecar"],
        "env": [
            {"name": "SPECWATCH_UPSTREAM", "value": "http://127.0.0.1:8200"},
            {"name": "SPECWATCH_LISTEN", "value": "0.0.0.0:8000"},
            {"name": "SPECWATCH_ADMIN", "value": "0.0.0.0:8001"},
            {"name": "SPECWATCH_ENGINE_EVENTS", "value": f"{_EVENTS}/engine.sock"},
            {"name": "SPECWATCH_INSTANCE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            _secret("SPECWATCH_ADMIN_TOKEN", "admin-token"),
            _secret("SPECWATCH_ADMIN_READ_TOKEN", "admin-read-token"),
            _secret("SPECWATCH_ENGINE_TOKEN", "engine-token"),
            _secret("SPECWATCH_DATABASE_URL", "database-url"),
        ],
        "ports": [{"name": "http", "containerPort": 8000}, {"name": "admin", "containerPort": 8001}],
        "startupProbe": probe("/healthz", 1, 60),
        "livenessProbe": probe("/healthz", 10, 3),
        "readinessProbe": probe("/readyz", 5, 2),
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "events", "mountPath": _EVENTS},
            # Where the tokenizers are: at the paths that the engine tells.
            {"name": "models", "mountPath": "/models", "readOnly": True},
        ],
    }


def _engine() -> dict[str, Any]:
    speculation = {"method": "draft_model", "model": "/models/draft", "num_speculative_tokens": 4}
    # What a client sees: the sidecar passes every path but its own port's on to vLLM.
    healthy = {"httpGet": {"path": "/health", "port": 8000}}
    return {
        "name": "vllm",
        "image": "specwatch-engine",
        "args": [
            "/models/target",
            "--host=127.0.0.1",
            "--port=8200",
            f"--speculative-config={json.dumps(speculation)}",
            "--middleware=specwatch_engine.plugin.control.Control",
            "--shutdown-timeout=30",
        ],
        "env": [
            {"name": "SPECWATCH_ENGINE_EVENTS", "value": f"{_EVENTS}/engine.sock"},
            _secret("SPECWATCH_ENGINE_TOKEN", "engine-token"),
        ],
        "startupProbe": {**healthy, "periodSeconds": 10, "failureThreshold": 120},
        "readinessProbe": {**healthy, "periodSeconds": 5, "failureThreshold": 3},
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "volumeMounts": [
            {"name": "events", "mountPath": _EVENTS},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - vLLM's workers share memory there
            {"name": "models", "mountPath": "/models", "readOnly": True},
        ],
    }


def _service() -> dict[str, Any]:
    ports = [{"name": name, "port": port, "targetPort": name} for name, port in (("http", 8000), ("admin", 8001))]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(),
        "spec": {"selector": _LABELS, "ports": ports},
    }


def _service_monitor() -> dict[str, Any]:
    endpoint = {
        "port": "admin",
        "path": "/metrics",
        "interval": "15s",
        "authorization": {"type": "Bearer", "credentials": {"name": NAME, "key": "admin-read-token"}},
    }
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": _metadata(),
        "spec": {"selector": {"matchLabels": _LABELS}, "sampleLimit": 5000, "endpoints": [endpoint]},
    }


def _prometheus_rule() -> dict[str, Any]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata(),
        "spec": {"groups": rules.groups()},
    }


def _dashboards() -> list[dict[str, Any]]:
    """One config map each: together they are longer than `kubectl apply` takes."""
    made = {Path(path).stem: json.loads(text) for path, text in boards.files().items()}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(uid, labels={"grafana_dashboard": "1"}, annotations={"grafana_folder": "Specwatch"}),
            "data": {f"{uid}.json": json.dumps(board, separators=(",", ":"), ensure_ascii=False)},
        }
        for uid, board in made.items()
    ]
