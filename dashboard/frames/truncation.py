"""Truncation: at which position the target model says no, when, and in which scenario. Pure."""

from datetime import datetime, timedelta
from typing import Any, Literal

import plotly.graph_objects as go  # type: ignore[import-untyped]
from plotly.subplots import make_subplots  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.frames.base import Tile, count, judged, percent
from dashboard.frames.plots import BLANK, MARGIN, OTHER, by_step
from dashboard.words import FIRST_POSITION_MAX, NO_DATA, TRUNCATION_MAX, define

Colour = Literal["hazard", "rejected"]


def truncation_tiles(series: shapes.TruncationSeries) -> list[Tile]:
    total, steps = series.total, series.total.verify_steps
    full = steps - total.truncated_steps
    helps = (
        define("truncation rate", "verify step"),
        define("first-position share"),
        define("fully accepted steps"),
    )
    if steps:
        rate = total.truncated_steps / steps
        note = f"{total.truncated_steps:,} of {count(steps, 'verify step')} truncated."
        first = judged(
            "Truncation rate",
            percent(rate, TRUNCATION_MAX),
            helps[0],
            rate <= TRUNCATION_MAX,
            "at most 35 %",
            note,
        )
        whole = Tile(
            "Fully accepted steps",
            percent(full / steps),
            helps[2],
            note=f"{full:,} of {count(steps, 'verify step')}, not in the heat map's cells.",
        )
    else:
        none = "No verify step in this time range."
        first = Tile("Truncation rate", NO_DATA, helps[0], note=none)
        whole = Tile("Fully accepted steps", NO_DATA, helps[2], note=none)
    share = series.first_position_share
    if share is None:
        second = Tile("First-position share", NO_DATA, helps[1], note="No truncated step in this time range.")
    else:
        second = judged(
            "First-position share",
            percent(share, FIRST_POSITION_MAX),
            helps[1],
            share <= FIRST_POSITION_MAX,
            "at most 15 %",
            f"Of {count(total.truncated_steps, 'truncated step')}.",
        )
    return [first, second, whole]


def _colour_axis(cells: list[list[float | None]], colour: Colour) -> dict[str, Any]:
    known = [x for row in cells for x in row if x is not None]
    if colour == "hazard":
        top = min(1.0, max([0.5, *known]))
        return {"cmin": 0, "cmax": top, "title": "hazard", "tickformat": ".0%"}
    return {"cmin": 0, "cmax": max([1, *known]), "title": "rejected", "tickformat": ",d"}


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
