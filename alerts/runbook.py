"""RUNBOOK.md, which is shipped with this package, by alert."""

from functools import cache
from pathlib import Path

_FILE = Path(__file__).parent / "RUNBOOK.md"


@cache
def sections() -> dict[str, str]:
    """By name of the alert, Markdown: what it means, what to look at, what to do. Raises OSError."""
    _, *found = ("\n" + _FILE.read_text(encoding="utf-8")).split("\n## ")
    return {name.strip(): words.strip() for name, _, words in (each.partition("\n") for each in found)}
