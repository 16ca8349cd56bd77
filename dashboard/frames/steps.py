"""The verify steps of one request: read from two base-36 digits each, drawn as one column each. Pure."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import pandas as pd  # type: ignore[import-untyped]
import plotly.graph_objects as go  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.frames.base import count, percent
from dashboard.frames.plots import MARGIN, SPECULATIVE
from dashboard.words import NO_DATA

#: Steps of a request that its row tells at most.
MOST_STEPS = 1024
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
#: Every so many steps are numbered.
_NUMBERED = 10

STYLE = """<style>
.sw-steps { display: flex; flex-wrap: wrap; gap: .5rem 2px; line-height: 1; }
.sw-step { position: relative; width: 13px; padding: 11px 0 14px; }
.sw-step b { display: block; height: calc(var(--d) * 13px);
  -webkit-mask: repeating-linear-gradient(#000 0 12px, transparent 12px 13px);
  mask: repeating-linear-gradient(#000 0 12px, transparent 12px 13px);
  background: linear-gradient(#0072B2 0 calc(var(--a) * 13px), #D55E00 0 calc(var(--a) * 13px + 13px), transparent 0),
    repeating-linear-gradient(45deg, rgba(128,128,128,.75) 0 1.5px, rgba(128,128,128,.12) 1.5px 4px); }
.sw-step i { position: absolute; left: 0; width: 100%; text-align: center; font: 700 11px/12px sans-serif; }
.sw-step i.sw-cut { top: calc(11px + var(--a) * 13px); color: #fff; }
.sw-step i.sw-full { bottom: 1px; color: #009E73; }
.sw-step u { position: absolute; top: 0; left: 0; font: 9px/9px sans-serif; text-decoration: none; opacity: .75; }
.sw-blank b { height: 12px; background: none; -webkit-mask: none; mask: none; border: 1px dotted rgba(128,128,128,.6); }
.sw-steps-key { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; font-size: .85rem; opacity: .85; }
.sw-steps-key span { display: inline-flex; align-items: center; gap: .3rem; }
.sw-steps-key .sw-step { padding: 0; } .sw-steps-key .sw-step i.sw-cut { top: 0; }
.sw-steps-key .sw-step i.sw-full { position: static; }
</style>"""


def _key(style: str, words: str, mark: str = "", kind: str = "") -> str:
    return f'<span><div class="sw-step {kind}" style="{style}"><b></b>{mark}</div>{words}</span>'


KEY = (
    '<div class="sw-steps-key">'
    + _key("--d:1;--a:1", "accepted")
    + _key("--d:1;--a:0", "rejected", '<i class="sw-cut">×</i>')
    + _key("--d:1;--a:-1", "discarded behind it")
    + '<span><div class="sw-step"><i class="sw-full">✓</i></div>all accepted</span>'
    + _key("--d:0;--a:0", "nothing drafted", kind="sw-blank")
    + "</div>"
)


class Step(NamedTuple):
    drafted: int
    accepted: int

    @property
    def words(self) -> str:
        if not self.drafted:
            return "nothing drafted"
        if self.accepted == self.drafted:
            return f"all {count(self.drafted, 'draft token')} accepted" if self.drafted > 1 else "the one accepted"
        behind = self.drafted - self.accepted - 1
        tail = f", {behind} discarded behind it" if behind else ""
        return f"{self.accepted} of {count(self.drafted, 'draft token')} accepted, the next rejected{tail}"


class Unreadable(ValueError):
    """What stands in for steps is none; the message says where, in one line."""


def decode(digits: str) -> list[Step]:
    """The steps of `RequestRow.steps`. Raises Unreadable."""
    if len(digits) % 2:
        raise Unreadable(f"its {len(digits)} digits are no pairs")
    numbers = [_DIGITS.find(each) for each in digits]
    steps = [Step(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
    for number, step in enumerate(steps, 1):
        if step.drafted < 0 or step.accepted < 0:
            raise Unreadable(f"step {number} is {digits[2 * number - 2 : 2 * number]!r}, which is not two digits")
        if step.accepted > step.drafted:
            raise Unreadable(f"step {number} has accepted {step.accepted} of {step.drafted}")
    return steps


def drawn(steps: Sequence[Step]) -> str:
    """As HTML: a column a step, which is read downwards from position 1, and lines of columns as wide as the page."""
    columns = "".join(_column(number, step) for number, step in enumerate(steps, 1))
    return f'<div class="sw-steps" role="img" aria-label="{escape(summary(steps))}">{columns}</div>'


def _column(number: int, step: Step) -> str:
    mark = f"<u>{number}</u>" if number == 1 or number % _NUMBERED == 0 else ""
    kind = ""
    if not step.drafted:
        kind = " sw-blank"
    elif step.accepted == step.drafted:
        mark += '<i class="sw-full">✓</i>'
    else:
        mark += '<i class="sw-cut">×</i>'
    told = escape(f"step {number}: {step.words}")
    style = f"--d:{step.drafted};--a:{step.accepted}"
    return f'<div class="sw-step{kind}" style="{style}" title="{told}"><b></b>{mark}</div>'


def summary(steps: Sequence[Step]) -> str:
    drafting = [step for step in steps if step.drafted]
    full = sum(step.accepted == step.drafted for step in drafting)
    accepted, drafted = sum(step.accepted for step in drafting), sum(step.drafted for step in drafting)
    blank = len(steps) - len(drafting)
    return (
        f"{count(len(steps), 'step')}: {full:,} with every draft token accepted, "
        f"{len(drafting) - full:,} truncated, {blank:,} without draft tokens; "
        f"{accepted:,} of {count(drafted, 'draft token')} accepted"
    )


def step_table(steps: Sequence[Step]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "step": range(1, len(steps) + 1),
            "drafted": [step.drafted for step in steps],
            "accepted": [step.accepted for step in steps],
            "what happened": [step.words for step in steps],
        }
    )


def position_table(row: shapes.RequestRow) -> pd.DataFrame | None:
    """Of each position that was drafted; None where the row does not tell."""
    if row.rejected_at is None or row.reached is None:
        return None
    pairs = list(zip(row.rejected_at, row.reached, strict=False))
    return pd.DataFrame(
        {
            "position": range(1, len(pairs) + 1),
            "steps that reached it": [reached for _, reached in pairs],
            "rejected there": [rejected for rejected, _ in pairs],
            "hazard": [percent(rejected / reached) if reached > 0 else NO_DATA for rejected, reached in pairs],
        }
    )


def unknown(row: shapes.RequestRow) -> str:
    """Why the row tells no single steps, in a sentence."""
    if row.arm in ("autoregressive", "baseline"):
        return f"It was served without speculation (arm {row.arm}), so that there was no verify step."
    if row.acceptance_source == "none":
        return f"No acceptance figures: {row.acceptance_reason or 'the sidecar gave no reason'}."
    if row.draft_tokens == 0:
        return "Nothing was drafted for it."
    if row.acceptance_source != "engine":
        return (
            "The figures are those of the reply, which tells no single steps: an engine with the plugin does "
            "(engine_events), and vLLM with --per-request-spec-decode-metrics detailed."
        )
    return (
        "The engine told the sums alone. That is so of replies that are several engine requests (n, several "
        "prompts), of steps of more than 35 draft tokens, and of rows that were written before Specwatch kept steps."
    )


def by_accepted(histogram: Sequence[int]) -> go.Figure:
    """Verify steps by how many draft tokens they accepted."""
    figure = go.Figure(
        go.Bar(
            x=list(range(len(histogram))),
            y=list(histogram),
            text=[f"{number:,}" for number in histogram],
            textposition="outside",
            cliponaxis=False,
            marker_color=SPECULATIVE,
            hovertemplate="%{x} accepted: %{y:,} verify steps<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="accepted draft tokens of a step", dtick=1, fixedrange=True)
    figure.update_yaxes(title_text="verify steps", rangemode="tozero", tickformat=",d", fixedrange=True)
    figure.update_layout(height=240, margin=MARGIN, showlegend=False)
    return figure
