"""Types of options that several commands have."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    number = int(text) if text.strip().isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return number


def positives(text: str) -> list[int]:
    """`1,4,16`: sorted, each once."""
    try:
        return sorted({positive(part) for part in text.split(",")})
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"must be whole numbers of at least 1, as 1,4,16, not {text!r}") from None
