"""Events: what happened and when, above it p, so that cause and effect stand one above the other. Pure."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go  # type: ignore[import-untyped]
from plotly.subplots import make_subplots  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.frames.base import iso, plain, ratio, span, utc
from dashboard.frames.facts import Fact
from dashboard.frames.lab import tone_of
from dashboard.frames.now_plots import p_over_time
from dashboard.frames.plots import AUTOREGRESSIVE, MARGIN, MUTED, OTHER, SPECULATIVE, dragged
from dashboard.words import NO_DATA, P_MIN


class Lane(NamedTuple):
    title: str
    icon: str
    #: What appears in it.
    told: str


LANES = {
    "switch": Lane("switches", "swap_horiz", "decoding falls back, is probed or returns, or an operator orders a mode"),
    "engine": Lane("engine", "memory", "an engine is given an order, or is noticed to have changed"),
    "version": Lane("versions", "deployed_code", "Specwatch starts, or versions, models or settings change"),
    "alert": Lane("alerts", "notifications", "an alert begins or ends"),
    "alignment": Lane("alignment", "translate", "a token is found to have another id in the draft model"),
    "lab": Lane("lab", "science", "a run of the lab ends"),
}
#: Shown around an event by the links to other pages.
AROUND = timedelta(minutes=5)
#: Before a time range, where the beginnings of alerts are looked for that fire in it.
BEFORE = timedelta(days=7)
#: Lines that events draw through the chart of p.
MOST_LINES = 60


#: What Streamlit calls the colours of events in Markdown.
_TONES = {AUTOREGRESSIVE: ":orange", SPECULATIVE: ":blue", OTHER: ":green", MUTED: ":gray"}

KEY = (
    "Switches: ■ off, ▶ on or being probed. Alerts: ✖ critical begins, ▲ begins, ○ ends, the bar while it fires. "
    "★ order to an engine, ◆ another version or setting, or a moved token. ⬢ a run of the lab ended. Dotted: decoding "
    "was switched or an alert began."
)


class Sign(NamedTuple):
    """What an event is at a glance; the word says what the colour and the shape repeat."""

    word: str
    icon: str
    colour: str
    symbol: str


def sign(event: shapes.Event) -> Sign:
    icon = LANES[event.kind].icon
    if event.kind == "alert":
        if event.what == "resolved":
            return Sign("resolved", "check_circle", OTHER, "circle-open")
        severity = event.severity or "fires"
        shown = {"critical": "emergency_home", "warning": "warning"}.get(severity, "info")
        symbol = "x" if severity == "critical" else "triangle-up"
        return Sign(severity, shown, _alarm(severity), symbol)
    if event.kind == "switch":
        if event.what in ("autoregressive", "ineffective"):
            return Sign(event.what, icon, AUTOREGRESSIVE, "square")
        return Sign(event.what, icon, SPECULATIVE, "triangle-right")
    if event.kind == "alignment":
        return Sign("moved", icon, AUTOREGRESSIVE, "diamond")
    if event.kind == "lab":
        colour = {"good": OTHER, "bad": AUTOREGRESSIVE}.get(tone_of(event.what), MUTED)
        return Sign(event.what, icon, colour, "hexagon")
    return Sign(event.kind, icon, MUTED, "diamond" if event.kind == "version" else "star")


def _alarm(severity: str | None) -> str:
    return MUTED if severity == "info" else AUTOREGRESSIVE


def heading(event: shapes.Event) -> str:
    """In Markdown: when, what, and the sentence."""
    at = utc(event.at)
    shown = sign(event)
    return f"{at:%m-%d} **{at:%H:%M:%S}** · {_TONES[shown.colour]}[**{shown.word}**] · {plain(event.words)}"


# The links of an event


def around(event: shapes.Event) -> dict[str, str]:
    """The time around it, in parameters of a page's address."""
    at = utc(event.at).replace(microsecond=0)
    return {"since": iso(at - AROUND), "until": iso(at + AROUND)}


def slice_of(event: shapes.Event) -> dict[str, str]:
    """Scenario or model that it is about, in parameters of an address; empty: all, or what no page can be asked."""
    if event.kind == "switch":
        name, equals, value = event.subject.partition("=")
        return {name: value} if equals and name in ("scenario", "model") and value else {}
    labels = (event.evidence or {}).get("labels")
    if event.kind != "alert" or not isinstance(labels, dict):
        return {}
    return {name: str(labels[name]) for name in ("scenario", "model") if labels.get(name)}


def run_of(event: shapes.Event) -> str | None:
    """The run of the lab that it is about."""
    run = (event.evidence or {}).get("run") if event.kind == "lab" else None
    return run if isinstance(run, str) else None


# Evidence in words

_WORDS = {
    "p": "acceptance rate p",
    "low": "95 % interval of p, from",
    "high": "95 % interval of p, to",
    "p_since_change": "p since the change",
    "mark": "p that decides",
    "definition": "decided by",
    "k": "most draft tokens of a step (k)",
    "level": "falls in a row before this one",
    "opened_by": "fell back because of",
    "dwell_s": "autoregressive for at least",
    "first_byte_limit_s": "limit of the first byte",
    "slow_streams": "streams that began too late",
    "failed": "failed requests",
    "cap": "draft tokens a step at most (cap)",
    "adopted_from": "adopted from",
    "dry_run": "only recorded (fallback_dry_run)",
    "latency_ratio": "latency ratio p95",
    "starts_at": "held since",
    "count": "times seen",
    "share": "of the draft positions where the target put it",
    "before": "before",
    "value": "value",
    "target_id": "id in the target model",
    "draft_id": "id in the draft model",
    "target_text": "text in the target model",
    "draft_text": "text in the draft model",
    "kind": "command",
}
_RATIOS = {"p", "p_per_token", "low", "high", "mark", "p_since_change", "similarity", "latency_ratio", "share"}
_TIMES = {"starts_at", "first_seen", "last_seen", "since"}
#: Lines of evidence at most, and characters of one.
MOST_LINES_TOLD, MOST_TOLD = 40, 300


def evidence(found: Mapping[str, Any]) -> list[Fact]:
    """Each figure: what it is, and its value with the unit. Figures within others are told by the names of both."""
    return list(_told(found, ""))[:MOST_LINES_TOLD]


def _told(found: Mapping[str, Any], within: str) -> Iterator[Fact]:
    for name, value in found.items():
        words = _WORDS.get(name) or name.replace("_", " ")
        if name not in _WORDS and name.endswith("_s"):
            words = words[:-2]
        told = f"{within}{words}"
        if isinstance(value, Mapping):
            yield from _told(value, f"{told}: ")
        elif isinstance(value, list):
            yield Fact(told, ", ".join(_value("", each) for each in value)[:MOST_TOLD] or "none")
        else:
            yield Fact(told, _value(name, value)[:MOST_TOLD])


def _value(name: str, value: Any) -> str:
    match value:
        case None:
            return NO_DATA
        case bool():
            return "yes" if value else "no"
        case int() | float() if name in _RATIOS:
            return ratio(value)
        case int() | float() if name.endswith("_s"):
            return span(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
        case str() if name in _TIMES:
            return _time(value)
        case str():
            return value
    return str(value)


def _time(text: str) -> str:
    at = _read(text)
    return text if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _read(text: object) -> datetime | None:
    """None where it is no time."""
    try:
        return utc(datetime.fromisoformat(str(text)))
    except (ValueError, OverflowError):
        return None


# The time line


class Fired(NamedTuple):
    """How long an alert fired."""

    since: datetime
    until: datetime
    severity: str | None


def fired(
    events: Sequence[shapes.Event], active: Sequence[shapes.ActiveAlert], held: tuple[datetime, datetime]
) -> list[Fired]:
    """Within `held`; `events` are those before it, too: what began there and has no end fires all the time since.

    What ends and has no beginning in `events` began when it says, else before `held`.
    """
    begun: dict[tuple[str, str, str], tuple[datetime, str | None]] = {}
    found, known = [], set()
    for event in sorted((each for each in events if each.kind == "alert"), key=lambda each: utc(each.at)):
        evidence = event.evidence or {}
        labels = evidence.get("labels")
        known.add(one := _one(event.instance, event.subject, labels if isinstance(labels, dict) else {}))
        if event.what == "firing":
            begun.setdefault(one, (utc(event.at), event.severity))
        else:
            since, severity = begun.pop(one, (_read(evidence.get("starts_at")) or held[0], event.severity))
            found.append(Fired(since, utc(event.at), severity))
    for alert in active:
        one = _one(alert.labels.get("instance", ""), alert.name, alert.labels)
        if alert.status == "firing" and one not in known:
            begun[one] = utc(alert.starts_at), alert.severity
    found += [Fired(since, held[1], severity) for since, severity in begun.values()]
    cut = (Fired(max(each.since, held[0]), min(each.until, held[1]), each.severity) for each in found)
    return [each for each in cut if each.since < each.until]


def _one(instance: str, name: str, labels: Mapping[str, Any]) -> tuple[str, str, str]:
    """What an alert is told apart by."""
    return instance, name, repr(sorted(labels.items()))


def time_line(
    events: Sequence[shapes.Event],
    bars: Sequence[Fired],
    acceptance: shapes.AcceptanceSeries,
    held: tuple[datetime, datetime],
) -> go.Figure:
    """Above p over the time range `held`, below a lane for each kind of event; `bars`: what alarmed there."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.5, 0.5], vertical_spacing=0.04)
    inside = [event for event in events if held[0] <= utc(event.at) <= held[1]]
    figure.add_trace(_lines(inside), row=1, col=1)
    figure.add_trace(p_over_time(acceptance, None).data[0], row=1, col=1)
    figure.add_hline(y=P_MIN, line={"color": MUTED, "dash": "dash", "width": 1.5}, row=1, col=1)
    for colour in (MUTED, AUTOREGRESSIVE):
        figure.add_trace(_bars([each for each in bars if _alarm(each.severity) == colour], colour), row=2, col=1)
    for kind in LANES:
        figure.add_trace(_lane(kind, [event for event in inside if event.kind == kind]), row=2, col=1)
    figure.add_annotation(
        text=f"{P_MIN}",
        x=1,
        xref="x domain",
        y=P_MIN,
        yref="y",
        xanchor="left",
        showarrow=False,
        font={"color": MUTED},
    )
    figure.update_xaxes(type="date", range=list(held), nticks=6, tickangle=0, hoverformat="%Y-%m-%d %H:%M:%S UTC")
    figure.update_yaxes(range=[0, 1], tickformat=".1f", fixedrange=True, row=1, col=1)
    titles = [lane.title for lane in LANES.values()]
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=titles[::-1],
        range=[-0.6, len(titles) - 0.4],
        tickvals=titles,
        fixedrange=True,
        row=2,
        col=1,
    )
    figure.update_layout(height=430, margin=MARGIN | {"r": 36}, showlegend=False, hovermode="closest")
    dragged(figure)
    return figure


def _lines(events: Sequence[shapes.Event]) -> go.Scatter:
    """Through the chart of p, where decoding was switched or an alert began."""
    marked = [utc(event.at) for event in events if event.kind == "switch" or event.what == "firing"][:MOST_LINES]
    return go.Scatter(
        x=[each for at in marked for each in (at, at, None)],
        y=[each for _ in marked for each in (0, 1, None)],
        mode="lines",
        line={"color": MUTED, "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )


def _bars(bars: Sequence[Fired], colour: str) -> go.Scatter:
    """Between the marks of an alert's begin and end; where several fire at a time, one lies upon the other."""
    return go.Scatter(
        x=[each for bar in bars for each in (bar.since, bar.until, None)],
        y=[LANES["alert"].title] * 3 * len(bars),
        mode="lines",
        line={"color": colour, "width": 10},
        opacity=0.4,
        hoverinfo="skip",
    )


def _lane(kind: str, events: Sequence[shapes.Event]) -> go.Scatter:
    signs = [sign(event) for event in events]
    return go.Scatter(
        x=[utc(event.at) for event in events],
        y=[LANES[kind].title] * len(events),
        mode="markers",
        name=LANES[kind].title,
        marker={
            "color": [each.colour for each in signs],
            "symbol": [each.symbol for each in signs],
            "size": 12,
            "line": {"width": 1.5, "color": [each.colour for each in signs]},
        },
        text=[_hover(event) for event in events],
        hovertemplate="%{text}<extra></extra>",
    )


def _hover(event: shapes.Event) -> str:
    lines = textwrap.wrap(" ".join(event.words.split())[:MOST_TOLD], 60)
    head = f"{utc(event.at):%Y-%m-%d %H:%M:%S} UTC · {sign(event).word}"
    # Plotly reads HTML, and what stands in braces as a figure of its own.
    return "<br>".join(escape(line).replace("{", "&#123;") for line in [head, *lines])
