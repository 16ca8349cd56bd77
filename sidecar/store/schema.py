"""The tables, the same on SQLite and PostgreSQL. Rows are only ever added.

`requests` has one row per request, with the columns of `sidecar.api.models.RequestRow`; `transitions` one
per change of the fallback mode or state, or other decision; `alignments` one per token that was found to have another
id in the draft than in the target; `similarities` one per pair of texts that was compared; `counters` one per span of
an upstream's own counters; `alerts` one per start and end of an alert, and per receiver that was told of it or could
not be. Times are UTC: `timestamptz` on PostgreSQL, text
`YYYY-MM-DD HH:MM:SS.ffffff` on SQLite, which sorts as time does.
"""

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """Aware datetimes in UTC, also on SQLite, which stores no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# SQLite numbers rows by itself only for the type INTEGER.
Id = BigInteger().with_variant(Integer(), "sqlite")
#: Lists of whole numbers, and objects: the evidence of a transition, labels and annotations of an alert.
JsonText = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")

metadata = MetaData()

requests = Table(
    "requests",
    metadata,
    Column("id", Id, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("instance", Text, nullable=False),
    Column("upstream", Text, nullable=False),
    Column("arm", Text, nullable=False),
    Column("model", Text),
    Column("draft_model", Text),
    Column("scenario", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("status", Integer),
    Column("outcome", Text, nullable=False),
    Column("finish_reason", Text),
    Column("temperature", Double),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("num_speculative_tokens", Integer),
    Column("verify_steps", BigInteger),
    Column("draft_tokens", BigInteger),
    Column("accepted_tokens", BigInteger),
    Column("acceptance_histogram", JsonText),
    Column("rejected_at", JsonText),
    Column("reached", JsonText),
    Column("acceptance_source", Text, nullable=False),
    Column("acceptance_quality", Text, nullable=False),
    Column("acceptance_reason", Text),
    Column("acceptance_raw", Text),
    Column("ttft_ms", Double),
    Column("latency_ms", Double),
    Column("tpot_ms", Double),
    Column("max_chunk_gap_ms", Double),
    Column("queue_ms", Double),
    Column("concurrency", BigInteger, nullable=False),
    Column("fingerprint", Text),
    Column("bytes_in", BigInteger, nullable=False),
    Column("bytes_out", BigInteger, nullable=False),
    # A batch whose commit was not confirmed is sent again: this keeps its rows from doubling. The request
    # id alone will not do, as clients choose it and may repeat it. Time comes first, which serves windows
    # and pages, and lets new rows land at the end of the index. An index that began with the id would take a
    # page a row, as ids are random: on SQLite and from a million rows on, four times the cost of all the rest.
    Index("uq_requests_request", "started_at", "request_id", "instance", unique=True),
)

SPECULATED = "acceptance_quality = 'ok' AND draft_tokens > 0"
# The last 100 requests that speculated may lie far back, behind a long fallback.
Index(
    "ix_requests_speculated",
    requests.c.started_at,
    sqlite_where=text(SPECULATED),
    postgresql_where=text(SPECULATED),
)

transitions = Table(
    "transitions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("instance", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("from_state", Text, nullable=False),
    Column("to_state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    # Empty: all traffic; else as `scenario=billing`.
    Column("slice", Text, nullable=False, server_default=text("''")),
    Column("trigger", Text, nullable=False, server_default=text("'operator'")),
    Column("evidence", JsonText),
    Index("uq_transitions_decision", "at", "instance", "slice", "mode", "from_state", "to_state", unique=True),
)

alignments = Table(
    "alignments",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("instance", Text, nullable=False),
    Column("upstream", Text, nullable=False),
    # Empty where it is not known: a unique index takes two nulls for different.
    Column("draft_model", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("target_id", BigInteger, nullable=False),
    Column("draft_id", BigInteger, nullable=False),
    Column("target_text", Text),
    Column("draft_text", Text),
    Column("count", BigInteger, nullable=False),
    Column("share", Double, nullable=False),
    Column("first_seen", UtcDateTime, nullable=False),
    # Without the time: after a restart the same token is named again, and has its row already.
    Index("uq_alignments_token", "instance", "upstream", "draft_model", "kind", "target_id", "draft_id", unique=True),
)

similarities = Table(
    "similarities",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("instance", Text, nullable=False),
    # The id in the reply, as the engine knows no other.
    Column("request_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("score", Double),
    Column("level", Text, nullable=False),
    Column("reason", Text),
    Column("model", Text, nullable=False),
    Column("chunked", Boolean, nullable=False),
    Column("first_divergence", BigInteger),
    Column("scenario", Text),
    Index("uq_similarities_pair", "at", "request_id", "kind", "instance", unique=True),
)

counters = Table(
    "counters",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("instance", Text, nullable=False),
    Column("upstream", Text, nullable=False),
    Column("engines", Integer, nullable=False),
    Column("span_s", Double, nullable=False),
    Column("drafts", BigInteger),
    Column("draft_tokens", BigInteger),
    Column("accepted_tokens", BigInteger),
    Column("accepted_per_position", JsonText),
    Column("generation_tokens", BigInteger),
    Column("reset", Boolean, nullable=False),
    Column("scope", Text, nullable=False),
    Column("request_id", Text),
    Column("coverage", Double),
    Column("reason", Text),
    Index("uq_counters_span", "at", "instance", "upstream", unique=True),
)

alerts = Table(
    "alerts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("instance", Text, nullable=False),
    Column("alert", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("labels", JsonText, nullable=False),
    Column("annotations", JsonText, nullable=False),
    Column("event", Text, nullable=False),
    # Empty unless the event is of one receiver: a unique index takes two nulls for different.
    Column("receiver", Text, nullable=False),
    Column("starts_at", UtcDateTime, nullable=False),
    Column("value", Double),
    Column("detail", Text, nullable=False),
    Index("uq_alerts_event", "at", "instance", "fingerprint", "event", "receiver", unique=True),
)
