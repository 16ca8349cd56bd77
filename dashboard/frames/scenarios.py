"""Scenarios and other slices: every figure of each in one row, those served worst first. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from dashboard import shapes
from dashboard.frames.base import NO_NAMES, milliseconds, percent, ratio
from dashboard.frames.table import NONE, Cell, Row, link, table
from dashboard.frames.truncation import first_share, hazard_at, rate_of, worst_position
from dashboard.words import FIRST_POSITION_MAX, P_MIN, SIMILARITY_MIN, TRUNCATION_MAX

By = Literal["scenario", "temperature", "prompt_length", "concurrency", "k"]
TITLES: dict[By, str] = {
    "scenario": "scenario",
    "temperature": "temperature",
    "prompt_length": "prompt length, tokens",
    "concurrency": "concurrency",
    "k": "k",
}


STATES: dict[shapes.State, str] = {
    "speculative": "on",
    "autoregressive": "off",
    "probing": "probing",
    "ineffective": "off, in vain",
}


@dataclass(frozen=True, slots=True)
class Slice:
    """What is known of one group of requests; None: nothing of this kind."""

    name: str
    traffic: shapes.TrafficPoint | None = None
    acceptance: shapes.AcceptancePoint | None = None
    truncation: shapes.TruncationPoint | None = None
    latency: shapes.LatencyPoint | None = None
    similarity: shapes.SimilarityPoint | None = None

    @property
    def p(self) -> float | None:
        return None if self.acceptance is None else self.acceptance.p


def slices(
    traffic: shapes.TrafficSeries,
    acceptance: shapes.AcceptanceSeries,
    truncation: shapes.TruncationSeries,
    latency: shapes.LatencySeries,
    similarity: shapes.SimilaritySeries | None,
) -> list[Slice]:
    """One for each group that any of the answers names, in their order."""
    drafts = [] if similarity is None else [each for each in similarity.points if each.kind == "draft"]
    requests = {point.group: point for point in traffic.points}
    tokens = {point.group: point for point in acceptance.points}
    positions = {point.group: point for point in truncation.points}
    times = {point.group: point for point in latency.points}
    scores = {point.group: point for point in drafts}
    names = dict.fromkeys(name for each in (requests, tokens, positions, times, scores) for name in each)
    return [
        Slice(
            name,
            requests.get(name),
            tokens.get(name),
            positions.get(name),
            times.get(name),
            scores.get(name),
        )
        for name in names
        if name is not None
    ]


def worst_first(found: Sequence[Slice], off: Collection[str] = ()) -> list[Slice]:
    """Those that fell back, `off`; then by p, which puts those below 0.65 first; without p last, larger ones first."""
    return sorted(
        found, key=lambda each: (each.name not in off, each.p is None, each.p or 0.0, -_requests(each), each.name)
    )


def worst(found: Sequence[Slice]) -> Slice | None:
    """The one with the lowest p of those that have a name of their own."""
    named = [each for each in found if each.name not in NO_NAMES and each.p is not None]
    return min(named, key=lambda each: each.p or 0.0, default=None)


def _requests(each: Slice) -> int:
    return 0 if each.traffic is None else each.traffic.requests


def slice_table(found: Sequence[Slice], by: By, state: shapes.FallbackState, time: dict[str, str]) -> str:
    """As HTML. `time`: the time range as addresses of pages hold it."""
    heads = [
        (TITLES[by], ("slice",)),
        ("requests", ("requests of a slice",)),
        (f"p (≥\u00a0{P_MIN})", ("acceptance rate p", "interval of p")),
        ("mean acceptance length", ("mean acceptance length",)),
        ("truncation rate (≤\u00a035\u00a0%)", ("truncation rate",)),
        ("first-position share (≤\u00a015\u00a0%)", ("first-position share",)),
        ("worst position", ("worst position", "cliff")),
        ("p95 speculative", ("latency", "speculative")),
        ("p95 baseline", ("latency", "autoregressive")),
        ("ratio", ("latency ratio",)),
        ("within 800\u00a0ms", ("latency_under_800ms_ratio",)),
        (f"similarity (≥\u00a0{SIMILARITY_MIN})", ("similarity",)),
        ("coverage", ("coverage",)),
        ("speculation", ("state of a slice",)),
    ]
    if by != "scenario":
        heads = [head for head in heads if not head[0].startswith("similarity")]
    lowest = worst(found)
    rows = [
        Row(
            [
                _name(each, by, time, worst=each is lowest and len(found) > 1),
                NONE if each.traffic is None else Cell(f"{each.traffic.requests:,}"),
                _p(each.acceptance),
                _length(each.acceptance),
                *_truncation(each.truncation),
                *_latency(each.latency),
                _share(None if each.traffic is None else each.traffic.latency_under_800ms_ratio),
                *([_similarity(each.similarity)] if by == "scenario" else []),
                _share(None if each.traffic is None else each.traffic.coverage),
                _state(each, by, state),
            ],
            marked=each is lowest and len(found) > 1,
        )
        for each in found
    ]
    return table(heads, rows, f"Figures by {TITLES[by]}")


def _name(each: Slice, by: By, time: dict[str, str], *, worst: bool) -> Cell:
    text = f"▼ worst: {each.name}" if worst else each.name
    if by != "scenario" or each.name in NO_NAMES:
        return Cell(text, more=each.name)
    href = link("truncation", scenario=each.name, **time)
    return Cell(text, href=href, more=f"{each.name}: where its drafts are truncated")


def _held(value: float, limit: float, text: str, *, most: bool) -> Cell:
    """`most`: the limit is one from above."""
    missed = value > limit if most else value < limit
    return Cell(f"✗ {text}" if missed else text, "bad" if missed else "")


def _p(figures: shapes.AcceptancePoint | None) -> Cell:
    if figures is None or figures.p is None:
        return NONE
    text = ratio(figures.p, P_MIN)
    if figures.p_low is not None and figures.p_high is not None:
        text += f" ({figures.p_low:.2f} to {figures.p_high:.2f})"
    return _held(figures.p, P_MIN, text, most=False)


def _length(figures: shapes.AcceptancePoint | None) -> Cell:
    if figures is None or figures.mean_acceptance_length is None:
        return NONE
    return Cell(f"{figures.mean_acceptance_length:.2f}")


def _truncation(point: shapes.TruncationPoint | None) -> list[Cell]:
    if point is None or not point.verify_steps:
        return [NONE] * 3
    rate, share, index = rate_of(point), first_share(point), worst_position(point)
    cells = [
        NONE if value is None else _held(value, limit, percent(value, limit), most=True)
        for value, limit in ((rate, TRUNCATION_MAX), (share, FIRST_POSITION_MAX))
    ]
    if index is None:
        return [*cells, NONE if not point.reached else Cell("none")]
    hazard = hazard_at(point, index)
    text = f"{index + 1}" if hazard is None else f"{index + 1} ({percent(hazard)})"
    if point.cliff_at is not None:
        return [*cells, Cell(f"✗ {text} cliff", "bad", more=f"next to nothing is accepted behind {point.cliff_at}")]
    return [*cells, Cell(text)]


def _latency(point: shapes.LatencyPoint | None) -> list[Cell]:
    if point is None:
        return [NONE] * 3
    sides = (point.speculative.p95_ms, point.autoregressive.p95_ms)
    both = [NONE if value is None else Cell(milliseconds(value)) for value in sides]
    if point.ratio is None:
        return [*both, NONE]
    return [*both, _held(point.ratio, 1.0, f"{ratio(point.ratio, 1.0)}{' slower' * (point.ratio > 1)}", most=True)]


def _share(value: float | None) -> Cell:
    return NONE if value is None else Cell(percent(value))


def _similarity(figures: shapes.SimilarityPoint | None) -> Cell:
    if figures is None or figures.mean is None:
        return NONE
    return _held(figures.mean, SIMILARITY_MIN, ratio(figures.mean, SIMILARITY_MIN), most=False)


def _state(each: Slice, by: By, state: shapes.FallbackState) -> Cell:
    own = next((found for found in state.slices if found.slice == f"{by}={each.name}"), None)
    if own is not None:
        return Cell(STATES[own.state], "bad" if own.state != "speculative" else "", more=own.reason)
    return Cell(STATES[state.state], more=f"as all traffic: {state.reason}")
