"""Reads pages in Streamlit's own test harness."""

import json
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

import dashboard

#: The whole app, which begins with its first page.
APP = Path(dashboard.__file__).parent / "pages" / "run.py"


def page_of(name: str) -> AppTest:
    """A page by itself, with the bar of filters."""
    script = f"""
from dashboard.filters import filters
from dashboard.pages import {name}

{name}.page(filters({name}.USES))
"""
    return AppTest.from_string(script, default_timeout=60)


def values(at: AppTest) -> dict[str, str]:
    """Figures by their labels."""
    return {metric.label: metric.value for metric in at.metric}


def said(at: AppTest) -> str:
    """Every text of the page, as one."""
    kinds = (at.error, at.warning, at.info, at.markdown, at.caption, at.code)
    texts = [element.value for kind in kinds for element in kind]
    return "\n".join([*texts, *(html.proto.body for html in at.get("html"))]).replace("\\", "")


def charts(at: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in at.get("plotly_chart")]
