"""What was seen, before anybody judges it. What could not be seen is an `Unseen` with the reason, never empty."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ..control.engine import EngineState
from ..probes.tokenizer_check.report import Report as Alignment
from ..settings import Settings
from .samples import Samples


@dataclass(frozen=True, slots=True)
class Unseen:
    """Why something could not be looked at, as the end of a sentence; `code` where checks tell reasons apart."""

    why: str
    code: str = ""


class Kind(StrEnum):
    """Who answers at an address."""

    NOTHING = "nothing"
    #: It takes connections and says nothing.
    SILENT = "silent"
    VLLM = "vllm"
    #: OpenAI-compatible, and no vLLM.
    OPENAI = "openai"
    #: The data port of a sidecar, its admin port, and the dashboard.
    PROXY = "proxy"
    ADMIN = "admin"
    DASHBOARD = "dashboard"
    OTHER = "other"
    #: It speaks no HTTP, or HTTPS where HTTP was asked for.
    NO_HTTP = "no_http"
    #: Not asked: it is the sidecar itself.
    SELF = "self"


@dataclass(frozen=True, slots=True)
class Server:
    """Who answers at `url`."""

    url: str
    kind: Kind
    #: In a few words, as evidence.
    words: str
    version: str | None = None
    models: tuple[str, ...] = ()
    #: Of the first model: its folder or name at the engine, and its longest context.
    root: str | None = None
    max_model_len: int | None = None
    #: Whether it wants an API key.
    locked: bool = False
    #: Its clock - ours, s, by the Date field, which has whole seconds; None where it tells none.
    skew_s: float | None = None

    @property
    def serves(self) -> bool:
        return self.kind in (Kind.VLLM, Kind.OPENAI)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """An upstream of the sidecar, looked at directly."""

    name: str
    server: Server
    #: Of its /metrics: the text, and its samples.
    text: bytes | Unseen
    samples: Samples | Unseen
    #: What its plugin tells; `Unseen.code` is that of `control.engine.EngineError`.
    cores: list[EngineState] | Unseen


@dataclass(frozen=True, slots=True)
class SidecarFacts:
    """What a running sidecar's admin port answers; each part is as /api/v1 has it."""

    url: str
    ready: dict[str, Any]
    summary: dict[str, Any] | Unseen
    windows: dict[str, Any] | Unseen
    alignment: dict[str, Any] | Unseen
    quality: dict[str, Any] | Unseen
    fallback: dict[str, Any] | Unseen
    alerts: dict[str, Any] | Unseen
    events: dict[str, Any] | Unseen
    requests: list[dict[str, Any]] | Unseen
    samples: Samples | Unseen
    #: Whether it answers without the token that the settings have.
    open_without_token: bool | None = None


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """What the database itself tells; `problem` where it cannot be used, with `code`."""

    kind: str
    #: File, or host and name, without a password.
    place: str
    problem: Unseen | None = None
    #: Path of an SQLite file.
    file: Path | None = None
    revision: str | None = None
    took_s: float | None = None
    #: Its clock - ours, s.
    skew_s: float | None = None
    #: Why it takes no rows, though it can be read.
    read_only: str | None = None
    #: Used and allowed connections of a server.
    connections: tuple[int, int] | None = None
    #: Newest first: (Unix time, instance, name, value) of the table `versions`.
    versions: Sequence[tuple[float, str, str, str]] = ()


@dataclass(frozen=True, slots=True)
class Disk:
    what: str
    path: Path
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class SpoolFacts:
    path: Path
    bytes: int
    files: int
    quarantined: int
    writable: bool


@dataclass(frozen=True, slots=True)
class Listener:
    """Who listens on a port of this machine; `words` are the first of its command line."""

    pid: int
    words: str
    sidecar: bool
    engine: bool


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    used_mib: int
    total_mib: int
    #: Of its compute, %; and of its clock limits, in words.
    busy: int | None
    throttled: tuple[str, ...]
    temperature: int | None
    #: Process ids and what they hold, MiB.
    processes: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    disks: Sequence[Disk] = ()
    spool: SpoolFacts | Unseen = Unseen("there is no spool folder yet")
    listeners: Mapping[int, Listener] = field(default_factory=dict)
    #: Names of the variables that send HTTP through a proxy, and what is exempt.
    proxies: tuple[str, ...] = ()
    no_proxy: str = ""
    open_files: int | None = None
    platform: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """A log file. `diagnosis` is what `specwatch_engine.launch --diagnose` says of an engine's."""

    path: Path
    size: int
    age_s: float
    #: The last lines.
    tail: tuple[str, ...]
    diagnosis: dict[str, Any] | Unseen


@dataclass(frozen=True, slots=True)
class PairFacts:
    """The tokenizers of target and draft, by their files."""

    target: str
    draft: str
    report: Alignment


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    what: str
    path: Path
    #: Unix time; None where it is of no X.509 certificate.
    expires: float | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything. Times are Unix seconds."""

    now: float
    settings: Settings
    sidecar: SidecarFacts | Unseen
    #: By name: speculative, and autoregressive where there is one.
    engines: Mapping[str, EngineFacts]
    #: Addresses where an engine may be, other than the upstreams.
    neighbours: Sequence[Server]
    #: Who answers on the ports of the settings, by name.
    ports: Mapping[str, Server]
    #: What `specwatch_engine.launch --describe` says of the settings' engine files, by setting.
    engine_files: Mapping[str, dict[str, Any] | Unseen]
    database: DatabaseFacts | Unseen
    #: Newest first, as `RequestRow`; of the last day, and at most 2,000.
    rows: list[dict[str, Any]] | Unseen
    #: The last day's `Summary`.
    day: dict[str, Any] | Unseen
    machine: Machine | Unseen
    gpus: list[Gpu] | Unseen
    logs: Sequence[LogFacts]
    pair: PairFacts | Unseen
    certificates: Sequence[CertificateFacts] = ()

    @property
    def engine(self) -> EngineFacts | None:
        """The one that speculates."""
        return self.engines.get("speculative")

    @property
    def described(self) -> dict[str, Any]:
        """Of the settings' engine file; empty where there is none."""
        found = self.engine_files.get("engine")
        return found if isinstance(found, dict) else {}
