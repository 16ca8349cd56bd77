"""The frame of every page: navigation, filters, and what to do without a sidecar."""

from collections.abc import Callable
from types import ModuleType

import streamlit as st

from dashboard import parts, states
from dashboard.client import Problem
from dashboard.connection import client
from dashboard.filters import Filters, filters
from dashboard.pages import drafts, events, lab, latency, now, quality, requests, scenarios, tokenizers, truncation

#: A drawing of its own: Streamlit would have the browser fetch another one from the internet.
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#0072B2"/>'
    '<path d="M3 11l3-4 3 2 4-6" stroke="#fff" stroke-width="1.8" fill="none"/></svg>'
)
#: Module, title, icon. The module's name is the page's address.
PAGES: list[tuple[ModuleType, str, str]] = [
    (now, "Now", "speed"),
    (truncation, "Truncation", "grid_on"),
    (scenarios, "Scenarios", "category"),
    (latency, "Latency", "timer"),
    (quality, "Quality", "fact_check"),
    (tokenizers, "Tokenizers", "translate"),
    (events, "Events", "event_note"),
    (requests, "Requests", "list_alt"),
    (drafts, "Drafts", "edit_note"),
    (lab, "Lab", "science"),
]


def main() -> None:
    st.set_page_config(page_title="Specwatch", page_icon=ICON, layout="wide")
    st.html(parts.STYLE)
    chosen: list[Filters] = []
    modules = {title: module for module, title, _ in PAGES}

    def run(module: ModuleType) -> Callable[[], None]:
        return lambda: module.page(chosen[0])

    pages = st.navigation(
        [
            st.Page(
                run(module),
                title=title,
                icon=f":material/{icon}:",
                url_path=module.__name__.rpartition(".")[2],
                default=module is now,
            )
            for module, title, icon in PAGES
        ],
        position="top",
    )
    try:
        client().fallback()
    except Problem as found:
        # Streamlit takes out of the address what belongs to no widget: filters outlast an outage.
        filters(())
        states.wait(found)
        return
    module = modules[pages.title]
    if module is not now:
        parts.strip()
    chosen.append(filters(module.USES))
    pages.run()
