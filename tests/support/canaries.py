"""Marks that stand for text nobody may keep, and a search that finds them however they were written down."""

import base64
import re
import secrets
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


_LENGTH = 12


class Canaries:
    """`canaries("chat", "cookie")` is a new mark; `found` tells which of them stand in some bytes."""

    def __init__(self) -> None:
        self._labels: dict[bytes, str] = {}

    def __call__(self, *label: str) -> str:
        # Letters alone, so that the same bytes stand in JSON, in a URL and in `repr`.
        mark = "zq" + "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
        self._labels |= {form: " ".join(label) for form in _forms(mark.encode())}
        return mark

    def text(self, *label: str) -> str:
        """The same several times, in words of which nothing may be left either."""
        mark = self(*label)
        return f'{mark} "said" {mark}\n{mark}'

    def found(self, haystack: bytes) -> list[str]:
        """Labels of the marks that stand there: as they are, in base64, in hexadecimal, in UTF-16."""
        seen = {each[1] for pattern in _LIKELY for each in pattern.finditer(haystack)}
        seen |= {each[1] for each in _LIKELY[0].finditer(haystack.lower())}
        return sorted({self._labels[form] for form in seen & self._labels.keys()})


def _forms(mark: bytes) -> list[bytes]:
    found = [mark, mark.hex().encode(), mark.decode().encode("utf-16-le")]
    for shift in range(3):
        # What stands before and after is not known, so that the characters at the ends do not count.
        coded = base64.b64encode(bytes(shift) + mark)[-(-shift * 4 // 3) : (shift + len(mark)) // 3 * 4]
        found += [coded, coded.translate(bytes.maketrans(b"+/", b"-_"))]
    return found


def _likely() -> Iterator[re.Pattern[bytes]]:
    """What begins as the forms of every mark do, and is as long."""
    for first, last in zip(_forms(b"zq" + b"a" * _LENGTH), _forms(b"zq" + b"z" * _LENGTH), strict=True):
        prefix = bytes(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=True)))
        yield re.compile(b"(?=(%b.{%d}))" % (re.escape(prefix), len(first) - len(prefix)), re.DOTALL)


_LIKELY = tuple(_likely())


def files(*folders: Path) -> Iterable[tuple[str, bytes]]:
    """Every file below, by its path."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield str(path), path.read_bytes()
