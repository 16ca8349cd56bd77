"""Records as rows: tuples in the order of COLUMNS, holding only what both databases can store."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from math import inf, nan
from typing import NamedTuple

from msgspec import json

from alerts.model import Event
from sidecar.record import Record

from .schema import metadata

#: By table that has rows of its own, what each value of a row is.
TABLE_COLUMNS = {
    name: tuple(str(column.name) for column in metadata.tables[name].columns if column.name != "id")
    for name in (
        "requests",
        "transitions",
        "alignments",
        "similarities",
        "counters",
        "alerts",
        "texts",
        "audit",
        "versions",
    )
}
COLUMNS = TABLE_COLUMNS["requests"]

#: Longer text is cut: an index of PostgreSQL takes at most 2.7 kB a row, and clients choose some names.
MAX_TEXT = 500
MAX_RAW = 65_536

#: What a row holds for an unknown value. Both databases are told NULL for it, as JSON and SQLite know no NaN; None
#: would do the same, but SQLite's driver looks for an adapter of each None, which costs ten times as much.
NULL = nan

Row = tuple[object, ...]


class Transition(NamedTuple):
    """A decision about the fallback, or an order that was carried out. `at` is Unix time in seconds (UTC)."""

    at: float
    instance: str
    mode: str
    from_state: str
    to_state: str
    reason: str
    #: Empty: all traffic; else as `scenario=billing`.
    slice: str = ""
    #: What brought it about, of a fixed set, as `operator`.
    trigger: str = "operator"
    #: What it was decided on.
    evidence: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class MovedToken:
    """A token with another id in the draft than in the target, first named at `at`. Times are Unix time in s (UTC)."""

    at: float
    instance: str
    upstream: str
    #: Empty where it is not known.
    draft_model: str
    kind: str
    target_id: int
    draft_id: int
    target_text: str | None
    draft_text: str | None
    #: Times seen by then, and their share of the positions where the target emitted the token.
    count: int
    share: float
    first_seen: float


@dataclass(frozen=True, slots=True)
class SimilarityRow:
    """A pair of texts that was compared. `at` is Unix time in seconds (UTC)."""

    at: float
    instance: str
    #: The id in the reply.
    request_id: str
    #: draft: the draft's choices and the final text; replay: replies with and without speculation.
    kind: str
    #: Cosine of the two embeddings, -1..1; None where there is none, and `reason` says why.
    score: float | None
    #: ok, warning, critical, unknown
    level: str
    reason: str | None
    #: What embedded the texts.
    model: str
    #: Whether a text was longer than the model's window, and so embedded in parts.
    chunked: bool
    #: Characters that two replies have in common from their start on; None where they are equal, or no replies.
    first_divergence: int | None = None
    scenario: str | None = None


@dataclass(frozen=True, slots=True)
class CountersRow:
    """What an upstream's own counters told of the `span_s` seconds before `at`, Unix time in seconds (UTC)."""

    at: float
    instance: str
    upstream: str
    #: Engine cores that were added up.
    engines: int
    span_s: float
    #: Verify steps that drafted, and tokens; None where the upstream does not tell.
    drafts: int | None
    draft_tokens: int | None
    accepted_tokens: int | None
    #: Of each position, draft tokens accepted there.
    accepted_per_position: tuple[int, ...] | None
    generation_tokens: int | None
    #: A counter went down, as where an engine was started again.
    reset: bool
    #: request: one request alone made all of it, `request_id`; else server.
    scope: str
    request_id: str | None = None
    #: Draft tokens in rows / in the counters.
    coverage: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TextRow:
    """A prompt or a reply that is kept, redacted. `at` is Unix time in seconds (UTC), of the request's start."""

    at: float
    instance: str
    request_id: str
    #: prompt, reply
    kind: str
    scenario: str
    text: str
    #: Whether the text was longer than what is kept of it.
    cut: bool


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An order to the admin port, or a request that was refused there. `at` is Unix time in seconds (UTC)."""

    at: float
    instance: str
    #: control, read, none: what the token that came allows; open: none is set.
    scope: str
    client: str
    method: str
    path: str
    status: int
    detail: str


@dataclass(frozen=True, slots=True)
class VersionRow:
    """What runs: first known, or changed, at `at`, Unix time in seconds (UTC)."""

    at: float
    instance: str
    #: Empty: the sidecar itself.
    upstream: str
    name: str
    value: str


def clean(value: str, limit: int = MAX_TEXT) -> str:
    """`value` with NUL and lone surrogates, which databases refuse, replaced by U+FFFD; cut to `limit`."""
    if len(value) > limit:
        value = value[:limit]
    if value.isprintable():
        return value
    value = value.replace("\0", "\ufffd")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def utc_text(seconds: float) -> str:
    """Unix time as SQLite stores it, without its zone (UTC): sorts as time does."""
    second, micros = divmod(round(seconds * 1e6), 1_000_000)
    return f"{_second_text(second)}.{micros:06d}"


@lru_cache(maxsize=256)
def _second_text(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat(" ")[:19]


#: Columns whose texts repeat from row to row, as they are in a record and in a row.
_Names = tuple[str | None, ...]
_known_names: dict[_Names, Row] = {}
_MOST_NAMES = 256
#: Characters; what clients can make as long as they like is not kept.
_LONGEST_NAMES = 1000


def _clean_names(names: _Names) -> Row:
    cleaned = tuple([NULL if name is None else clean(name) for name in names])
    if sum([len(name) for name in names if name is not None]) <= _LONGEST_NAMES:
        if len(_known_names) >= _MOST_NAMES:
            _known_names.clear()
        _known_names[names] = cleaned
    return cleaned


def _or_null(value: object) -> object:
    return NULL if value is None else value


def _number(value: float | None) -> float:
    return value if value is not None and -inf < value < inf else NULL


def _list(values: tuple[int, ...] | None) -> object:
    if values is None:
        return NULL
    if values and max(values) >= 1 << 63:
        # JSON has room for it, but no sum over rows has.
        raise OverflowError("a list has a number beyond 64 bits")
    return json.encode(values).decode()


def request_row(record: Record) -> Row:
    """The row of one record. Raises whatever a value of the wrong type brings about."""
    acceptance = record.acceptance
    names = (
        record.instance,
        record.upstream,
        record.model,
        record.draft_model,
        record.scenario,
        record.endpoint,
        record.finish_reason,
        acceptance.reason,
        record.fingerprint,
    )
    (instance, upstream, model, draft_model, scenario, endpoint, finish_reason, reason, fingerprint) = _known_names.get(
        names
    ) or _clean_names(names)
    return (
        clean(record.request_id),
        utc_text(record.started_at),
        instance,
        upstream,
        record.arm._value_,
        model,
        draft_model,
        scenario,
        endpoint,
        int(record.stream),
        _or_null(record.status),
        record.outcome._value_,
        finish_reason,
        _number(record.temperature),
        _or_null(record.prompt_tokens),
        _or_null(record.completion_tokens),
        _or_null(acceptance.num_speculative_tokens),
        _or_null(acceptance.verify_steps),
        _or_null(acceptance.draft_tokens),
        _or_null(acceptance.accepted_tokens),
        NULL if acceptance.rejected_at is None else sum(acceptance.rejected_at),
        _list(acceptance.histogram),
        _list(acceptance.rejected_at),
        _list(acceptance.reached),
        acceptance.source._value_,
        acceptance.quality._value_,
        reason,
        NULL if acceptance.raw is None else clean(acceptance.raw, MAX_RAW),
        _number(record.ttft_ms),
        _number(record.latency_ms),
        _number(record.tpot_ms),
        _number(record.max_chunk_gap_ms),
        _number(record.queue_ms),
        record.concurrency,
        fingerprint,
        record.bytes_in,
        record.bytes_out,
        _text(record.reply_id),
        _or_null(acceptance.steps),
    )


def transition_row(transition: Transition) -> Row:
    """The row of one transition. Raises whatever evidence brings about that is no JSON."""
    at, *texts, evidence = transition
    detail: object = NULL
    if evidence is not None:
        # Names of slices are clients' words.
        cleaned = {name: clean(value) if isinstance(value, str) else value for name, value in evidence.items()}
        detail = json.encode(cleaned).decode()
    return (utc_text(at), *(clean(str(value)) for value in texts), detail)


def alignment_row(moved: MovedToken) -> Row:
    """The row of one moved token."""
    return (
        utc_text(moved.at),
        clean(moved.instance),
        clean(moved.upstream),
        clean(moved.draft_model),
        clean(moved.kind),
        moved.target_id,
        moved.draft_id,
        _text(moved.target_text),
        _text(moved.draft_text),
        moved.count,
        _number(moved.share),
        utc_text(moved.first_seen),
    )


def similarity_row(pair: SimilarityRow) -> Row:
    """The row of one pair of texts."""
    return (
        utc_text(pair.at),
        clean(pair.instance),
        clean(pair.request_id),
        clean(pair.kind),
        _number(pair.score),
        clean(pair.level),
        _text(pair.reason),
        clean(pair.model),
        int(pair.chunked),
        _or_null(pair.first_divergence),
        _text(pair.scenario),
    )


def counters_row(span: CountersRow) -> Row:
    """The row of one span of counters."""
    return (
        utc_text(span.at),
        clean(span.instance),
        clean(span.upstream),
        span.engines,
        _number(span.span_s),
        _or_null(span.drafts),
        _or_null(span.draft_tokens),
        _or_null(span.accepted_tokens),
        _list(span.accepted_per_position),
        _or_null(span.generation_tokens),
        int(span.reset),
        clean(span.scope),
        _text(span.request_id),
        _number(span.coverage),
        _text(span.reason),
    )


def alert_row(event: Event) -> Row:
    """The row of what happened to an alert."""
    alert = event.alert
    return (
        utc_text(event.at),
        clean(alert.labels["instance"]),
        clean(alert.name),
        alert.fingerprint,
        alert.severity.value,
        _texts(alert.labels),
        _texts(alert.annotations),
        event.what.value,
        clean(event.receiver),
        utc_text(alert.starts_at),
        _number(alert.value),
        clean(f"{event.reason}: {event.detail}" if event.reason else event.detail),
    )


def text_row(kept: TextRow) -> Row:
    """The row of one prompt or reply; beyond MAX_RAW characters it is cut."""
    return (
        utc_text(kept.at),
        clean(kept.instance),
        clean(kept.request_id),
        clean(kept.kind),
        clean(kept.scenario),
        clean(kept.text, MAX_RAW),
        int(kept.cut or len(kept.text) > MAX_RAW),
    )


def audit_row(order: AuditRow) -> Row:
    """The row of one order."""
    return (
        utc_text(order.at),
        clean(order.instance),
        clean(order.scope),
        clean(order.client),
        clean(order.method),
        clean(order.path),
        order.status,
        clean(order.detail),
    )


def version_row(version: VersionRow) -> Row:
    """The row of one thing that runs."""
    return (
        utc_text(version.at),
        clean(version.instance),
        clean(version.upstream),
        clean(version.name),
        # No index has it, and a change at the end of a long list is one.
        clean(version.value, MAX_RAW),
    )


def _texts(values: Mapping[str, str]) -> str:
    return json.encode({name: clean(value, MAX_RAW) for name, value in values.items()}).decode()


def _text(value: str | None) -> object:
    return NULL if value is None else clean(value)
