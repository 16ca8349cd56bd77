"""Latency: whether speculation is faster, for whom, and at which load. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Literal

from dashboard import shapes
from dashboard.frames import now
from dashboard.frames.base import Tile, milliseconds, percent, ratio
from dashboard.frames.table import NONE, Cell, Row, table
from dashboard.words import LATENCY_GOAL_MS, NO_DATA, SLO_MIN, define

Measure = Literal["latency", "ttft", "tpot"]
MEASURES: Mapping[Measure, str] = MappingProxyType({"latency": "Latency", "ttft": "TTFT", "tpot": "TPOT"})
QUANTILES = ("p50", "p95", "p99")
#: Requests that each side of a ratio needs.
ENOUGH: Final = 50
#: Steps of a chart of ratios, at least.
_FEWEST_STEPS = 4

_BASELINES = {
    "true_ar": "an engine that never speculates",
    "spec_disabled": "the engine that speculates for the other requests, without drafts",
}


# Texts


def ratio_tile(latency: shapes.Latency) -> Tile:
    """At like concurrency; says which baseline it is against."""
    tile = now.ratio_tile(latency)
    return replace(tile, note=f"{tile.note} Baseline: {latency.baseline}.") if latency.baseline else tile


def share_tile(summary: shapes.Summary) -> Tile:
    label, helped = "latency_under_800ms_ratio", define("latency_under_800ms_ratio")
    value = summary.slo.latency_under_800ms_ratio
    if value is None:
        return Tile(label, NO_DATA, helped, note="No ok request in this time range.")
    note = f"95 % or more of them means a p95 of at most {LATENCY_GOAL_MS} ms."
    return Tile(label, percent(value, SLO_MIN), helped, note=note)


def baseline_line(latency: shapes.Latency) -> str:
    """What the figures beside those of speculation are, and what their ratio tells; in Markdown."""
    if latency.baseline is None:
        return ""
    said = f"Autoregressive requests are of the baseline `{latency.baseline}`: {_BASELINES[latency.baseline]}. "
    if latency.baseline == "true_ar":
        return said + "The ratio tells what speculation gains."
    return said + (
        "They share their steps with requests that speculate, and memory with the draft model: the ratio tells what "
        "falling back would bring, not what speculation gains."
    )


def sketches_line(answer: shapes.Answered) -> str:
    """How exact quantiles are that were not taken from rows; as `Answered` of the API tells."""
    if answer.exact:
        return ""
    return (
        "Quantiles come from sketches of the minutes, not from rows: of more than some 70 values, p50 is that of a "
        "rank at most 1.1 % beside it, p95 0.11 %, p99 0.02 %, 19 times of 20."
    )


def batch_line(series: shapes.LatencySeries) -> str:
    """From which concurrency on speculation costs more than it gains."""
    known = [(each.group or "", each.ratio) for each in in_order(series) if each.ratio is not None]
    slower = [name for name, value in known if value >= 1]
    if not known:
        return ""
    if not slower:
        return (
            f"Speculation is faster at every concurrency that can be compared ({', '.join(name for name, _ in known)})."
        )
    if len(slower) == len(known):
        return f"Speculation is faster at none of the concurrencies that can be compared ({', '.join(slower)})."
    first = next(i for i, (name, _) in enumerate(known) if name == slower[0])
    if slower == [name for name, _ in known[first:]]:
        return (
            f"Speculation is faster up to a concurrency of {known[first - 1][0]}, and not from {slower[0]} on: in a "
            "full batch, verifying drafts takes time that other requests need."
        )
    return f"Speculation is not faster at a concurrency of {', '.join(slower)}."


def too_few_line(series: shapes.LatencySeries) -> str:
    """Why there is no course of the ratio."""
    ours, theirs = _totals(series)
    return (
        f"No ratio over time: every step needs {ENOUGH} ok requests of both sides, and in this time range there are "
        f"{ours:,} speculative and {theirs:,} autoregressive ones. Choose a longer one, or raise `baseline_share`."
    )


# Figures


def quantile(measure: Measure, name: str, side: shapes.LatencyFigures) -> float | None:
    value: float | None = getattr(side, f"{name}_ms" if measure == "latency" else f"{measure}_{name}_ms")
    return value


def ratio_step(series: shapes.LatencySeries, steps: Sequence[int]) -> int | None:
    """The least of `steps`, s, whose ratios are mostly known: with half as many requests again as are needed.

    None where the time range does not hold four of them.
    """
    length, fewest = (series.until - series.since).total_seconds(), min(_totals(series))
    if fewest <= 0:
        return None
    needed = 1.5 * ENOUGH * length / fewest
    return next((step for step in steps if step >= needed and step * _FEWEST_STEPS <= length), None)


def _totals(series: shapes.LatencySeries) -> tuple[int, int]:
    points = series.points
    return sum(each.speculative.requests for each in points), sum(each.autoregressive.requests for each in points)


# Tables


def quantile_table(latency: shapes.Latency) -> str:
    """A row for each figure, both sides beside each other; as HTML."""
    sides = (latency.speculative, latency.autoregressive)
    rows = [Row([Cell("ok requests"), *(Cell(f"{side.requests:,}") for side in sides)])]
    rows += [
        Row([Cell(f"{word} {name}"), *(_time(quantile(measure, name, side)) for side in sides)])
        for measure, word in MEASURES.items()
        for name in QUANTILES
    ]
    shares = [side.under_800ms_ratio for side in sides]
    within = [NONE if share is None else Cell(percent(share, SLO_MIN)) for share in shares]
    rows.append(Row([Cell(f"at most {LATENCY_GOAL_MS} ms"), *within]))
    against = f"autoregressive ({latency.baseline})" if latency.baseline else "autoregressive"
    heads: list[tuple[str, Sequence[str]]] = [
        ("of ok requests", ("p50, p95, p99",)),
        ("speculative", ("speculative",)),
        (against, ("autoregressive", "baseline")),
    ]
    return table(heads, rows, "Quantiles with and without speculation")


def concurrency_table(series: shapes.LatencySeries, latency: shapes.Latency) -> str:
    """Lowest concurrency first; as HTML."""
    points = in_order(series)
    reasons = {each.concurrency: each.reason for each in latency.by_concurrency}
    heads: list[tuple[str, Sequence[str]]] = [
        ("concurrency", ("concurrency",)),
        ("ratio", ("latency ratio",)),
        ("p95 speculative", ("latency", "speculative")),
        ("p95 autoregressive", ("latency", "autoregressive")),
        ("speculative requests", ()),
        ("autoregressive requests", ()),
        *([("why no ratio", ())] if any(each.ratio is None for each in points) else []),
    ]
    rows = [
        Row(
            [
                Cell(each.group or "(none)"),
                _ratio(each.ratio),
                _time(each.speculative.p95_ms),
                _time(each.autoregressive.p95_ms),
                Cell(f"{each.speculative.requests:,}"),
                Cell(f"{each.autoregressive.requests:,}"),
                Cell(reasons.get(each.group or "") or short(each) if each.ratio is None else ""),
            ][: len(heads)]
        )
        for each in points
    ]
    return table(heads, rows, "Latency by concurrency")


def _time(value: float | None) -> Cell:
    return NONE if value is None else Cell(milliseconds(value))


def _ratio(value: float | None) -> Cell:
    if value is None:
        return NONE
    told = f"{ratio(value, 1.0)} {verdict(value)}"
    return Cell(f"✗ {told}", "bad") if value > 1 else Cell(told)


def verdict(value: float) -> str:
    return "faster" if value < 1 else "slower" if value > 1 else "as fast"


def short(point: shapes.LatencyPoint) -> str:
    """Why a point has no ratio."""
    sides = (("speculative", point.speculative), ("autoregressive", point.autoregressive))
    found = [f"{side.requests:,} of {ENOUGH} {name} requests" for name, side in sides if side.requests < ENOUGH]
    return f"too few to compare: {', '.join(found)}" if found else NO_DATA


def in_order(series: shapes.LatencySeries) -> list[shapes.LatencyPoint]:
    """Lowest first: names are as `1`, `2-4`, `>64`, and `unknown`."""

    def first(point: shapes.LatencyPoint) -> tuple[float, str]:
        name = point.group or ""
        digits = name.lstrip(">").partition("-")[0]
        lowest = float(digits) if digits.isascii() and digits.isdigit() else float("inf")
        return lowest + name.startswith(">"), name

    return sorted(series.points, key=first)
