"""Tables of texts, orders, rollups and shared decisions; `truncated_steps` of each request.

On PostgreSQL `requests` is partitioned by day; the table that was there becomes the partition of all before some day.
"""

import logging
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_log = logging.getLogger(__name__)

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("requests", sa.Column("truncated_steps", sa.BigInteger))
    if op.get_bind().dialect.name == "postgresql":
        _partition()
    op.create_table(
        "texts",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("scenario", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("cut", sa.Boolean, nullable=False),
    )
    op.create_index("uq_texts_text", "texts", ["at", "request_id", "kind", "instance"], unique=True)
    op.create_table(
        "audit",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("client", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
    op.create_index("uq_audit_order", "audit", ["at", "instance", "client", "method", "path"], unique=True)
    op.create_table(
        "rollups",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("span_s", sa.Integer, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("dimension", sa.Text, nullable=False),
        sa.Column("bucket", sa.Text),
        sa.Column("upstream", sa.Text),
        sa.Column("arm", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("draft_model", sa.Text),
        sa.Column("scenario", sa.Text),
        sa.Column("num_speculative_tokens", sa.Integer),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("streaming", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("trusted", sa.BigInteger, nullable=False),
        sa.Column("missing", _JSON),
        sa.Column("timed", sa.BigInteger, nullable=False),
        sa.Column("fast", sa.BigInteger, nullable=False),
        sa.Column("counted", sa.BigInteger, nullable=False),
        sa.Column("verify_steps", sa.BigInteger, nullable=False),
        sa.Column("draft_tokens", sa.BigInteger, nullable=False),
        sa.Column("accepted_tokens", sa.BigInteger, nullable=False),
        sa.Column("aa", sa.Double, nullable=False),
        sa.Column("ad", sa.Double, nullable=False),
        sa.Column("dd", sa.Double, nullable=False),
        sa.Column("listed", sa.BigInteger, nullable=False),
        sa.Column("listed_steps", sa.BigInteger, nullable=False),
        sa.Column("truncated_steps", sa.BigInteger, nullable=False),
        sa.Column("rejected_at", _JSON),
        sa.Column("reached", _JSON),
        sa.Column("latency", sa.LargeBinary),
        sa.Column("ttft", sa.LargeBinary),
        sa.Column("tpot", sa.LargeBinary),
    )
    op.create_index("ix_rollups_span", "rollups", ["span_s", "dimension", "at"])
    op.create_table(
        "similarity_rollups",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("span_s", sa.Integer, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("pairs", sa.BigInteger, nullable=False),
        sa.Column("total", sa.Double, nullable=False),
        sa.Column("warning", sa.BigInteger, nullable=False),
        sa.Column("critical", sa.BigInteger, nullable=False),
        sa.Column("unknown", sa.BigInteger, nullable=False),
        sa.Column("scores", sa.LargeBinary),
    )
    op.create_index("ix_similarity_rollups_span", "similarity_rollups", ["span_s", "at"])
    op.create_table(
        "rollups_due",
        sa.Column("family", sa.Text, nullable=False),
        sa.Column("span_s", sa.Integer, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("stamp", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("family", "span_s", "at", "instance"),
    )
    op.create_table(
        "shared_states",
        sa.Column("fleet", sa.Text, nullable=False),
        sa.Column("circuit", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("from_state", sa.Text, nullable=False),
        sa.Column("to_state", sa.Text, nullable=False),
        sa.Column("trigger", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("evidence", _JSON),
        sa.PrimaryKeyConstraint("fleet", "circuit"),
    )
    _all_due("requests", "started_at")
    _all_due("similarities", "at")


def _all_due(table: str, time: str) -> None:
    """Rows that are there already have no rollups yet."""
    postgresql = op.get_bind().dialect.name == "postgresql"
    minute = f"date_trunc('minute', {time}, 'UTC')" if postgresql else f"substr({time}, 1, 16) || '\\:00.000000'"
    op.execute(
        "INSERT INTO rollups_due (family, span_s, at, instance, stamp) "  # noqa: S608 - names of this file
        f"SELECT DISTINCT '{table}', 60, {minute}, '', 0 FROM {table}"
    )


def _partition() -> None:
    """No row is copied: the table is attached as it is. What is built is its primary key."""
    until, name, rows = (
        op.get_bind()
        .execute(
            sa.text(
                "SELECT to_char(until, 'FMYYYY-MM-DD'), 'requests_before_' || to_char(until, 'FMYYYYMMDD'), rows FROM ("
                "SELECT date_trunc('day', greatest(now(), max(started_at)) AT TIME ZONE 'UTC') + interval '2 days' "
                "AS until, count(*) AS rows FROM (SELECT started_at FROM requests ORDER BY started_at DESC LIMIT 1) "
                "AS newest) AS bounds"
            )
        )
        .one()
    )
    op.execute(f"ALTER TABLE requests RENAME TO {name}")
    for index in ("uq_requests_request", "ix_requests_speculated"):
        op.execute(f"ALTER INDEX {index} RENAME TO {index}_before")
    # It takes the parent's, which must have the time in it.
    op.execute(f"ALTER TABLE {name} DROP CONSTRAINT requests_pkey")
    op.execute(f"CREATE TABLE requests (LIKE {name} INCLUDING DEFAULTS) PARTITION BY RANGE (started_at)")
    op.execute("ALTER SEQUENCE requests_id_seq OWNED BY requests.id")
    op.create_primary_key("requests_pkey", "requests", ["id", "started_at"])
    op.create_index("uq_requests_request", "requests", ["started_at", "request_id", "instance"], unique=True)
    op.create_index(
        "ix_requests_speculated",
        "requests",
        ["started_at"],
        postgresql_where=sa.text("acceptance_quality = 'ok' AND draft_tokens > 0"),
    )
    _grant_as(name)
    views = _views_of(name)
    for view in views:
        _log.warning("the view %s reads rows of before this upgrade only: make it anew", view)
    if rows or views:
        op.execute(
            f"ALTER TABLE requests ATTACH PARTITION {name} FOR VALUES FROM (MINVALUE) TO ('{until} 00:00:00+00')"
        )
    else:
        op.execute(f"DROP TABLE {name}")


def _grant_as(name: str) -> None:
    """Who may read the table that was there may read the one that takes its place."""
    connection = op.get_bind()
    grants = connection.execute(
        sa.text(
            "SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END, privilege_type, "
            "is_grantable FROM pg_class, aclexplode(relacl) WHERE oid = to_regclass(:name)"
        ),
        {"name": name},
    ).all()
    for grantee, privilege, grantable in grants:
        more = " WITH GRANT OPTION" if grantable and grantee != "PUBLIC" else ""
        connection.exec_driver_sql(f"GRANT {privilege} ON requests TO {grantee}{more}")


def _views_of(name: str) -> Sequence[str]:
    """Those that people have made of the table: they follow it, whatever its name."""
    found = sa.text(
        "SELECT DISTINCT r.ev_class::regclass::text FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid "
        "WHERE d.classid = 'pg_rewrite'::regclass AND d.refobjid = to_regclass(:name)"
    )
    return op.get_bind().scalars(found, {"name": name}).all()


def downgrade() -> None:
    raise NotImplementedError("what is in partitions and rollups has no place in the tables before: restore a backup")
