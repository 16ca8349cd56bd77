"""A process of its own for work that would hold Python's lock, and its client.

It runs a module of this package, and answers questions one at a time on the socket that is its standard input. A
message is a length (4 bytes) and MessagePack.
"""

import contextlib
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from msgspec import MsgspecError, msgpack

from ..faults import install

_LENGTH = struct.Struct("!I")


class ChildError(Exception):
    """The process gave no answer: it cannot be started, has died, was closed, or took too long."""


class Child:
    """The process of `module`, which is given `arguments`.

    It starts with the first question, and again with the next one after it died. Methods block, and may be called
    from several threads.
    """

    def __init__(self, module: str, *arguments: str, patience_s: float) -> None:
        """An answer may take `patience_s`, after which the process is ended."""
        self._command = (sys.executable, "-P", "-m", module, *arguments)
        self._patience_s = patience_s
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._closed = False

    def ask(self, question: object) -> Any:
        """The answer to what MessagePack can hold. Raises ChildError."""
        with self._asking:
            link = self._socket or self._start()
            try:
                _send(link, question)
                return _receive(link)
            except (OSError, EOFError, MsgspecError) as error:
                self._end()
                raise ChildError(f"gave no answer ({type(error).__name__})") from None

    def close(self) -> None:
        """End the process, for good; a question under way fails."""
        self._closed = True
        self._end()

    def _start(self) -> socket.socket:
        if self._closed:
            raise ChildError("was closed")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(self._command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
            except OSError as error:
                ours.close()
                raise ChildError(f"cannot be started: {error}") from None
        ours.settimeout(self._patience_s)
        self._socket = ours
        if self._closed:
            self._end()
            raise ChildError("was closed")
        return ours

    def _end(self) -> None:
        link, process, self._socket, self._process = self._socket, self._process, None, None
        if link is not None:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        if process is not None:
            process.kill()
            # Its end takes some milliseconds, which the event loop does not have.
            threading.Thread(target=process.wait, name="specwatch-child", daemon=True).start()


def serve(answer: Callable[[Any], object]) -> None:
    """In the process itself: answer each question until the socket is closed."""
    # Standard error is the sidecar's log.
    install()
    # Ctrl-C is for the sidecar, which closes the socket when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=0) as link, contextlib.suppress(EOFError, ConnectionError):
        while True:
            _send(link, answer(_receive(link)))


def _send(link: socket.socket, message: object) -> None:
    body = msgpack.encode(message)
    link.sendall(_LENGTH.pack(len(body)) + body)


def _receive(link: socket.socket) -> Any:
    (length,) = _LENGTH.unpack(_read(link, _LENGTH.size))
    return msgpack.decode(_read(link, length))


def _read(link: socket.socket, length: int) -> bytearray:
    """Raises EOFError at the end of the connection."""
    body = bytearray()
    while len(body) < length:
        part = link.recv(min(length - len(body), 1 << 20))
        if not part:
            raise EOFError
        body += part
    return body
