"""What may be told of an exception: its kind and its places in the code. Its words may quote a prompt or a reply."""

import asyncio
import logging
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

#: Exceptions behind one another, and frames of each, that are told.
_MOST_CAUSES, _MOST_FRAMES = 8, 40

_log = logging.getLogger(__name__)


def where(error: BaseException) -> str:
    """The traceback of an exception and of those behind it, without a word of theirs. Several lines."""
    told: list[str] = []
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen and len(told) < _MOST_CAUSES:
        seen.add(id(behind))
        frames = "".join(traceback.format_tb(behind.__traceback__, -_MOST_FRAMES))
        told.append(f"{frames}{type(behind).__module__}.{type(behind).__qualname__} (its words are not shown)")
        behind = behind.__cause__ or (None if behind.__suppress_context__ else behind.__context__)
    return "\nwhich led to\n".join(reversed(told))


def place(error: BaseException) -> str:
    """The same in a few words: `KeyError in store/rows.py:12`."""
    frames = traceback.extract_tb(error.__traceback__, -1)
    at = "".join(f" in {'/'.join(Path(each.filename).parts[-2:])}:{each.lineno}" for each in frames)
    return f"{type(error).__name__}{at}"


class Formatter(logging.Formatter):
    """Lines of the log, with `where` for tracebacks, whoever logs them."""

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        return "" if ei[1] is None else where(ei[1])


def in_loop(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The event loop's exception handler: its own one shows what a callback was given."""
    what = "a callback failed" if "handle" in context else context["message"]
    error = context.get("exception")
    _log.error("event loop: %s%s", what, "" if error is None else "\n" + where(error))


def install() -> None:
    """Have uncaught exceptions of this process told by `where`, on standard error."""
    sys.excepthook = lambda _kind, error, _trace: _print(error)
    threading.excepthook = lambda told: _print(told.exc_value)
    sys.unraisablehook = lambda told: _print(told.exc_value)


def _print(error: BaseException | None) -> None:
    if error is not None and sys.stderr is not None:
        print(where(error), file=sys.stderr)
