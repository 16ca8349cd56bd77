"""Tables as HTML: cells may lead on to other pages, and the first column, which says what a row is, stays in sight.

Pure; no Streamlit, no network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal
from urllib.parse import urlencode

from dashboard.words import DEFINITIONS, NO_DATA

#: `bad`: beyond its limit, which the text says too. `none`: not known.
Tone = Literal["", "bad", "none"]

STYLE = """<style>
.sw-wide { overflow-x: auto; max-width: 100%; }
.sw-table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .85rem; line-height: 1.3; }
.sw-table th, .sw-table td { padding: .35rem .45rem; text-align: left; white-space: nowrap;
  border-bottom: 1px solid rgba(128,128,128,.25); font-variant-numeric: tabular-nums; }
.sw-table th { font-weight: 600; vertical-align: bottom; }
.sw-table th.sw-broad { white-space: normal; min-width: 4rem; }
.sw-table td.sw-words { white-space: normal; min-width: min(22rem, 60vw); }
.sw-table abbr { text-decoration: underline dotted rgba(128,128,128,.8); text-underline-offset: .2em; cursor: help; }
.sw-table th:first-child, .sw-table td:first-child { position: sticky; left: 0; background: Canvas;
  max-width: min(14rem, 42vw); overflow: hidden; text-overflow: ellipsis; }
.sw-table .sw-bad { color: light-dark(#B34700, #FF9B5C); font-weight: 600; }
.sw-table .sw-none { opacity: .6; font-style: italic; }
.sw-table tr.sw-marked td:first-child { border-left: .3rem solid #D55E00; }
.sw-table tr.sw-opened td:first-child { border-left: .3rem solid #0072B2; }
</style>"""


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    tone: Tone = ""
    href: str | None = None
    #: On hover.
    more: str = ""
    #: Sentences, which take more than a line.
    words: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    cells: Sequence[Cell]
    marked: bool = False
    #: What the page shows more of.
    opened: bool = False


NONE = Cell(NO_DATA, "none")


def table(heads: Sequence[tuple[str, Sequence[str]]], rows: Sequence[Row], told: str) -> str:
    """`heads`: title and the terms that define it, or none. `told`: what the table is, for those who hear it."""
    head = "".join(f'<th scope="col" class="sw-broad">{_head(title, terms)}</th>' for title, terms in heads)
    body = "".join(_row(row) for row in rows)
    return (
        f'<div class="sw-wide"><table class="sw-table" aria-label="{escape(told)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _head(title: str, terms: Sequence[str]) -> str:
    if not terms:
        return escape(title)
    return f'<abbr title="{escape(" ".join(DEFINITIONS[term] for term in terms))}">{escape(title)}</abbr>'


def _row(row: Row) -> str:
    marked = ' class="sw-marked"' if row.marked else ' class="sw-opened" aria-current="true"' if row.opened else ""
    return f"<tr{marked}>{''.join(_cell(cell) for cell in row.cells)}</tr>"


def _cell(cell: Cell) -> str:
    looks = [f"sw-{cell.tone}"] if cell.tone else []
    looks += ["sw-words"] if cell.words else []
    tone = f' class="{" ".join(looks)}"' if looks else ""
    more = f' title="{escape(cell.more)}"' if cell.more else ""
    text = escape(cell.text)
    if cell.href is not None:
        text = f'<a href="{escape(cell.href)}">{text}</a>'
    return f"<td{tone}{more}>{text}</td>"


def link(page: str, **query: str | None) -> str:
    """The address of a page of the dashboard with what is chosen there; None is left out.

    Relative, so that it holds where the dashboard is served below a path.
    """
    given = {name: value for name, value in query.items() if value is not None}
    return f"{page}?{urlencode(given)}" if given else page
