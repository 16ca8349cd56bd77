"""What the stand-in for Grafana takes as a body: by Grafana Labs' published schemas, and by what its API says."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator

SCHEMAS = Path(__file__).parents[1] / "grafana" / "schemas"


class Refusal(Exception):
    def __init__(self, status: int, message: str, /, **more: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"message": message, **more}


def checked(body: Any, needed: dict[str, type], other: dict[str, type]) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise Refusal(400, "bad request data")
    for key, kind in (needed | other).items():
        if (key in needed or key in body) and not isinstance(body.get(key), kind):
            raise Refusal(400, f"bad request data: {key}")
    if unknown := set(body) - set(needed | other):
        raise Refusal(400, f"bad request data: {sorted(unknown)}")
    return body


def checked_uid(uid: str) -> str:
    if len(uid) > 40:
        raise Refusal(400, "uid too long, max 40 characters")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", uid):
        raise Refusal(400, "uid contains illegal characters")
    return uid


@cache
def _validator(schema: str, name: str) -> Draft7Validator:
    document = json.loads((SCHEMAS / f"{schema}.jsonschema.json").read_text())
    if schema == "alerting":
        # The published schema has the file's spelling, in ns; the HTTP API's is a duration (grafana.com/docs,
        # Alerting provisioning HTTP API, ProvisionedAlertRule).
        properties = document["definitions"]["Rule"]["properties"]
        del properties["keepFiringFor"]
        properties["keep_firing_for"] = {"type": "string", "pattern": r"^(\d+(ms|[smhdwy]))+$"}
    return Draft7Validator({"$ref": f"#/definitions/{name}", "definitions": document["definitions"]})


def check(schema: str, name: str, body: Any) -> None:
    for error in _validator(schema, name).iter_errors(body):
        raise Refusal(400, f"bad request data: {'.'.join(map(str, error.absolute_path))}: {error.message[:100]}")


def check_group(body: Any) -> None:
    check("alerting", "RuleGroup", body)
    for key in ("interval", "rules"):
        if key not in body:
            raise Refusal(400, f"bad request data: {key}")
    for rule in body["rules"]:
        if not re.fullmatch(r"(\d+(ms|[smhdwy]))+|0", rule["for"]):
            raise Refusal(400, f"bad request data: not a valid duration string: {rule['for']}")
        for query in rule["data"]:
            if not {"refId", "datasourceUid", "model"} <= set(query):
                raise Refusal(400, "bad request data: data")


def spelt(duration: str) -> str:
    """As Prometheus's model.Duration writes it: 90s is 1m30s, 24h is 1d."""
    units = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}
    left = sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+)(ms|[smhdwy])", duration))
    if not left:
        return "0s"
    spelt = ""
    for unit in ("y", "w", "d", "h", "m", "s", "ms"):
        # Years, weeks and days only where nothing is left over.
        if unit in ("y", "w", "d") and left % units[unit]:
            continue
        count, left = divmod(left, units[unit])
        spelt += f"{count}{unit}" if count else ""
    return spelt
