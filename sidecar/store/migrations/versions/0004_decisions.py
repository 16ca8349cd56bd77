"""Evidence of decisions, and tables `similarities` and `counters`."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.add_column("transitions", sa.Column("slice", sa.Text, nullable=False, server_default=sa.text("''")))
    op.add_column("transitions", sa.Column("trigger", sa.Text, nullable=False, server_default=sa.text("'operator'")))
    op.add_column("transitions", sa.Column("evidence", _JSON))
    # Until now a row that changed neither mode nor state told of an order to the engine.
    op.execute(
        "UPDATE transitions SET trigger = 'engine' WHERE id IN (SELECT id FROM (SELECT id, mode, from_state, to_state, "
        "lag(mode, 1, 'auto') OVER (PARTITION BY instance ORDER BY at, id) AS before FROM transitions) AS told "
        "WHERE from_state = to_state AND mode = before)"
    )
    op.drop_index("uq_transitions_change", "transitions")
    op.create_index(
        "uq_transitions_decision",
        "transitions",
        ["at", "instance", "slice", "mode", "from_state", "to_state"],
        unique=True,
    )
    op.create_table(
        "similarities",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("score", sa.Double),
        sa.Column("level", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("chunked", sa.Boolean, nullable=False),
        sa.Column("first_divergence", sa.BigInteger),
        sa.Column("scenario", sa.Text),
    )
    op.create_index("uq_similarities_pair", "similarities", ["at", "request_id", "kind", "instance"], unique=True)
    op.create_table(
        "counters",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("upstream", sa.Text, nullable=False),
        sa.Column("engines", sa.Integer, nullable=False),
        sa.Column("span_s", sa.Double, nullable=False),
        sa.Column("drafts", sa.BigInteger),
        sa.Column("draft_tokens", sa.BigInteger),
        sa.Column("accepted_tokens", sa.BigInteger),
        sa.Column("accepted_per_position", _JSON),
        sa.Column("generation_tokens", sa.BigInteger),
        sa.Column("reset", sa.Boolean, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text),
        sa.Column("coverage", sa.Double),
        sa.Column("reason", sa.Text),
    )
    op.create_index("uq_counters_span", "counters", ["at", "instance", "upstream"], unique=True)


def downgrade() -> None:
    op.drop_table("counters")
    op.drop_table("similarities")
    op.drop_index("uq_transitions_decision", "transitions")
    op.drop_column("transitions", "evidence")
    op.drop_column("transitions", "trigger")
    op.drop_column("transitions", "slice")
    op.create_index(
        "uq_transitions_change", "transitions", ["at", "instance", "mode", "from_state", "to_state"], unique=True
    )
