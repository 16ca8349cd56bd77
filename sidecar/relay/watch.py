"""What the relay tells whoever watches an exchange. The relay itself knows no meaning."""

from collections.abc import Callable
from typing import Protocol

from ..record import Arm, Outcome
from .http1 import RequestHead, ResponseHead

#: Fields that a changed body leaves no sense to: it has a length of its own.
FRAMING = frozenset((b"content-length", b"transfer-encoding"))
#: Those that go as well where the reply must be uncoded.
CODED_FRAMING = FRAMING | {b"accept-encoding"}
#: Statuses that may mean that the change was not liked.
REFUSALS = (400, 422)


class Watch(Protocol):
    """One exchange's watcher. It sees copies, after they were forwarded, and never raises.

    `now` is monotonic time in seconds.
    """

    #: Body bytes the relay may hold back before it picks an upstream, so that `request` sees the whole body.
    hold: int

    @property
    def uncoded(self) -> bool:
        """Whether the changed body adds to the reply what can only be found again where that is not coded."""

    def request(self, body: bytes | None) -> None:
        """The request body, or None if it was longer than `hold`; before it is chosen where the request goes."""

    def change(self, *, opt_out: bool) -> bytes | None:
        """Called once, after the choice. Returns a body to send instead of that of `request`, or None.

        `opt_out`: only by what the body asks for is it served without speculation.
        """

    def restored(self) -> None:
        """The upstream refused the body that `request` returned; the original is being sent."""

    def sent(self, upstream: str, arm: Arm, concurrency: int) -> None:
        """The request goes to `upstream`, as its `concurrency`-th in flight."""

    def response(self, head: ResponseHead, now: float) -> tuple[bool, bytes]:
        """The reply's head. Returns whether the body must pass through `filter`, and field lines to add.

        Each line ends in CRLF; no line: empty.
        """

    def feed(self, payload: bytes, now: float) -> None:
        """Body bytes of one read, without framing; never empty."""

    def filter(self, payload: bytes, now: float) -> bytes:
        """Like `feed`, returning the bytes the client is to get; may hold some back until more come."""

    def flush(self) -> bytes:
        """Bytes that `filter` still holds, at the end."""

    def left(self) -> None:
        """The client has left; what still comes is read for its figures alone."""

    def end(self, outcome: Outcome, status: int | None, bytes_in: int, bytes_out: int, now: float) -> None:
        """The exchange is over; called exactly once. `status` is None if no head reached the client."""


#: Gives the watcher of a request, or None for a request nobody watches.
Watcher = Callable[[RequestHead, float], Watch | None]
