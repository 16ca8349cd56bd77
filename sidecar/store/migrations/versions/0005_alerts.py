"""Table `alerts`."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("alert", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("severity", sa.Text, nullable=False),
        sa.Column("labels", _JSON, nullable=False),
        sa.Column("annotations", _JSON, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("receiver", sa.Text, nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("detail", sa.Text, nullable=False),
    )
    op.create_index("uq_alerts_event", "alerts", ["at", "instance", "fingerprint", "event", "receiver"], unique=True)


def downgrade() -> None:
    op.drop_table("alerts")
