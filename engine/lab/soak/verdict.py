"""What a soak shows: rows of minutes -> verdict, sentences, gates, table and plots. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ..summary import Gate, Kind, Plot, Series, Summary, Table
from . import memory, series
from .drift import ALPHA, Change, NoTest, Point, Trend, changes, reference, trend

STABLE, DRIFT, FAILED, UNKNOWN = "stable", "drift", "failed", "cannot tell"
#: Share of requests that may fail.
MOST_FAILED = 0.01
#: Share of the minutes whose figures may be missing where nothing is said to be stable.
MOST_UNREAD = 0.1
#: Changes that do not matter: of asin sqrt p (0.025 of p at 0.78, 0.03 at 0.5), of a mean similarity, of ln latency (a
#: quarter).
LEAST_P, LEAST_SIMILARITY, LEAST_LATENCY = 0.03, 0.02, math.log(1.25)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """How the soak came to its end, beside its rows."""

    minutes: float
    """That were asked for."""
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Found:
    drifts: list[str] = field(default_factory=list)
    #: What may be drift.
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    #: Minutes in which a change was found, by the name of a series.
    marks: dict[str, list[float]] = field(default_factory=dict)


def judge(rows: Sequence[Row], ended: Ended) -> Summary:
    """`verdict` is stable, drift, failed or cannot tell."""
    found = _Found()
    failed = _failures(rows, found)
    told = _acceptance(rows, ended, found)
    _similarity(rows, ended, found)
    _latency(rows, ended, found)
    _memory(rows, ended, found)
    if failed:
        verdict, reasons = FAILED, failed + found.drifts
    elif found.drifts:
        verdict, reasons = DRIFT, found.drifts
    elif not told:
        verdict = UNKNOWN
        reasons = [f"Whether p drifts cannot be told: {_why_no_p(rows, found)}."]
    elif (unread := sum("unread" in row for row in rows)) > MOST_UNREAD * (unread + len(series.whole(rows))):
        verdict = UNKNOWN
        reasons = ["Whether anything drifts cannot be told: too many minutes have no figures."]
    elif found.doubts:
        verdict, reasons = UNKNOWN, found.doubts
    else:
        minutes = len(series.whole(rows))
        verdict, reasons = STABLE, [f"Nothing drifted over {minutes} whole minutes: {_standing(rows)}."]
    return Summary(
        title=f"Soak of {_span(ended.minutes)}",
        verdict=verdict,
        reasons=reasons + found.notes + _lengths(rows) + _gaps(rows),
        gates=found.gates,
        tables=[_table(rows, found)],
        plots=_plots(rows, found),
        files=dict(ended.files),
    )


# ---- the tests


def _failures(rows: Sequence[Row], found: _Found) -> list[str]:
    reasons = [row["death"] for row in rows if "death" in row]
    told = [row for row in rows if "gap_s" not in row]
    sent = sum(row["sent"] for row in told)
    kinds = Counter[str]()
    for row in told:
        kinds.update(row["failures"])
    share = sum(kinds.values()) / sent if sent else None
    words = f"{sum(kinds.values()):,} of {sent:,} requests failed"
    words += f" ({', '.join(f'{number:,} {kind}' for kind, number in kinds.most_common(4))})" if kinds else ""
    passed = None if share is None else share <= MOST_FAILED
    found.gates.append(Gate("failed requests", passed, share, MOST_FAILED, f"{words}."))
    if passed is False:
        first = next(row for row in told if row["failures"])
        reasons.append(
            f"{words}, which is more than {MOST_FAILED:.0%}; the first ones in minute {first['minute']:.0f}."
        )
    # Counted since the sidecar's start: one that ran before may have dropped some then, and one that begins anew counts
    # from 0.
    counts = [row["dropped"] for row in series.whole(rows)]
    dropped = sum(max(after - before, 0) for before, after in pairwise(counts))
    words = f"{dropped:,} records did not reach the sidecar's database"
    found.gates.append(Gate("records dropped", dropped == 0, dropped, 0, f"{words}."))
    if dropped:
        reasons.append(f"{words}: the figures are without them.")
    return reasons


def _acceptance(rows: Sequence[Row], ended: Ended, found: _Found) -> bool:
    """Whether there was a test of p at all."""
    names: list[str | None] = [None, *series.scenarios(rows)]
    # One scenario is the mix.
    names = names[1:] if len(names) == 2 else names
    told = False
    for name in names:
        points = series.p_points(rows, name)
        words = "the mix" if name is None else name
        result = _changes(points, ended, len(names), LEAST_P)
        if isinstance(result, NoTest):
            found.gates.append(Gate(f"p of {words}", None, None, None, f"Cannot be told: {result.reason}."))
            continue
        told = True
        _report(f"p of {words}", result, points, found, series.to_p, "{:.2f}".format)
    return told


def _similarity(rows: Sequence[Row], ended: Ended, found: _Found) -> None:
    points = series.similarity_points(rows)
    result = _changes(points, ended, 1, LEAST_SIMILARITY)
    if isinstance(result, NoTest):
        why = next((row["similarity_reason"] for row in reversed(series.whole(rows)) if row["similarity_reason"]), None)
        reason = result.reason if points or why is None else why
        found.gates.append(Gate("similarity", None, None, None, f"Cannot be told: {reason}."))
        return
    _report("similarity", result, points, found, lambda y: y, "{:.3f}".format)


def _latency(rows: Sequence[Row], ended: Ended, found: _Found) -> None:
    """Where there is a baseline, what counts is the ratio to it: a busy machine slows both.

    Of the baseline's own tail nothing is known, it has too few requests. So a p95 that rises more than the baseline's
    median is a doubt: what stalls some requests of both, and leaves both medians, would look the same.
    """
    for name, own, ratio in (("latency", "p95_ms", "p50_ms"), ("time to first token", "ttft_p95_ms", "ttft_p50_ms")):
        absolute, compared = series.latency_points(rows, own), series.ratio_points(rows, ratio, ratio)
        has_baseline = not isinstance(_changes(compared, ended, 4, LEAST_LATENCY), NoTest)
        p95, median = f"p95 of the {name}", f"ratio of the median {name} to that without speculation"
        beside = series.ratio_points(rows, own, ratio) if has_baseline else None
        _of_latency(p95, absolute, beside, ended, found, lambda y: f"{math.exp(y):,.0f} ms")
        if has_baseline:
            _of_latency(median, compared, None, ended, found, lambda y: f"{math.exp(y):.2f}")


def _of_latency(
    name: str,
    points: Sequence[Point],
    beside: Sequence[Point] | None,
    ended: Ended,
    found: _Found,
    show: Callable[[float], str],
) -> None:
    """A rise is drift; one of points that are also compared with the baseline, `beside`, may be a doubt at most."""
    steps = _changes(points, ended, 4, LEAST_LATENCY)
    if isinstance(steps, NoTest):
        found.gates.append(Gate(name, None, None, None, f"Cannot be told: {steps.reason}."))
        return
    sentences, rises, untold = _moves(name, steps, points, ended, show)
    found.marks[name] = [step.found for step in steps]
    words = " ".join(sentences)
    if not sentences:
        last = show(sum(point.y for point in points[-5:]) / len(points[-5:]))
        found.gates.append(Gate(name, True, None, None, f"No change was found; it was {last} at the end.{untold}"))
    elif not rises:
        found.gates.append(Gate(name, True, None, None, words))
        found.notes.extend(f"{each} It does not count as drift: faster is no fault." for each in sentences)
    elif beside is None:
        found.gates.append(Gate(name, False, None, None, words))
        found.drifts.extend(sentences)
    elif _rises(beside, ended):
        why = (
            " The median without speculation did not rise as much: whether speculation is what makes some requests slow"
            " cannot be told, as too few go without it to know the p95 of those."
        )
        found.gates.append(Gate(name, None, None, None, words + why))
        found.doubts.append(words + why)
    else:
        found.gates.append(Gate(name, True, None, None, words))
        found.notes.extend(
            f"{each} It does not count as drift: what is compared with requests without speculation does."
            for each in sentences
        )


def _rises(points: Sequence[Point], ended: Ended) -> bool:
    steps = _changes(points, ended, 4, LEAST_LATENCY)
    return not isinstance(steps, NoTest) and _moves("", steps, points, ended, str)[1]


def _moves(
    name: str, steps: Sequence[Change], points: Sequence[Point], ended: Ended, show: Callable[[float], str]
) -> tuple[list[str], bool, str]:
    """(a sentence a change, whether one is a rise, why a trend cannot be told)."""
    begin = points[0].start + reference(ended.minutes)
    behind = [point for point in points if point.start >= begin]
    slope = trend([point.start for point in behind], [point.y for point in behind])
    sentences = [f"The {_step(name, step, show)}" for step in steps]
    rises = any(step.after > step.before for step in steps)
    if isinstance(slope, Trend):
        hours = (behind[-1].end - behind[0].start) / 60
        moved = slope.slope * hours
        if slope.p_value < ALPHA / 4 and slope.low * slope.high > 0 and abs(moved) >= LEAST_LATENCY and not steps:
            way = "rose" if moved > 0 else "fell"
            sentences.append(
                f"The {name} {way} all along, by {abs(math.expm1(slope.slope)):.0%} an hour"
                f" (Mann-Kendall p = {slope.p_value:.1g}; Theil-Sen, 99 % interval {math.expm1(slope.low):+.0%} to"
                f" {math.expm1(slope.high):+.0%})."
            )
            rises = rises or moved > 0
    return sentences, rises, f" A trend cannot be told: {slope.reason}." if isinstance(slope, NoTest) else ""


def _memory(rows: Sequence[Row], ended: Ended, found: _Found) -> None:
    for name, figure in (("engine", "engine"), ("sidecar", "sidecar")):
        minutes, mb = _longest(rows, figure, reference(ended.minutes))
        growth = memory.growth(minutes, mb)
        gate = f"memory of the {name}"
        if isinstance(growth, NoTest):
            seen = any(row.get(figure) for row in rows)
            reason = growth.reason if seen else f"the processes of the {name} are not seen from here"
            found.gates.append(Gate(gate, None, None, None, f"Cannot be told: {reason}."))
            continue
        limit = memory.limit_mb(mb)
        words = (
            f"{mb[0]:,.0f} MB behind the warm-up, {mb[-1]:,.0f} MB at the end: {growth.slope:+,.1f} MB an hour"
            f" (Theil-Sen, 99 % interval {growth.low:+,.1f} to {growth.high:+,.1f}), where {limit:,.0f} is too many"
        )
        leaks = memory.leaks(minutes, mb)
        found.gates.append(Gate(gate, not leaks, growth.slope, limit, f"{words}."))
        if leaks:
            found.drifts.append(f"The {gate} grows: {words}.")


def _changes(points: Sequence[Point], ended: Ended, tests: int, least: float) -> list[Change] | NoTest:
    first = points[0].start if points else 0.0
    warm_up = first + reference(ended.minutes)
    return changes(points, warm_up=warm_up, expected=int(ended.minutes), tests=tests, least=least)


def _report(
    name: str,
    result: Sequence[Change],
    points: Sequence[Point],
    found: _Found,
    scale: Callable[[float], float],
    show: Callable[[float], str],
) -> None:
    weight = sum(point.weight for point in points)
    mean = scale(sum(point.weight * point.y for point in points) / weight)
    sentences = [_step(name, step, lambda y: show(scale(y))) for step in result]
    words = " ".join(sentences) or f"No change was found; it was {show(mean)}."
    found.gates.append(Gate(name, not result, mean, None, words[0].upper() + words[1:]))
    found.drifts.extend(sentence[0].upper() + sentence[1:] for sentence in sentences)
    if result:
        found.marks[name] = [step.found for step in result]


def _step(name: str, step: Change, show: Callable[[float], str]) -> str:
    way = "fell" if step.after < step.before else "rose"
    return (
        f"{name} {way} from {show(step.before)} to {show(step.after)}: it was found at the end of minute"
        f" {step.found:.0f} and began about minute {step.began:.0f}."
    )


def _longest(rows: Sequence[Row], figure: str, warm_up: float) -> tuple[list[float], list[float]]:
    """Minutes and MB of the longest stretch of one and the same processes, less its warm-up."""
    best: list[Row] = []
    stretch: list[Row] = []
    for row in rows:
        told = row.get(figure)
        if not told:
            continue
        if stretch and stretch[-1][figure]["root"] != told["root"]:
            stretch = []
        stretch.append(row)
        best = max(best, stretch, key=len)
    behind = [row for row in best if row["minute"] >= best[0]["minute"] + warm_up]
    return [float(row["minute"]) for row in behind], [float(row[figure]["mb"]) for row in behind]


# ---- words, table, plots


def _why_no_p(rows: Sequence[Row], found: _Found) -> str:
    told = series.whole(rows)
    missing = Counter[str]()
    for row in told:
        missing.update(row["missing"])
    if told and not any(row["mix"]["requests"] for row in told):
        reasons = ", ".join(f"{name} {number:,} times" for name, number in missing.most_common(3))
        return "no request came with acceptance figures" + (f" ({reasons})" if reasons else "")
    gate = next((gate for gate in found.gates if gate.name.startswith("p of")), None)
    return "no whole minute was read" if gate is None else gate.words.removeprefix("Cannot be told: ").rstrip(".")


def _standing(rows: Sequence[Row]) -> str:
    p = _pooled(rows, None)
    last = [row["speculative"]["p95_ms"] for row in series.whole(rows)[-5:] if row["speculative"]["p95_ms"]]
    words = "" if p is None else f"p was {p:.2f}"
    return words + (f", the latency's p95 at the end {sum(last) / len(last):,.0f} ms" if last else "")


def _lengths(rows: Sequence[Row]) -> list[str]:
    """p falls as k grows: another k is told, so that it is not taken for another draft."""
    told = [(row["minute"], row["k"]) for row in series.whole(rows) if row.get("k") is not None]
    moves = [
        f"from {before} to {after} at minute {minute:.0f}"
        for (_, before), (minute, after) in pairwise(told)
        if before != after
    ]
    words = ", ".join(moves[:5]) + (", …" if len(moves) > 5 else "")
    return (
        [f"Draft tokens a step changed {words}: p depends on them, so that its changes may be of that."]
        if moves
        else []
    )


def _gaps(rows: Sequence[Row]) -> list[str]:
    words = [
        f"The soak stood still for {_span(row['gap_s'] / 60)} at minute {row['minute']:.0f} and went on."
        for row in rows
        if "gap_s" in row
    ]
    unread = sum("unread" in row for row in rows)
    return words + ([f"Of {unread} minutes the sidecar told no figures."] if unread else [])


def _pooled(rows: Sequence[Row], scenario: str | None) -> float | None:
    parts = [row["mix"] if scenario is None else row["acceptance"].get(scenario) for row in series.whole(rows)]
    drafted = sum(part["drafted"] for part in parts if part)
    return sum(part["accepted"] for part in parts if part) / drafted if drafted else None


def _table(rows: Sequence[Row], found: _Found) -> Table:
    told = series.whole(rows)
    cells: list[list[str | int | float | bool | None]] = []
    for name in [None, *series.scenarios(rows)]:
        parts = [row["mix"] if name is None else row["acceptance"].get(name) for row in told]
        requests = sum(part["requests"] for part in parts if part)
        marks = found.marks.get("p of the mix" if name is None else f"p of {name}", [])
        half = len(told) // 2
        cells.append(
            [
                "all" if name is None else name,
                requests,
                _pooled(rows, name),
                _pooled(told[:half], name),
                _pooled(told[half:], name),
                ", ".join(f"{minute:.0f}" for minute in marks) or None,
            ]
        )
    cells.sort(key=lambda row: (row[5] is None, row[0] != "all"))
    columns = ["scenario", "requests", "p", "p of the first half", "p of the second half", "change found at minute"]
    return Table("Acceptance by scenario", columns, cells)


def _plots(rows: Sequence[Row], found: _Found) -> list[Plot]:
    told = [row for row in rows if "gap_s" not in row]
    x: list[str | int | float] = [round(float(row["minute"]), 1) for row in told]

    def line(name: str, value: Callable[[Row], float | None]) -> Series:
        return Series(name, [None if "unread" in row else value(row) for row in told])

    def p_of(name: str) -> Callable[[Row], float | None]:
        return lambda row: (row["acceptance"].get(name) or {"p": None})["p"]

    names = series.scenarios(rows)
    acceptance = [line(name, p_of(name)) for name in names]
    if len(names) != 1:
        acceptance.insert(0, line("all", lambda row: row["mix"]["p"]))
    lines = {each.name: each for each in acceptance}
    for name, minutes in found.marks.items():
        own = lines.get({"p of the mix": "all"}.get(name, name.removeprefix("p of ")))
        if own is not None:
            acceptance.append(_marks(f"change of {own.name} found", x, own, minutes))
    latency = [
        line("p95", lambda row: row["speculative"]["p95_ms"]),
        line("p50", lambda row: row["speculative"]["p50_ms"]),
        line("p50 without speculation", lambda row: row["baseline"]["p50_ms"]),
        line("time to first token, p95", lambda row: row["speculative"]["ttft_p95_ms"]),
    ]
    if slower := found.marks.get("p95 of the latency"):
        latency.append(_marks("change of p95 found", x, latency[0], slower))
    taken = [
        Series(name, [row[name]["mb"] if row.get(name) else None for row in told]) for name in ("engine", "sidecar")
    ]
    taken.append(Series("database", [row.get("database_mb") for row in told]))
    plots = [
        Plot("Acceptance rate p", Kind.LINES, x, acceptance, "minute", "p"),
        Plot("Latency", Kind.LINES, x, latency, "minute", "ms"),
        Plot("Memory", Kind.LINES, x, taken, "minute", "MB"),
    ]
    if any("unread" not in row and row["similarity"]["pairs"] for row in told):
        similar = [line("draft and final text", lambda row: row["similarity"]["mean"])]
        plots.insert(1, Plot("Similarity", Kind.LINES, x, similar, "minute", "mean cosine"))
    return plots


def _marks(name: str, x: Sequence[Any], own: Series, minutes: Sequence[float]) -> Series:
    """Found at the end of a minute: the dot is on that minute."""
    at = {round(minute - 1) for minute in minutes}
    return Series(name, [y if round(each) in at else None for each, y in zip(x, own.y, strict=True)])


def _span(minutes: float) -> str:
    if minutes >= 90:
        return f"{minutes / 60:.3g} hours"
    return f"{minutes * 60:.0f} seconds" if minutes < 1 else f"{minutes:.3g} minutes"
