"""Table `lab_runs`."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "lab_runs",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("verdict", sa.Text),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("draft_model", sa.Text),
        sa.Column("num_speculative_tokens", sa.Integer),
        sa.Column("fingerprint", _JSON),
        sa.Column("summary", _JSON),
        sa.Column("options", _JSON),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
    )
    op.create_index("ix_lab_runs_started", "lab_runs", ["started_at", "number"])
    op.create_index("ix_lab_runs_ended", "lab_runs", ["ended_at"])


def downgrade() -> None:
    op.drop_table("lab_runs")
