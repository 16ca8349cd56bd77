"""Tables `requests` and `transitions`.

Types are written out: a revision keeps its meaning when schema.py moves on.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LIST = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
TIME = sa.DateTime(timezone=True)
SPECULATED = sa.text("acceptance_quality = 'ok' AND draft_tokens > 0")


def upgrade() -> None:
    op.create_table(
        "requests",
        sa.Column("id", ID, primary_key=True),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("upstream", sa.Text, nullable=False),
        sa.Column("arm", sa.Text, nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("draft_model", sa.Text),
        sa.Column("scenario", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("stream", sa.Boolean, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("finish_reason", sa.Text),
        sa.Column("temperature", sa.Double),
        sa.Column("prompt_tokens", sa.BigInteger),
        sa.Column("completion_tokens", sa.BigInteger),
        sa.Column("num_speculative_tokens", sa.Integer),
        sa.Column("verify_steps", sa.BigInteger),
        sa.Column("draft_tokens", sa.BigInteger),
        sa.Column("accepted_tokens", sa.BigInteger),
        sa.Column("acceptance_histogram", LIST),
        sa.Column("rejected_at", LIST),
        sa.Column("reached", LIST),
        sa.Column("acceptance_source", sa.Text, nullable=False),
        sa.Column("acceptance_quality", sa.Text, nullable=False),
        sa.Column("acceptance_reason", sa.Text),
        sa.Column("acceptance_raw", sa.Text),
        sa.Column("ttft_ms", sa.Double),
        sa.Column("latency_ms", sa.Double),
        sa.Column("tpot_ms", sa.Double),
        sa.Column("max_chunk_gap_ms", sa.Double),
        sa.Column("queue_ms", sa.Double),
        sa.Column("concurrency", sa.BigInteger, nullable=False),
        sa.Column("fingerprint", sa.Text),
        sa.Column("bytes_in", sa.BigInteger, nullable=False),
        sa.Column("bytes_out", sa.BigInteger, nullable=False),
    )
    op.create_index("uq_requests_request", "requests", ["started_at", "request_id", "instance"], unique=True)
    op.create_index("ix_requests_request_id", "requests", ["request_id"])
    op.create_index(
        "ix_requests_speculated",
        "requests",
        ["started_at"],
        sqlite_where=SPECULATED,
        postgresql_where=SPECULATED,
    )
    op.create_table(
        "transitions",
        sa.Column("id", ID, primary_key=True),
        sa.Column("at", TIME, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("from_state", sa.Text, nullable=False),
        sa.Column("to_state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_index(
        "uq_transitions_change",
        "transitions",
        ["at", "instance", "mode", "from_state", "to_state"],
        unique=True,
    )


def downgrade() -> None:
    op.drop_table("transitions")
    op.drop_table("requests")
