"""What the charts of every page share. Pure; no Streamlit, no network.

A step without data is a gap in a line and a blank cell in a heat map. Colours are told apart by
people with colour blindness too: Okabe-Ito for series, Viridis for the heat map.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Protocol, TypeVar

import plotly.graph_objects as go  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.frames.base import Tile, utc
from dashboard.words import NO_DATA

SPECULATIVE, AUTOREGRESSIVE, OTHER, MUTED = "#0072B2", "#D55E00", "#009E73", "#8a8a8a"
#: Behind a heat map: cells that were never drafted show this grey in both themes.
BLANK = "rgba(128,128,128,0.16)"
#: Above this many steps gaps are left to the axis.
MAX_STEPS = 2000


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


def grid(series: shapes.Series) -> list[datetime]:
    """Every step of the time range, those without a point too."""
    times = [at for at, _ in by_step(list({point.at: point for point in series.points}.values()), series.step_s)]
    if not times or not series.step_s or series.step_s < 0:
        return times
    step, since, until = timedelta(seconds=min(series.step_s, 10**9)), utc(series.since), utc(series.until)
    if (until - since) / step > MAX_STEPS:
        return times
    before = max(0, min(MAX_STEPS, ceil((times[0] - since) / step)))
    after = max(0, min(MAX_STEPS, ceil((until - times[-1]) / step) - 1))
    return [
        *(times[0] - step * back for back in range(before, 0, -1)),
        *times,
        *(times[-1] + step * on for on in range(1, after + 1)),
    ]


MARGIN = {"l": 8, "r": 12, "t": 12, "b": 8}


def line_chart(span: tuple[datetime, datetime] | None) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        height=260,
        margin=MARGIN,
        hovermode="x unified",
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
    )
    figure.update_xaxes(type="date", hoverformat="%Y-%m-%d %H:%M UTC", nticks=6, tickangle=0)
    if span is not None:
        figure.update_xaxes(range=list(span))
    figure.update_yaxes(fixedrange=True)
    dragged(figure)
    return figure


def dragged(figure: go.Figure) -> None:
    """A drag chooses a stretch of time. The zoom of Plotly's own is off: it would be lost at each refresh."""
    figure.update_layout(dragmode="select", selectdirection="h")
    figure.update_xaxes(fixedrange=True)


def line(
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


def blank(figure: go.Figure) -> None:
    """Under a heat map: cells of which nothing is known are seen as such."""
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


def limit(figure: go.Figure, at: float, text: str) -> None:
    figure.add_hline(
        y=at,
        line={"color": MUTED, "dash": "dash", "width": 1.5},
        # Beside the plot, where no line runs through it.
        annotation={"text": text, "x": 1, "xanchor": "left", "yanchor": "middle", "font": {"color": MUTED}},
    )
    figure.update_layout(margin_r=52)


def with_trend(tile: Tile, series: shapes.Series, value: Callable[[Any], float | None], limit: float | None) -> Tile:
    """The tile with its figure's course over the time range."""
    known = {utc(point.at): point for point in series.points if point.at is not None}
    values = [None if (point := known.get(at)) is None else value(point) for at in grid(series)]
    return replace(tile, trend=values, limit=limit)
