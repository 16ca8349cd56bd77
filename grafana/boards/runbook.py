"""The runbook of the alerts, where alerts are looked at."""

from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import text
from grafana_foundation_sdk.models.text import TextMode

from ..board import board

UID: Final = "specwatch-runbook"
#: `alerts` is beside this package.
_FILE = Path(__file__).parents[2] / "alerts" / "RUNBOOK.md"


def json() -> str:
    about = "What each alert means, what to look at, what to do."
    panel = text.Panel().title("Runbook").description(about).span(24).height(30)
    panel.mode(TextMode.MARKDOWN).content(_FILE.read_text())
    return board(UID, "Specwatch: runbook", about, [panel], picked_by="", marks=())
