"""What is wrong with a folder of Grafana's provisioning files, and with what they name in each other. C32."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

SCHEMAS = Path(__file__).parents[1] / "grafana" / "schemas"

_UID = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"}
_ORG = {"const": 1}


def _closed(required: str, properties: Mapping[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": dict(properties),
    }


def _file(key: str, entry: object) -> dict[str, object]:
    return _closed(f"apiVersion {key}", {"apiVersion": {"const": 1}, key: {"type": "array", "items": entry}})


#: As Grafana's documentation has them (grafana.com/docs, Provision Grafana), without what would undo or overwrite.
_FILES: dict[str, Any] = {
    "datasources": _file(
        "datasources",
        _closed(
            "name uid type access url editable jsonData",
            {
                "name": {"type": "string", "minLength": 1},
                "uid": _UID,
                "type": {"const": "prometheus"},
                "access": {"const": "proxy"},
                "orgId": _ORG,
                "url": {"type": "string", "pattern": "^https?://"},
                "editable": {"type": "boolean"},
                "isDefault": {"type": "boolean"},
                "jsonData": _closed(
                    "httpMethod timeInterval",
                    {
                        "httpMethod": {"enum": ["POST", "GET"]},
                        "timeInterval": {"type": "string", "pattern": r"^\d+(ms|s|m)$"},
                    },
                ),
            },
        ),
    ),
    "dashboards": _file(
        "providers",
        _closed(
            "name type folder folderUid disableDeletion allowUiUpdates options",
            {
                "name": {"type": "string", "minLength": 1},
                "orgId": _ORG,
                "type": {"const": "file"},
                "folder": {"type": "string", "minLength": 1},
                "folderUid": _UID,
                "disableDeletion": {"type": "boolean"},
                "allowUiUpdates": {"type": "boolean"},
                "updateIntervalSeconds": {"type": "integer", "minimum": 10},
                "options": _closed("path", {"path": {"type": "string", "pattern": "^/"}}),
            },
        ),
    ),
}


def faults(folder: Path, boards: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line each. `boards` are the dashboards that are provisioned too."""
    texts = {path: path.read_text() for path in sorted(folder.glob("*/*.y*ml"))}
    found = [f"{path.parent.name}/{path.name}: {fault}" for path, text in texts.items() for fault in _one(path, text)]
    if found:
        return found
    files = {path: yaml.safe_load(text) for path, text in texts.items()}
    sources = [source["uid"] for file in files.values() for source in file.get("datasources", ())]
    folders = [provider["folder"] for file in files.values() for provider in file.get("providers", ())]
    rules = [(group, rule) for file in files.values() for group in file.get("groups", ()) for rule in group["rules"]]
    found += [f"data source {uid}: there twice" for uid in {uid for uid in sources if sources.count(uid) > 1}]
    uids = [rule["uid"] for _, rule in rules]
    found += [f"rule {uid}: there twice" for uid in sorted({uid for uid in uids if uids.count(uid) > 1})]
    for group, rule in rules:
        found += [f"rule {rule['uid']}: {fault}" for fault in _rule(rule, sources, boards)]
        if group["folder"] not in folders:
            found.append(f"group {group['name']}: the folder {group['folder']} is another than that of the dashboards")
    return found


def _one(path: Path, text: str) -> Iterator[str]:
    if "${DS_" in text:
        yield "${DS_: nothing fills it in where a file is provisioned"
    file = yaml.safe_load(text)
    for key in ("deleteDatasources", "prune"):
        if key in file:
            yield f"{key}: a data source that is made anew breaks the rules that name it"
    for key in ("policies", "resetPolicies"):
        if key in file:
            yield f"{key}: overwrites every notification policy of the organisation"
    schema = _FILES.get(path.parent.name)
    if path.parent.name == "alerting":
        schema = json.loads((SCHEMAS / "alerting-file.schema.json").read_text())
    if schema is None:
        yield "Grafana reads no such folder"
        return
    for error in Draft7Validator(schema).iter_errors(file):
        yield f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"


def _rule(rule: Mapping[str, Any], sources: Sequence[str], boards: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    refs = [query["refId"] for query in rule["data"]]
    if rule["condition"] not in refs:
        yield f"condition {rule['condition']} is none of {refs}"
    for query in rule["data"]:
        if query["datasourceUid"] not in (*sources, "__expr__"):
            yield f"no data source {query['datasourceUid']}"
        if query["model"].get("refId") != query["refId"]:
            yield f"refId of the query {query['refId']} and of its model differ"
    annotations = rule.get("annotations", {})
    uid = rule.get("dashboardUid", annotations.get("__dashboardUid__"))
    panel = rule.get("panelId", annotations.get("__panelId__"))
    if uid is not None:
        panels = [str(each["id"]) for board in boards if board["uid"] == uid for each in board["panels"]]
        if not panels:
            yield f"no dashboard {uid}"
        elif panel is not None and str(panel) not in panels:
            yield f"no panel {panel} on {uid}"
    named = set(re.findall(r"/d/([\w-]+)", " ".join(annotations.values())))
    for other in sorted(named - {board["uid"] for board in boards}):
        yield f"no dashboard {other}"
