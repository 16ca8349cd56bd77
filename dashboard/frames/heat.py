"""Pieces of a heat map: cells that can be clicked, marks of a cliff, and the outline of the chosen cell. Pure.

Over each cell lies a marker that cannot be seen: heat maps of Plotly tell Streamlit of no clicks, points do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import plotly.graph_objects as go  # type: ignore[import-untyped]

from dashboard.frames.plots import MARGIN, blank

Colour = Literal["hazard", "counts"]
CLIFF = "#D55E00"


@dataclass(frozen=True, slots=True)
class Lattice:
    """Values by row (down) and column (across), and what is told of each; `picks` is what a click tells."""

    cells: list[list[float | None]]
    told: list[list[str]]
    picks: list[list[list[str]]]


def heat(figure: go.Figure, lattice: Lattice, colour: Colour, **axes: Sequence[Any]) -> None:
    cells = lattice.cells
    known = [x for row in cells for x in row if x is not None]
    top = min(1.0, max([0.5, *known])) if colour == "hazard" else max([1, *known])
    figure.add_trace(
        go.Heatmap(
            z=cells,
            coloraxis="coloraxis",
            hoverinfo="skip",
            # On a phone, gaps between many columns would be wider than the columns.
            xgap=1 if not cells or len(cells[0]) <= 30 else 0,
            ygap=1,
            **axes,
        ),
        row=1,
        col=1,
    )
    blank(figure)
    figure.update_xaxes(showgrid=False, row=1, col=1)
    figure.update_yaxes(showgrid=False, row=1, col=1)
    figure.update_layout(
        coloraxis={
            "colorscale": "Viridis",
            "cmin": 0,
            "cmax": top,
            "colorbar": {
                "orientation": "h",
                "thickness": 10,
                "len": 1,
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yanchor": "bottom",
                "ypad": 4,
                "tickangle": 0,
                # On a phone there is room for few.
                "nticks": 4,
                "tickformat": ".0%" if colour == "hazard" else ",d",
            },
        },
        margin=MARGIN,
        showlegend=False,
        # The cell under the pointer is the one whose marker is nearest, however wide cells are.
        hovermode="closest",
        hoverdistance=-1,
    )


def markers(figure: go.Figure, lattice: Lattice, x: Sequence[Any], y: Sequence[Any]) -> None:
    """One for each cell, unseen. A chosen cell is told by its outline."""
    unseen = {"marker": {"opacity": 0}}
    places = [(row, column) for row in range(len(y)) for column in range(len(x))]
    figure.add_trace(
        go.Scatter(
            x=[x[column] for _, column in places],
            y=[y[row] for row, _ in places],
            mode="markers",
            marker={"opacity": 0, "size": 4, "symbol": "square"},
            selected=unseen,
            unselected=unseen,
            customdata=[lattice.picks[row][column] for row, column in places],
            text=[lattice.told[row][column] for row, column in places],
            hovertemplate="%{text}<extra></extra>",
        ),
        row=1,
        col=1,
    )


def cliff(figure: go.Figure, **ends: Any) -> None:
    figure.add_shape(type="line", line={"color": CLIFF, "width": 4, "dash": "dot"}, row=1, col=1, **ends)
    figure.add_annotation(
        text="cliff",
        x=ends["x1"],
        y=ends["y0"],
        xanchor="right" if ends["y0"] == ends["y1"] else "left",
        yanchor="bottom" if ends["y0"] == ends["y1"] else "top",
        showarrow=False,
        font={"color": "#FFFFFF", "size": 11},
        bgcolor=CLIFF,
        row=1,
        col=1,
    )


def outline(figure: go.Figure, **ends: Any) -> None:
    """White within black, as it must be seen on every colour."""
    for colour, width in (("#000000", 5), ("#FFFFFF", 2)):
        figure.add_shape(type="rect", line={"color": colour, "width": width}, row=1, col=1, **ends)
