"""What a database holds, looked at beside the sidecar's own reading."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Table, select, text

from sidecar.store.engine import reading_engine
from sidecar.store.writer import Writer


@contextmanager
def writing(database_url: str, **options: Any) -> Iterator[Writer]:
    writer = Writer(database_url, max_age_s=0.02, **options)
    writer.start()
    try:
        yield writer
    finally:
        writer.close(10)


def rows_of(database_url: str, table: Table) -> list[dict[str, Any]]:
    """All rows of a table but for their ids, oldest first."""
    engine = reading_engine(database_url)
    with engine.begin() as connection:
        rows = connection.execute(select(table).order_by(table.c.id)).mappings().all()
    engine.dispose()
    return [{name: value for name, value in row.items() if name != "id"} for row in rows]


def request_ids(database_url: str) -> list[str]:
    """In the order in which the rows were added."""
    engine = reading_engine(database_url)
    with engine.begin() as connection:
        found = connection.execute(text("SELECT request_id FROM requests ORDER BY id")).scalars().all()
    engine.dispose()
    return list(found)


def count(database_url: str, table: str = "requests") -> int:
    engine = reading_engine(database_url)
    with engine.begin() as connection:
        found: int = connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
    engine.dispose()
    return found


def wait_for(condition: Callable[[], bool], limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
