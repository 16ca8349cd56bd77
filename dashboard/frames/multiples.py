"""Small multiples: one small chart for each scenario, all of the same axes, as HTML. Pure; no Streamlit, no network.

The line is an image, as Streamlit leaves no SVG in HTML; the steps over it are told on hover.
"""

from base64 import b64encode
from collections.abc import Collection, Sequence
from datetime import datetime
from html import escape

from dashboard import shapes
from dashboard.frames.base import count, ratio
from dashboard.frames.plots import MUTED
from dashboard.words import NO_DATA, P_MIN

#: Of the drawing, which is stretched: p above, requests below.
WIDTH, LINE, ROOM, BARS = 240, 64, 6, 22
HEIGHT = LINE + ROOM + BARS
MOST = 12
#: As in the sparklines: readable in both themes.
COLOUR = "#3a8fc7"

STYLE = """<style>
.sw-multiples { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .9rem 1.4rem; }
.sw-multiple h4 { font-size: .9rem; font-weight: 600; margin: 0; padding: 0; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; }
.sw-multiple p { font-size: .8rem; margin: 0 0 .2rem; }
.sw-plot { position: relative; height: 5.8rem; margin-left: 2rem; border-bottom: 1px solid rgba(128,128,128,.5); }
.sw-plot img { position: absolute; inset: 0; width: 100%; height: 100%; }
.sw-plot i { position: absolute; left: -2rem; width: 1.7rem; text-align: right; font-size: .7rem; font-style: normal;
  opacity: .7; transform: translateY(-50%); }
.sw-times { position: absolute; inset: 0; display: flex; }
.sw-times span { flex: 1 1 0; } .sw-times span:hover { background: rgba(128,128,128,.35); }
.sw-ends { display: flex; justify-content: space-between; margin-left: 2rem; font-size: .7rem; opacity: .7; }
</style>"""

Steps = Sequence[tuple[datetime, shapes.AcceptancePoint | None]]


def multiples(charts: Sequence[tuple[str, Steps]], off: Collection[str] = ()) -> str:
    """`charts`: name and all steps of the time range, in the order in which they are to be shown; MOST are.

    `off`: slices that fell back, as `scenario=billing`.
    """
    shown = charts[:MOST]
    most = max((point.requests for _, steps in shown for _, point in steps if point), default=0)
    drawn = [_multiple(name, steps, most, fell_back=f"scenario={name}" in off) for name, steps in shown]
    return f'<div class="sw-multiples">{"".join(drawn)}</div>'


def steps_of(series: shapes.AcceptanceSeries, group: str, grid: Sequence[datetime]) -> Steps:
    """The points of a group at each step of `grid`, None where there is none."""
    known = {point.at: point for point in series.points if point.group == group}
    return [(at, known.get(at)) for at in grid]


def _multiple(name: str, steps: Steps, most: int, *, fell_back: bool) -> str:
    points = [point for _, point in steps if point is not None]
    drafted = sum(point.draft_tokens for point in points)
    p = sum(point.accepted_tokens for point in points) / drafted if drafted else None
    verdict = NO_DATA if p is None else f"{ratio(p, P_MIN)} {'✓' if p >= P_MIN else f'✗ below {P_MIN}'}"
    if fell_back and p is not None:
        verdict = f"{ratio(p, P_MIN)} ✗ fell back"
    requests = sum(point.requests for point in points)
    told = f"p {verdict} · {count(requests, 'request')} speculated"
    marks = "".join(f'<i style="top:{_y(value) / HEIGHT:.1%}">{value:g}</i>' for value in (1.0, P_MIN, 0.0))
    spans = "".join(f'<span title="{escape(_told(at, point))}"></span>' for at, point in steps)
    ends = "".join(f"<span>{at:%m-%d %H:%M}</span>" for at in (steps[0][0], steps[-1][0])) if steps else ""
    return (
        f'<div class="sw-multiple"><h4 title="{escape(name)}">{escape(name)}</h4><p>{told}</p><div class="sw-plot">'
        f'{marks}<img alt="p and requests of {escape(name)} over time" src="{_image(steps, most)}">'
        f'<div class="sw-times">{spans}</div></div><div class="sw-ends">{ends}</div></div>'
    )


def _told(at: datetime, point: shapes.AcceptancePoint | None) -> str:
    when = f"{at:%Y-%m-%d %H:%M} UTC"
    if point is None or point.p is None:
        return f"{when}: {NO_DATA}"
    return f"{when}: p {ratio(point.p, P_MIN)}, {count(point.requests, 'request')}"


def _y(p: float) -> float:
    return 3 + (LINE - 6) * (1 - min(1.0, max(0.0, p)))


def _image(steps: Steps, most: int) -> str:
    """p as a line with gaps, a dot where it stands alone; requests as bars."""
    width = WIDTH / max(1, len(steps))
    runs: list[list[str]] = [[]]
    bars = []
    for index, (_, point) in enumerate(steps):
        if point is None or point.p is None:
            runs.append([])
        else:
            runs[-1].append(f"{(index + 0.5) * width:.1f},{_y(point.p):.1f}")
        if point is not None and point.requests > 0:
            height = BARS * min(1.0, point.requests / max(1, most))
            bars.append(
                f'<rect x="{index * width:.2f}" width="{width * 0.8:.2f}" y="{HEIGHT - height:.2f}" '
                f'height="{height:.2f}" fill="{MUTED}"/>'
            )
    # A line of one point is drawn as a dot by its round ends.
    lines = "".join(
        f'<polyline vector-effect="non-scaling-stroke" points="{" ".join([*run, run[0]][: max(2, len(run))])}"/>'
        for run in runs
        if run
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">'
        f'<line x1="0" x2="{WIDTH}" y1="{_y(P_MIN):.1f}" y2="{_y(P_MIN):.1f}" stroke="{MUTED}" stroke-dasharray="4 3" '
        f'vector-effect="non-scaling-stroke"/>{"".join(bars)}'
        f'<g fill="none" stroke="{COLOUR}" stroke-width="2" stroke-linecap="round" stroke-linejoin="round">'
        f"{lines}</g></svg>"
    )
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
