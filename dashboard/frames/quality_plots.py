"""Similarity over time, and how it is spread. Pure."""

from datetime import datetime
from functools import partial

import plotly.graph_objects as go  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.frames.base import count, ratio
from dashboard.frames.plots import MARGIN, MUTED, OTHER, SPECULATIVE, by_step, limit, line, line_chart
from dashboard.frames.quality import KINDS
from dashboard.words import SIMILARITY_CRITICAL, SIMILARITY_MIN

LIMITS = {SIMILARITY_MIN: "warning", SIMILARITY_CRITICAL: "critical"}
#: Scores from which on a chart begins at least, so that the limits are in sight.
_FROM = 0.7


def over_time(series: shapes.SimilaritySeries, span: tuple[datetime, datetime] | None) -> go.Figure:
    """Mean and tenth percentile of each kind of pair."""
    figure = line_chart(span)
    lowest = [_FROM]
    for kind, colour in (("draft", SPECULATIVE), ("replay", OTHER)):
        points = [point for point in series.points if point.kind == kind]
        rows = by_step(points, series.step_s)
        for word, name, dash in (("mean", "mean", "solid"), ("p10", "p10", "dot")):
            values = [value for point in points if (value := _value(name, point)) is not None]
            if not values:
                continue
            trace = line(rows, partial(_value, name), f"{KINDS[kind]}, {word}", colour, partial(_told, name))
            trace.update(line={"dash": dash, "width": 2 if name == "mean" else 1.2})
            trace.update(
                marker={"size": 5 if name == "mean" else 3, "symbol": "circle" if kind == "draft" else "diamond"}
            )
            figure.add_trace(trace)
            lowest += values
    for at, word in LIMITS.items():
        limit(figure, at, f"{at}<br>{word}")
    figure.update_yaxes(range=[min(lowest) - 0.02, 1.02])
    figure.update_layout(height=300, hovermode="closest", margin_r=64)
    return figure


def _value(name: str, point: shapes.SimilarityPoint) -> float | None:
    return point.mean if name == "mean" else point.p10


def _told(name: str, point: shapes.SimilarityPoint) -> str:
    value = _value(name, point)
    said = "no score" if value is None else f"{name} {ratio(value)}"
    return f"{KINDS[point.kind]}: {said} of {count(point.pairs, 'pair')}, {point.critical:,} critical"


def histogram(spread: shapes.SimilarityHistogram) -> go.Figure:
    """Pairs by score, from the lowest one there is on."""
    figure = go.Figure()
    bins = list(zip(spread.edges, spread.edges[1:], strict=False))
    kinds = (("draft", SPECULATIVE, "", spread.draft), ("replay", OTHER, "/", spread.replay))
    for kind, colour, pattern, counts in kinds:
        if any(counts):
            figure.add_trace(
                go.Bar(
                    x=[(low + high) / 2 for low, high in bins],
                    y=counts,
                    name=KINDS[kind],
                    marker={"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay", "solidity": 0.25}},
                    # Few low ones beside many high ones would be no more than a line.
                    text=[f"{number:,}" if number else "" for number in counts],
                    textposition="outside",
                    cliponaxis=False,
                    customdata=[f"{low:.2f} to {high:.2f}" for low, high in bins],
                    hovertemplate="%{customdata}: %{y:,} pairs<extra></extra>",
                )
            )
    lowest = next(
        (low for (low, _), *numbers in zip(bins, spread.draft, spread.replay, strict=False) if any(numbers)), 0
    )
    for at, word in LIMITS.items():
        figure.add_vline(
            x=at,
            line={"color": MUTED, "dash": "dash", "width": 1.5},
            annotation={
                "text": f"{at} {word}",
                "y": 1.02,
                "yanchor": "bottom",
                "xanchor": "left" if word == "warning" else "right",
                "font": {"color": MUTED},
            },
        )
    most = max([*spread.draft, *spread.replay, 1])
    figure.update_xaxes(
        range=[min(lowest, 0.6), 1], tickformat=".2f", nticks=10, fixedrange=True, title_text="similarity"
    )
    figure.update_yaxes(range=[0, most * 1.15], tickformat=",d", nticks=min(5, most + 1), fixedrange=True)
    figure.update_layout(
        height=300,
        margin=MARGIN | {"t": 40},
        barmode="group",
        bargap=0.08,
        showlegend=len(figure.data) > 1,
        legend={"orientation": "h", "x": 0, "y": -0.25, "yanchor": "top"},
    )
    return figure
