from collections.abc import Iterator
from math import inf

import pytest
from sqlalchemy import Engine, event, text
from support.records import record

from sidecar.store import inserts
from sidecar.store.engine import writing_engine
from sidecar.store.inserts import Inserts
from sidecar.store.rows import Row, request_row
from sidecar.store.upgrade import upgrade


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = writing_engine(database_url)
    upgrade(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("busy", [False, True])
def test_rows_are_asked_for_as_they_are_needed(engine: Engine, busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[int] = []
    at_statements: list[int] = []
    monkeypatch.setattr(inserts, "_BUSY_S", -1 if busy else inf)
    event.listen(engine, "before_cursor_execute", lambda *_: at_statements.append(len(asked_for)))

    def source() -> Iterator[Row]:
        for number in range(1000):
            asked_for.append(number)
            yield request_row(record())

    with engine.begin() as connection:
        at_statements.clear()
        Inserts(engine).insert("requests", connection, source())
    pulls = [after - before for before, after in zip([0, *at_statements], at_statements, strict=False)]
    most = 32 if engine.dialect.name == "sqlite" and not busy else 128
    assert max(pulls) == most
    assert len(pulls) <= 1000 / most + 10
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM requests")).scalar() == 1000


def test_any_number_of_rows_in_their_order(engine: Engine) -> None:
    sent: list[Row] = []
    for number in (0, 1, 2, 3, 7, 31, 32, 33, 63, 127, 128, 129, 255):
        rows = [request_row(record()) for _ in range(number)]
        with engine.begin() as connection:
            Inserts(engine).insert("requests", connection, rows)
        sent += rows
    with engine.begin() as connection:
        found = connection.execute(text("SELECT request_id FROM requests ORDER BY id")).scalars().all()
    assert found == [row[0] for row in sent]
