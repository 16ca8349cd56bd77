"""Whether what a Grafana has is what is shipped, whatever it added or spelt differently."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}
_DURATION = re.compile(r"(?:\d+(?:ms|[smhdwy]))+")
_PART = re.compile(r"(\d+)(ms|[smhdwy])")

#: What Grafana puts into a query's model where it is missing (as terraform-provider-grafana has found, too).
_MODEL_DEFAULTS = {"maxDataPoints": 43200, "intervalMs": 1000, "hide": False}


def seconds(duration: Any) -> Any:
    """90 of "90s", "1m30s" or 90; what is no duration of Prometheus comes back as it is."""
    if duration in (None, "", "0"):
        return 0
    if isinstance(duration, str) and _DURATION.fullmatch(duration):
        return sum(int(count) * _SECONDS[unit] for count, unit in _PART.findall(duration))
    return duration


def rule_form(rule: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a rule of the HTTP API what it is. A pause is left out: it is up to those who run Grafana."""
    routing = rule.get("notification_settings") or {}
    return {
        "uid": rule.get("uid"),
        "title": rule.get("title"),
        "condition": rule.get("condition"),
        "data": [_query_form(query) for query in rule.get("data") or ()],
        "noDataState": rule.get("noDataState"),
        "execErrState": rule.get("execErrState"),
        "for": seconds(rule.get("for")),
        "keep_firing_for": seconds(rule.get("keep_firing_for")),
        "annotations": dict(rule.get("annotations") or {}),
        "labels": dict(rule.get("labels") or {}),
        "notification_settings": {
            key: seconds(value) if key.endswith(("_wait", "_interval")) else value
            for key, value in routing.items()
            if value
        },
    }


def _query_form(query: Mapping[str, Any]) -> dict[str, Any]:
    model = {
        key: value
        for key, value in (query.get("model") or {}).items()
        if _MODEL_DEFAULTS.get(key) != value and not (key == "refId" and value == query.get("refId"))
    }
    window = query.get("relativeTimeRange") or {}
    source = query.get("datasourceUid")
    return {
        "refId": query.get("refId"),
        "queryType": query.get("queryType") or "",
        "relativeTimeRange": (seconds(window.get("from")), seconds(window.get("to"))),
        "datasourceUid": "__expr__" if source == "-100" else source,
        "model": model,
    }


def group_differences(shipped: Mapping[str, Any], there: Mapping[str, Any]) -> set[str]:
    """Names of what differs, empty for the same.

    A Grafana before 12 has no `keep_firing_for` and answers without that key: no difference, see `not_kept`.
    """
    ours, theirs = _rules(shipped), _rules(there)
    found = {"interval"} if seconds(shipped.get("interval")) != seconds(there.get("interval")) else set()
    if [rule.get("uid") for rule in ours] != [rule.get("uid") for rule in theirs]:
        return found | {"rules"}
    for one, other in zip(ours, theirs, strict=True):
        form, other_form = rule_form(one), rule_form(other)
        found |= {key for key in form if form[key] != other_form[key]} - not_kept(one, other)
    return found


def not_kept(shipped: Mapping[str, Any], there: Mapping[str, Any]) -> set[str]:
    """Fields of a rule that this Grafana does not know."""
    return {key for key in ("keep_firing_for",) if seconds(shipped.get(key)) and key not in there}


def _rules(group: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return group.get("rules") or ()
