"""What was served: a cell is one batch of prompts at one k, a block all cells of one round at one concurrency."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from sidecar.record import AcceptanceQuality, Outcome

if TYPE_CHECKING:
    from ..load import Reply

#: The k of plain decoding.
PLAIN = 0


class Answer(msgspec.Struct, frozen=True, gc=False):
    """One reply of a cell. Times in ms at the client; steps and tokens None where the reply does not tell them."""

    prompt: str
    scenario: str
    tokens: int
    ttft_ms: float
    latency_ms: float
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    #: Verify steps that were cut.
    truncated: int | None = None
    #: Digest of the text, to tell whether two replies are the same.
    text: str = ""

    @property
    def decode_ms(self) -> float:
        """From the first token to the last: what speculation is about."""
        return self.latency_ms - self.ttft_ms

    @property
    def timed(self) -> bool:
        """Whether a time per token follows from it: two tokens or more, and time between them."""
        return self.tokens > 1 and self.decode_ms > 0


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A row of `cells.jsonl`. `stage` is sweep or confirm, `place` the cell's turn in its block, from 0."""

    stage: str
    round: int
    concurrency: int
    k: int
    place: int
    #: Cells of its block, and when that began (Unix time, s).
    arms: int
    block: float
    seconds: float
    #: Completion tokens of all replies; over `seconds` they are the throughput.
    tokens: int
    requests: int
    failures: dict[str, int]
    answers: list[Answer]

    def row(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Block:
    """Cells of one round and concurrency, by k: served one after the other, of the same prompts."""

    round: int
    concurrency: int
    cells: Mapping[int, Cell]

    @property
    def arms(self) -> frozenset[int]:
        return frozenset(self.cells)

    @property
    def seconds(self) -> float:
        return sum(cell.seconds for cell in self.cells.values())


def cell_of(row: Mapping[str, Any]) -> Cell:
    """Raises ValueError for a row that this version did not write."""
    try:
        return msgspec.convert(row, Cell)
    except msgspec.ValidationError as error:
        raise ValueError(f"cells.jsonl: {error}: begin a new run") from None


def blocks_of(cells: Iterable[Cell], stage: str) -> list[Block]:
    """The whole ones, in the order of their rounds.

    A block that was cut is served anew when the run goes on, from its first cell: what is compared within a block must
    not lie a night apart.
    """
    found: dict[tuple[int, int, float], dict[int, Cell]] = {}
    for cell in cells:
        if cell.stage == stage:
            found.setdefault((cell.round, cell.concurrency, cell.block), {})[cell.k] = cell
    whole = {
        place[:2]: Block(*place[:2], in_time(by_k))
        for place, by_k in found.items()
        if len(by_k) == next(iter(by_k.values())).arms
    }
    return [whole[place] for place in sorted(whole)]


def in_time(by_k: Mapping[int, Cell]) -> dict[int, Cell]:
    """The cells of a block, with no first token later than their median.

    Where a busy machine, a server or a proxy holds events up, they come at once: the first token then is as late as the
    last, and the reply would seem to have been decoded in no time. All cells find the prompts in the prefix cache, so
    that else first tokens differ by little: by what drafting adds before they are sent, which counts as decoding then.
    """
    first = median([each.ttft_ms for cell in by_k.values() for each in cell.answers] or [0.0])

    def bounded(each: Answer) -> Answer:
        return each if each.ttft_ms <= first else replace(each, ttft_ms=first)

    return {k: replace(cell, answers=[bounded(each) for each in cell.answers]) for k, cell in by_k.items()}


def answer_of(reply: Reply) -> Answer | None:
    """What counts of a reply; None where it failed, or lacks a time or its number of tokens."""
    record, figures = reply.record, reply.record.acceptance
    if record.outcome is not Outcome.OK or record.ttft_ms is None or record.latency_ms is None:
        return None
    if record.completion_tokens is None:
        return None
    told = figures.quality is AcceptanceQuality.OK and bool(figures.draft_tokens)
    content = json.dumps([reply.text, reply.tool_calls], ensure_ascii=False, sort_keys=True)
    return Answer(
        reply.prompt.id,
        reply.prompt.scenario,
        record.completion_tokens,
        record.ttft_ms,
        record.latency_ms,
        figures.verify_steps if told else None,
        figures.draft_tokens if told else None,
        figures.accepted_tokens if told else None,
        sum(figures.rejected_at) if told and figures.rejected_at is not None else None,
        hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16],
    )
