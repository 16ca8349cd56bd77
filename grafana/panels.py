"""Panels as the boards use them: a title, what it shows in plain words, queries, a unit, a size."""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import text as texts
from grafana_foundation_sdk.builders.dashboard import DashboardLink, FieldColor, ThresholdsConfig
from grafana_foundation_sdk.models.common import (
    AxisPlacement,
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    DataSourceRef,
    GraphDrawStyle,
    GraphThresholdsStyleMode,
    StackingMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataTransformerConfig,
    FieldColorModeId,
    Threshold,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

#: Whichever Prometheus is chosen on the board.
DATASOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")

#: (from this value on, colour); the first one has no value.
Steps = Sequence[tuple[float | None, str]]
PLAIN: Final[Steps] = ((None, "text"),)

AnyPanel = (
    bargauge.Panel | heatmap.Panel | stat.Panel | statetimeline.Panel | table.Panel | texts.Panel | timeseries.Panel
)
_Panel = TypeVar(
    "_Panel", bargauge.Panel, heatmap.Panel, stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel
)


class Query(NamedTuple):
    expr: str
    legend: str = ""
    #: The value at the end of the time range alone.
    instant: bool = False


class Size(NamedTuple):
    """In cells of Grafana's grid, which is 24 wide."""

    width: int
    height: int


def at_least(goal: float) -> Steps:
    return (None, "red"), (goal, "green")


def at_most(limit: float, *, warning: float | None = None) -> Steps:
    """Red from `limit` on, orange from `warning` on."""
    return (None, "green"), *([(warning, "orange")] if warning is not None else []), (limit, "red")


def words(texts: dict[float, tuple[str, str]]) -> list[ValueMapping]:
    """Value -> (what is shown in its place, colour)."""
    options = {
        f"{value:g}": ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(texts.items())
    }
    return [ValueMap(options=options)]


def clamped(bound: float) -> list[ValueMapping]:
    """A quantile beyond the last finite bound of its histogram is that bound, in s: it is shown as above it."""
    return words({bound: (f">{bound:g} s", "red")})


def single(
    title: str,
    about: str,
    *queries: Query,
    unit: str,
    size: Size,
    steps: Steps = PLAIN,
    mappings: Sequence[ValueMapping] = (),
    none: str = "No data",
    decimals: int | None = None,
    text: BigValueTextMode = BigValueTextMode.AUTO,
) -> stat.Panel:
    """The newest value, large, with a small curve behind it unless it is instant or one of several."""
    panel = stat.Panel().mappings(list(mappings)).thresholds(_thresholds(steps))
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    alone = text is BigValueTextMode.AUTO and not queries[0].instant
    panel.color_mode(BigValueColorMode.VALUE).text_mode(text)
    panel.graph_mode(BigValueGraphMode.AREA if alone else BigValueGraphMode.NONE)
    if decimals is not None:
        panel.decimals(decimals)
    return _filled(panel, title, about, queries, unit, size, none)


def lines(
    title: str,
    about: str,
    *queries: Query,
    unit: str,
    size: Size,
    steps: Steps = (),
    mappings: Sequence[ValueMapping] = (),
    none: str = "No data",
    stacked: bool = False,
    highest: float | None = None,
) -> timeseries.Panel:
    """Curves from zero on, with dashed lines at `steps`."""
    panel = timeseries.Panel().mappings(list(mappings)).min(0).line_width(1).show_points(VisibilityMode.NEVER)
    panel.fill_opacity(30 if stacked else 0)
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    if highest is not None:
        panel.max(highest)
    if steps:
        panel.thresholds(_thresholds(steps))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    return _filled(panel, title, about, queries, unit, size, none)


def columns(title: str, about: str, *queries: Query, unit: str, size: Size, none: str = "No data") -> timeseries.Panel:
    """Stacked columns, for events that are rare."""
    panel = lines(title, about, *queries, unit=unit, size=size, none=none, stacked=True)
    return panel.draw_style(GraphDrawStyle.BARS).fill_opacity(80)


def bars(
    title: str, about: str, *queries: Query, unit: str, size: Size, steps: Steps = PLAIN, histogram: bool = False
) -> bargauge.Panel:
    """A bar for each series; `histogram`: for each bucket, in the order of its bounds."""
    panel = bargauge.Panel().orientation(VizOrientation.HORIZONTAL).min(0).thresholds(_thresholds(steps))
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    format_ = PromQueryFormat.HEATMAP if histogram else PromQueryFormat.TIME_SERIES
    return _filled(panel, title, about, queries, unit, size, "No data", format_)


def heat_map(
    title: str, about: str, query: Query, *, unit: str, size: Size, scheme: str = "Oranges", none: str = "No data"
) -> heatmap.Panel:
    """Of the buckets of a histogram; `unit` is that of their bounds."""
    panel = heatmap.Panel().calculate(False).max_data_points(60).show_value(VisibilityMode.NEVER)
    panel.color(heatmap.HeatmapColorOptions().scheme(scheme).steps(64).exponent(0.5))
    panel.y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(AxisPlacement.LEFT))
    panel.cell_values(heatmap.CellValues().unit("short"))
    return _filled(panel, title, about, (query,), unit, size, none, PromQueryFormat.HEATMAP)


def states(
    title: str, about: str, *queries: Query, size: Size, mappings: Sequence[ValueMapping], none: str = "No data"
) -> statetimeline.Panel:
    """A band for each series, coloured by what holds."""
    panel = statetimeline.Panel().mappings(list(mappings)).merge_values(True).fill_opacity(80)
    panel.thresholds(_thresholds(PLAIN)).color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
    return _filled(panel, title, about, queries, "none", size, none)


def rows_above_zero(
    title: str, about: str, query: Query, *, size: Size, link: str, names: dict[str, str]
) -> table.Panel:
    """A table of the series whose value is above 0. `names`: label, or Value, -> heading; a row leads to `link`."""
    panel = table.Panel()
    above = {"fieldName": "Value", "config": {"id": "greater", "options": {"value": 0}}}
    panel.with_transformation(
        DataTransformerConfig(id_val="filterByValue", options={"filters": [above], "type": "include", "match": "any"})
    )
    organized = {"excludeByName": {"Time": True}, "renameByName": names}
    panel.with_transformation(DataTransformerConfig(id_val="organize", options=organized))
    panel.data_links([DashboardLink("Runbook").type(DashboardLinkType.LINK).url(link)])
    return _filled(panel, title, about, (query,), "none", size, "No data", PromQueryFormat.TABLE)


def _filled(
    panel: _Panel,
    title: str,
    about: str,
    queries: Sequence[Query],
    unit: str,
    size: Size,
    none: str,
    format_: PromQueryFormat = PromQueryFormat.TIME_SERIES,
) -> _Panel:
    panel.title(title).description(about).datasource(DATASOURCE).unit(unit).no_value(none)
    panel.span(size.width).height(size.height)
    for index, query in enumerate(queries):
        target = prometheus.Dataquery().ref_id("ABCDEFGH"[index]).datasource(DATASOURCE).expr(query.expr)
        target.format(format_).legend_format(query.legend or "__auto")
        panel.with_target(target.instant() if query.instant else target.range())
    return panel


def _thresholds(steps: Steps) -> ThresholdsConfig:
    return ThresholdsConfig().steps([Threshold(value=value, color=color) for value, color in steps])
