"""The charts of the page Now: p and latencies over time, and how requests ended. Pure."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial

import plotly.graph_objects as go  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.frames.base import milliseconds, ratio, utc
from dashboard.frames.plots import AUTOREGRESSIVE, MARGIN, OTHER, SPECULATIVE, by_step, limit, line, line_chart
from dashboard.words import LATENCY_GOAL_MS, NO_DATA, P_MIN


def p_over_time(
    series: shapes.AcceptanceSeries,
    span: tuple[datetime, datetime] | None,
    switches: Sequence[shapes.Transition] = (),
) -> go.Figure:
    rows = by_step(series.points, series.step_s)
    figure = line_chart(span)
    figure.add_trace(
        line(
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
    limit(figure, P_MIN, f"{P_MIN}")
    figure.update_yaxes(range=[0, 1], tickformat=".1f")
    figure.update_layout(showlegend=False)
    _switches(figure, switches, span)
    return figure


def _switches(figure: go.Figure, switches: Sequence[shapes.Transition], span: tuple[datetime, datetime] | None) -> None:
    """Where decoding was switched: a triangle at the foot of the chart."""
    shown = [each for each in switches if each.from_state != each.to_state]
    if span is not None:
        shown = [each for each in shown if span[0] <= utc(each.at) < span[1]]
    figure.add_trace(
        go.Scatter(
            x=[utc(each.at) for each in shown],
            y=[0.03] * len(shown),
            mode="markers",
            name="switch",
            marker={"symbol": "triangle-up", "size": 11, "color": AUTOREGRESSIVE},
            text=[f"{each.slice or 'all traffic'}: {each.from_state} to {each.to_state}" for each in shown],
            hovertemplate="%{text}<extra></extra>",
        )
    )


def latency_over_time(series: shapes.LatencySeries, span: tuple[datetime, datetime] | None) -> go.Figure:
    rows = by_step(series.points, series.step_s)
    figure = line_chart(span)
    for name, colour in (("speculative", SPECULATIVE), ("autoregressive", AUTOREGRESSIVE)):
        trace = line(rows, partial(_p95, name), name, colour, partial(_told_p95, name))
        if name == "autoregressive":
            trace.update(line={"dash": "dot"}, marker={"symbol": "diamond"})
        figure.add_trace(trace)
    limit(figure, LATENCY_GOAL_MS, f"{LATENCY_GOAL_MS} ms")
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
