"""Who ordered what of the admin port, and who was refused: the newest rows."""

from typing import Any

from sqlalchemy import Connection, select

from .schema import audit

_COLUMNS = [column for column in audit.columns if column.name != "id"]


def newest(connection: Connection, limit: int) -> list[dict[str, Any]]:
    """`AuditEntry` rows of all instances, newest first."""
    query = select(*_COLUMNS).order_by(audit.c.at.desc(), audit.c.id.desc()).limit(limit)
    return [dict(row) for row in connection.execute(query).mappings()]
