"""A folder that is there whole, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNFINISHED = ".unfinished-"


@contextmanager
def whole(place: Path) -> Iterator[Path]:
    """A folder to write in, which is at `place` once the block has ended, and gone where it raises.

    What was at `place` is replaced then, by renaming. What a killed process left beside it goes first.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    for left in place.parent.glob(f".{place.name}{_UNFINISHED}*"):
        number = left.name.rpartition("-")[2]
        if number.isdecimal() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = place.with_name(f".{place.name}{_UNFINISHED}{os.getpid()}")
    folder.mkdir()
    try:
        yield folder
        _put(folder, place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put(folder: Path, place: Path) -> None:
    if not os.path.lexists(place):
        folder.rename(place)
        return
    # A folder cannot be renamed over one that is not empty.
    aside = folder.with_name(f"{folder.name}-replaced")
    place.rename(aside)
    try:
        folder.rename(place)
    except BaseException:
        aside.rename(place)
        raise
    shutil.rmtree(aside, ignore_errors=True)
