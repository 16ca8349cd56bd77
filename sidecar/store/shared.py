"""What the sidecars of a fleet have decided, in the table `shared_states`: the last change of each, and the last order.

`settled` is all there is of agreement; the table only has one sidecar at a time put its own to the others'.
"""

import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, event, func, insert, select

from .engine import reading_engine, writing_engine
from .rows import clean
from .schema import shared_states

#: Circuits that are none: the operator's order, and that a sidecar which stops has given the engine its cap back.
ORDER, CAP = "order", "cap"
#: What may be forgotten is, after so long, s, and but for so many: clients name scenarios.
FORGOTTEN_S, MOST_PASSING = 7 * 86_400.0, 500

#: Statements of one exchange take so long at most; a sidecar that stands still inside one lets the others go on.
_BOUNDS = "SET LOCAL statement_timeout = '1s'; SET LOCAL idle_in_transaction_session_timeout = '2s'"


class SharedRow(NamedTuple):
    """One change, or one order. Texts are such as `clean` makes them.

    `version` rises with each row of a fleet; of a row that is to be written it is that of the one which it was decided
    on, 0 where there was none. `age_s` is how long ago it was decided, which needs no clocks that agree; the table
    holds the time by its server's clock.
    """

    circuit: str
    version: int
    instance: str
    mode: str
    from_state: str
    to_state: str
    trigger: str
    reason: str
    evidence: dict[str, Any] | None
    age_s: float

    def same(self, other: "SharedRow") -> bool:
        """Whether both are one decision of one sidecar."""
        return self.instance == other.instance and self.alike(other)

    def alike(self, other: "SharedRow") -> bool:
        """Whether both say the same, whoever does."""
        return (self.mode, self.to_state, self.trigger, self.reason) == (
            other.mode,
            other.to_state,
            other.trigger,
            other.reason,
        )


def settled(theirs: Mapping[str, SharedRow], mine: Iterable[SharedRow], under: int) -> dict[str, SharedRow]:
    """The rows of a fleet by circuit, once `mine` are put to `theirs`; `under` is the version of the order known.

    A change stands if nothing came between it and what it was decided on, no order either. Of two orders the later one
    stands, and with it what was decided under it: all else is void. Where rows are older than what `mine` were decided
    on, the store has lost the newer ones.
    """
    mine = list(mine)
    newest = max((under, *(row.version for row in (*theirs.values(), *mine))))
    passed = sorted([row for row in theirs.values() if passing(row)], key=lambda row: row.age_s)
    forgotten = {row.circuit for at, row in enumerate(passed) if at >= MOST_PASSING or row.age_s >= FORGOTTEN_S}
    rows = {circuit: row for circuit, row in theirs.items() if circuit not in forgotten}
    standing = rows.get(ORDER)
    order = next((row for row in mine if row.circuit == ORDER), None)
    if order is not None:
        unknown = standing is not None and standing.version > order.version
        if standing is not None and unknown and (standing.same(order) or standing.age_s <= order.age_s):
            return rows
        rows = {}
        mine = [order, *(row for row in mine if row is not order)]
    elif standing is not None and standing.version > under:
        return rows
    for row in mine:
        held = rows.get(row.circuit)
        if held is None or held.version <= row.version or row.circuit == CAP:
            newest += 1
            rows[row.circuit] = row._replace(version=newest)
    return rows


def passing(row: SharedRow) -> bool:
    """Whether it may be forgotten once all have seen it: a slice that is served as all traffic is again."""
    return row.circuit == CAP or ("=" in row.circuit and row.to_state == "speculative")


class SharedStates:
    """The rows of one fleet. For use from one thread at a time; has connections of its own."""

    def __init__(self, database_url: str, fleet: str) -> None:
        """Opens nothing yet. Raises DatabaseUrlError for a URL that cannot work."""
        self._fleet = clean(fleet)
        self._writing = writing_engine(database_url)
        self._server = self._writing.dialect.name == "postgresql"
        # Looking must not take SQLite's one lock twice a second.
        self._reading = self._writing if self._server else reading_engine(database_url)
        self._line: socket.socket | None = None
        if self._server:
            event.listen(self._writing, "connect", self._connected)
            event.listen(self._writing, "close", self._closing)

    def exchange(
        self, mine: Iterable[SharedRow], under: int, known: tuple[int, int] | None
    ) -> dict[str, SharedRow] | None:
        """Put `mine` to the rows of the fleet, as `settled` tells; all of them as they are then, by circuit.

        None where `mine` is empty and they are still as many with the same newest version as `known`. Blocks for some
        seconds at most, but for a server that neither answers nor closes (see `abort`). Raises what the driver does.
        """
        mine = list(mine)
        try:
            if mine:
                return self._write(mine, under)
            with self._reading.begin() as connection:
                self._begin(connection)
                return None if self._mark(connection) == known else self._rows(connection)
        except BaseException:
            self._dispose()
            raise

    def abort(self) -> None:
        """Have an exchange under way fail. For use from any thread."""
        # A copy of the driver's own socket, whose number cannot be another one's by now.
        if (line := self._line) is not None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._dispose()

    def _write(self, mine: list[SharedRow], under: int) -> dict[str, SharedRow]:
        with self._writing.begin() as connection:
            self._begin(connection)
            if self._server:
                connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(self._fleet, 0))))
            before = self._rows(connection)
            rows = settled(before, mine, under)
            t = shared_states.c
            gone = [circuit for circuit, row in before.items() if rows.get(circuit) is not row]
            if gone:
                connection.execute(delete(shared_states).where(t.fleet == self._fleet, t.circuit.in_(gone)))
            now = self._now(connection)
            made = [self._values(row, now) for circuit, row in rows.items() if before.get(circuit) is not row]
            if made:
                connection.execute(insert(shared_states), made)
        return rows

    def _begin(self, connection: Connection) -> None:
        if self._server:
            # Local to the transaction, so that it also holds behind a pooler such as PgBouncer.
            connection.exec_driver_sql(_BOUNDS)

    def _mark(self, connection: Connection) -> tuple[int, int]:
        t = shared_states.c
        query = select(func.count(), func.coalesce(func.max(t.version), 0)).where(t.fleet == self._fleet)
        count, newest = connection.execute(query).one()
        return count, newest

    def _rows(self, connection: Connection) -> dict[str, SharedRow]:
        now = self._now(connection)
        found: dict[str, SharedRow] = {}
        for row in connection.execute(select(shared_states).where(shared_states.c.fleet == self._fleet)).mappings():
            values = {name: row[name] for name in SharedRow._fields if name != "age_s"}
            found[row["circuit"]] = SharedRow(**values, age_s=(now - row["at"]).total_seconds())
        return found

    def _values(self, row: SharedRow, now: datetime) -> dict[str, Any]:
        values = row._asdict()
        return values | {"fleet": self._fleet, "at": now - timedelta(seconds=values.pop("age_s"))}

    def _now(self, connection: Connection) -> datetime:
        """By the one clock that all sidecars of the fleet share."""
        now = connection.scalar(select(func.clock_timestamp())) if self._server else None
        return datetime.now(UTC) if now is None else now

    def _connected(self, connection: Any, _record: object) -> None:
        self._line = socket.socket(fileno=os.dup(connection.fileno()))

    def _closing(self, _connection: object, _record: object) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _dispose(self) -> None:
        self._writing.dispose()
        self._reading.dispose()
