"""Texts with units."""

from pathlib import Path

import pytest

from dashboard import words
from dashboard.frames import base as frames
from dashboard.words import NO_DATA


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (frames.ratio(0.7225), "0.723"),
        (frames.ratio(0.64999, 0.65), "0.64999"),
        (frames.ratio(0.65, 0.65), "0.650"),
        (frames.percent(0.94996, 0.95), "94.996 %"),
        (frames.percent(0.0), "0.0 %"),
        (frames.percent(1.0), "100.0 %"),
        (frames.milliseconds(None), NO_DATA),
        (frames.milliseconds(0.0), "0.0 ms"),
        (frames.milliseconds(612.4), "612 ms"),
        (frames.milliseconds(12_340.0), "12.3 s"),
        (frames.count(1, "request"), "1 request"),
        (frames.count(1200, "request"), "1,200 requests"),
        (frames.span(0), "0 s"),
        (frames.span(-5), "0 s"),
        (frames.span(59), "59 s"),
        (frames.span(5520), "1 h 32 min"),
        (frames.span(90_000), "1 d 1 h"),
        (frames.plain("p < 0.65\n*really*"), r"p \< 0\.65 \*really\*"),
    ],
)
def test_texts(shown, expected):
    assert shown == expected


def test_every_definition_is_a_sentence_that_the_board_shows():
    sources = [path.read_text() for path in Path(words.__file__).parent.rglob("*.py") if path.name != "words.py"]
    for term, text in words.DEFINITIONS.items():
        assert text.endswith(".")
        assert any(f'"{term}"' in source for source in sources), f"{term} is nowhere shown"
    assert len({*words.DEFINITIONS.values()}) == len(words.DEFINITIONS)
