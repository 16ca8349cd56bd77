"""Slices of traffic: the requests that have one dimension in common, as `scenario=billing`.

A value is the name that `/api/v1/…?by=` shows for the same requests: numbers go by buckets.
"""

from collections.abc import Sequence

from ..record import Record

DIMENSIONS = ("scenario", "model", "temperature", "prompt_length", "concurrency", "k")
UNKNOWN = "unknown"
#: Requests that leave the temperature to the engine.
UNSET = "unset"

#: Upper bounds (inclusive) and names, in order; the last has none.
Bounds = Sequence[tuple[float | None, str]]
TEMPERATURES: Bounds = ((0.0, "0"), (0.3, "0-0.3"), (0.7, "0.3-0.7"), (1.0, "0.7-1"), (None, ">1"))
PROMPT_LENGTHS: Bounds = (
    (512, "1-512"),
    (2048, "513-2048"),
    (8192, "2049-8192"),
    (32768, "8193-32768"),
    (131072, "32769-131072"),
    (None, ">131072"),
)
CONCURRENCIES: Bounds = (
    (1, "1"),
    (4, "2-4"),
    (8, "5-8"),
    (16, "9-16"),
    (32, "17-32"),
    (64, "33-64"),
    (None, ">64"),
)

#: Bytes of request body a prompt token, until records tell; English text has about that many.
_BYTES_A_TOKEN = 4.0
#: Weight of the newest record in the estimate.
_NEWEST = 0.02


def bucket(value: float | None, bounds: Bounds, missing: str = UNKNOWN) -> str:
    """The name of a number's bucket."""
    if value is None:
        return missing
    return next(name for bound, name in bounds if bound is None or value <= bound)


def asked(
    scenario: str, model: str | None, temperature: float | None, prompt_tokens: float | None, concurrency: int
) -> dict[str, str]:
    """The slices of a request that is not served yet, by dimension; k, which the engine tells later, is not one."""
    return {
        "scenario": scenario,
        "model": UNKNOWN if model is None else model,
        "temperature": bucket(temperature, TEMPERATURES, UNSET),
        "prompt_length": bucket(prompt_tokens, PROMPT_LENGTHS),
        "concurrency": bucket(concurrency, CONCURRENCIES),
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
        if record.prompt_tokens and record.bytes_in:
            self._bytes_a_token += _NEWEST * (record.bytes_in / record.prompt_tokens - self._bytes_a_token)

    def of(self, body_bytes: int | None) -> float | None:
        """None where the length is not known."""
        return None if body_bytes is None else body_bytes / self._bytes_a_token
