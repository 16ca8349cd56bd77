"""The process that reads texts out of the bytes of requests and replies and redacts them, and its client.

A text of 64 KiB takes a tenth of a second, which the proxy would stand still for: a search holds Python's lock to its
end. And a regular expression of the settings may take for ever, which a process of its own can be ended for.
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..probes.child import Child, serve
from .extract import prompt_of, reply_of
from .redaction import Redactor

#: Characters of a text that are kept.
MOST_CHARACTERS = 65_536
#: So much more of a text is redacted, so that no secret is cut in two and kept by half; a private key is the longest.
_MARGIN = 4_096
#: Seconds that an answer may take.
_PATIENCE_S = 10.0
_NICENESS = 10


class Exchanged(NamedTuple):
    """Bytes of a request and of its reply, without content codings."""

    #: None where it was too long to be read.
    request: bytes | None
    reply: bytes
    streamed: bool
    #: Whether the reply is there to its end.
    whole: bool


class Text(NamedTuple):
    text: str
    #: Whether it was longer.
    cut: bool


class Reading(NamedTuple):
    """None where there is no text."""

    prompt: Text | None
    reply: Text | None


class Redaction:
    """The process. Methods block, and may be called from several threads."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """`patterns`: as `Redactor`."""
        self._patterns = patterns
        self._child = Child("sidecar.texts.process", patience_s=_PATIENCE_S)

    def read(self, exchanged: Sequence[Exchanged]) -> list[Reading | None]:
        """What was said; None where it could not be read. Raises ChildError."""
        answer = self._child.ask((self._patterns, exchanged))
        return [None if each is None else Reading(*(text and Text(*text) for text in each)) for each in answer]

    def close(self) -> None:
        self._child.close()


def read(exchanged: Exchanged, redact: Redactor) -> Reading:
    request, data, streamed, whole = exchanged
    prompt = None if request is None else prompt_of(request)
    reply = reply_of(data, streamed=streamed)
    return Reading(
        None if not prompt else _kept(prompt, redact, whole=True),
        None if not reply else _kept(reply, redact, whole=whole),
    )


def _kept(text: str, redact: Redactor, *, whole: bool) -> Text:
    looked_at = text[: MOST_CHARACTERS + _MARGIN]
    found = redact(looked_at)
    if len(looked_at) < len(text):
        # Its end may be the half of a secret.
        found = found[:-_MARGIN]
    return Text(found[:MOST_CHARACTERS], not whole or len(found) > MOST_CHARACTERS or len(looked_at) < len(text))


def main() -> None:
    """Answer questions, until nobody asks any more."""
    os.nice(_NICENESS)
    redact: Redactor | None = None

    def answer(question: tuple[Sequence[str], Sequence[Any]]) -> list[Reading | None]:
        nonlocal redact
        patterns, exchanged = question
        redact = redact or Redactor(patterns)
        found: list[Reading | None] = []
        for each in exchanged:
            try:
                found.append(read(Exchanged(*each), redact))
            except Exception:
                found.append(None)
        return found

    serve(answer)


if __name__ == "__main__":
    main()
