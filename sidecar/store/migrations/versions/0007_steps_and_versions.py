"""`reply_id` and `steps` of each request; the table of what runs.

The columns have no default, so that neither database touches a row for them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("requests", sa.Column("reply_id", sa.Text))
    op.add_column("requests", sa.Column("steps", sa.Text))
    op.create_table(
        "versions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("upstream", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_index("uq_versions_value", "versions", ["at", "instance", "upstream", "name"], unique=True)
    op.create_index("ix_versions_name", "versions", ["instance", "upstream", "name", "at"])


def downgrade() -> None:
    op.drop_table("versions")
    op.drop_column("requests", "steps")
    op.drop_column("requests", "reply_id")
