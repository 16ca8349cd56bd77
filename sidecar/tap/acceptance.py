"""vLLM's per-request speculative-decoding block -> `Acceptance`.

The block is marked experimental by vLLM and has moved before, so every identity it must satisfy is checked
and nothing is guessed: figures that disagree are kept raw, and a shape not known is said to be unknown.
"""

import json
from itertools import accumulate
from operator import sub
from typing import Annotated, Any

import msgspec

from ..engine_request import step_digits
from ..record import Acceptance, AcceptanceQuality, AcceptanceSource

#: Longest raw block kept beside a row, characters.
MAX_RAW = 4_096
#: More draft tokens per step than any proposer makes.
MAX_K = 1_024

#: Why requests that are served have no figures, and are not to have any.
NOT_SPECULATED = "served without speculation"
NOTHING_DRAFTED = "nothing was drafted for this request"

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Length = Annotated[int, msgspec.Meta(ge=0, le=MAX_K)]


class Block(msgspec.Struct, gc=False):
    """The block as vLLM 0.32 sends it; what can be computed from the rest is not read."""

    num_spec_steps: Count
    num_draft_tokens: Count
    num_accepted_draft_tokens: Count
    num_spec_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_K)] | None = None
    #: Dense counts by accepted length; earlier builds sent a map with the lengths as keys.
    acceptance_histogram: list[Count] | dict[_Length, Count] | None = None
    #: By verify step, where the engine is started with `detailed`.
    per_step_accepted: list[_Length] | None = None
    per_step_drafted: list[_Length] | None = None


_decoder = msgspec.json.Decoder(Block)


def from_block(raw: bytes) -> Acceptance:
    """Figures of one reply from the JSON text of its `metrics.speculative_decoding`. Never raises."""
    try:
        block = _decoder.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Acceptance(reason=f"acceptance block of unknown shape: {error}", raw=_kept(raw))
    found = figures(block)
    if found.quality is AcceptanceQuality.INCONSISTENT:
        return msgspec.structs.replace(found, raw=_kept(raw))
    return found


def missing(reason: str) -> Acceptance:
    return Acceptance(reason=reason)


def figures(block: Block) -> Acceptance:
    """Figures of a block. Those that disagree lack the raw block, which only `from_block` has."""
    steps, drafted, accepted = block.num_spec_steps, block.num_draft_tokens, block.num_accepted_draft_tokens
    if not (drafted or accepted):
        # vLLM sends an all-zero block, rate 0.0 included, for a request that was never drafted for; and drafts
        # that a grammar made void count as steps alone.
        return missing(NOTHING_DRAFTED)
    source, quality, problem = AcceptanceSource.RESPONSE, AcceptanceQuality.OK, None
    histogram = rejected_at = reached = told = None
    try:
        histogram, rejected_at, reached = _positions(block)
        if block.per_step_drafted is not None and block.per_step_accepted is not None:
            told = step_digits(zip(block.per_step_drafted, block.per_step_accepted, strict=True))
    except _Disagreement as disagreement:
        quality, problem = AcceptanceQuality.INCONSISTENT, str(disagreement)
    return Acceptance(
        source,
        quality,
        problem,
        block.num_spec_tokens,
        steps,
        drafted,
        accepted,
        histogram,
        rejected_at,
        reached,
        steps=told,
    )


class _Disagreement(Exception):
    """Figures that cannot all be true."""


_Counts = tuple[int, ...] | None


def _positions(block: Block) -> tuple[_Counts, _Counts, _Counts]:
    """(histogram, rejected_at, reached), each None where the block does not tell it. Raises _Disagreement."""
    k, steps = block.num_spec_tokens, block.num_spec_steps
    drafted, accepted = block.num_draft_tokens, block.num_accepted_draft_tokens
    if not steps or not drafted:
        raise _Disagreement(f"{drafted} drafted and {accepted} accepted tokens in {steps} verify steps")
    if accepted > drafted:
        raise _Disagreement(f"{accepted} accepted of {drafted} drafted tokens")
    if k is not None and drafted > k * steps:
        raise _Disagreement(f"{drafted} drafted tokens in {steps} steps of {k} at most")
    histogram: _Counts = None
    at_least: list[int] = []
    counts = block.acceptance_histogram
    if counts is not None:
        if isinstance(counts, dict):
            counts = [counts.get(length, 0) for length in range(max([*counts, k or 0]) + 1)]
        histogram = tuple(counts)
        # Steps that accepted at least k, k-1, ..., 0 tokens: one pass tells the steps, the accepted tokens and
        # how far the steps came.
        at_least = [*accumulate(reversed(counts))]
        total = at_least[-1] if at_least else 0
        if total != steps:
            raise _Disagreement(f"acceptance_histogram counts {total} steps, not {steps}")
        if sum(at_least) - total != accepted:
            raise _Disagreement("acceptance_histogram does not add up to the accepted tokens")
        if k is not None and len(counts) > k + 1 and any(counts[k + 1 :]):
            raise _Disagreement(f"acceptance_histogram has steps longer than {k}")
    taken, made = block.per_step_accepted, block.per_step_drafted
    if taken is not None and made is not None:
        if not len(taken) == len(made) == steps or sum(taken) != accepted or sum(made) != drafted:
            raise _Disagreement("the per-step lists do not add up to the totals")
        if histogram is None or k is None or made.count(k) != steps:
            return histogram, *_step_by_step(taken, made, k, histogram)
        if max(taken) > k:
            raise _Disagreement(f"a verify step accepted more than {k} tokens")
    if histogram is None or k is None or drafted != k * steps:
        return histogram, None, None
    # Every step drafted k tokens, so that the histogram tells all; one with fewer bars has zeros after them.
    at_least.reverse()
    short = (0,) * (k + 1 - len(histogram))
    return histogram, (histogram + short)[:k], (*at_least, *short)[:k]


def _step_by_step(taken: list[int], made: list[int], k: int | None, histogram: _Counts) -> tuple[_Counts, _Counts]:
    """(rejected_at, reached); a step that accepted all it drafted is no truncation. Raises _Disagreement."""
    size = k or max(made)
    if max(made) > size:
        raise _Disagreement(f"a verify step drafted more than {size} tokens")
    counts, complete = [0] * (size + 1), [0] * size
    for accepted, drafted in zip(taken, made, strict=True):
        if accepted > drafted:
            raise _Disagreement("a verify step accepted more tokens than it drafted")
        counts[accepted] += 1
        if accepted == drafted < size:
            complete[accepted] += 1
    if histogram is not None and histogram != (*counts, *(0,) * (len(histogram) - size - 1))[: len(histogram)]:
        raise _Disagreement("acceptance_histogram and the per-step lists differ")
    # Position i+1 was reached by the steps that accepted at least i tokens, but for those that drafted no more.
    at_least = [*accumulate(reversed(counts))]
    at_least.reverse()
    return tuple(map(sub, counts, complete)), tuple(map(sub, at_least, complete))


# What vLLM sends beside, computed from the rest.
_NAMES = frozenset((*Block.__struct_fields__, "mean_acceptance_length", "draft_acceptance_rate"))
_MOST_DIGITS = 20


def _kept(raw: bytes) -> str:
    """The figures of a block, as JSON: of a block that is not understood, words may be a prompt's or a reply's."""
    try:
        return json.dumps(_figures_alone(json.loads(raw)))[:MAX_RAW]
    except (ValueError, RecursionError):
        return "no JSON"


def _figures_alone(value: Any) -> Any:
    """Known names and numbers; in the place of all else stands what it is."""
    if isinstance(value, dict):
        known = {name: each for name, each in value.items() if name in _NAMES or _is_number(name)}
        rest = {"other fields": len(value) - len(known)} if len(known) < len(value) else {}
        return {name: _figures_alone(each) for name, each in known.items()} | rest
    if isinstance(value, list):
        return [_figures_alone(each) for each in value]
    return "text" if isinstance(value, str) and not _is_number(value) else value


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
