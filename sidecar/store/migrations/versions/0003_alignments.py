"""Table `alignments`."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alignments",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("upstream", sa.Text, nullable=False),
        sa.Column("draft_model", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("target_id", sa.BigInteger, nullable=False),
        sa.Column("draft_id", sa.BigInteger, nullable=False),
        sa.Column("target_text", sa.Text),
        sa.Column("draft_text", sa.Text),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("share", sa.Double, nullable=False),
        sa.Column("first_seen", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index(
        "uq_alignments_token",
        "alignments",
        ["instance", "upstream", "draft_model", "kind", "target_id", "draft_id"],
        unique=True,
    )


def downgrade() -> None:
    op.drop_table("alignments")
