"""A connection after an upgrade: bytes both ways, unread."""

import asyncio
from typing import TYPE_CHECKING

from .upstream import UPSTREAM, UpstreamConnection

if TYPE_CHECKING:
    from .client import ClientConnection


class Tunnel(asyncio.Protocol):
    """The upstream side of an upgraded connection; the client side writes to its transport."""

    def __init__(self, connection: UpstreamConnection, client: "ClientConnection") -> None:
        self._client = client
        connection.transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        self._client.transport.write(data)

    def pause_writing(self) -> None:
        self._client.pause_reading(UPSTREAM)

    def resume_writing(self) -> None:
        self._client.resume_reading(UPSTREAM)

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.transport.close()
