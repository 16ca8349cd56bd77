"""Records as rows: tuples in the order of COLUMNS, holding only what both databases can store."""

from datetime import UTC, datetime
from math import inf
from typing import NamedTuple

from msgspec import json

from sidecar.record import Record

from .schema import requests, transitions

COLUMNS = tuple(column.name for column in requests.columns if column.name != "id")
TRANSITION_COLUMNS = tuple(column.name for column in transitions.columns if column.name != "id")

#: Longer text is cut: an index of PostgreSQL takes at most 2.7 kB a row, and clients choose some names.
MAX_TEXT = 500
MAX_RAW = 65_536

Row = tuple[object, ...]


class Transition(NamedTuple):
    """A change of the fallback mode or state. `at` is Unix time in seconds (UTC)."""

    at: float
    instance: str
    mode: str
    from_state: str
    to_state: str
    reason: str


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
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "microseconds")[:26]


def _text(value: str | None) -> str | None:
    if value is None or (len(value) <= MAX_TEXT and value.isprintable()):
        return value
    return clean(value)


def _number(value: float | None) -> float | None:
    return value if value is None or -inf < value < inf else None


def _list(values: tuple[int, ...] | None) -> str | None:
    return None if values is None else json.encode(values).decode()


def request_row(record: Record) -> Row:
    """The row of one record. Raises whatever a value of the wrong type brings about."""
    acceptance = record.acceptance
    return (
        clean(record.request_id),
        utc_text(record.started_at),
        _text(record.instance),
        _text(record.upstream),
        record.arm._value_,
        _text(record.model),
        _text(record.draft_model),
        _text(record.scenario),
        _text(record.endpoint),
        record.stream,
        record.status,
        record.outcome._value_,
        _text(record.finish_reason),
        _number(record.temperature),
        record.prompt_tokens,
        record.completion_tokens,
        acceptance.num_speculative_tokens,
        acceptance.verify_steps,
        acceptance.draft_tokens,
        acceptance.accepted_tokens,
        _list(acceptance.histogram),
        _list(acceptance.rejected_at),
        _list(acceptance.reached),
        acceptance.source._value_,
        acceptance.quality._value_,
        _text(acceptance.reason),
        None if acceptance.raw is None else clean(acceptance.raw, MAX_RAW),
        _number(record.ttft_ms),
        _number(record.latency_ms),
        _number(record.tpot_ms),
        _number(record.max_chunk_gap_ms),
        _number(record.queue_ms),
        record.concurrency,
        _text(record.fingerprint),
        record.bytes_in,
        record.bytes_out,
    )


def transition_row(transition: Transition) -> Row:
    """The row of one transition."""
    at, *texts = transition
    return (utc_text(at), *(clean(str(value)) for value in texts))
