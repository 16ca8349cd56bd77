"""Cursors of the request pages: where the last page ended, in a form that URLs carry unchanged."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime


class BadCursor(ValueError):
    """A cursor that no page gave out."""

    def __init__(self) -> None:
        super().__init__("not a cursor of this API: pass next_cursor of the previous page unchanged")


def write_cursor(started_at: datetime, row: int) -> str:
    text = f"{started_at.isoformat()} {row}"
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[datetime, int]:
    """Raises BadCursor."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        time, row = urlsafe_b64decode(padded).decode("ascii").split(" ")
        started_at, number = datetime.fromisoformat(time), int(row)
    except ValueError:
        raise BadCursor from None
    # The ends of the calendar can neither be moved to UTC nor counted up.
    if started_at.tzinfo is None or not 1 < started_at.year < 9999 or not 0 <= number < 2**63:
        raise BadCursor
    return started_at, number
