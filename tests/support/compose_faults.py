"""What is wrong with compose.yaml: by the published schema, by what it names in its folder and in the product."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from jsonschema import Draft7Validator

from sidecar.settings import SettingsError, load, split_address

SCHEMA = Path(__file__).parents[1] / "grafana" / "schemas" / "compose-spec.schema.json"
_VARIABLE = re.compile(r"\$(\$|\{(\w+)(?:(:?[-?])([^}]*))?\})")

Compose = Mapping[str, Any]


def faults(file: Path) -> list[str]:
    """One line each, of the file and of what it mounts from the folder it lies in."""
    text = file.read_text()
    compose = yaml.safe_load(text)
    schema = json.loads(SCHEMA.read_text())
    found = [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"
        for error in Draft7Validator(schema).iter_errors(compose)
    ]
    if found:
        return found
    services = compose["services"]
    return [
        *_pinned(services),
        *_named(compose),
        *_mounts(services, file.parent),
        *_loopback(services),
        *_secrets(services),
        *_sidecar(services["sidecar"]),
        *_scrapes(compose, file.parent),
        *_grafana(compose, file.parent),
    ]


def variables(text: str) -> dict[str, bool]:
    """Variable -> whether compose refuses to start without it."""
    found: dict[str, bool] = {}
    for each in _VARIABLE.finditer(text):
        if each[2]:
            found[each[2]] = found.get(each[2], False) or "?" in (each[3] or "")
    return found


def filled(text: str, values: Mapping[str, str]) -> str:
    """As compose puts variables in."""

    def one(found: re.Match[str]) -> str:
        if found[1] == "$":
            return "$"
        default = found[4] if found[3] and "-" in found[3] else ""
        return values.get(found[2]) or default or ""

    return _VARIABLE.sub(one, text)


def environment(service: Compose) -> dict[str, str]:
    # No two tokens may be one.
    values = {name: name if name.endswith("_TOKEN") else "x" for name in variables(json.dumps(service))}
    defaults = {name: "" for name in values if f"${{{name}:-" in json.dumps(service)}
    return {name: filled(str(value), values | defaults) for name, value in service.get("environment", {}).items()}


def _pinned(services: Compose) -> Iterator[str]:
    for name, service in services.items():
        if "build" not in service and not re.search(r":v?\d+\.\d+(\.\d+)?(-\w+)?$", service.get("image", "")):
            yield f"{name}: {service.get('image')} is no image of one version"
        if "healthcheck" not in service:
            yield f"{name}: no healthcheck"


def _named(compose: Compose) -> Iterator[str]:
    for name, service in compose["services"].items():
        for other, how in service.get("depends_on", {}).items():
            if other not in compose["services"]:
                yield f"{name}: no service {other}"
            elif how["condition"] == "service_healthy" and "healthcheck" not in compose["services"][other]:
                yield f"{name}: waits for {other}, of which nobody knows"
        for secret in service.get("secrets", ()):
            if secret not in compose.get("secrets", {}):
                yield f"{name}: no secret {secret}"


def _mounts(services: Compose, folder: Path) -> Iterator[str]:
    for name, service in services.items():
        for mount in service.get("volumes", ()):
            source, target, *how = mount.split(":")
            if source.startswith("."):
                if not (folder / source).exists():
                    yield f"{name}: {source} is not there"
                if how != ["ro"]:
                    yield f"{name}: {source} can be written"
            if not target.startswith("/"):
                yield f"{name}: {target} is no place in a container"


def _loopback(services: Compose) -> Iterator[str]:
    for name, service in services.items():
        for port in service.get("ports", ()):
            if not re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port):
                yield f"{name}: {port} is open to others, or another port outside than inside"


def _secrets(services: Compose) -> Iterator[str]:
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            secret = re.search("PASSWORD|TOKEN|SECRET", variable) or "@" in str(value)
            if secret and not re.search(r"\$\{\w+:\?", str(value)):
                yield f"{name}: {variable} is in the open, or may be empty"


def _sidecar(service: Compose) -> Iterator[str]:
    env = environment(service)
    with mock.patch.dict(os.environ, env, clear=True):
        try:
            settings = load()
        except SettingsError as error:
            yield f"sidecar: {error}"
            return
    outside = {int(port.rsplit(":", 1)[1]) for port in service["ports"]}
    for name in ("listen", "admin"):
        host, port = split_address(getattr(settings, name))
        if host != "0.0.0.0" or port not in outside:
            yield f"sidecar: {name} {host}:{port} is not published"
    admin = split_address(settings.admin)[1]
    if f"127.0.0.1:{admin}/healthz" not in service["healthcheck"]["test"][-1]:
        yield "sidecar: its healthcheck does not ask the admin port"
    if int(service["stop_grace_period"].removesuffix("s")) <= settings.drain_s:
        yield "sidecar: is killed while it drains"


def _scrapes(compose: Compose, folder: Path) -> Iterator[str]:
    services, prometheus = compose["services"], compose["services"]["prometheus"]
    inside = {mount.split(":")[1]: folder / mount.split(":")[0] for mount in prometheus["volumes"]}
    place = next(flag.split("=", 1)[1] for flag in prometheus["command"] if flag.startswith("--config.file="))
    if place not in inside:
        yield f"prometheus: nothing is mounted at {place}"
        return
    config = yaml.safe_load(inside[place].read_text())
    for rules in config["rule_files"]:
        if str(Path(place).parent / rules) not in inside:
            yield f"prometheus: {rules} is not mounted beside its configuration"
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    scraped = [(job, at) for job, each in jobs.items() for at in each["static_configs"][0]["targets"]]
    notified = config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    for who, address in [*scraped, *(("alertmanager", each) for each in notified)]:
        host, port = split_address(address)
        if host == "host.docker.internal":
            if "host.docker.internal:host-gateway" not in prometheus.get("extra_hosts", ()):
                yield f"prometheus: {host} is no name in its container"
        elif host not in services or f"127.0.0.1:{port}:{port}" not in services[host].get("ports", ()):
            yield f"{who}: no {address} in compose.yaml"
    token = jobs["specwatch"].get("authorization", {}).get("credentials_file", "")
    given = [secret for secret in prometheus.get("secrets", ()) if token == f"/run/secrets/{secret}"]
    source = compose["secrets"][given[0]].get("environment") if given else None
    if source is None or f"${{{source}:" not in services["sidecar"]["environment"].get(
        "SPECWATCH_ADMIN_READ_TOKEN", ""
    ):
        yield "prometheus: sends another token than the sidecar reads by, or none"


def _grafana(compose: Compose, folder: Path) -> Iterator[str]:
    grafana = compose["services"]["grafana"]
    inside = {mount.split(":")[1]: folder / mount.split(":")[0] for mount in grafana["volumes"]}
    for kind in ("datasources", "dashboards"):
        if f"/etc/grafana/provisioning/{kind}" not in inside:
            yield f"grafana: no {kind}"
            return
    for path in inside["/etc/grafana/provisioning/datasources"].glob("*.yaml"):
        for source in yaml.safe_load(path.read_text())["datasources"]:
            host, _, port = source["url"].removeprefix("http://").partition(":")
            if f"127.0.0.1:{port}:{port}" not in compose["services"].get(host, {}).get("ports", ()):
                yield f"grafana: {source['url']} is no service"
    for path in inside["/etc/grafana/provisioning/dashboards"].glob("*.yaml"):
        for provider in yaml.safe_load(path.read_text())["providers"]:
            if provider["options"]["path"] not in inside:
                yield f"grafana: nothing is mounted at {provider['options']['path']}"
    if "/etc/grafana/provisioning/alerting" in inside and any(
        "rules.yml" in mount for mount in compose["services"]["prometheus"]["volumes"]
    ):
        yield "grafana: has the alerts of Prometheus, too, so that each is told twice"
