"""What is wrong with a dashboard: by Grafana's published schemas, by the metrics there are, by rules of our own."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import promql_parser as promql
from jsonschema import Draft7Validator

from . import metric_names
from .panels import substitute, targets, variables_in

SCHEMAS = Path(__file__).parents[1] / "grafana" / "schemas"
#: Type of panel -> the schema that has its options.
_PANELS = {kind: kind for kind in ("bargauge", "heatmap", "stat", "table", "text", "timeseries")}
_PANELS["state-timeline"] = "statetimeline"
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: Grafana's own store, which is the same everywhere.
_GRAFANA = {"type": "grafana", "uid": "-- Grafana --"}
_MACROS = {"__rate_interval", "__range"}
#: Length of a window -> a word that tells of it in the panel's description.
_WINDOWS = {"2m": "2 minutes", "5m": "5 minutes", "1h": "hour"}
_GRID = 24


def faults(board: Mapping[str, Any]) -> list[str]:
    """One line each; none where all is well. The rest is looked at once the schemas are kept."""
    return [*_schema(board)] or [*_shape(board), *_layout(board), *_panels(board), *_queries(board)]


def _schema(board: Mapping[str, Any]) -> Iterator[str]:
    yield from _invalid("dashboard", "Dashboard", board)
    for panel in board["panels"]:
        schema = _PANELS.get(panel["type"])
        if schema is None:
            yield f"{panel['title']}: no schema of the type {panel['type']}"
            continue
        yield from _invalid(schema, "Options", panel.get("options", {}))
        if "custom" in (defaults := panel.get("fieldConfig", {}).get("defaults", {})):
            yield from _invalid(schema, "FieldConfig", defaults["custom"])
    for _, target in targets(board):
        yield from _invalid("prometheus", "Dataquery", target)


def _shape(board: Mapping[str, Any]) -> Iterator[str]:
    text = json.dumps(board)
    for word in ("${DS_", "__inputs", "__requires"):
        if word in text:
            yield f"{word}: nothing fills it in where a dashboard is provisioned"
    if board.get("id") is not None:
        yield "id: Grafana gives it"
    if not 39 <= board["schemaVersion"] <= 42:
        yield f"schemaVersion {board['schemaVersion']}: not of Grafana 10.4 to 13"
    for key in ("uid", "title", "description"):
        if not board.get(key):
            yield f"{key}: missing"
    if not re.fullmatch(r"specwatch-[a-z]{1,30}", board.get("uid", "")):
        yield f"uid {board.get('uid')!r}"
    if "specwatch" not in board.get("tags", ()):
        yield "tags: boards are linked by the tag specwatch"
    if not any(link["type"] == "dashboards" and link["tags"] == ["specwatch"] for link in board.get("links", ())):
        yield "links: none to the other boards"
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    if any(True for _ in targets(board)) and variables.get("datasource", {}).get("type") != "datasource":
        yield "datasource: no such variable"
    for name, variable in variables.items():
        if variable["type"] == "query":
            yield from _is(_DATASOURCE, variable.get("datasource"), f"variable {name}")
            metric, label = re.match(r"label_values\(([\w:]+)\{.*\}, (\w+)\)$", variable["query"]).groups()  # type: ignore[union-attr]
            yield from _unknown(metric, {label}, f"variable {name}")
    used = variables_in(text) - _MACROS - {"__all"}
    for name in sorted(used - set(variables)):
        yield f"${name}: no such variable"
    for name in sorted(set(variables) - used):
        yield f"variable {name}: not used"
    for mark in board["annotations"]["list"]:
        if mark["datasource"] == _GRAFANA:
            if mark["target"].get("tags") != ["specwatch"]:
                yield f"mark {mark['name']}: not by the tag specwatch"
        else:
            yield from _is(_DATASOURCE, mark["datasource"], f"mark {mark['name']}")


def _layout(board: Mapping[str, Any]) -> Iterator[str]:
    ids = [panel.get("id") for panel in board["panels"]]
    if len(set(ids)) < len(ids) or None in ids:
        yield "ids of panels: missing, or one twice"
    for panel in board["panels"]:
        at = panel["gridPos"]
        if at["x"] < 0 or at["w"] < 1 or at["h"] < 1 or at["x"] + at["w"] > _GRID:
            yield f"{panel['title']}: outside the grid"
    for one, other in combinations(board["panels"], 2):
        if all(
            one["gridPos"][start] < other["gridPos"][start] + other["gridPos"][length]
            and other["gridPos"][start] < one["gridPos"][start] + one["gridPos"][length]
            for start, length in (("x", "w"), ("y", "h"))
        ):
            yield f"{one['title']}: overlaps {other['title']}"


def _panels(board: Mapping[str, Any]) -> Iterator[str]:
    units = set(json.loads((SCHEMAS / "units-13.2.3.json").read_text()))
    for panel in board["panels"]:
        title = panel.get("title") or f"panel {panel.get('id')}"
        if not panel.get("title"):
            yield f"{title}: no title"
        if len(panel.get("description", "")) < 10:
            yield f"{title}: no description"
        if panel["type"] == "text":
            continue
        yield from _is(_DATASOURCE, panel.get("datasource"), title)
        defaults = panel["fieldConfig"]["defaults"]
        own = panel["options"].get("yAxis", {}).get("unit", defaults.get("unit"))
        for unit in {defaults.get("unit"), own}:
            if unit not in units:
                yield f"{title}: unit {unit!r} is not known"
        if not defaults.get("noValue"):
            yield f"{title}: no text for where there is no data"
        steps = [step["value"] for step in defaults.get("thresholds", {}).get("steps", [])]
        if steps and steps[0] is not None:
            yield f"{title}: the first threshold has a value"
        if any(one >= other for one, other in pairwise(steps[1:])):
            yield f"{title}: thresholds do not rise"
        if not panel.get("targets"):
            yield f"{title}: no query"


def _queries(board: Mapping[str, Any]) -> Iterator[str]:
    for panel, target in targets(board):
        title = f"{panel['title']} {target['refId']}"
        yield from _is(_DATASOURCE, target.get("datasource"), title)
        try:
            tree = promql.parse(substitute(target["expr"]))
        except ValueError as error:
            yield f"{title}: {error}"
            continue
        yield from _windows(target["expr"], title, f"{panel['title']} {panel.get('description')}")
        yield from _expression(tree, title)
        for label in sorted(set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", ""))) - _labels(tree)):
            yield f"{title}: the legend names {label}, which the series do not have"
        heat = target["format"] == "heatmap"
        if heat != ("by (le)" in target["expr"] and "histogram_quantile" not in target["expr"]):
            yield f"{title}: buckets and format {target['format']}"
        if panel["type"] == "heatmap" and not heat:
            yield f"{title}: a heat map of format {target['format']}"
        if "$__range" in target["expr"] and not target.get("instant"):
            yield f"{title}: a value of the whole time range at every moment of it"
        for bound in _last_bounds(tree):
            options = [each["options"] for each in panel["fieldConfig"]["defaults"].get("mappings", [])]
            if not any(each.get(f"{bound:g}", {}).get("text", "").startswith(">") for each in options):
                yield f"{title}: a quantile beyond {bound:g}, the last bound, is not shown as such"
    for mark in board["annotations"]["list"]:
        if "expr" in mark:
            yield from _expression(promql.parse(substitute(mark["expr"])), f"mark {mark['name']}")


def _windows(expr: str, title: str, about: str) -> Iterator[str]:
    for window in re.findall(r"\[(\w+)(?::\w+)?\]", expr):
        if _WINDOWS.get(window, "?") not in about:
            yield f"{title}: the window {window} is not told of"


def _expression(tree: Any, title: str) -> Iterator[str]:
    for node in _nodes(tree):
        if isinstance(node, promql.VectorSelector):
            yield from _selector(node, title)
        elif isinstance(node, promql.AggregateExpr):
            for label in sorted(_grouped(node) - _labels(node.expr)):
                yield f"{title}: by {label}, which {node.expr} does not have"
        elif isinstance(node, promql.BinaryExpr) and node.modifier and node.modifier.matching:
            for label in sorted(set(node.modifier.matching.labels) - (_labels(node.lhs) & _labels(node.rhs))):
                yield f"{title}: matched on {label}, which not both sides have"
        if isinstance(node, promql.BinaryExpr) and str(node.op) == "/" and not _above_zero(node.rhs):
            yield f"{title}: divides by what may be 0: {node.rhs}"
        elif isinstance(node, promql.Call) and node.func.name in ("rate", "increase"):
            name = node.args[0].vector_selector.name
            if not name.endswith(("_total", "_count", "_sum", "_bucket")):
                yield f"{title}: {node.func.name} of {name}, which is no counter"


def _selector(node: Any, title: str) -> Iterator[str]:
    matchers = {matcher.name: matcher for matcher in node.matchers.matchers}
    if metric_names.SCRAPE - set(matchers):
        yield f"{title}: {node.name} of sidecars that are not picked"
    yield from _unknown(node.name, set(matchers), title)
    known = _metrics().get(node.name)
    for label in ("le", "state", "kind"):
        values = known.values.get(label) if known else None
        if label in matchers and values is not None and matchers[label].value not in values:
            yield f"{title}: {node.name} has no {label}={matchers[label].value}"


def _unknown(metric: str, labels: set[str], where: str) -> Iterator[str]:
    known = _metrics().get(metric)
    if known is None:
        yield f"{where}: no metric {metric}"
        return
    for label in sorted(labels - known.labels - metric_names.SCRAPE):
        yield f"{where}: {metric} has no label {label}"


def _labels(node: Any) -> set[str]:
    """Of the series that an expression gives."""
    if isinstance(node, promql.VectorSelector):
        known = _metrics().get(node.name)
        return metric_names.SCRAPE | (known.labels if known else set())
    if isinstance(node, promql.MatrixSelector):
        return _labels(node.vector_selector)
    if isinstance(node, promql.AggregateExpr):
        return _grouped(node)
    if isinstance(node, promql.Call):
        inner = set().union(*(_labels(argument) for argument in node.args))
        if node.func.name == "label_replace":
            return inner | {node.args[1].val}
        return inner - {"le"} if node.func.name == "histogram_quantile" else inner
    if isinstance(node, promql.BinaryExpr):
        ours, theirs = _labels(node.lhs), _labels(node.rhs)
        if str(node.op) == "or":
            return ours & theirs
        many = str(node.modifier.card) if node.modifier else ""
        return theirs if "OneToMany" in many or isinstance(node.lhs, promql.NumberLiteral) else ours
    return _labels(node.expr) if hasattr(node, "expr") else set()


def _grouped(node: Any) -> set[str]:
    """Labels that an aggregation keeps."""
    return set(node.modifier.labels) if node.modifier is not None else set()


def _last_bounds(node: Any) -> set[float]:
    """Of the histograms whose quantiles an expression shows, be they beyond the last bound or not."""
    if isinstance(node, promql.BinaryExpr) and str(node.op) == "<":
        return set()
    if isinstance(node, promql.Call) and node.func.name == "histogram_quantile":
        names = {each.name for each in _nodes(node) if isinstance(each, promql.VectorSelector)}
        bounds = [_metrics()[name].values["le"] - {"+Inf"} for name in names if name in _metrics()]
        return {max(map(float, each)) for each in bounds}
    return set().union(*(_last_bounds(each) for each in _below(node)))


def _above_zero(node: Any) -> bool:
    if isinstance(node, promql.ParenExpr):
        inner = node.expr
        return isinstance(inner, promql.BinaryExpr) and str(inner.op) == ">" and str(inner.rhs) == "0"
    return isinstance(node, promql.NumberLiteral) and node.val != 0


def _below(node: Any) -> Iterator[Any]:
    for name in ("lhs", "rhs", "expr", "args", "vector_selector"):
        below = getattr(node, name, None)
        yield from below if isinstance(below, list) else [below] if below is not None else []


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for each in _below(node):
        yield from _nodes(each)


def _is(wanted: object, found: object, where: str) -> Iterator[str]:
    if found != wanted:
        yield f"{where}: data source {found}"


@cache
def _metrics() -> dict[str, metric_names.Known]:
    return metric_names.sidecar() | metric_names.vllm()


@cache
def _validator(schema: str, name: str) -> Draft7Validator:
    document = json.loads((SCHEMAS / f"{schema}.jsonschema.json").read_text())
    return Draft7Validator({"$ref": f"#/definitions/{name}", "definitions": document["definitions"]})


def _invalid(schema: str, name: str, value: object) -> Iterator[str]:
    for error in _validator(schema, name).iter_errors(value):
        while error.context:  # of alternatives, what is nearest to the matter
            error = max(error.context, key=lambda each: len(each.absolute_path))
        yield f"{name} {'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"
