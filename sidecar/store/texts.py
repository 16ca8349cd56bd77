"""What is kept of the texts of one request."""

from typing import Any

from sqlalchemy import Connection, select

from .schema import texts


def of_request(connection: Connection, row: dict[str, Any]) -> list[dict[str, Any]]:
    """`StoredText` rows of a `RequestRow`: its prompt, then its reply, as far as they were kept."""
    t = texts.c
    query = select(t.kind, t.text, t.cut).where(
        t.at == row["started_at"], t.request_id == row["request_id"], t.instance == row["instance"]
    )
    return [dict(text) for text in connection.execute(query.order_by(t.kind)).mappings()]
