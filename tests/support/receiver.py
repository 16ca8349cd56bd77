"""A real HTTP server on loopback that stands for whoever is notified: it keeps what it is sent and fails as told.

with receiver() as hook:
    hook.answer = Answer(429, {"Retry-After": "30"})     # or a Fault, or a function of the request
    ...
    hook.wait(1)
"""

import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    #: With its query.
    path: str
    #: Names in lower case.
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Fault(StrEnum):
    #: Takes the request and says nothing.
    HANG = "hang"
    #: Says the head, then a byte now and then for ever.
    DRIP = "drip"
    #: Ends the connection with a reset.
    RESET = "reset"
    #: 200 and a body without end.
    HUGE = "huge"
    #: 500 and a body without end.
    HUGE_ERROR = "huge error"
    #: Bytes that are no HTTP.
    NO_HTTP = "no HTTP"


Reply = Answer | Fault


@dataclass
class Receiver:
    url: str
    requests: list[Request] = field(default_factory=list)
    answer: Reply | Callable[[Request], Reply] = field(default_factory=Answer)
    left: threading.Event = field(default_factory=threading.Event)

    def bodies(self) -> list[Any]:
        return [request.json() for request in self.requests]

    def wait(self, count: int, within: float = 30) -> list[Request]:
        """The requests, once there are so many."""
        deadline = time.monotonic() + within
        while len(self.requests) < count:
            assert time.monotonic() < deadline, f"{len(self.requests)} of {count} requests within {within:g} s"
            time.sleep(0.02)
        return self.requests


@contextmanager
def receiver(*, tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body)
            reply = hook.answer(request) if callable(hook.answer) else hook.answer
            hook.requests.append(request)
            with suppress(OSError):
                self.reply(reply)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def reply(self, reply: Reply) -> None:
            if isinstance(reply, Answer):
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)
                return
            self.close_connection = True
            match reply:
                case Fault.HANG:
                    hook.left.wait(60)
                case Fault.RESET:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                case Fault.NO_HTTP:
                    self.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
                case Fault.DRIP | Fault.HUGE | Fault.HUGE_ERROR:
                    self.send_response(500 if reply is Fault.HUGE_ERROR else 200)
                    self.end_headers()
                    pause, piece = (0.05, b"[") if reply is Fault.DRIP else (0.0, b"[" * 65_536)
                    while not hook.left.wait(pause):
                        self.wfile.write(piece)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that leave, or do not like the certificate."""

        def get_request(self) -> tuple[socket.socket, Any]:
            taken, address = super().get_request()
            # The handshake is in the connection's own thread, at its first read.
            return (tls.wrap_socket(taken, server_side=True, do_handshake_on_connect=False) if tls else taken), address

    server = Server(("127.0.0.1", port), Handler)
    hook = Receiver(f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        hook.left.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
