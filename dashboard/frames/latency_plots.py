"""Latency over time, how it is spread, and by concurrency. Pure."""

from datetime import datetime
from functools import partial
from math import ceil, floor, log10
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.frames.base import count, milliseconds, ratio
from dashboard.frames.latency import MEASURES, QUANTILES, Measure, in_order, quantile, short, verdict
from dashboard.frames.plots import AUTOREGRESSIVE, MARGIN, MUTED, SPECULATIVE, by_step, limit, line, line_chart
from dashboard.words import LATENCY_GOAL_MS

#: Largest value / median from which an axis is logarithmic.
_LONG_TAIL = 10
_DASHES = {"p50": "dot", "p95": "solid", "p99": "dash"}
_LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}


def over_time(series: shapes.LatencySeries, measure: Measure, span: tuple[datetime, datetime] | None) -> go.Figure:
    """p50, p95 and p99 of both sides."""
    rows = by_step(series.points, series.step_s)
    figure = line_chart(span)
    for side, colour in (("speculative", SPECULATIVE), ("autoregressive", AUTOREGRESSIVE)):
        for name in QUANTILES:
            value, told = partial(_of_point, side, measure, name), partial(_told, side, measure, name)
            trace = line(rows, value, side, colour, told)
            # One entry a side: six would leave a phone no room for the lines.
            trace.update(legendgroup=side, showlegend=name == "p95")
            trace.update(line={"dash": _DASHES[name], "width": 2 if name == "p95" else 1.2})
            trace.update(marker={"size": 5 if name == "p95" else 3})
            if side == "autoregressive":
                trace.update(marker={"symbol": "diamond"})
            figure.add_trace(trace)
    if measure == "latency":
        limit(figure, LATENCY_GOAL_MS, f"{LATENCY_GOAL_MS} ms")
    figure.update_yaxes(rangemode="tozero", ticksuffix=" ms")
    figure.update_layout(height=320, hovermode="closest")
    return figure


def _of_point(side: str, measure: Measure, name: str, point: shapes.LatencyPoint) -> float | None:
    return quantile(measure, name, getattr(point, side))


def _told(side: str, measure: Measure, name: str, point: shapes.LatencyPoint) -> str:
    value, requests = _of_point(side, measure, name, point), getattr(point, side).requests
    return f"{side} {MEASURES[measure]} {name}: {milliseconds(value)}, {count(requests, 'ok request')}"


def ratio_over_time(series: shapes.LatencySeries, span: tuple[datetime, datetime] | None) -> go.Figure:
    rows = by_step(series.points, series.step_s)
    figure = line_chart(span)
    figure.add_trace(line(rows, lambda point: point.ratio, "latency ratio p95", SPECULATIVE, _told_ratio))
    known = [each.ratio for each in series.points if each.ratio is not None]
    low, high = min([0.9, *known]), max([1.1, *known])
    room = 0.08 * (high - low)
    limit(figure, 1, "1")
    figure.update_yaxes(range=[low - room, high + room])
    figure.update_layout(showlegend=False)
    return figure


def _told_ratio(point: shapes.LatencyPoint) -> str:
    if point.ratio is None:
        return short(point)
    ours, theirs = (
        f"{milliseconds(side.p95_ms)} of {side.requests:,}" for side in (point.speculative, point.autoregressive)
    )
    return f"ratio {ratio(point.ratio, 1.0)} ({verdict(point.ratio)}): p95 {ours} speculative, {theirs} autoregressive"


def distribution(spread: shapes.LatencyDistribution, measure: Measure) -> go.Figure:
    """Share of the ok requests (up) that took at most so long (across)."""
    figure = go.Figure()
    sides = (
        ("speculative", spread.speculative, SPECULATIVE, "solid"),
        ("autoregressive", spread.autoregressive, AUTOREGRESSIVE, "10px,4px"),
    )
    for name, side, colour, dash in sides:
        if values := _values(side, measure):
            figure.add_trace(
                go.Scatter(
                    x=values,
                    y=spread.shares[: len(values)],
                    name=name,
                    mode="lines",
                    line={"color": colour, "width": 2, "dash": dash, "shape": "hv"},
                    text=[
                        f"{name}: {share:.4g} of the requests within {milliseconds(value)}"
                        for share, value in zip(spread.shares, values, strict=False)
                    ],
                    hovertemplate="%{text}<extra></extra>",
                )
            )
    if measure == "latency":
        # A trace: the annotation of a line would be misplaced on a logarithmic axis.
        figure.add_trace(
            go.Scatter(
                x=[LATENCY_GOAL_MS] * 2,
                y=[0, 1],
                name=f"{LATENCY_GOAL_MS} ms",
                mode="lines",
                line={"color": MUTED, "width": 1.5, "dash": "dot"},
                hoverinfo="skip",
            )
        )
    figure.update_layout(
        height=320,
        margin=MARGIN,
        legend=_LEGEND,
        hovermode="closest",
    )
    figure.update_xaxes(type="linear", ticksuffix=" ms", nticks=6, tickangle=0, rangemode="tozero", fixedrange=True)
    if long_tail(spread, measure):
        figure.update_xaxes(type="log", **_ticks(spread, measure))
    figure.update_yaxes(range=[0, 1.02], tickvals=[0, 0.25, 0.5, 0.75, 0.95], tickformat=".0%", fixedrange=True)
    return figure


def long_tail(spread: shapes.LatencyDistribution, measure: Measure) -> bool:
    """Whether most of the values would be squeezed together on a linear axis."""
    sides = [values for side in (spread.speculative, spread.autoregressive) if (values := _values(side, measure))]
    medians = [values[len(values) // 2] for values in sides]
    if not sides or min(value for values in sides for value in values) <= 0:
        return False
    return max(value for values in sides for value in values) > _LONG_TAIL * min(medians)


def _ticks(spread: shapes.LatencyDistribution, measure: Measure) -> dict[str, list[Any]]:
    """Ticks of a logarithmic axis: 1, 2, 5 of each power of ten, or the powers alone where there are many."""
    values = [value for side in (spread.speculative, spread.autoregressive) for value in _values(side, measure)]
    # From a microsecond to years.
    powers = range(max(-3, floor(log10(min(values)))), min(12, ceil(log10(max(values)))) + 1)
    digits = (1, 2, 5) if len(powers) <= 4 else (1,)
    ticks = [digit * 10.0**power for power in powers for digit in digits]
    return {
        "tickvals": ticks,
        "ticktext": [f"{tick:g} ms" if tick < 100 else milliseconds(tick).replace(".0 ", " ") for tick in ticks],
    }


def _values(side: shapes.Quantiles, measure: Measure) -> list[float]:
    values: list[float] | None = getattr(side, f"{measure}_ms")
    return values or []


def by_concurrency(series: shapes.LatencySeries) -> go.Figure:
    """p95 of both sides; above, how they stand to each other where that can be told."""
    points = in_order(series)
    names = [each.group or "(none)" for each in points]
    figure = go.Figure()
    sides = (
        ("speculative", SPECULATIVE, "", [each.speculative for each in points]),
        ("autoregressive", AUTOREGRESSIVE, "/", [each.autoregressive for each in points]),
    )
    for name, colour, pattern, figures in sides:
        figure.add_trace(
            go.Bar(
                x=names,
                y=[each.p95_ms for each in figures],
                name=name,
                marker={"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay", "solidity": 0.25}},
                text=[
                    f"{name} p95 {milliseconds(each.p95_ms)}, {count(each.requests, 'ok request')}" for each in figures
                ],
                textposition="none",
                hovertemplate="concurrency %{x}<br>%{text}<extra></extra>",
            )
        )
    for place, each in enumerate(points):
        top = max(each.speculative.p95_ms or 0.0, each.autoregressive.p95_ms or 0.0)
        if each.ratio is not None:
            figure.add_annotation(x=place, y=top, text=f"{each.ratio:.2f}", showarrow=False, yshift=10)
    figure.update_layout(
        height=320,
        margin=MARGIN,
        barmode="group",
        legend=_LEGEND,
    )
    figure.update_xaxes(type="category", fixedrange=True, title_text="concurrency", tickangle=0)
    figure.update_yaxes(rangemode="tozero", ticksuffix=" ms", fixedrange=True)
    return figure
