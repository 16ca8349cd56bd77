"""How things stand, in words: state, alerts, versions, what is missing. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pandas as pd  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.frames.base import count, plain, span, utc


@dataclass(frozen=True, slots=True)
class StateLine:
    speculating: bool
    #: But not for every slice.
    partly: bool
    headline: str
    mode: str
    since: str
    reason: str
    #: A sentence for each slice with a decision of its own.
    slices: list[str]


#: Labels that say no more than the alert itself.
OWN_LABELS = {"action", "alertname", "instance", "severity"}

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


SLICE_WORDS = {
    "speculative": "is served with speculation",
    "autoregressive": "is served without speculation",
    "probing": "is served without speculation, but for a few requests that are watched",
    "ineffective": "is to be served without speculation, and the engine drafts all the same",
}


def state_line(state: shapes.FallbackState, now: datetime, history: Sequence[shapes.Transition] = ()) -> StateLine:
    """`history`, newest first, tells when and why a slice fell back that is being probed by now."""
    since, headline = utc(state.since), STATE_WORDS[state.state]
    off = slices_off(state)
    if off and state.state == "speculative":
        headline += f", but not for {off[0] if len(off) == 1 else f'{len(off)} slices'}"
    if state.dry_run:
        headline += " (decisions are only recorded: fallback_dry_run)"
    return StateLine(
        speculating=state.state == "speculative",
        partly=bool(off) and state.state == "speculative",
        headline=headline,
        mode=MODE_WORDS[state.mode],
        since=f"since {since:%Y-%m-%d %H:%M:%S} UTC, for {span((utc(now) - since).total_seconds())}",
        reason=state.reason.strip() or "no reason given",
        slices=[_slice_line(each, history) for each in state.slices],
    )


def _slice_line(found: shapes.SliceState, history: Sequence[shapes.Transition]) -> str:
    told = f"{SLICE_WORDS[found.state]} since {utc(found.since):%H:%M:%S} UTC: {found.reason}"
    fell = next((each for each in history if each.slice == found.slice and each.from_state == "speculative"), None)
    if found.state == "speculative" or fell is None or utc(fell.at) >= utc(found.since):
        return f"{found.slice} {told}"
    return f"{found.slice} fell back at {utc(fell.at):%H:%M:%S} UTC: {fell.reason.rstrip('.')}. It {told}"


def slices_off(state: shapes.FallbackState) -> list[str]:
    """The slices that are served without speculation by a decision of their own."""
    return [each.slice for each in state.slices if each.state != "speculative"]


def alerts_line(alerts: list[shapes.FiringAlert]) -> str:
    """Of those that do more than inform."""
    alerts = [alert for alert in alerts if alert.severity != "info"]
    if not alerts:
        return "no alert fires"
    worst = f"{alerts[0].name} ({alerts[0].severity})"
    return f"alert {worst} fires" if len(alerts) == 1 else f"{len(alerts)} alerts fire, the worst {worst}"


def alert_text(alert: shapes.ActiveAlert) -> str:
    """What is wrong, where, and by what value."""
    where = ", ".join(f"{name} {value}" for name, value in sorted(alert.labels.items()) if name not in OWN_LABELS)
    text = alert.annotations.get("summary", "") or "holds"
    text += f" ({where})" if where else ""
    text += f": {alert.value:.3g}" if alert.value is not None else ""
    return text + (", no data since" if alert.stale else "")


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


def missing_table(coverage: shapes.Coverage) -> pd.DataFrame:
    rows = sorted(coverage.missing.items(), key=lambda row: (-row[1], row[0]))
    return pd.DataFrame({"why there are no figures": [r for r, _ in rows], "requests": [n for _, n in rows]})


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
