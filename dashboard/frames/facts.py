"""Figures of one thing, by name: a list that is as wide as there is room. Pure."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

STYLE = """<style>
.sw-facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(290px, 100%), 1fr)); gap: .8rem 2rem; }
.sw-facts h4 { font-size: 1rem; margin: 0; padding: 0; } .sw-facts div { overflow-wrap: anywhere; }
.sw-facts dl { display: grid; grid-template-columns: fit-content(15rem) 1fr; gap: 0 1rem; margin: .2rem 0; padding: 0;
  font-size: .9rem; }
.sw-facts dt, .sw-facts dd { margin: 0; padding: 0; } .sw-facts dt { font-weight: 400; opacity: .75; }
.sw-facts dt[title] { text-decoration: underline dotted; cursor: help; }
</style>"""


class Fact(NamedTuple):
    name: str
    value: str
    #: What it means, where its name does not say it.
    help: str = ""


def html(groups: Mapping[str, Sequence[Fact]]) -> str:
    """By subject; an empty subject has no title."""
    parts = []
    for title, facts in groups.items():
        head = f"<h4>{escape(title)}</h4>" if title else ""
        lines = "".join(f"{_name(fact)}<dd>{escape(fact.value)}</dd>" for fact in facts)
        parts.append(f"<div>{head}<dl>{lines}</dl></div>")
    return f'{STYLE}<div class="sw-facts">{"".join(parts)}</div>'


def _name(fact: Fact) -> str:
    told = f' title="{escape(fact.help)}"' if fact.help else ""
    return f"<dt{told}>{escape(fact.name)}</dt>"
