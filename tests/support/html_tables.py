"""Tables that the dashboard writes as HTML, read back."""

import re
from html import unescape

from streamlit.testing.v1 import AppTest


def cells(table: str) -> list[list[str]]:
    """Texts of the rows, the heads among them."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL)
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        for row in rows
    ]


def links(table: str) -> list[str]:
    return [unescape(href) for href in re.findall(r'<a href="([^"]*)"', table)]


def table_of(at: AppTest, told: str) -> str:
    """The table of a page that says of itself `told`."""
    (found,) = (html.proto.body for html in at.get("html") if f'aria-label="{told}"' in html.proto.body)
    return str(found)
