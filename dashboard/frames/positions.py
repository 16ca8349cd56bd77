"""Heat maps of the positions at which the target model says no: over time, and by scenario, model or k. Pure.

A cell without colour was never drafted; one of the lowest colour was, and nothing was rejected there.
"""

from datetime import datetime, timedelta
from html import escape
from typing import Literal

import plotly.graph_objects as go  # type: ignore[import-untyped]
from plotly.subplots import make_subplots  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.frames.base import iso, percent
from dashboard.frames.heat import Colour, Lattice, cliff, heat, markers, outline
from dashboard.frames.plots import OTHER, by_step
from dashboard.frames.truncation import full_share, rate_of

By = Literal["scenario", "model", "k"]


def step_name(at: datetime) -> str:
    """The beginning of a step, as it stands in addresses."""
    return iso(at.replace(microsecond=0))


def over_time(series: shapes.TruncationSeries, colour: Colour, chosen: tuple[int, datetime] | None = None) -> go.Figure:
    """Position (down) by time (across); below it the share of fully accepted steps. `chosen`: position, step."""
    rows = by_step(series.points, series.step_s)
    step = timedelta(seconds=min(series.step_s or 60, 10**9))
    positions = range(series.positions)
    # Edges, not centres: a cell covers its step, even when it is the only one.
    edges = [at for at, _ in rows]
    if edges:
        edges.append(edges[-1] + min(step, room(edges[-1])))
    centres = [at + min(step, room(at)) / 2 for at, _ in rows]
    names = [f"{at:%Y-%m-%d %H:%M} UTC" for at, _ in rows]
    lattice = Lattice(
        [[None if p is None else _cell(p, i, colour) for _, p in rows] for i in positions],
        [[_told(p, i, name) for (_, p), name in zip(rows, names, strict=True)] for i in positions],
        [[[str(i + 1), step_name(at)] for at, _ in rows] for i in positions],
    )
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.76, 0.24], vertical_spacing=0.06)
    heat(figure, lattice, colour, x=edges, y=[i + 1 for i in positions])
    markers(figure, lattice, x=centres, y=[i + 1 for i in positions])
    figure.add_trace(
        go.Scatter(
            x=centres,
            y=[p and full_share(p) for _, p in rows],
            mode="lines+markers",
            line={"color": OTHER, "width": 2},
            marker={"size": 5},
            unselected={"marker": {"opacity": 1}},
            connectgaps=False,
            text=[_told_full(p, name) for (_, p), name in zip(rows, names, strict=True)],
            hovertemplate="%{text}<extra></extra>",
        ),
        row=2,
        col=1,
    )
    if series.total.cliff_at is not None and edges:
        cliff(figure, x0=edges[0], x1=edges[-1], y0=series.total.cliff_at + 0.5, y1=series.total.cliff_at + 0.5)
    if chosen is not None and any(at == chosen[1] for at in edges[:-1]):
        end = chosen[1] + min(step, room(chosen[1]))
        outline(figure, x0=chosen[1], x1=end, y0=chosen[0] - 0.5, y1=chosen[0] + 0.5)
    figure.update_xaxes(type="date", nticks=6, tickangle=0, fixedrange=True)
    if edges:
        figure.update_xaxes(range=[edges[0], edges[-1]])
    figure.update_yaxes(
        title_text="position", range=[series.positions + 0.5, 0.5], dtick=1, fixedrange=True, row=1, col=1
    )
    figure.update_yaxes(
        title_text="all accepted",
        range=[0, 1.05],
        tickformat=".0%",
        tickvals=[0, 0.5, 1],
        fixedrange=True,
        row=2,
        col=1,
    )
    figure.update_layout(height=230 + 34 * max(4, min(series.positions, 16)))
    return figure


def ranked(series: shapes.TruncationSeries, by: By) -> list[shapes.TruncationPoint]:
    """The groups: those with the highest truncation rate first; k by size, as the API gives it."""
    if by == "k":
        return list(series.points)
    return sorted(series.points, key=lambda point: (-(rate_of(point) or 0), point.group or ""))


def by_group(
    series: shapes.TruncationSeries, by: By, colour: Colour, chosen: tuple[int, str] | None = None
) -> go.Figure:
    """Group (down) by position (across); to the right the share of fully accepted steps. `chosen`: position, group."""
    points = ranked(series, by)
    names = [_escaped(f"{'k = ' if by == 'k' else ''}{p.group or '(none)'}") for p in points]
    positions = range(series.positions)
    lattice = Lattice(
        [[_cell(p, i, colour) for i in positions] for p in points],
        [[_told(p, i, name) for i in positions] for p, name in zip(points, names, strict=True)],
        [[[str(i + 1), p.group or ""] for i in positions] for p in points],
    )
    rows = list(range(len(points)))
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, column_widths=[0.72, 0.28], horizontal_spacing=0.04)
    heat(figure, lattice, colour, x=[i + 1 for i in positions], y=rows)
    markers(figure, lattice, x=[i + 1 for i in positions], y=rows)
    full = [full_share(p) for p in points]
    figure.add_trace(
        go.Bar(
            x=full,
            y=rows,
            orientation="h",
            marker_color=OTHER,
            unselected={"marker": {"opacity": 1}},
            text=["" if x is None else f"{x:.0%}" for x in full],
            textposition="auto",
            textangle=0,
            customdata=[_told_full(p, name) for p, name in zip(points, names, strict=True)],
            hovertemplate="%{customdata}<extra></extra>",
        ),
        row=1,
        col=2,
    )
    for row, point in enumerate(points):
        if point.cliff_at is not None:
            cliff(figure, x0=point.cliff_at + 0.5, x1=point.cliff_at + 0.5, y0=row - 0.5, y1=row + 0.5)
        if chosen is not None and point.group == chosen[1]:
            outline(figure, x0=chosen[0] - 0.5, x1=chosen[0] + 0.5, y0=row - 0.5, y1=row + 0.5)
    figure.update_yaxes(
        tickvals=rows,
        ticktext=names,
        range=[len(points) - 0.5, -0.5],
        fixedrange=True,
        ticksuffix=" ",
    )
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


def _escaped(name: str) -> str:
    """Plotly reads some HTML. Cut to what leaves room for the cells on a phone."""
    return escape(name if len(name) <= 18 else f"{name[:17]}…", quote=False)


def _cell(point: shapes.TruncationPoint, index: int, colour: Colour) -> float | None:
    if point.reached[index] is None:
        return None
    return point.hazard[index] if colour == "hazard" else point.rejected_at[index]


def _told(point: shapes.TruncationPoint | None, index: int, where: str) -> str:
    if point is None:
        return f"{where}<br>no data"
    reached, rejected, hazard = point.reached[index], point.rejected_at[index], point.hazard[index]
    if reached is None:
        return f"{where}<br>position {index + 1}: never drafted"
    said = f"{where}<br>position {index + 1}: rejected {rejected or 0:,} of {reached:,} reached"
    return said if hazard is None else f"{said}<br>hazard {percent(hazard)}"


def _told_full(point: shapes.TruncationPoint | None, where: str) -> str:
    if point is None or not point.verify_steps:
        return ""
    full = point.verify_steps - point.truncated_steps
    return f"{where}<br>fully accepted: {full:,} of {point.verify_steps:,} verify steps"


def room(at: datetime) -> timedelta:
    """Time left before the calendar of `datetime` ends."""
    return datetime.max.replace(tzinfo=at.tzinfo) - at
