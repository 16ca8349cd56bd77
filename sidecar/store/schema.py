"""The tables, the same on SQLite and PostgreSQL. Rows are only ever added, but for those of the keeper and of the lab
(below).

`requests` has one row per request, with the columns of `sidecar.api.models.RequestRow`; `transitions` one
per change of the fallback mode or state, or other decision; `alignments` one per token that was found to have another
id in the draft than in the target; `similarities` one per pair of texts that was compared; `counters` one per span of
an upstream's own counters; `alerts` one per start and end of an alert, and per receiver that was told of it or could
not be; `texts` one per prompt and reply that was kept; `audit` one per order to the admin port, and per refused one;
`versions` one per thing that runs, as it is first known and as it changes.

The keeper makes `rollups` and `similarity_rollups` of the rows, by minute, hour and day; `rollups_due` names the spans
whose rows have changed since. `shared_states` holds what sidecars of one fleet have decided, a row per circuit.
`lab_runs` has one row per run of the lab, which is written anew as the run goes on (`lab.py`).

On PostgreSQL `requests` has a partition per day (`partitions.py`), and the time is part of its primary key.

Times are UTC: `timestamptz` on PostgreSQL, text
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
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
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
    # The sum of `rejected_at`, so that p per token needs no list to be taken apart.
    Column("truncated_steps", BigInteger),
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
    # As the upstream calls the reply, and the engine, drafts and similarities with it.
    Column("reply_id", Text),
    # Two base-36 digits per verify step: drafted tokens and accepted ones.
    Column("steps", Text),
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

texts = Table(
    "texts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("instance", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    # prompt, reply
    Column("kind", Text, nullable=False),
    Column("scenario", Text, nullable=False),
    Column("text", Text, nullable=False),
    # Whether it was longer than what is kept.
    Column("cut", Boolean, nullable=False),
    Index("uq_texts_text", "at", "request_id", "kind", "instance", unique=True),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("instance", Text, nullable=False),
    # control, read, none: what the token that came allows; open: none is set.
    Column("scope", Text, nullable=False),
    Column("client", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("detail", Text, nullable=False),
    Index("uq_audit_order", "at", "instance", "client", "method", "path", unique=True),
)

versions = Table(
    "versions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("instance", Text, nullable=False),
    # Empty: the sidecar itself.
    Column("upstream", Text, nullable=False),
    # Of the sidecar `specwatch`, its version, and `settings.NAME` of each setting that is not at its default, all of
    # one start at one time; of upstreams as `sidecar.versions` tells.
    Column("name", Text, nullable=False),
    Column("value", Text, nullable=False),
    Index("uq_versions_value", "at", "instance", "upstream", "name", unique=True),
    # What each was before.
    Index("ix_versions_name", "instance", "upstream", "name", "at"),
)

#: Of the rows of one span and group: how many, and sums. Bucket tables are told apart by `dimension`.
rollups = Table(
    "rollups",
    metadata,
    Column("id", Id, primary_key=True),
    # Seconds of the span that begins at `at`: 60, 3600 or 86400.
    Column("span_s", Integer, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    # Empty: a row per combination of the names below. whole: one row for all requests. temperature, prompt_length,
    # concurrency: a row per upstream, arm, outcome, k and `bucket`, all else is null there.
    Column("dimension", Text, nullable=False),
    Column("bucket", Text),
    Column("upstream", Text),
    Column("arm", Text),
    Column("outcome", Text),
    Column("model", Text),
    Column("draft_model", Text),
    Column("scenario", Text),
    Column("num_speculative_tokens", Integer),
    Column("requests", BigInteger, nullable=False),
    Column("streaming", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    # With `acceptance_quality` ok.
    Column("trusted", BigInteger, nullable=False),
    # By reason, requests of those that should tell acceptance figures and do not.
    Column("missing", JsonText),
    # Ok requests of known latency, and those of them within 800 ms.
    Column("timed", BigInteger, nullable=False),
    Column("fast", BigInteger, nullable=False),
    # Requests that count in p, and their sums; aa, ad, dd: of the products of accepted and drafted tokens.
    Column("counted", BigInteger, nullable=False),
    Column("verify_steps", BigInteger, nullable=False),
    Column("draft_tokens", BigInteger, nullable=False),
    Column("accepted_tokens", BigInteger, nullable=False),
    Column("aa", Double, nullable=False),
    Column("ad", Double, nullable=False),
    Column("dd", Double, nullable=False),
    # Those of them that tell positions, and their sums.
    Column("listed", BigInteger, nullable=False),
    Column("listed_steps", BigInteger, nullable=False),
    Column("truncated_steps", BigInteger, nullable=False),
    Column("rejected_at", JsonText),
    Column("reached", JsonText),
    # Sketches of ok requests; null without a value.
    Column("latency", LargeBinary),
    Column("ttft", LargeBinary),
    Column("tpot", LargeBinary),
    Index("ix_rollups_span", "span_s", "dimension", "at"),
)

similarity_rollups = Table(
    "similarity_rollups",
    metadata,
    Column("id", Id, primary_key=True),
    Column("span_s", Integer, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("kind", Text, nullable=False),
    # With a score, and the sum of the scores.
    Column("pairs", BigInteger, nullable=False),
    Column("total", Double, nullable=False),
    Column("warning", BigInteger, nullable=False),
    Column("critical", BigInteger, nullable=False),
    Column("unknown", BigInteger, nullable=False),
    Column("scores", LargeBinary),
    Index("ix_similarity_rollups_span", "span_s", "at"),
)

rollups_due = Table(
    "rollups_due",
    metadata,
    # requests, similarities
    Column("family", Text, nullable=False),
    Column("span_s", Integer, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    # Who wrote the rows, so that sidecars of a fleet do not wait for each other's marks.
    Column("instance", Text, nullable=False),
    # Another one with each batch: what was marked again meanwhile stays due.
    Column("stamp", BigInteger, nullable=False),
    PrimaryKeyConstraint("family", "span_s", "at", "instance"),
)

shared_states = Table(
    "shared_states",
    metadata,
    Column("fleet", Text, nullable=False),
    # Empty: all traffic; else as `scenario=billing`. `order`: an operator's.
    Column("circuit", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("instance", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("from_state", Text, nullable=False),
    Column("to_state", Text, nullable=False),
    Column("trigger", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("evidence", JsonText),
    PrimaryKeyConstraint("fleet", "circuit"),
)

lab_runs = Table(
    "lab_runs",
    metadata,
    # Of rows that began at one time, and in cursors.
    Column("number", Id, primary_key=True),
    # The run's own name, as `qualify-20260131-120000`.
    Column("id", Text, nullable=False, unique=True),
    # qualify, sweep, soak, self-draft
    Column("kind", Text, nullable=False),
    # running, done, failed, interrupted
    Column("state", Text, nullable=False),
    # Null until the run is done.
    Column("verdict", Text),
    Column("started_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    # When the row was last written: a run that was killed stays `running` for ever.
    Column("updated_at", UtcDateTime, nullable=False),
    Column("instance", Text, nullable=False),
    Column("model", Text),
    Column("draft_model", Text),
    Column("num_speculative_tokens", Integer),
    Column("fingerprint", JsonText),
    Column("summary", JsonText),
    Column("options", JsonText),
    # Where the run's files are, on the machine that it ran on.
    Column("folder", Text, nullable=False),
    # Of Specwatch.
    Column("version", Text, nullable=False),
    Index("ix_lab_runs_started", "started_at", "number"),
    Index("ix_lab_runs_ended", "ended_at"),
)
