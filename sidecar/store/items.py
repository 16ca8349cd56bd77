"""What waits in memory for one table: a bounded queue, and the batch in hand."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from .inserts import refused_as_data
from .rows import TABLE_COLUMNS, Row

T = TypeVar("T")

#: Items that wait, of each table but `requests`: few and precious, a flood of records must not push them out.
MAX_PRECIOUS = 1000
#: Characters of the texts that wait: as a character is 1 to 4 bytes, 16 to 64 MB.
MAX_CHARACTERS = 16_000_000

#: Told of a row that cannot be stored: its values by column, and why.
Refuse = Callable[[dict[str, object], Exception], None]


class Items(Generic[T]):
    """Put in by one thread, taken by another. `stored` rows are in the database, `dropped` items were too many."""

    def __init__(
        self,
        table: str,
        convert: Callable[[T], Row],
        most: int = MAX_PRECIOUS,
        characters: Callable[[T], int] | None = None,
    ) -> None:
        """`most` may wait; where `characters` tells how long each is, no more of these than MAX_CHARACTERS either."""
        self.table = table
        self._convert = convert
        self._most = most
        self._characters = characters
        self._queue: deque[T] = deque()
        #: The batch in hand: taken from the queue and not yet known to be stored.
        self.rows: list[Row] = []
        self.stored = 0
        self.dropped = 0
        #: Characters put and not dropped, and those taken: a number for each thread.
        self._put = 0
        self._taken = 0

    def __len__(self) -> int:
        return len(self._queue) + len(self.rows)

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def crowded(self) -> bool:
        """Whether the queue is half full."""
        return 2 * len(self._queue) > self._most or 2 * (self._put - self._taken) > MAX_CHARACTERS

    def put(self, item: T) -> None:
        """Queue an item; the oldest go where there are too many. Never blocks, never raises."""
        queue = self._queue
        queue.append(item)
        if self._characters is not None:
            self._put += self._characters(item)
            while self._put - self._taken > MAX_CHARACTERS and queue:
                self._drop_oldest()
        if len(queue) > self._most:
            self._drop_oldest()

    def take(self, most: int, refuse: Refuse) -> Iterator[Row]:
        """The batch in hand, then what fills it up from the queue to `most` rows.

        Converted one by one as they are asked for: the proxy stands still for as long as this thread runs without
        a statement in between.
        """
        rows, queue = self.rows, self._queue
        yield from rows[:]
        while len(rows) < most:
            try:
                item = queue.popleft()
            except IndexError:
                return
            if self._characters is not None:
                self._taken += self._characters(item)
            try:
                row = self._convert(item)
            except Exception as error:
                names = [name for name in TABLE_COLUMNS[self.table] if hasattr(item, name)]
                refuse({name: getattr(item, name) for name in names}, error)
            else:
                rows.append(row)
                yield row

    def _drop_oldest(self) -> None:
        try:
            dropped = self._queue.popleft()
        except IndexError:
            # The other thread has just emptied it.
            return
        if self._characters is not None:
            self._put -= self._characters(dropped)
        self.dropped += 1


def by_halves(
    rows: list[Row], most: int, store: Callable[[list[Row]], int], refuse: Callable[[Row, Exception], None]
) -> None:
    """Have `store` take what is in `rows`, in order and at most `most` at a time, but for those it refuses as data.

    It tells how many it has taken from the front, and these leave `rows`; where it takes none, the rest stays.
    """
    size = most
    while rows:
        part = rows[:size]
        try:
            taken = store(part)
        except Exception as error:
            if not refused_as_data(error):
                raise
            if len(part) > 1:
                size = len(part) // 2
                continue
            refuse(part[0], error)
            taken = 1
        if not taken:
            return
        del rows[:taken]
        size = most
