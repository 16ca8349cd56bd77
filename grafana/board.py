"""A board: panels in rows, the variables that pick sidecars, marks on the time axis, links between boards."""

import json
from collections.abc import Sequence
from typing import Any, Final

from grafana_foundation_sdk.builders.dashboard import Dashboard, DashboardLink, DatasourceVariable, QueryVariable
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from .panels import DATASOURCE, AnyPanel
from .promql import grown

TAG: Final = "specwatch"

#: Alerts, where a receiver of the type grafana puts them into Grafana's own store.
ALERTS: Final = {
    "name": "Alerts",
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "iconColor": "red",
    "target": {"type": "tags", "tags": [TAG], "matchAny": True, "limit": 100},
}
#: Changes between speculative and autoregressive serving, of all traffic and of slices.
SWITCHES: Final = {
    "name": "Switches",
    "datasource": {"type": "prometheus", "uid": "${datasource}"},
    "enable": True,
    "iconColor": "blue",
    "expr": grown("specwatch_fallback_transitions_total", by="from, to, reason", window="2m") + " > 0",
    "step": "60s",
    "titleFormat": "{{from}} to {{to}}",
    "textFormat": "Reason: {{reason}}",
    "tagKeys": "reason",
}


def pick(metric: str, label: str, *before: str, several: bool = True) -> QueryVariable:
    """A variable with the name and the values of a label; what it offers depends on the variables named in `before`."""
    matchers = ",".join(f'{name}=~"${name}"' for name in before)
    query = f"label_values({metric}{{{matchers}}}, {label})"
    variable = QueryVariable(label).label(label).datasource(DATASOURCE).query(query).definition(query)
    variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    if several:
        everything = VariableOption(selected=True, text=["All"], value=["$__all"])
        variable.multi(True).include_all(True).all_value(".*").current(everything)
    return variable


def board(
    uid: str,
    title: str,
    about: str,
    panels: Sequence[AnyPanel],
    *,
    picks: Sequence[QueryVariable] = (),
    picked_by: str = "specwatch_window_requests",
    marks: Sequence[dict[str, object]] = (ALERTS, SWITCHES),
) -> str:
    """The JSON of a board.

    Panels flow in rows of 24 cells; the widths of each row add up to that. `picked_by` is the metric whose labels job
    and instance are offered, empty where nothing is queried; `picks` are further variables.
    """
    made = Dashboard(title).uid(uid).description(about).tags([TAG]).time("now-6h", "now").refresh("30s")
    made.tooltip(DashboardCursorSync.CROSSHAIR)
    if picked_by:
        made.with_variable(DatasourceVariable("datasource").label("data source").type("prometheus"))
        made.with_variable(pick(picked_by, "job")).with_variable(pick(picked_by, "instance", "job"))
    for variable in picks:
        made.with_variable(variable)
    others = DashboardLink("Specwatch").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    made.link(others.icon("external link").include_vars(True).keep_time(True))
    for number, panel in enumerate(panels, start=1):
        made.with_panel(panel.id(number))
    tree: dict[str, Any] = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    tree["annotations"] = {"list": list(marks)}
    tree["templating"].setdefault("list", [])
    for link in tree["links"]:
        del link["placement"]  # puts it into a menu of Grafana 13, where it is not seen
    return json.dumps(tree, indent=1) + "\n"
