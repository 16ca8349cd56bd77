"""`specwatch doctor`: looks at everything at once, and says what is wrong and what to do."""

from collections.abc import Sequence
from pathlib import Path

from ..settings import Settings


def doctor(
    settings: Settings, *, logs: Sequence[Path] = (), bundle: Path | None = None, as_json: bool = False
) -> int:
    """Looks, prints what was found, and returns the exit status: 0 nothing, 1 findings, 2 it could not look at all.

    `logs` are files of engines (those of `specwatch up` and of the setting engine are known), `bundle` is the
    .tar.gz to write for others to look at. Takes 20 s at most.
    """
    raise NotImplementedError
