"""What is wrong with the manifests for Kubernetes: by its published schemas, by those of the custom resources, by what
they name in each other and in the product."""

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft7Validator

from sidecar.api.auth import OPEN_PATHS
from sidecar.settings import Settings

SCHEMAS = Path(__file__).parents[1] / "grafana" / "schemas"
#: Native sidecar containers are there from the first on.
VERSIONS = ("1.29", "1.37")
_CUSTOM = {"ServiceMonitor": "servicemonitor", "PrometheusRule": "prometheusrule"}
#: What `kubectl apply` can remember of a resource.
_LONGEST = 262_144

Document = Mapping[str, Any]


def faults(folder: Path) -> list[str]:
    """One line each. The rest is looked at once all schemas are kept."""
    texts = {path.name: path.read_text() for path in sorted(folder.glob("*.yaml"))}
    files = {name: _documents(text) for name, text in texts.items()}
    (kustomization,) = files.pop("kustomization.yaml")
    documents = [document for each in files.values() for document in each]
    found = [fault for document in documents for fault in _schema(json.dumps(document))]
    if found:
        return found
    by_kind: dict[str, list[Document]] = {}
    for document in documents:
        by_kind.setdefault(document["kind"], []).append(document)
    (deployment,), (service,) = by_kind["Deployment"], by_kind["Service"]
    (monitor,) = by_kind["ServiceMonitor"]
    pod = deployment["spec"]["template"]
    return [
        *_kustomized(kustomization, list(files), pod["spec"]),
        *_pod(pod["spec"]),
        *_product(pod["spec"]),
        *_selected(deployment, service, monitor),
        *_secrets(pod["spec"], monitor, texts["deployment.yaml"]),
        *(fault for document in by_kind["ConfigMap"] for fault in _dashboard(document)),
    ]


@cache
def _documents(text: str) -> list[Document]:
    return list(yaml.load_all(text, yaml.CSafeLoader))


@cache
def _schema(text: str) -> list[str]:
    """Of one document as JSON; the schemas of Kubernetes take seconds."""
    return list(_schema_faults(json.loads(text)))


def _schema_faults(document: Document) -> Iterator[str]:
    kind = document["kind"]
    if schema := _CUSTOM.get(kind):
        validator = Draft7Validator(json.loads((SCHEMAS / f"{schema}.crd.schema.json").read_text()))
        for error in validator.iter_errors(document):
            yield f"{kind}: {'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            yield f"{kind} ({version}): no {document['apiVersion']}"
        except kubernetes_validate.ValidationError as error:
            yield f"{kind} ({version}): {'.'.join(map(str, error.path))}: {error.message[:200]}"


def _kustomized(kustomization: Document, files: Sequence[str], pod: Document) -> Iterator[str]:
    if sorted(kustomization["resources"]) != sorted(files):
        yield f"kustomization.yaml: resources are {kustomization['resources']}, files {files}"
    images = {image["name"] for image in kustomization["images"] if image.get("newTag", "latest") != "latest"}
    if images != {container["image"] for container in _containers(pod)}:
        yield f"kustomization.yaml: no tag for each image: {sorted(images)}"


def _containers(pod: Document) -> list[Any]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _pod(pod: Document) -> Iterator[str]:
    (sidecar,) = pod["initContainers"]
    if sidecar.get("restartPolicy") != "Always":
        yield f"{sidecar['name']}: would be waited for, and vLLM never started"
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in _containers(pod):
        for mount in container["volumeMounts"]:
            if mount["name"] not in volumes:
                yield f"{container['name']}: no volume {mount['name']}"
    ports = {port["name"] for port in sidecar["ports"]}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = sidecar[name]["httpGet"]
        if probe["port"] not in ports:
            yield f"{name}: no port {probe['port']}"
        if probe["path"] not in OPEN_PATHS - {"/openapi.json"}:
            yield f"{name}: {probe['path']} wants a token"


def _product(pod: Document) -> Iterator[str]:
    """What the containers are told of each other, and whether there are such settings."""
    (sidecar,), (engine,) = pod["initContainers"], pod["containers"]
    env = {each["name"]: each.get("value") for each in sidecar["env"]}
    for name in env:
        if name.removeprefix("SPECWATCH_").lower() not in Settings.model_fields:
            yield f"{sidecar['name']}: no setting {name}"
    ports = {port["name"]: port["containerPort"] for port in sidecar["ports"]}
    for setting, port in (("SPECWATCH_LISTEN", "http"), ("SPECWATCH_ADMIN", "admin")):
        if env.get(setting) != f"0.0.0.0:{ports[port]}":
            yield f"{setting}: {env.get(setting)} is not what the port {port} has"
    flags = dict(arg.removeprefix("--").split("=", 1) for arg in engine["args"] if arg.startswith("--"))
    if env.get("SPECWATCH_UPSTREAM") != f"http://{flags['host']}:{flags['port']}":
        yield f"SPECWATCH_UPSTREAM: vLLM listens on {flags['host']}:{flags['port']}"
    for name in ("startupProbe", "readinessProbe"):
        if engine[name]["httpGet"]["port"] != ports["http"]:
            yield f"{engine['name']}: {name} cannot reach a server on {flags['host']}"
    theirs = {each["name"]: each.get("value") for each in engine["env"]}
    socket = env.get("SPECWATCH_ENGINE_EVENTS")
    if socket is None or theirs.get("SPECWATCH_ENGINE_EVENTS") != socket:
        yield "SPECWATCH_ENGINE_EVENTS: differs between the containers"
    shared = [{(m["name"], m["mountPath"]) for m in each["volumeMounts"]} for each in (sidecar, engine)]
    if socket and not any(Path(socket).parent == Path(path) for _, path in shared[0] & shared[1]):
        yield f"SPECWATCH_ENGINE_EVENTS: {socket} is in no volume of both"
    if "SPECWATCH_ENGINE_TOKEN" not in theirs:
        yield "SPECWATCH_ENGINE_TOKEN: the engine has none"
    module, _, name = flags["middleware"].rpartition(".")
    if not hasattr(importlib.import_module(module), name):
        yield f"--middleware: no {name} in {module}"
    json.loads(flags["speculative-config"])


def _selected(deployment: Document, service: Document, monitor: Document) -> Iterator[str]:
    pod = deployment["spec"]["template"]
    labels = pod["metadata"]["labels"]
    for what, selector in (
        ("Deployment", deployment["spec"]["selector"]["matchLabels"]),
        ("Service", service["spec"]["selector"]),
    ):
        if not selector.items() <= labels.items():
            yield f"{what}: selects none of its pods"
    if not monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items():
        yield "ServiceMonitor: does not select the service"
    ports = {port["name"] for container in _containers(pod["spec"]) for port in container.get("ports", ())}
    for port in service["spec"]["ports"]:
        if port["targetPort"] not in ports:
            yield f"Service: no port {port['targetPort']} in the pod"
    for endpoint in monitor["spec"]["endpoints"]:
        if endpoint["port"] not in {port["name"] for port in service["spec"]["ports"]}:
            yield f"ServiceMonitor: no port {endpoint['port']}"
        if endpoint["path"] != "/metrics" or endpoint["port"] != "admin":
            yield "ServiceMonitor: metrics are at /metrics of the admin port"
    # The operator makes it the label `job`.
    if service["metadata"]["name"] != "specwatch":
        yield f"Service: rules know the job specwatch, not {service['metadata']['name']}"


def _secrets(pod: Document, monitor: Document, text: str) -> Iterator[str]:
    refs = [
        (each["name"], each["valueFrom"]["secretKeyRef"])
        for container in _containers(pod)
        for each in container["env"]
        if "secretKeyRef" in each.get("valueFrom", {})
    ]
    refs += [("ServiceMonitor", each["authorization"]["credentials"]) for each in monitor["spec"]["endpoints"]]
    for name, ref in refs:
        if ref["name"] != "specwatch" or f"--from-literal={ref['key']}=" not in text:
            yield f"{name}: nobody is told to create {ref['name']}/{ref['key']}"
    given = {name: ref["key"] for name, ref in refs}
    if given.get("SPECWATCH_ADMIN_READ_TOKEN") != given["ServiceMonitor"]:
        yield "ServiceMonitor: sends another token than the admin port reads by"
    for container in _containers(pod):
        for each in container["env"]:
            if "value" in each and each["name"].endswith(("_TOKEN", "_URL")):
                yield f"{each['name']}: a secret in the open"


def _dashboard(document: Document) -> Iterator[str]:
    name = document["metadata"]["name"]
    if document["metadata"]["labels"].get("grafana_dashboard") != "1":
        yield f"{name}: without the label grafana_dashboard"
    ((file, text),) = document["data"].items()
    if json.loads(text)["uid"] != Path(file).stem or len(json.dumps(document)) > _LONGEST:
        yield f"{name}: another dashboard, or too long"
