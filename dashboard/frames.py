"""From payloads to what is shown: texts with units, tiles, tables. Pure; no Streamlit, no network.

What is not known is shown as "no data" with the reason, never as 0 or NaN.
"""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec
import pandas as pd  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.words import (
    FIRST_POSITION_MAX,
    LATENCY_GOAL_MS,
    NO_DATA,
    P_MIN,
    SLO_MIN,
    TRUNCATION_MAX,
    define,
)


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure as shown: what it is, its value, how it stands, and what it rests on."""

    label: str
    value: str
    help: str
    #: Goal in words and whether it is met; None where there is no goal or no value.
    verdict: str | None = None
    met: bool | None = None
    note: str = ""


# Texts


def ratio(value: float, limit: float | None = None) -> str:
    return _digits(value, limit, 3, "{:.{}f}")


def percent(value: float, limit: float | None = None) -> str:
    return _digits(value * 100, None if limit is None else limit * 100, 1, "{:.{}f}") + " %"


def _digits(value: float, limit: float | None, digits: int, form: str) -> str:
    """More digits when rounding would show a missed limit as met."""
    while limit is not None and value != limit and round(value, digits) == limit and digits < 9:
        digits += 1
    return form.format(value, digits)


def milliseconds(value: float | None) -> str:
    if value is None:
        return NO_DATA
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def count(value: int, noun: str) -> str:
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def span(seconds: float) -> str:
    """A duration as a person would say it: its two largest units."""
    whole = max(0, int(seconds))
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, whole = divmod(whole, size)
        if amount or (unit == "s" and not parts):
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2])


def utc(at: datetime) -> datetime:
    """A time without a zone is UTC by contract."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def plain(text: str) -> str:
    """Text of others, safe where Streamlit reads Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>()#+\-.!|~$:&^])", r"\\\1", " ".join(text.split()))


# The state


@dataclass(frozen=True, slots=True)
class StateLine:
    speculating: bool
    headline: str
    mode: str
    since: str
    reason: str


MODE_WORDS = {
    "auto": "mode auto: no operator's order",
    "speculative": "mode speculative: held there by an operator",
    "autoregressive": "mode autoregressive: held there by an operator",
}


STATE_WORDS = {
    "speculative": "Speculative decoding is on",
    "autoregressive": "Speculative decoding is off: replies are autoregressive",
    "probing": "Speculative decoding is off, but for a few requests that are watched",
    "ineffective": "Speculative decoding was ordered off, and the engine drafts all the same",
}


def state_line(state: shapes.FallbackState, now: datetime) -> StateLine:
    since, speculating = utc(state.since), state.state == "speculative"
    headline = STATE_WORDS[state.state]
    if state.slices:
        headline += f"; by themselves: {', '.join(f'{each.slice} ({each.state})' for each in state.slices)}"
    return StateLine(
        speculating=speculating,
        headline=headline,
        mode=MODE_WORDS[state.mode],
        since=f"since {since:%Y-%m-%d %H:%M:%S} UTC, for {span((utc(now) - since).total_seconds())}",
        reason=state.reason.strip() or "no reason given",
    )


def transitions(history: list[shapes.Transition]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "when (UTC)": [f"{utc(t.at):%Y-%m-%d %H:%M:%S}" for t in history],
            "of": [t.slice or "all traffic" for t in history],
            "from": [t.from_state for t in history],
            "to": [t.to_state for t in history],
            "mode": [t.mode for t in history],
            "reason": [t.reason or "no reason given" for t in history],
        }
    )


def misaligned_line(alignment: shapes.AlignmentSummary) -> str:
    """Which tokens have another id in the draft, in Markdown."""
    told = [
        f"{plain(repr(each.target_text)) if each.target_text is not None else 'a token'} is id {each.target_id} in the "
        f"target and {each.draft_id} in the draft, rejected {count(each.count, 'time')}"
        for each in alignment.moved
    ]
    more = alignment.moved_tokens - len(told)
    told += [f"{count(more, 'more token')}"] if more > 0 else []
    return (
        f"**Draft and target know tokens by different ids.** {'; '.join(told)}. Such guesses are right and lost: "
        "use a draft that was trained with the target's tokenizer."
    )


# Tiles

NEVER = "No request has speculated yet."


def everywhere(tile: Tile) -> Tile:
    """Marks a figure that the choice of a scenario does not narrow."""
    return replace(tile, note=f"All scenarios. {tile.note}")


def of_scenario(
    summary: shapes.Summary, acceptance: shapes.AcceptanceSeries, latency: shapes.LatencySeries
) -> shapes.Summary:
    """The summary with acceptance and latency of one scenario, from series that nothing splits."""
    figures: shapes.AcceptanceFigures = acceptance.points[0] if acceptance.points else NO_ACCEPTANCE
    sides = latency.points[0] if latency.points else None
    narrowed = shapes.Latency(
        speculative=sides.speculative if sides else NO_LATENCY,
        autoregressive=sides.autoregressive if sides else NO_LATENCY,
        ratio=None,
        ratio_reason="Known for all scenarios together only",
    )
    return msgspec.structs.replace(summary, last_100=figures, acceptance=figures, latency=narrowed)


NO_ACCEPTANCE = shapes.AcceptanceFigures(
    requests=0, verify_steps=0, draft_tokens=0, accepted_tokens=0, p=None, mean_acceptance_length=None
)
NO_LATENCY = shapes.LatencyFigures(
    requests=0, p50_ms=None, p95_ms=None, p99_ms=None, ttft_p50_ms=None, ttft_p95_ms=None, tpot_p50_ms=None
)


def slo_tile(summary: shapes.Summary) -> Tile:
    label, value = "p95_latency_under_800ms_ratio", summary.slo.p95_latency_under_800ms_ratio
    single = summary.slo.latency_under_800ms_ratio
    helped = define("p95_latency_under_800ms_ratio", "latency_under_800ms_ratio")
    if value is None:
        none = "No ok request" if not summary.traffic.ok else "No one-minute slice with a known p95"
        return Tile(label, NO_DATA, helped, note=f"{none} in this time range.")
    note = f"One-minute slices whose trailing 5-minute p95 is at most {LATENCY_GOAL_MS} ms."
    if single is not None:
        note += f" Of all ok requests, {percent(single)} took at most {LATENCY_GOAL_MS} ms."
    return _judged(label, percent(value, SLO_MIN), helped, value >= SLO_MIN, "at least 95 %", note)


def p_tile(figures: shapes.AcceptanceFigures, scenario: str | None = None) -> Tile:
    """Of the last 100 requests that speculated, or of one scenario in the time range."""
    label = f"Acceptance rate p, {'this scenario' if scenario else 'last 100 requests'}"
    helped = define("acceptance rate p", "draft tokens")
    if figures.p is None:
        none = "No request of this scenario speculated in this time range." if scenario else NEVER
        return Tile(label, NO_DATA, helped, note="No draft tokens were counted." if figures.requests else none)
    last = "" if scenario else "last "
    note = (
        f"Over the {last}{count(figures.requests, 'request')} that speculated: "
        f"{figures.accepted_tokens:,} of {count(figures.draft_tokens, 'draft token')} accepted."
    )
    return _judged(label, ratio(figures.p, P_MIN), helped, figures.p >= P_MIN, f"at least {P_MIN}", note)


def length_tile(figures: shapes.AcceptanceFigures) -> Tile:
    label, helped = "Mean acceptance length", define("mean acceptance length", "verify step")
    if figures.mean_acceptance_length is None:
        return Tile(label, NO_DATA, helped, note="No verify step in this time range.")
    note = f"Tokens per verify step, over {count(figures.verify_steps, 'verify step')} in this time range."
    return Tile(label, f"{figures.mean_acceptance_length:.2f}", helped, note=note)


def latency_tile(name: str, figures: shapes.LatencyFigures) -> Tile:
    label, helped = f"Latency p95, {name}", define("latency", name)
    if figures.p95_ms is None:
        return Tile(label, NO_DATA, helped, note=f"No ok {name} request in this time range.")
    note = f"p50 {milliseconds(figures.p50_ms)}, over {count(figures.requests, 'ok request')}."
    return Tile(label, milliseconds(figures.p95_ms), helped, note=note)


def ratio_tile(latency: shapes.Latency) -> Tile:
    label, helped = "Latency ratio p95", define("latency ratio")
    if latency.ratio is None:
        why = (latency.ratio_reason or "The sidecar gave no reason").rstrip(".")
        return Tile(label, NO_DATA, helped, note=f"{why[:1].upper()}{why[1:]}.")
    side = "faster than" if latency.ratio < 1 else "slower than" if latency.ratio > 1 else "as fast as"
    return Tile(label, ratio(latency.ratio, 1.0), helped, note=f"Speculative is {side} autoregressive.")


def traffic_tiles(traffic: shapes.Traffic) -> list[Tile]:
    failed = traffic.requests - traffic.ok
    return [
        Tile(
            "Requests",
            f"{traffic.requests_per_s:.2f} /s",
            define("requests/s", "outcome"),
            note=f"{count(traffic.requests, 'request')}: {traffic.ok:,} ok, {failed:,} not ok, "
            f"{traffic.streaming:,} streamed.",
        ),
        Tile(
            "Completion tokens",
            f"{traffic.completion_tokens_per_s:,.1f} /s",
            define("completion tokens/s"),
            note="As the replies report them.",
        ),
    ]


def coverage_tile(coverage: shapes.Coverage) -> Tile:
    helped = define("coverage")
    missing = sum(coverage.missing.values())
    note = f"{count(missing, 'request')} without acceptance figures." if missing else "No figures are missing."
    if coverage.requests is None:
        return Tile("Coverage", NO_DATA, helped, note="No ok generation request was served speculatively.")
    return Tile("Coverage", percent(coverage.requests), helped, note=note)


def truncation_tiles(series: shapes.TruncationSeries) -> list[Tile]:
    total, steps = series.total, series.total.verify_steps
    full = steps - total.truncated_steps
    helps = (
        define("truncation rate", "verify step"),
        define("first-position share"),
        define("fully accepted steps"),
    )
    if steps:
        rate = total.truncated_steps / steps
        note = f"{total.truncated_steps:,} of {count(steps, 'verify step')} truncated."
        first = _judged(
            "Truncation rate",
            percent(rate, TRUNCATION_MAX),
            helps[0],
            rate <= TRUNCATION_MAX,
            "at most 35 %",
            note,
        )
        whole = Tile(
            "Fully accepted steps",
            percent(full / steps),
            helps[2],
            note=f"{full:,} of {count(steps, 'verify step')}, not in the heat map's cells.",
        )
    else:
        none = "No verify step in this time range."
        first = Tile("Truncation rate", NO_DATA, helps[0], note=none)
        whole = Tile("Fully accepted steps", NO_DATA, helps[2], note=none)
    share = series.first_position_share
    if share is None:
        second = Tile("First-position share", NO_DATA, helps[1], note="No truncated step in this time range.")
    else:
        second = _judged(
            "First-position share",
            percent(share, FIRST_POSITION_MAX),
            helps[1],
            share <= FIRST_POSITION_MAX,
            "at most 15 %",
            f"Of {count(total.truncated_steps, 'truncated step')}.",
        )
    return [first, second, whole]


def _judged(label: str, value: str, helped: str, met: bool, goal: str, note: str) -> Tile:
    verdict = f"✓ goal met: {goal}" if met else f"✗ goal missed: {goal}"
    return Tile(label, value, helped, verdict=verdict, met=met, note=note)


# Tables


def latency_table(latency: shapes.Latency) -> pd.DataFrame:
    rows = {}
    for name, figures in (("speculative", latency.speculative), ("autoregressive", latency.autoregressive)):
        rows[name] = {
            "ok requests": f"{figures.requests:,}",
            "latency p50": milliseconds(figures.p50_ms),
            "latency p95": milliseconds(figures.p95_ms),
            "latency p99": milliseconds(figures.p99_ms),
            "TTFT p50": milliseconds(figures.ttft_p50_ms),
            "TTFT p95": milliseconds(figures.ttft_p95_ms),
            "TPOT p50": milliseconds(figures.tpot_p50_ms),
        }
    return pd.DataFrame(rows)


def scenario_table(series: shapes.AcceptanceSeries) -> pd.DataFrame:
    """Worst p first; scenarios without one last."""
    points = sorted(series.points, key=lambda x: (x.p is None, x.p or 0.0, x.group or ""))
    return pd.DataFrame(
        {
            "scenario": [point.group or "(none)" for point in points],
            "p": [NO_DATA if point.p is None else ratio(point.p, P_MIN) for point in points],
            f"against {P_MIN}": [
                NO_DATA if point.p is None else "ok" if point.p >= P_MIN else "below" for point in points
            ],
            "mean acceptance length": [
                NO_DATA if point.mean_acceptance_length is None else f"{point.mean_acceptance_length:.2f}"
                for point in points
            ],
            "requests": [point.requests for point in points],
            "draft tokens": [point.draft_tokens for point in points],
        }
    )


def missing_table(coverage: shapes.Coverage) -> pd.DataFrame:
    rows = sorted(coverage.missing.items(), key=lambda row: (-row[1], row[0]))
    return pd.DataFrame({"why there are no figures": [r for r, _ in rows], "requests": [n for _, n in rows]})


def window_start(summary: shapes.Summary) -> datetime | None:
    try:
        return utc(summary.generated_at) - timedelta(seconds=summary.window_s)
    except OverflowError:
        return None


def footer(summary: shapes.Summary) -> str:
    v = summary.versions
    parts = [f"Instance {summary.instance}", f"Specwatch {v.specwatch}"]
    if v.model:
        parts.append(f"model {v.model}")
    if v.draft_model:
        parts.append(f"draft model {v.draft_model}")
    if v.num_speculative_tokens is not None:
        parts.append(f"up to {v.num_speculative_tokens} draft tokens a verify step")
    parts.append(f"as of {utc(summary.generated_at):%Y-%m-%d %H:%M:%S} UTC")
    if not summary.exact:
        parts.append("figures from minutes")
    return plain(" · ".join(parts))
