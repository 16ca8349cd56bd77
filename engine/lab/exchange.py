"""What a tap is shown of an exchange that the lab itself makes: the heads, and a place for its copy of the reply."""

from __future__ import annotations

import httpx

from sidecar.record import Record

from .said import Said, complaint_in, said_in


class Copy:
    """The tap's copy of a reply, its content coding undone."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._streamed = False

    def request(self, body: bytes) -> None:
        pass

    def reply(self, payload: bytes) -> None:
        self._parts.append(payload)

    def end(self, record: Record, *, streamed: bool, whole: bool) -> None:
        self._streamed = streamed

    def read(self) -> Said:
        return said_in(b"".join(self._parts), streamed=self._streamed)

    def complaint(self) -> str:
        return complaint_in(b"".join(self._parts), streamed=self._streamed)


class RequestHead:
    """The request head as the tap reads it."""

    method = b"POST"
    version = b"HTTP/1.1"

    def __init__(self, path: str, fields: dict[str, str]) -> None:
        self.path = path.encode()
        self.fields = fields

    def value(self, name: bytes) -> bytes | None:
        found = self.fields.get(name.decode())
        return None if found is None else found.encode()


class ReplyHead:
    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self._fields = response.headers

    def value(self, name: bytes) -> bytes | None:
        found = self._fields.get(name.decode())
        return None if found is None else found.encode("latin-1", "replace")
