"""What is told of an exception: its places, none of its words."""

import asyncio
import logging
import re
import subprocess
import sys

import pytest

from sidecar.faults import Formatter, in_loop, place, where

WORDS = "words of a prompt"


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


def test_kind_and_places_are_told_and_no_word() -> None:
    inner = raised(KeyError(WORDS))
    inner.add_note(WORDS)
    told = where(raised(ExceptionGroup(WORDS, [ValueError(WORDS)]), inner))
    assert "builtins.ExceptionGroup" in told
    assert "builtins.KeyError" in told
    assert "in raised" in told
    assert WORDS not in told


def test_a_place_is_a_few_words() -> None:
    assert re.fullmatch(r"KeyError in sidecar/test_faults\.py:\d+", place(raised(KeyError(WORDS))))
    assert place(KeyError(WORDS)) == "KeyError"


def test_causes_in_a_circle_end() -> None:
    first, second = raised(ValueError("a")), raised(ValueError("b"))
    first.__cause__, second.__cause__ = second, first
    assert where(first).count("builtins.ValueError") == 2


def test_a_log_of_whomever_shows_no_words_of_exceptions() -> None:
    try:
        raise ValueError(WORDS)
    except ValueError:
        record = logging.LogRecord("uvicorn.error", logging.ERROR, "x.py", 1, "it failed", (), sys.exc_info())
    line = Formatter("%(levelname)s %(message)s").format(record)
    assert line.startswith("ERROR it failed\n")
    assert "builtins.ValueError" in line
    assert WORDS not in line


async def test_a_callback_that_fails_is_told_without_what_it_was_given(caplog: pytest.LogCaptureFixture) -> None:
    def fails(words: str) -> None:
        raise ValueError(words)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(in_loop)
    loop.call_soon(fails, WORDS)
    await asyncio.sleep(0.01)
    assert "in fails" in caplog.text
    assert WORDS not in caplog.text


PLACES = {
    "main": "raise ValueError(words)",
    "thread": "import threading; t = threading.Thread(target=f, args=(words,)); t.start(); t.join()",
    "unraisable": "type('X', (), {'__del__': lambda self: f(words)})()",
}


@pytest.mark.parametrize("place", PLACES)
def test_uncaught_exceptions_are_told_without_words(place: str) -> None:
    program = f"""
import sys
from sidecar.faults import install
install()
words = bytes.fromhex({WORDS.encode().hex()!r}).decode()
def f(words):
    raise ValueError(words)
{PLACES[place]}
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "builtins.ValueError" in ran.stderr
    assert WORDS not in ran.stderr + ran.stdout
