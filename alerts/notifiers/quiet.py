"""Nothing is logged of what libraries do with a receiver's address: they show it whole."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CHATTY = (
    "apprise",
    "httpx",
    "httpcore.connection",
    "httpcore.http11",
    "httpcore.http2",
    "httpcore.proxy",
    "httpcore.socks",
    "requests",
    "urllib3.connectionpool",
    "urllib3.util.retry",
)
#: What is kept back, where somebody asks for it.
_kept: ContextVar[list[str] | None] = ContextVar("_kept", default=None)


class _Quiet(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        kept = _kept.get()
        if kept is None:
            return True
        if record.levelno >= logging.WARNING:
            kept.append(record.getMessage())
        return False


_QUIET = _Quiet()


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Keeps the log of such libraries back, in this task or thread. Gives what they warned of: full of secrets."""
    for name in _CHATTY:
        logging.getLogger(name).addFilter(_QUIET)  # which adds it once
    kept: list[str] = []
    before = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(before)
