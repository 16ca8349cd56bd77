"""Rows that no database takes, as JSON lines, for people to look at."""

import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

from .rows import MAX_TEXT

log = logging.getLogger(__name__)

NAME = "quarantine.jsonl"
_MAX_BYTES = 10_000_000


class Quarantine:
    """Appends to one file, of at most 10 MB; rows beyond that are left out. Never raises."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def add(self, table: str, reason: str, columns: Mapping[str, object]) -> None:
        """Keep a row, by column, and why it was refused."""
        values = {name: _plain(value) for name, value in columns.items()}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        # Escaped throughout, as text may be what no encoding takes.
        line = json.dumps({"at": now, "table": table, "reason": reason, "columns": values}) + "\n"
        try:
            # One write, so that lines of several processes do not mix.
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", buffering=0) as file:
                if file.tell() + len(line) <= _MAX_BYTES:
                    file.write(line.encode())
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)


def _plain(value: object) -> object:
    """What is as it is in JSON; else how Python writes it, cut."""
    match value:
        case None | str() | bool():
            return value
        case int() if value.bit_length() <= 64:
            return value
        case float():
            return value if isfinite(value) else None
    try:
        return repr(value)[:MAX_TEXT]
    except ValueError:
        # Python writes no number of more than 4300 digits.
        return f"{type(value).__name__} that is too long to be written"
