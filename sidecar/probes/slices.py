"""Slices of traffic: the requests that have one dimension in common, as `scenario=billing`.

A value is the name that `/api/v1/…?by=` shows for the same requests: numbers go by buckets.
"""

from bisect import bisect_left
from typing import NamedTuple

from ..record import Record

DIMENSIONS = ("scenario", "model", "temperature", "prompt_length", "concurrency", "k")
UNKNOWN = "unknown"
#: Requests that leave the temperature to the engine.
UNSET = "unset"


class Buckets(NamedTuple):
    """Upper bounds (inclusive) and names; there is one more of these."""

    bounds: tuple[float, ...]
    names: tuple[str, ...]

    def name(self, value: float | None, missing: str = UNKNOWN) -> str:
        return missing if value is None else self.names[bisect_left(self.bounds, value)]


TEMPERATURES = Buckets((0.0, 0.3, 0.7, 1.0), ("0", "0-0.3", "0.3-0.7", "0.7-1", ">1"))
PROMPT_LENGTHS = Buckets(
    (512, 2048, 8192, 32768, 131072),
    ("1-512", "513-2048", "2049-8192", "8193-32768", "32769-131072", ">131072"),
)
CONCURRENCIES = Buckets((1, 4, 8, 16, 32, 64), ("1", "2-4", "5-8", "9-16", "17-32", "33-64", ">64"))

#: Bytes of request body a prompt token, until records tell; English text has about that many.
_BYTES_A_TOKEN = 4.0
#: Records beyond these tell nothing: of a conversation that the server keeps the body lacks a part, and images are no
#: text.
_LEAST_BYTES, _MOST_BYTES = 0.5, 16.0
#: Weight of the newest record in the estimate.
_NEWEST = 0.02


def asked(
    scenario: str, model: str | None, temperature: float | None, prompt_tokens: float | None, concurrency: int
) -> dict[str, str]:
    """The slices of a request that is not served yet, by dimension; k, which the engine tells later, is not one."""
    return {
        "scenario": scenario,
        "model": UNKNOWN if model is None else model,
        "temperature": TEMPERATURES.name(temperature, UNSET),
        "prompt_length": PROMPT_LENGTHS.name(prompt_tokens),
        "concurrency": CONCURRENCIES.name(concurrency),
    }


def slices_of(record: Record) -> tuple[str, ...]:
    """The values of a record in the order of DIMENSIONS."""
    k = record.acceptance.num_speculative_tokens
    return (
        *asked(record.scenario, record.model, record.temperature, record.prompt_tokens, record.concurrency).values(),
        UNKNOWN if k is None else str(k),
    )


class PromptTokens:
    """Guesses a request's prompt tokens from the length of its body, learning from records."""

    def __init__(self) -> None:
        self._bytes_a_token = _BYTES_A_TOKEN

    def add(self, record: Record) -> None:
        told = record.bytes_in / record.prompt_tokens if record.prompt_tokens else 0.0
        if _LEAST_BYTES <= told <= _MOST_BYTES:
            self._bytes_a_token += _NEWEST * (told - self._bytes_a_token)

    def of(self, body_bytes: int | None) -> float | None:
        """None where the length is not known."""
        return None if body_bytes is None else body_bytes / self._bytes_a_token
