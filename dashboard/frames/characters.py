r"""Characters that are split over tokens, put together again. Pure.

The API tells a token by its text; of a token that holds a part of a character, as of most Chinese ones and emoji in a
byte-level vocabulary, it tells the bytes: `\xe4\xbd`, `\xa0`. Joined they are one character.
"""

import codecs
import re
from collections.abc import Sequence
from typing import NamedTuple

_BYTE = re.compile(r"\\x([89a-f][0-9a-f])")
_TAIL = re.compile(r"(?:\\x[89a-f][0-9a-f])+\Z")
#: Tokens that a character may have begun in: it has four bytes at most.
MOST_PARTS = 3


class Piece(NamedTuple):
    #: With the characters that this token completes.
    text: str
    #: Whether it ends within a character that a later token completes.
    open: bool = False


def escaped(text: str) -> bool:
    """Whether the text holds what looks like the bytes of a part of a character."""
    return _BYTE.search(text) is not None


def join(texts: Sequence[str | None]) -> list[Piece]:
    """A piece for each of some tokens that follow one another; None: a token of unknown text.

    A character is told by the token that completes it. What is completed by none keeps its bytes as they are.
    """
    pieces = [Piece(text or "") for text in texts]
    decoder = codecs.getincrementaldecoder("utf-8")()
    #: What is left of the tokens that the character began in, without its bytes.
    begun: dict[int, str] = {}
    for at, text in enumerate(texts):
        if text is None:
            begun = {}
            decoder.reset()
            continue
        rest = text
        if begun:
            completed, rest = _completed(decoder, text)
            if completed is None:
                begun = {}
                decoder.reset()
                rest = text
            elif completed == "":
                begun[at] = ""
                continue
            else:
                for each, left in begun.items():
                    pieces[each] = Piece(left, open=True)
                pieces[at] = Piece(completed + rest)
                begun = {}
        tail = _TAIL.search(rest)
        if tail is not None and _begins(decoder, tail[0]):
            done = pieces[at].text
            begun[at] = done[: len(done) - len(tail[0])]
    return pieces


def _completed(decoder: codecs.IncrementalDecoder, text: str) -> tuple[str | None, str]:
    """The character that the first bytes of `text` complete, and the rest.

    Empty while bytes are still wanted behind it; None where they do not belong together.
    """
    used = 0
    while (found := _BYTE.match(text, used)) is not None:
        used = found.end()
        try:
            done = decoder.decode(bytes.fromhex(found[1]))
        except UnicodeDecodeError:
            return None, text
        if done:
            return done, text[used:]
    return (None, text) if used < len(text) or not text else ("", "")


def _begins(decoder: codecs.IncrementalDecoder, tail: str) -> bool:
    """Whether these bytes are the beginning of a character, and no more: a whole one is told as such by the API."""
    decoder.reset()
    try:
        done = decoder.decode(bytes(int(each, 16) for each in _BYTE.findall(tail)))
    except UnicodeDecodeError:
        done = None
    if done != "":
        decoder.reset()
    return done == ""
