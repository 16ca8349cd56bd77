"""A figure's trend as a small line: SVG, which draws in no time and knows gaps."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from math import isfinite

WIDTH, HEIGHT, EDGE = 240, 36, 3


#: In both themes.
STYLE = (
    "polyline{fill:none;stroke:#3a8fc7;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    "line{stroke:#8a8a8a;stroke-dasharray:4 3}polyline,line{vector-effect:non-scaling-stroke}"
)


def sparkline(values: Sequence[float | None], told: str, limit: float | None = None) -> str:
    """An image of the values from left to right, as HTML. `told` is read out and hovered. Empty without a value.

    None is a gap, and a value between two gaps a dot. `limit` is a line across.
    """
    svg = drawn(values, limit)
    if not svg:
        return ""
    # As an image: Streamlit takes SVG elements out of HTML.
    source = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
    return f'<img class="sw-spark" alt="{escape(told)}" title="{escape(told)}" src="{source}">'


def drawn(values: Sequence[float | None], limit: float | None) -> str:
    """The SVG, empty without a value."""
    known = [value for value in values if value is not None and isfinite(value)]
    if not known:
        return ""
    shown = [*known, *([] if limit is None else [limit])]
    low, high = min(shown), max(shown)
    room = (high - low) or 1.0

    def y(value: float) -> float:
        return EDGE + (HEIGHT - 2 * EDGE) * (1 - (value - low) / room) if high > low else HEIGHT / 2

    def x(index: int) -> float:
        return EDGE + (WIDTH - 2 * EDGE) * (index / (len(values) - 1) if len(values) > 1 else 0.5)

    runs: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None or not isfinite(value):
            runs.append([])
        else:
            runs[-1].append(f"{x(index):.1f},{y(value):.1f}")
    # A line of one point is drawn as a dot by its round ends.
    lines = "".join(f'<polyline points="{" ".join([*run, run[0]][: max(2, len(run))])}"/>' for run in runs if run)
    held = "" if limit is None else f'<line x1="0" x2="{WIDTH}" y1="{y(limit):.1f}" y2="{y(limit):.1f}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">'
        f"<style>{STYLE}</style>{held}{lines}</svg>"
    )
