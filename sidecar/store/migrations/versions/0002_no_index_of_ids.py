"""Without the index of request ids: see `Reader.request` for what takes its place."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_requests_request_id", "requests")


def downgrade() -> None:
    op.create_index("ix_requests_request_id", "requests", ["request_id"])
