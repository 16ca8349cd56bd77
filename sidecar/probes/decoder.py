"""The process that holds the tokenizers, and its client.

Reading a large tokenizer holds Python's lock for up to a second, in which no token would pass the proxy. So a
process of its own reads it, makes the table that live alignment needs, and decodes what a person asks to see.
A message on the socket between them is a length (4 bytes) and MessagePack.
"""

import contextlib
import signal
import socket
import struct
import subprocess
import sys
import threading
from array import array
from collections.abc import Sequence
from typing import Any

from msgspec import MsgspecError, msgpack

from .vocabulary import NoVocabulary, Vocabularies, read

Tokens = Sequence[tuple[bool, int]]

_LENGTH = struct.Struct("!I")
#: Seconds an answer may take; a tokenizer of a quarter of a million tokens is read in two.
_PATIENCE_S = 60.0


class Decoder:
    """The tokenizers of one target and one draft, by the names the engine gave them.

    The process starts with the first question, and again if it was killed. Each method blocks, may be called from
    several threads, and raises NoVocabulary.
    """

    def __init__(self, target: str, draft: str) -> None:
        self._names = (target, draft)
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._closed = False

    def draft_ids(self) -> "array[int]":
        """The table of `Vocabularies.draft_ids`."""
        table = array("i")
        table.frombytes(self._ask("draft_ids"))
        return table

    def words(self, target_ids: Sequence[int], draft_ids: Sequence[int]) -> tuple[list[str | None], list[str | None]]:
        """Single tokens as a reader sees them; None for an id that the tokenizer does not have."""
        target, draft = self._ask("words", list(target_ids), list(draft_ids))
        return target, draft

    def texts(self, sequences: Sequence[Tokens]) -> list[str]:
        """What `Vocabularies.decode` makes of each."""
        found: list[str] = self._ask("texts", sequences)
        return found

    def close(self) -> None:
        """End the process; a question under way fails."""
        self._closed = True
        self._end()

    def _ask(self, *question: object) -> Any:
        with self._asking:
            link = self._socket or self._start()
            try:
                _send(link, question)
                known, answer = _receive(link)
            except (OSError, EOFError, MsgspecError) as error:
                self._end()
                raise NoVocabulary(f"the process that decodes tokens gave no answer ({type(error).__name__})") from None
        if not known:
            raise NoVocabulary(answer)
        return answer

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "sidecar.probes.decoder", *self._names],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                )
            except OSError as error:
                ours.close()
                raise NoVocabulary(f"the process that decodes tokens cannot be started: {error}") from None
        ours.settimeout(_PATIENCE_S)
        self._socket = ours
        if self._closed:
            self._end()
            raise NoVocabulary("the engine's models have changed meanwhile")
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
            threading.Thread(target=process.wait, name="specwatch-decoder", daemon=True).start()


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


def _answer(known: Vocabularies, question: Sequence[Any]) -> object:
    name, *arguments = question
    if name == "draft_ids":
        return known.draft_ids().tobytes()
    if name == "words":
        target_ids, draft_ids = arguments
        return [known.target.text(i) for i in target_ids], [known.draft.text(i) for i in draft_ids]
    (sequences,) = arguments
    return [known.decode(tokens) for tokens in sequences]


def main(target: str, draft: str) -> None:
    """Answer on the socket that is standard input, until it is closed."""
    # Ctrl-C is for the sidecar, which closes the socket when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    known: Vocabularies | None = None
    with socket.socket(fileno=0) as link, contextlib.suppress(EOFError, ConnectionError):
        while True:
            question = _receive(link)
            try:
                known = known or read(target, draft)
                answer = True, _answer(known, question)
            except NoVocabulary as error:
                answer = False, str(error)
            _send(link, answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
