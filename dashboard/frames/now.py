"""Now: is speculation on, does it pay, and since when, but for the charts. Pure."""

from collections.abc import Collection

import msgspec
import pandas as pd  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.frames.base import NO_NAMES, Tile, count, judged, milliseconds, percent, ratio, sentence
from dashboard.frames.state import slices_off
from dashboard.words import LATENCY_GOAL_MS, NO_DATA, P_MIN, SIMILARITY_CRITICAL, SIMILARITY_MIN, SLO_MIN, define

#: Requests below which a scenario is not called bad, as a slice does not fall back then.
FEW = 10

# The verdict


def problems(summary: shapes.Summary, scenarios: shapes.AcceptanceSeries) -> list[str]:
    """What speaks against health, the worst first, in sentences. Alerts that only inform do not."""
    found = []
    alerts = [alert for alert in summary.alerts if alert.severity != "info"]
    if alerts:
        found.append(
            f"{count(len(alerts), 'alert')} {'fires' if len(alerts) == 1 else 'fire'}: "
            + ", ".join(sorted({alert.name for alert in alerts}))
            + "."
        )
    found += [f"{name} fell back by itself and is served without speculation." for name in slices_off(summary.fallback)]
    if summary.alignment.state == "misaligned":
        found.append(
            f"Draft model and target model know {count(summary.alignment.moved_tokens, 'token')} by other ids."
        )
    p = summary.last_100.p
    if p is not None and p < P_MIN:
        found.append(f"Acceptance rate p is {ratio(p, P_MIN)}, below {P_MIN}.")
    if worst := worst_scenario(scenarios):
        found.append(
            f"Scenario {worst.group} guesses worst: p is {ratio(worst.p or 0.0, P_MIN)} over "
            f"{count(worst.requests, 'request')}, below {P_MIN}."
        )
    similarity = summary.similarity.draft.mean
    if similarity is not None and similarity < SIMILARITY_MIN:
        found.append(
            f"Similarity of draft and final texts is {ratio(similarity, SIMILARITY_MIN)}, below {SIMILARITY_MIN}."
        )
    if summary.latency.ratio is not None and summary.latency.ratio > 1:
        found.append(
            f"Speculative decoding is slower than plain decoding: latency ratio {ratio(summary.latency.ratio, 1.0)}."
        )
    share = summary.slo.p95_latency_under_800ms_ratio
    if share is not None and share < SLO_MIN:
        found.append(
            f"Latency p95 is within {LATENCY_GOAL_MS} ms in {percent(share, SLO_MIN)} of the minutes, of 95 % at least."
        )
    return found


def healthy(summary: shapes.Summary, *, narrowed: bool = False) -> str:
    """What is known to be well where nothing speaks against it."""
    p = summary.last_100.p
    none = _none_speculated(narrowed=narrowed).rstrip(".")
    known = none if p is None else f"Acceptance rate p is {ratio(p, P_MIN)}, of {P_MIN} at least"
    # Those that do more than inform speak against it.
    if not (alerts := len(summary.alerts)):
        return f"{known}; no alert fires."
    return f"{known}; {count(alerts, 'alert')} {'informs' if alerts == 1 else 'inform'}."


def _none_speculated(*, narrowed: bool) -> str:
    return "No such request speculated in this time range." if narrowed else "No request has speculated yet."


def worst_scenario(series: shapes.AcceptanceSeries) -> shapes.AcceptancePoint | None:
    """Of those below the limit that have a name of their own, with more than a request or two."""
    low = [
        point
        for point in series.points
        if point.p is not None and point.p < P_MIN and point.requests >= FEW and point.group not in NO_NAMES
    ]
    return min(low, key=lambda point: point.p or 0.0, default=None)


# Tiles


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
    return judged(label, percent(value, SLO_MIN), helped, value >= SLO_MIN, "at least 95 %", note)


def p_tile(figures: shapes.AcceptanceFigures, *, narrowed: bool = False, off: Collection[str] = ()) -> Tile:
    """Of the last 100 requests that speculated; `narrowed`: of those in the time range that filters leave.

    `off`: slices that fell back, and are hardly among them.
    """
    label = f"Acceptance rate p, last 100 requests{' of these' if narrowed else ''}"
    helped = define("acceptance rate p", "interval of p", "draft tokens")
    if figures.p is None:
        none = _none_speculated(narrowed=narrowed)
        return Tile(label, NO_DATA, helped, note="No draft tokens were counted." if figures.requests else none)
    note = f"Hardly any of {', '.join(off)}, which fell back. " if off else ""
    if figures.p_low is not None and figures.p_high is not None:
        sure = "" if figures.p_low > P_MIN or figures.p_high < P_MIN else f", which holds {P_MIN}"
        note += f"95 % interval {ratio(figures.p_low)} to {ratio(figures.p_high)}{sure}. "
    note += (
        f"Over the last {count(figures.requests, 'request')} that speculated: "
        f"{figures.accepted_tokens:,} of {count(figures.draft_tokens, 'draft token')} accepted."
    )
    return judged(label, ratio(figures.p, P_MIN), helped, figures.p >= P_MIN, f"at least {P_MIN}", note)


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
        return Tile(label, NO_DATA, helped, note=sentence(latency.ratio_reason or "The sidecar gave no reason"))
    side = "faster than" if latency.ratio < 1 else "slower than" if latency.ratio > 1 else "as fast as"
    at = f", at a concurrency of {latency.ratio_concurrency}" if latency.ratio_concurrency else ""
    return Tile(label, ratio(latency.ratio, 1.0), helped, note=f"Speculative is {side} autoregressive{at}.")


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
    for engine in coverage.engines:
        if engine.coverage is not None:
            note += (
                f" Of the draft tokens that upstream {engine.upstream} counts, {percent(engine.coverage)} are known."
            )
    if coverage.requests is None:
        return Tile("Coverage", NO_DATA, helped, note="No ok generation request was served speculatively.")
    return Tile("Coverage", percent(coverage.requests), helped, note=note)


def alignment_tile(alignment: shapes.AlignmentSummary) -> Tile:
    label, helped = "Tokenizer alignment", define("alignment")
    if alignment.state == "unknown":
        return Tile(label, NO_DATA, helped, note=sentence(alignment.reason))
    seen = alignment.same_text_other_id
    note = "" if seen is None else f"{count(seen, 'draft token')} rejected that was right by another id. "
    if alignment.static.verdict != "unknown":
        note += f"By the files of both tokenizers: {alignment.static.verdict}."
    if alignment.state == "aligned":
        return judged(label, "aligned", helped, True, "no token has another id", note)
    return judged(label, "misaligned", helped, False, f"{count(alignment.moved_tokens, 'token')} moved", note)


def similarity_tile(similarity: shapes.SimilarityState) -> Tile:
    label, helped = "Similarity, last 100 pairs", define("similarity")
    figures = similarity.draft
    if figures.mean is None:
        return Tile(label, NO_DATA, helped, note=sentence(similarity.reason or "No pair was compared yet"))
    tenth = "" if figures.p10 is None else f"a tenth is at or below {ratio(figures.p10)}, "
    note = f"Of {count(figures.pairs, 'pair')} {tenth}{figures.critical:,} below {SIMILARITY_CRITICAL}."
    value = ratio(figures.mean, SIMILARITY_MIN)
    return judged(label, value, helped, figures.mean >= SIMILARITY_MIN, f"at least {SIMILARITY_MIN}", note)


def of_drafts(series: shapes.SimilaritySeries) -> shapes.SimilaritySeries:
    return msgspec.structs.replace(series, points=[point for point in series.points if point.kind == "draft"])


# Tables


def scenario_table(series: shapes.AcceptanceSeries, off: Collection[str] = ()) -> pd.DataFrame:
    """Worst p first; scenarios without one last. `off`: slices that fell back, whose p is of before and of probes."""
    points = sorted(series.points, key=lambda x: (x.p is None, x.p or 0.0, x.group or ""))
    return pd.DataFrame(
        {
            "scenario": [point.group or "(none)" for point in points],
            "p": [NO_DATA if point.p is None else ratio(point.p, P_MIN) for point in points],
            f"against {P_MIN}": [
                "fell back"
                if f"scenario={point.group}" in off
                else NO_DATA
                if point.p is None
                else "ok"
                if point.p >= P_MIN
                else "below"
                for point in points
            ],
            "mean acceptance length": [
                NO_DATA if point.mean_acceptance_length is None else f"{point.mean_acceptance_length:.2f}"
                for point in points
            ],
            "requests": [point.requests for point in points],
            "draft tokens": [point.draft_tokens for point in points],
        }
    )
