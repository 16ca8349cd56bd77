"""Every setting: name, type, unit, default, help. The only reader of the environment and of YAML.

Flags win over the environment (`SPECWATCH_…`), that over the file, that over the defaults. Where no file is
named, SPECWATCH_CONFIG may name one.
"""

import difflib
import os
import re
import socket
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import pydantic_settings
import yaml
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

_PREFIX = "SPECWATCH_"
#: Variables that are no settings: the YAML file, and what the dashboard's process reads.
_OTHER_VARIABLES = frozenset(("SPECWATCH_CONFIG", "SPECWATCH_API"))
# Kubernetes sets these in every pod beside a service whose name begins with "specwatch".
_SERVICE_LINK = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")


class SettingsError(Exception):
    """A setting that cannot be used: names it and what to do."""


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError("must be http://host:port or https://host:port, without a path")
    return value.rstrip("/")


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError("must be host:port, as in 127.0.0.1:8000")
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value.encode())
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return value


def _text_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return value


def _named(value: object) -> object:
    if value == "":
        raise ValueError("is empty: name a file or a folder, or leave the setting out")
    return value


Url = Annotated[str, AfterValidator(_url)]
Address = Annotated[str, AfterValidator(_address)]
#: Of bytes, and of text.
Pattern = Annotated[str, AfterValidator(_pattern)]
TextPattern = Annotated[str, AfterValidator(_text_pattern)]
Place = Annotated[Path, BeforeValidator(_named)]
Rate = Annotated[float, Field(ge=0, le=1)]
Trigger = Literal[
    "acceptance", "change", "draft_timeout", "engine_errors", "similarity", "misalignment", "latency_ratio"
]


#: Days for which rows are kept unless `retention_days` tells otherwise: a month of requests, longer what is small, and
#: for ever what a year is made of.
RETENTION_DAYS: dict[str, float | None] = {
    "requests": 30,
    "texts": 7,
    "similarities": 90,
    "counters": 90,
    "alignments": None,
    "transitions": 730,
    "alerts": 365,
    "audit": 365,
    "versions": 730,
    "lab_runs": None,
    "minutes": 90,
    "hours": 730,
    "days": None,
}
Table = Literal[
    "requests",
    "texts",
    "similarities",
    "counters",
    "alignments",
    "transitions",
    "alerts",
    "audit",
    "versions",
    "lab_runs",
    "minutes",
    "hours",
    "days",
]


def _forever(value: object) -> object:
    return None if value == "none" else value


Days = Annotated[Annotated[float, Field(gt=0, le=36_500)] | None, BeforeValidator(_forever)]


def _default_triggers() -> list[Trigger]:
    return ["acceptance", "draft_timeout", "engine_errors"]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="forbid", frozen=True)

    upstream: Url = Field("http://127.0.0.1:8200", description="The OpenAI-compatible server that speculates.")
    fallback_upstream: Url | None = Field(
        None, description="A server of the same target model without speculation: fallback and baseline go there."
    )
    listen: Address = Field("127.0.0.1:8000", description="Where clients connect.")
    tls_certificate: Place | None = Field(
        None, description="PEM file of the certificate chain, to speak TLS with clients; needs tls_key."
    )
    tls_key: Place | None = Field(None, description="PEM file of its private key, without a password.")
    admin: Address = Field("127.0.0.1:8001", description="Where /api/v1, /metrics, /healthz and /readyz are served.")
    admin_token: SecretStr | None = Field(
        None, description="Bearer token of the admin port; required when it is not on loopback."
    )
    admin_read_token: SecretStr | None = Field(
        None, description="A second token, which may read and not order anything: for dashboards and Prometheus."
    )
    admin_per_second: float = Field(
        50, gt=0, description="Requests a second that one address may send to the admin port; more are answered 429."
    )
    dashboard: Address = Field("127.0.0.1:8501", description="Where `specwatch up` serves the dashboard.")
    database_url: str = Field(
        "sqlite:///specwatch.db", description="sqlite:///FILE or postgresql://user:password@host/database."
    )
    instance: str = Field(default_factory=socket.gethostname, description="Name of this sidecar in each row.")
    fleet: str | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="Sidecars on one database that name the same fleet share what the fallback decides, and orders; "
        "none: each decides by itself.",
    )

    engine: Place | None = Field(None, description="speculative_config.yaml of the engine that `specwatch up` starts.")
    fallback_engine: Place | None = Field(None, description="The same for the engine without speculation.")
    demo: bool = Field(False, description="`specwatch up` prepares the demo models and sends demo traffic.")
    run_dir: Place = Field(Path(".run"), description="Folder of logs and derived files of `specwatch up`.")

    engine_events: Place | None = Field(
        None,
        description="Unix socket on which the sidecar listens for the events of the engine's plugin, which tell the "
        "figures of every request; the engine is given the same path.",
    )
    target_tokenizer: Place | None = Field(
        None,
        description="Folder of the target's tokenizer.json, where it is not at the path that the engine tells "
        "(containers that share no folders).",
    )
    draft_tokenizer: Place | None = Field(None, description="The same for the draft model.")
    recent_drafts: int = Field(
        0,
        ge=0,
        le=1000,
        description="How many of the last requests' drafts are kept in memory, to be looked at; 0: no text is kept.",
    )

    engine_token: SecretStr | None = Field(
        None,
        description="Bearer token of the control route of the engine's plugin, which caps and swaps drafts; the engine "
        "is given the same.",
    )

    draft_model: str | None = Field(None, description="Name of the draft model in each row.")
    num_speculative_tokens: int | None = Field(None, ge=1, description="k, for the fingerprint of each row.")
    baseline_share: float = Field(
        0.02, ge=0, le=0.5, description="Share of requests served without speculation, to compare latencies with."
    )

    draft_cost: float | None = Field(
        None,
        gt=0,
        description="Time of one draft model step / time of a verify step, from which the acceptance rate follows at "
        "which speculation breaks even.",
    )
    acceptance_definition: Literal["pooled", "per_token"] = Field(
        "pooled",
        description="Which acceptance rate decides: pooled (accepted / drafted tokens, falls as k grows) or per_token "
        "(accepted / judged tokens, comparable across k).",
    )
    fallback_below: Rate = Field(0.65, description="Acceptance rate below which decoding falls back.")
    fallback_above: Rate = Field(0.70, description="Acceptance rate of probes from which speculation returns.")
    fallback_below_by: dict[str, Rate] = Field(
        default_factory=dict,
        description="Other rates than fallback_below for single models and draft lengths, as {model=llama: 0.6, k=8: "
        "0.4}; fallback_above moves with them.",
    )
    fallback_window: int = Field(
        100, ge=10, le=10_000, description="Requests that speculated, the last so many, over which it is decided."
    )
    fallback_min_requests: int = Field(
        10,
        ge=5,
        description="Requests before a window that is not full may decide; then only if the interval of p lies below.",
    )
    fallback_min_draft_tokens: int = Field(500, ge=1, description="Draft tokens before any window may decide.")
    fallback_triggers: list[Trigger] = Field(
        default_factory=_default_triggers,
        description="What makes decoding fall back by itself: acceptance, change, draft_timeout, engine_errors, "
        "similarity, misalignment, latency_ratio; empty: only an operator does.",
    )
    fallback_slices: list[Literal["scenario", "model", "temperature", "prompt_length", "concurrency"]] = Field(
        default_factory=list,
        description="Kinds of slices that fall back by themselves, beside all traffic as a whole: scenario, model, "
        "temperature, prompt_length, concurrency.",
    )
    certificate: Place | None = Field(
        None,
        description="Certificate of `specwatch qualify`: scenarios that it does not certify begin without speculation, "
        "and come to it by good probes alone; it has scenario be one of fallback_slices.",
    )
    fallback_dwell_s: float = Field(
        60.0, gt=0, description="How long a decision holds at least, s; doubled by each return that did not last."
    )
    fallback_dwell_max_s: float = Field(3600.0, gt=0, description="What that grows to at most, s.")
    fallback_probe_share: float = Field(
        0.05, gt=0, le=1, description="Share of requests served with speculation while it is probed."
    )
    fallback_probes: int = Field(50, ge=5, description="Probes with acceptance figures that a return takes.")
    fallback_actuator: Literal["auto", "upstream", "opt_out", "cap"] = Field(
        "auto",
        description="What serves without speculation: upstream (fallback_upstream), opt_out (of each request, by the "
        "engine plugin), cap (opt_out, and while all traffic falls back the engine drafts nothing at all); auto: "
        "upstream where there is one, else opt_out.",
    )
    fallback_dry_run: bool = Field(False, description="Decide and record, but serve as if nothing was decided.")
    first_byte_limit_s: float | None = Field(
        None,
        gt=0,
        description="Time to the first content of a stream, s, which three requests in a minute may not exceed before "
        "decoding falls back (draft_timeout).",
    )

    counters_every_s: float = Field(
        15.0, ge=0, description="How often the upstreams' own counters (/metrics) are read, s; 0: never."
    )

    similarity: Literal["none", "sentence-transformers", "universal-sentence-encoder"] = Field(
        "sentence-transformers",
        description="What compares draft text and final text of sampled requests, in a process of its own; "
        "universal-sentence-encoder also knows Chinese; none: nothing.",
    )
    similarity_model: str | None = Field(
        None, description="Folder or name of a sentence-transformers model; none: all-MiniLM-L6-v2, which is installed."
    )
    similarity_share: float = Field(0.05, ge=0, le=1, description="Share of requests whose texts are compared.")
    similarity_per_minute: float = Field(60, gt=0, description="Such comparisons a minute, at most.")
    similarity_warning: Rate = Field(0.82, description="Similarity below which a pair counts as a warning.")
    similarity_critical: Rate = Field(0.75, description="Similarity below which it counts as critical.")
    replay_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of requests that the sidecar sends twice more, with and without speculation, to compare "
        "both replies; 0: none.",
    )
    replay_per_minute: float = Field(6, gt=0, description="Requests replayed a minute, at most.")

    alerts: Place | None = Field(
        None,
        description="YAML file of alert rules, routes and receivers; none: the shipped rules, which nobody is notified "
        "of.",
    )

    add_usage: bool = Field(
        False,
        description="Where no engine events come: ask the upstream for usage where a streaming client did not "
        "(acceptance figures come with it), and take exactly the added event out of the reply again.",
    )
    add_headers: bool = Field(
        True, description="Add x-specwatch-arm to replies, and x-request-id if the upstream gave none."
    )
    scenario_header: str = Field("x-scenario", description="Request field that names the scenario.")
    forward_scenario_header: bool = Field(True, description="Pass that field on to the upstream.")
    scenarios: list[str] = Field(
        default_factory=list, description="Scenarios that are metric labels; others count as `other` there."
    )
    scenario_rules: dict[str, Pattern] = Field(
        default_factory=dict,
        description="Scenario: regular expression searched in the first 4 KiB of the body, where nothing names one.",
    )
    hold_bytes: int = Field(
        1_048_576, ge=0, le=67_108_864, description="Longest request body read whole before it is sent on, bytes."
    )

    connect_timeout_s: float = Field(5.0, gt=0, description="Bound on connecting to an upstream, s.")
    idle_timeout_s: float | None = Field(
        None, gt=0, description="Bound on an upstream's silence after a request was sent, s; none by default."
    )
    client_timeout_s: float = Field(
        75.0,
        gt=0,
        description="How long a client may do nothing before or inside a request, or take nothing of its reply, s; "
        "then its connection is closed.",
    )
    abort_grace_s: float | None = Field(
        None,
        gt=0,
        description="When a client leaves, read its reply to the end for up to this long, s, so that its figures are "
        "complete; none: end the upstream request at once.",
    )
    drain_s: float = Field(30.0, ge=0, description="How long replies in flight may go on after SIGTERM, s.")
    queue_records: int = Field(
        50_000,
        ge=1,
        description="Records that may wait in memory for the database; then the oldest are dropped and counted.",
    )
    spool: Place = Field(
        Path("specwatch-spool"),
        description="Folder in which records wait while the database is away, also over a restart.",
    )
    spool_mb: int = Field(
        512, ge=0, description="What they may take there, MB; then the oldest are dropped and counted. 0: no spool."
    )
    retention_days: dict[Table, Days] = Field(
        default_factory=dict,
        description="Days for which rows are kept, of single tables, as {requests: 7, minutes: none}; none: for ever.",
    )
    store_text: bool = Field(
        False, description="Keep prompts and replies, redacted, in the table `texts`; retention_days tells how long."
    )
    redact: list[TextPattern] = Field(
        default_factory=list,
        description="Regular expressions of what is to be redacted in stored texts beyond what is known to be private.",
    )

    @model_validator(mode="after")
    def _admin_is_guarded(self) -> Self:
        host = split_address(self.admin)[0]
        tokens = {
            name: value.get_secret_value()
            for name, value in (("admin_token", self.admin_token), ("admin_read_token", self.admin_read_token))
            if value is not None
        }
        # The commands know the read token alone where nothing is to be ordered from.
        if not tokens and host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(f"admin listens on {host}, which is not loopback: set admin_token")
        for name, token in tokens.items():
            if not token:
                raise ValueError(f"{name}: is empty, which would let everybody in")
            if not token.isprintable() or token != token.strip():
                raise ValueError(f"{name}: must be printable, without spaces around it (a line's end counts as one)")
        if len(set(tokens.values())) < len(tokens):
            raise ValueError("admin_read_token: must be another than admin_token")
        return self

    @model_validator(mode="after")
    def _engine_token_is_one(self) -> Self:
        token = self.engine_token.get_secret_value() if self.engine_token is not None else "x"
        if not (token.isascii() and token.isprintable() and token.strip() == token) or not token:
            raise ValueError("engine_token: must be printable ASCII without spaces around it, and not empty")
        return self

    @model_validator(mode="after")
    def _fallback_is_sound(self) -> Self:
        if self.fallback_above < self.fallback_below:
            raise ValueError(
                f"fallback_above: {self.fallback_above:g} is below fallback_below, {self.fallback_below:g}, so that a "
                "return would not last: set both"
            )
        if self.fallback_dwell_max_s < self.fallback_dwell_s:
            raise ValueError(
                f"fallback_dwell_max_s: {self.fallback_dwell_max_s:g} is below fallback_dwell_s, "
                f"{self.fallback_dwell_s:g}: set both"
            )
        if self.fallback_min_requests > self.fallback_window:
            raise ValueError("fallback_min_requests: is above fallback_window, which no window could reach")
        if self.fallback_actuator == "upstream" and self.fallback_upstream is None:
            raise ValueError("fallback_actuator: is upstream, and fallback_upstream is not set")
        if self.fallback_actuator == "cap" and self.engine_token is None:
            raise ValueError("fallback_actuator: is cap, which needs engine_token")
        for name in self.fallback_below_by:
            kind, _, value = name.partition("=")
            if kind not in ("model", "k") or not value or (kind == "k" and not value.isdecimal()):
                raise ValueError(f"fallback_below_by: {name!r} names neither a model (model=NAME) nor a k (k=8)")
        return self

    @model_validator(mode="after")
    def _similarity_is_sound(self) -> Self:
        if self.similarity_critical > self.similarity_warning:
            raise ValueError(
                f"similarity_critical: {self.similarity_critical:g} is above similarity_warning, "
                f"{self.similarity_warning:g}: set both"
            )
        if self.replay_share and self.similarity == "none":
            raise ValueError("replay_share: is of no use where similarity is none, as nothing compares the replies")
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            there, missing = ("tls_certificate", "tls_key") if self.tls_key is None else ("tls_key", "tls_certificate")
            raise ValueError(f"{missing}: is missing, and {there} is of no use without it")
        return self

    @property
    def retention(self) -> dict[str, float | None]:
        """Days for which rows of each table are kept; None: for ever."""
        return RETENTION_DAYS | {str(name): days for name, days in self.retention_days.items()}

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        taken = [self.listen, self.admin, self.dashboard]
        if len({address for address in taken if not address.endswith(":0")}) < sum(
            not address.endswith(":0") for address in taken
        ):
            raise ValueError("listen, admin and dashboard need different addresses")
        return self


def load(file: Path | None = None, **flags: Any) -> Settings:
    """Settings from flags (None: not given), environment and file. Raises SettingsError for people."""
    if file is None and (named := os.environ.get("SPECWATCH_CONFIG")):
        file = Path(named)
    values: dict[str, Any] = _read(file) if file is not None else {}
    _check_environment()

    class FromFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=values))

    try:
        return FromFile(**{key: value for key, value in flags.items() if value is not None})
    except pydantic_settings.SettingsError as error:
        found = re.search('"([a-z_]+)"', str(error))
        name = f"SPECWATCH_{found[1].upper()}" if found else "a setting in the environment"
        words = "lists and maps are JSON in the environment, as in '[\"billing\"]' or '{\"k=8\": 0.4}'"
        raise SettingsError(f"{name}: {words}") from None
    except ValidationError as error:
        raise SettingsError("\n".join(_sentence(item, flags, values, file) for item in error.errors())) from None


def split_address(address: str) -> tuple[str, int]:
    """host and port of an `Address`. Raises ValueError where `address` is none."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _check_environment() -> None:
    """What a misspelt key in the file would be told, for variables. Raises SettingsError."""
    for variable in sorted(os.environ):
        name = variable.upper().removeprefix(_PREFIX)
        if name == variable.upper() or variable.upper() in _OTHER_VARIABLES or _SERVICE_LINK.fullmatch(name):
            continue
        if name.lower() not in Settings.model_fields:
            near = _near(name.lower())
            raise SettingsError(
                f"{variable}: no such setting" + (f"; did you mean {_PREFIX}{near.upper()}?" if near else "")
            )


def _near(name: str) -> str | None:
    return next(iter(difflib.get_close_matches(name, Settings.model_fields, n=1)), None)


def _read(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: no valid YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{file}: must hold settings as `name: value` lines")
    for name in ("engine", "fallback_engine", "alerts", "certificate"):
        if isinstance(values.get(name), str):
            values[name] = file.parent / values[name]
    return {str(name): value for name, value in values.items()}


def _sentence(item: Any, flags: dict[str, Any], values: dict[str, Any], file: Path | None) -> str:
    name = str(item["loc"][0]) if item["loc"] else ""
    if not name:
        return item["msg"].removeprefix("Value error, ")  # type: ignore[no-any-return]
    if flags.get(name) is not None:
        where = f"--{name.replace('_', '-')}"
    elif f"SPECWATCH_{name.upper()}" in os.environ:
        where = f"SPECWATCH_{name.upper()}"
    else:
        where = f"{file}: {name}" if name in values else name
    if item["type"] == "extra_forbidden":
        near = _near(name)
        return f"{where}: no such setting" + (f"; did you mean {near}?" if near else "")
    return f"{where}: {item['msg'].removeprefix('Value error, ')}"
