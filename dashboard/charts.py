"""From payloads to Plotly figures. Pure; no Streamlit, no network.

A step without data is a gap in a line and a blank cell in a heat map. Colours are told apart by
people with colour blindness too: Okabe-Ito for series, Viridis for the heat map.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import plotly.graph_objects as go  # type: ignore[import-untyped]
from plotly.subplots import make_subplots  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.frames import milliseconds, percent, ratio, utc
from dashboard.words import LATENCY_GOAL_MS, NO_DATA, P_MIN

SPECULATIVE, AUTOREGRESSIVE, OTHER, MUTED = "#0072B2", "#D55E00", "#009E73", "#8a8a8a"
#: Behind a heat map: cells that were never drafted show this grey in both themes.
BLANK = "rgba(128,128,128,0.16)"
#: Above this many steps gaps are left to the axis.
MAX_STEPS = 2000

Colour = Literal["hazard", "rejected"]


class Timed(Protocol):
    @property
    def at(self) -> datetime | None: ...


P = TypeVar("P", bound=Timed)


def by_step(points: Sequence[P], step_s: int | None) -> list[tuple[datetime, P | None]]:
    """Points in order of time, with None at every step that is absent between two of them."""
    timed = sorted(((utc(p.at), p) for p in points if p.at is not None), key=lambda row: row[0])
    if not timed or not step_s or step_s < 0:
        return list(timed)
    step = timedelta(seconds=min(step_s, 10**9))
    if (timed[-1][0] - timed[0][0]) / step > MAX_STEPS:
        return list(timed)
    filled: list[tuple[datetime, P | None]] = []
    for at, point in timed:
        while filled and (at - filled[-1][0]) > 1.5 * step:
            filled.append((filled[-1][0] + step, None))
        filled.append((at, point))
    return filled


def p_over_time(series: shapes.AcceptanceSeries, span: tuple[datetime, datetime] | None) -> go.Figure:
    rows = by_step(series.points, series.step_s)
    figure = _line_chart(span)
    figure.add_trace(
        _line(
            rows,
            lambda point: point.p,
            "acceptance rate p",
            SPECULATIVE,
            lambda point: (
                f"p {ratio(point.p)}: {point.accepted_tokens:,} of {point.draft_tokens:,} draft tokens, "
                f"{point.requests:,} requests"
                if point.p is not None
                else NO_DATA
            ),
        )
    )
    _limit(figure, P_MIN, f"{P_MIN}")
    figure.update_yaxes(range=[0, 1], tickformat=".1f")
    figure.update_layout(showlegend=False)
    return figure


def latency_over_time(series: shapes.LatencySeries, span: tuple[datetime, datetime] | None) -> go.Figure:
    rows = by_step(series.points, series.step_s)
    figure = _line_chart(span)
    for name, colour in (("speculative", SPECULATIVE), ("autoregressive", AUTOREGRESSIVE)):
        trace = _line(rows, partial(_p95, name), name, colour, partial(_told_p95, name))
        if name == "autoregressive":
            trace.update(line={"dash": "dot"}, marker={"symbol": "diamond"})
        figure.add_trace(trace)
    _limit(figure, LATENCY_GOAL_MS, f"{LATENCY_GOAL_MS} ms")
    figure.update_yaxes(rangemode="tozero", ticksuffix=" ms")
    return figure


def _side(name: str, point: shapes.LatencyPoint) -> shapes.LatencyFigures:
    return point.speculative if name == "speculative" else point.autoregressive


def _p95(name: str, point: shapes.LatencyPoint) -> float | None:
    return _side(name, point).p95_ms


def _told_p95(name: str, point: shapes.LatencyPoint) -> str:
    figures = _side(name, point)
    return f"{name} p95 {milliseconds(figures.p95_ms)}, {figures.requests:,} ok requests"


def outcomes(traffic: shapes.Traffic) -> go.Figure:
    """One bar per outcome seen, ok first, then the most frequent."""
    rows = sorted(traffic.outcomes.items(), key=lambda row: (row[0] != "ok", -row[1], row[0]))
    figure = go.Figure(
        go.Bar(
            y=[name for name, _ in rows],
            x=[n for _, n in rows],
            text=[f"{n:,}" for _, n in rows],
            textposition="outside",
            cliponaxis=False,
            orientation="h",
            marker_color=[OTHER if name == "ok" else AUTOREGRESSIVE for name, _ in rows],
            hovertemplate="%{y}: %{x:,} requests<extra></extra>",
        )
    )
    most = max((n for _, n in rows), default=0)
    figure.update_xaxes(range=[0, max(1, most) * 1.15], fixedrange=True, tickformat=",d")
    figure.update_yaxes(autorange="reversed", type="category", fixedrange=True, ticksuffix=" ")
    figure.update_layout(height=max(120, 60 + 38 * len(rows)), margin=MARGIN, showlegend=False)
    return figure


MARGIN = {"l": 8, "r": 12, "t": 12, "b": 8}


def _line_chart(span: tuple[datetime, datetime] | None) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        height=260,
        margin=MARGIN,
        hovermode="x unified",
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        # Keeps the reader's zoom when the data is refreshed.
        uirevision="keep",
    )
    figure.update_xaxes(type="date", hoverformat="%Y-%m-%d %H:%M UTC", nticks=6, tickangle=0)
    if span is not None:
        figure.update_xaxes(range=list(span))
    figure.update_yaxes(fixedrange=True)
    return figure


def _line(
    rows: Sequence[tuple[datetime, Any]],
    value: Callable[[Any], float | None],
    name: str,
    colour: str,
    told: Callable[[Any], str],
) -> go.Scatter:
    return go.Scatter(
        x=[at for at, _ in rows],
        y=[None if point is None else value(point) for _, point in rows],
        name=name,
        mode="lines+markers",
        line={"color": colour, "width": 2},
        marker={"size": 5, "color": colour},
        connectgaps=False,
        text=[NO_DATA if point is None else told(point) for _, point in rows],
        hovertemplate="%{text}<extra></extra>",
    )


def _limit(figure: go.Figure, at: float, text: str) -> None:
    figure.add_hline(
        y=at,
        line={"color": MUTED, "dash": "dash", "width": 1.5},
        # Beside the plot, where no line runs through it.
        annotation={"text": text, "x": 1, "xanchor": "left", "yanchor": "middle", "font": {"color": MUTED}},
    )
    figure.update_layout(margin_r=52)


# Heat maps of the truncation


def _colour_axis(cells: list[list[float | None]], colour: Colour) -> dict[str, Any]:
    known = [x for row in cells for x in row if x is not None]
    if colour == "hazard":
        top = min(1.0, max([0.5, *known]))
        return {"cmin": 0, "cmax": top, "title": "hazard", "tickformat": ".0%"}
    return {"cmin": 0, "cmax": max([1, *known]), "title": "rejected", "tickformat": ",d"}


def _cell(point: shapes.TruncationPoint, index: int, colour: Colour) -> float | None:
    if point.reached[index] is None:
        return None
    return point.hazard[index] if colour == "hazard" else point.rejected_at[index]


def _told(point: shapes.TruncationPoint | None, index: int, where: str) -> str:
    if point is None:
        return ""
    reached, rejected, hazard = point.reached[index], point.rejected_at[index], point.hazard[index]
    if reached is None:
        return f"{where}<br>position {index + 1}: never drafted"
    said = f"{where}<br>position {index + 1}: rejected {rejected or 0:,} of {reached:,} reached"
    return said if hazard is None else f"{said}<br>hazard {percent(hazard)}"


def _full(point: shapes.TruncationPoint | None) -> float | None:
    """Share of the verify steps in which every draft token was accepted."""
    if point is None or not point.verify_steps:
        return None
    return (point.verify_steps - point.truncated_steps) / point.verify_steps


def _told_full(point: shapes.TruncationPoint | None, where: str) -> str:
    if point is None or not point.verify_steps:
        return ""
    full = point.verify_steps - point.truncated_steps
    return f"{where}<br>fully accepted: {full:,} of {point.verify_steps:,} verify steps"


def _heat(figure: go.Figure, cells: list[list[float | None]], colour: Colour, **options: Any) -> go.Figure:
    axis = _colour_axis(cells, colour)
    figure.add_trace(
        go.Heatmap(
            z=cells,
            coloraxis="coloraxis",
            hoverongaps=False,
            hovertemplate="%{text}<extra></extra>",
            # On a phone, gaps between many columns would be wider than the columns.
            xgap=1 if not cells or len(cells[0]) <= 30 else 0,
            ygap=1,
            **options,
        ),
        row=1,
        col=1,
    )
    figure.add_shape(
        type="rect",
        x0=0,
        x1=1,
        y0=0,
        y1=1,
        xref="x domain",
        yref="y domain",
        fillcolor=BLANK,
        line_width=0,
        layer="below",
    )
    figure.update_xaxes(showgrid=False, row=1, col=1)
    figure.update_yaxes(showgrid=False, row=1, col=1)
    figure.update_layout(
        coloraxis={
            "colorscale": "Viridis",
            "cmin": axis["cmin"],
            "cmax": axis["cmax"],
            "colorbar": {
                "title": {"text": axis["title"], "side": "top"},
                "orientation": "h",
                "thickness": 10,
                "len": 0.6,
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "tickformat": axis["tickformat"],
            },
        },
        margin=MARGIN,
        showlegend=False,
        uirevision="keep",
    )
    return figure


def truncation_over_time(series: shapes.TruncationSeries, colour: Colour) -> go.Figure:
    """Position (down) by time (across); below it the share of fully accepted steps."""
    rows = by_step(series.points, series.step_s)
    step = timedelta(seconds=min(series.step_s or 60, 10**9))
    positions = range(series.positions)
    # Edges, not centres: a cell covers its step, even when it is the only one.
    edges = [at for at, _ in rows]
    if edges:
        edges.append(edges[-1] + min(step, _room(edges[-1])))
    names = [f"{at:%Y-%m-%d %H:%M} UTC" for at, _ in rows]
    cells = [[None if p is None else _cell(p, i, colour) for _, p in rows] for i in positions]
    told = [[_told(p, i, name) for (_, p), name in zip(rows, names, strict=True)] for i in positions]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.76, 0.24], vertical_spacing=0.06)
    _heat(figure, cells, colour, x=edges, y=[i + 1 for i in positions], text=told)
    figure.add_trace(
        go.Scatter(
            x=[at + min(step, _room(at)) / 2 for at, _ in rows],
            y=[_full(p) for _, p in rows],
            mode="lines+markers",
            line={"color": OTHER, "width": 2},
            marker={"size": 5},
            connectgaps=False,
            text=[_told_full(p, name) for (_, p), name in zip(rows, names, strict=True)],
            hovertemplate="%{text}<extra></extra>",
        ),
        row=2,
        col=1,
    )
    figure.update_xaxes(type="date", nticks=6, tickangle=0)
    if edges:
        figure.update_xaxes(range=[edges[0], edges[-1]])
    figure.update_yaxes(
        title_text="position", range=[series.positions + 0.5, 0.5], dtick=1, fixedrange=True, row=1, col=1
    )
    figure.update_yaxes(
        title_text="all accepted",
        range=[0, 1],
        tickformat=".0%",
        tickvals=[0, 0.5, 1],
        fixedrange=True,
        row=2,
        col=1,
    )
    figure.update_layout(height=230 + 34 * max(4, min(series.positions, 16)))
    return figure


def _room(at: datetime) -> timedelta:
    """Time left before the calendar of `datetime` ends."""
    return datetime.max.replace(tzinfo=at.tzinfo) - at


def truncation_by_scenario(series: shapes.TruncationSeries, colour: Colour) -> go.Figure:
    """Scenario (down) by position (across); to the right the share of fully accepted steps."""
    points = sorted(series.points, key=lambda p: p.group or "")
    names = [p.group or "(none)" for p in points]
    positions = range(series.positions)
    cells = [[_cell(p, i, colour) for i in positions] for p in points]
    told = [[_told(p, i, name) for i in positions] for p, name in zip(points, names, strict=True)]
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, column_widths=[0.72, 0.28], horizontal_spacing=0.04)
    _heat(figure, cells, colour, x=[i + 1 for i in positions], y=names, text=told)
    full = [_full(p) for p in points]
    figure.add_trace(
        go.Bar(
            x=full,
            y=names,
            orientation="h",
            marker_color=OTHER,
            text=["" if x is None else f"{x:.0%}" for x in full],
            textposition="auto",
            customdata=[_told_full(p, name) for p, name in zip(points, names, strict=True)],
            hovertemplate="%{customdata}<extra></extra>",
        ),
        row=1,
        col=2,
    )
    figure.update_yaxes(type="category", autorange="reversed", fixedrange=True, ticksuffix=" ")
    figure.update_xaxes(
        title_text="position", range=[0.5, series.positions + 0.5], dtick=1, fixedrange=True, row=1, col=1
    )
    figure.update_xaxes(
        title_text="all accepted",
        range=[0, 1],
        tickformat=".0%",
        tickvals=[0, 0.5, 1],
        fixedrange=True,
        row=1,
        col=2,
    )
    figure.update_layout(height=150 + 40 * max(2, len(points)))
    return figure
