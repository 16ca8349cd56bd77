"""The checked-in dashboards, and their expressions as Prometheus takes them."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DASHBOARDS = Path(__file__).parents[2] / "grafana" / "dashboards"

#: What stands in for Grafana's macros; every other variable stands for anything.
MACROS = {"__rate_interval": "1m", "__range": "1h", "__interval": "15s"}

_variable = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")
#: Of label_replace, not of Grafana, which leaves alone what it has no variable for.
_group = re.compile(r"\d")


def boards() -> list[dict[str, Any]]:
    """In the order of their files' names."""
    return [json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))]


def substitute(expr: str, values: Mapping[str, str] = MACROS, *, other: str = ".*") -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return found[0] if _group.match(name) else values.get(name, other)

    return _variable.sub(value, expr)


def variables_in(text: str) -> set[str]:
    """Names of Grafana's variables and macros in an expression."""
    return {name for found in _variable.finditer(text) if not _group.match(name := found[1] or found[2])}


def targets(board: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each panel with each of its queries."""
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel, target


def expressions(macros: Mapping[str, str] = MACROS, *, other: str = ".*") -> list[tuple[str, str, str, str]]:
    """(dashboard uid, panel title, refId, expression) of every query. `$model_name`, no pattern on the board, is one
    here.
    """
    return [
        (board["uid"], panel["title"], target["refId"], substitute(expr, macros, other=other))
        for board in boards()
        for panel, target in targets(board)
        if (expr := target["expr"].replace('="$', '=~"$'))
    ]
