"""Plots of a run of the lab: bars and lines with their intervals, and heat maps. Pure; no Streamlit, no network.

Series are told apart by their shape too: by markers, dashes and patterns.
"""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from math import floor, log10
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]

from dashboard.frames.lab_summary import Plot, Series
from dashboard.frames.plots import AUTOREGRESSIVE, MARGIN, MUTED, OTHER, SPECULATIVE, blank, limit
from dashboard.words import NO_DATA

#: Okabe-Ito, those of the other charts first.
COLOURS = (SPECULATIVE, AUTOREGRESSIVE, OTHER, "#CC79A7", "#E69F00", "#56B4E9", MUTED)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
PATTERNS = ("", "/", ".", "x", "-", "|", "+")
#: Points beyond which markers would hide the line, and columns up to which cells have room for their values.
MOST_MARKERS, MOST_TEXTS = 30, 12
#: Characters of a name: of a series in the legend, of a row or a bar beside the plot.
LONGEST, LONGEST_LABEL = 40, 18


def figure(plot: Plot) -> go.Figure:
    made = {"bars": _bars, "lines": _lines, "heat": _heat}[plot.kind](plot)
    made.update_layout(margin=MARGIN | {"t": 24}, uirevision="keep")
    if plot.kind != "heat":
        # Of the legend, on a phone.
        rows = -(-sum(len(_cut(each.name, LONGEST)) + 8 for each in plot.series) // 50)
        made.update_layout(
            height=300 + 20 * max(0, rows - 2),
            showlegend=len(plot.series) > 1,
            legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        )
        made.update_yaxes(title_text=_escaped(plot.y_title), automargin=True, fixedrange=True)
        if plot.mark is not None:
            limit(made, plot.mark, f"{plot.mark:.3g}")
    made.update_xaxes(title_text=_escaped(plot.x_title), automargin=True, fixedrange=plot.kind != "lines")
    return made


def _bars(plot: Plot) -> go.Figure:
    made = go.Figure()
    names = labels([_text(each) for each in plot.x])
    for index, series in enumerate(plot.series):
        colour = COLOURS[index % len(COLOURS)]
        made.add_trace(
            go.Bar(
                x=names,
                y=series.y,
                name=_name(series),
                marker={"color": colour, "pattern": {"shape": PATTERNS[index % len(PATTERNS)], "solidity": 0.25}},
                error_y=_ends(series),
                text=[_told(plot, series, at) for at in range(len(plot.x))],
                textposition="none",
                hovertemplate="%{text}<extra></extra>",
            )
        )
    made.update_layout(barmode="group", bargap=0.3)
    made.update_xaxes(type="category")
    made.update_yaxes(rangemode="tozero")
    return made


def _lines(plot: Plot) -> go.Figure:
    made = go.Figure()
    numbers = [each for each in plot.x if not isinstance(each, str)]
    named = len(numbers) < len(plot.x)
    x: Sequence[Any] = labels([_text(each) for each in plot.x]) if named else plot.x
    for index, series in enumerate(plot.series):
        for trace in _band(x, series, COLOURS[index % len(COLOURS)], str(index)):
            made.add_trace(trace)
    for index, series in enumerate(plot.series):
        colour, single = COLOURS[index % len(COLOURS)], _is_single(series)
        marked = single or len(plot.x) <= MOST_MARKERS
        made.add_trace(
            go.Scatter(
                x=x,
                y=series.y,
                name=_name(series),
                legendgroup=str(index),
                mode="markers" if single else "lines+markers" if marked else "lines",
                line={"color": colour, "width": 2, "dash": DASHES[index % len(DASHES)]},
                marker={"size": 12 if single else 7, "color": colour, "symbol": SYMBOLS[index % len(SYMBOLS)]},
                connectgaps=False,
                text=[_told(plot, series, at) for at in range(len(plot.x))],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    made.update_layout(hovermode="closest")
    if named:
        made.update_xaxes(type="category")
    elif len(set(numbers)) <= MOST_TEXTS:
        made.update_xaxes(tickvals=sorted(set(numbers)))
    return made


def _is_single(series: Series) -> bool:
    """Whether no two values stand side by side: marks of moments, and no course of anything."""
    known = [value is not None for value in series.y]
    return len(known) > 1 and not any(first and second for first, second in pairwise(known))


def _band(x: Sequence[Any], series: Series, colour: str, group: str) -> Iterator[go.Scatter]:
    """Between low and high, one for each run of points that have both."""
    runs: list[list[int]] = [[]]
    for at in range(len(x)):
        if series.low is not None and series.high is not None and None not in (series.low[at], series.high[at]):
            runs[-1].append(at)
        else:
            runs.append([])
    for run in filter(None, runs):
        back = run[::-1]
        yield go.Scatter(
            x=[x[at] for at in [*run, *back]],
            y=[*((series.high or [])[at] for at in run), *((series.low or [])[at] for at in back)],
            mode="lines",
            fill="toself",
            fillcolor=f"{colour}33",
            # One point alone has no area.
            line={"color": colour, "width": 0 if len(run) > 1 else 2},
            legendgroup=group,
            showlegend=False,
            hoverinfo="skip",
        )


def _heat(plot: Plot) -> go.Figure:
    x = labels([_text(each) for each in plot.x])
    rows = labels([each.name for each in plot.series])
    made = go.Figure(
        go.Heatmap(
            x=x,
            y=rows,
            z=[each.y for each in plot.series],
            coloraxis="coloraxis",
            xgap=1 if len(x) <= 30 else 0,
            ygap=1,
            hoverongaps=False,
            text=[[_told(plot, each, at) for at in range(len(x))] for each in plot.series],
            hovertemplate="%{text}<extra></extra>",
        )
    )
    if len(x) <= MOST_TEXTS:
        made.add_trace(_values(plot, x, rows))
    blank(made)
    made.update_xaxes(type="category", showgrid=False)
    made.update_yaxes(type="category", autorange="reversed", showgrid=False, ticksuffix=" ", fixedrange=True)
    made.update_layout(
        height=150 + 34 * max(2, len(rows)),
        coloraxis={
            "colorscale": "Viridis",
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
                "nticks": 5,
            },
        },
    )
    return made


def _values(plot: Plot, x: Sequence[str], rows: Sequence[str]) -> go.Scatter:
    """Written into the cells, white on the dark ones and black on the bright ones."""
    known = [y for each in plot.series for y in each.y if y is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    most = max(abs(low), abs(high))
    decimals = min(max(1 - floor(log10(most)), 0), 6) if most else 0
    cells = [
        (x[at], row, y)
        for each, row in zip(plot.series, rows, strict=True)
        for at, y in enumerate(each.y)
        if y is not None
    ]
    return go.Scatter(
        x=[column for column, _, _ in cells],
        y=[row for _, row, _ in cells],
        mode="text",
        text=[f"{y:.{decimals}f}" for _, _, y in cells],
        textfont={
            "color": ["#FFFFFF" if y < (low + high) / 2 or high == low else "#000000" for _, _, y in cells],
            # On a phone there is little room between many columns.
            "size": 12 if len(x) <= 6 else 10,
        },
        hoverinfo="skip",
        showlegend=False,
    )


# Texts


def labels(names: Sequence[str]) -> list[str]:
    """Cut to what leaves room for the plot on a phone, but where two would be called alike."""
    cut = [_cut(name, LONGEST_LABEL) for name in names]
    return [_escaped(name) for name in (cut if len(set(cut)) == len(set(names)) else names)]


def _cut(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _name(series: Series) -> str:
    return _escaped(_cut(series.name, LONGEST))


def _escaped(text: str) -> str:
    """Plotly reads some HTML, and what stands in braces as a figure of its own."""
    return escape(text, quote=False).replace("{", "&#123;")


def _text(value: str | int | float) -> str:
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _ends(series: Series) -> dict[str, Any] | None:
    if series.low is None or series.high is None:
        return None
    ends = list(zip(series.y, series.low, series.high, strict=True))
    return {
        "type": "data",
        "symmetric": False,
        "array": [None if y is None or high is None else max(0.0, high - y) for y, _, high in ends],
        "arrayminus": [None if y is None or low is None else max(0.0, y - low) for y, low, _ in ends],
        "color": MUTED,
        "thickness": 2,
        "width": 5,
    }


def _told(plot: Plot, series: Series, at: int) -> str:
    """Of one point: where it is, its value and the ends of its interval."""
    where = f"{plot.x_title} {_text(plot.x[at])}".strip()
    y = series.y[at]
    value = NO_DATA if y is None else f"{y:.4g}"
    low = None if series.low is None else series.low[at]
    high = None if series.high is None else series.high[at]
    between = f" ({low:.4g} to {high:.4g})" if y is not None and low is not None and high is not None else ""
    return "<br>".join(map(_escaped, (series.name, f"{where}: {value}{between}")))
