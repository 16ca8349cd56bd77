"""What the API needs of the rest of the process; `sidecar.app` fills it in."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sidecar.control.engine import EngineError, EngineState, Swap
from sidecar.probes.truncation import Places
from sidecar.probes.windows import Windows
from sidecar.store.queries import Reader
from sidecar.store.rows import AuditRow

from .models import EngineMode, FallbackState, Mode


class FallbackPort(Protocol):
    """The switch. Both methods are called on the event loop, and must not block."""

    def state(self) -> FallbackState: ...

    def set_mode(self, mode: Mode, reason: str) -> None:
        """Take an operator's order. `autoregressive` is only asked for where `can_fall_back` is true."""


class EnginePort(Protocol):
    """The engines behind the proxy. Called on the event loop."""

    @property
    def steered(self) -> str:
        """Name of the upstream that takes orders."""

    async def look(self) -> Mapping[str, Sequence[EngineState] | EngineError]:
        """Every upstream's engine cores, or why they cannot be asked."""

    async def set_cap(self, cap: int | None, mode: EngineMode | None, reason: str) -> Sequence[EngineState]:
        """Raises EngineError."""

    async def swap(self, checkpoint: str, reason: str) -> Sequence[Swap]:
        """Raises EngineError."""


@dataclass(frozen=True, kw_only=True)
class ApiDeps:
    """All callables are cheap, and are called on the event loop or on worker threads."""

    instance: str
    version: str
    reader: Reader
    fallback: FallbackPort
    engines: EnginePort
    #: Whether the database took the latest rows: `Writer.healthy`.
    database_ok: Callable[[], bool]
    #: `Writer.dropped`.
    records_dropped: Callable[[], int]
    #: Names of side tasks that have died.
    failed_tasks: Callable[[], Sequence[str]] = tuple
    #: False once a task died without which nothing can be proxied.
    relay_alive: Callable[[], bool] = lambda: True
    #: Text and content type of the Prometheus exposition.
    render_metrics: Callable[[], tuple[bytes, str]]
    #: `Alignment`, called on the event loop; None where no engine tells its drafts.
    alignment: Callable[[], Mapping[str, Any]] | None = None
    #: `Draft`s of the newest requests, at most so many; called on a worker thread. None where none are kept.
    drafts: Callable[[int], Sequence[Mapping[str, Any]]] | None = None
    #: `SimilarityState`, called on the event loop.
    similarity: Callable[[], Mapping[str, Any]]
    #: `Quality`, called on the event loop.
    quality: Callable[[], Mapping[str, Any]]
    #: `Alerts` but for its history, called on the event loop.
    alerts: Callable[[], Mapping[str, Any]] = lambda: {"alerts": [], "rules": []}
    #: `EngineCounters` of every upstream, called on the event loop.
    counters: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    #: Read on the event loop.
    windows: Windows = field(default_factory=Windows)
    #: None where no engine tells its drafts.
    places: Places | None = None
    #: The setting.
    draft_cost: float | None = None
    #: Bearer tokens; where both are None the port is open, for loopback only.
    admin_token: str | None = None
    admin_read_token: str | None = None
    #: The setting.
    admin_per_second: float = 50
    #: `Writer.put_audit`, called on the event loop.
    audit: Callable[[AuditRow], None] = lambda _: None
    now: Callable[[], float] = time.time
