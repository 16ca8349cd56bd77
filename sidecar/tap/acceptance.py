"""vLLM's per-request speculative-decoding block -> `Acceptance`.

The block is marked experimental by vLLM and has moved before, so every identity it must satisfy is checked
and nothing is guessed: figures that disagree are kept raw, and a shape not known is said to be unknown.
"""

from typing import Annotated

import msgspec

from ..record import Acceptance, AcceptanceQuality, AcceptanceSource

#: Longest raw block kept beside a row, bytes.
MAX_RAW = 4_096
#: More draft tokens per step than any proposer makes.
MAX_K = 1_024

_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Length = Annotated[int, msgspec.Meta(ge=0, le=MAX_K)]


class Block(msgspec.Struct):
    """The block as vLLM 0.32 sends it; what can be computed from the rest is not read."""

    num_spec_steps: _Count
    num_draft_tokens: _Count
    num_accepted_draft_tokens: _Count
    num_spec_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_K)] | None = None
    #: Dense counts by accepted length; earlier builds sent a map with the lengths as keys.
    acceptance_histogram: list[_Count] | dict[_Length, _Count] | None = None
    per_step_accepted: list[_Length] | None = None
    per_step_drafted: list[_Length] | None = None

    def histogram(self) -> list[int] | None:
        counts = self.acceptance_histogram
        if not isinstance(counts, dict):
            return counts
        top = max([*counts, self.num_spec_tokens or 0])
        return [counts.get(length, 0) for length in range(top + 1)]

    def per_step(self) -> tuple[list[int], list[int]] | None:
        """(accepted, drafted) by verify step, where the engine is started with `detailed`."""
        if self.per_step_accepted is None or self.per_step_drafted is None:
            return None
        return self.per_step_accepted, self.per_step_drafted


_decoder = msgspec.json.Decoder(Block)


def from_block(raw: bytes) -> Acceptance:
    """Figures of one reply from the JSON text of its `metrics.speculative_decoding`. Never raises."""
    try:
        block = _decoder.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Acceptance(reason=f"acceptance block of unknown shape: {error}", raw=_kept(raw))
    steps, drafted, accepted = block.num_spec_steps, block.num_draft_tokens, block.num_accepted_draft_tokens
    if not (steps or drafted or accepted):
        # vLLM sends an all-zero block, rate 0.0 included, for a request that was never drafted for.
        return missing("nothing was drafted for this request")
    k = block.num_spec_tokens
    histogram = block.histogram()
    problem = _disagreement(block, histogram)
    if problem:
        return Acceptance(
            source=AcceptanceSource.RESPONSE,
            quality=AcceptanceQuality.INCONSISTENT,
            reason=problem,
            num_speculative_tokens=k,
            verify_steps=steps,
            draft_tokens=drafted,
            accepted_tokens=accepted,
            raw=_kept(raw),
        )
    rejected_at, reached = _positions(block, histogram)
    return Acceptance(
        source=AcceptanceSource.RESPONSE,
        quality=AcceptanceQuality.OK,
        num_speculative_tokens=k,
        verify_steps=steps,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        histogram=None if histogram is None else tuple(histogram),
        rejected_at=rejected_at,
        reached=reached,
    )


def missing(reason: str) -> Acceptance:
    return Acceptance(reason=reason)


def _kept(raw: bytes) -> str:
    return raw[:MAX_RAW].decode("utf-8", "replace")


def _disagreement(block: Block, histogram: list[int] | None) -> str | None:
    k, steps = block.num_spec_tokens, block.num_spec_steps
    drafted, accepted = block.num_draft_tokens, block.num_accepted_draft_tokens
    if not steps or not drafted:
        return f"{drafted} drafted and {accepted} accepted tokens in {steps} verify steps"
    if accepted > drafted:
        return f"{accepted} accepted of {drafted} drafted tokens"
    if k is not None and drafted > k * steps:
        return f"{drafted} drafted tokens in {steps} steps of {k} at most"
    if histogram is not None:
        if sum(histogram) != steps:
            return f"acceptance_histogram counts {sum(histogram)} steps, not {steps}"
        if sum(length * count for length, count in enumerate(histogram)) != accepted:
            return "acceptance_histogram does not add up to the accepted tokens"
        if k is not None and any(histogram[k + 1 :]):
            return f"acceptance_histogram has steps longer than {k}"
    per_step = block.per_step()
    if per_step is not None:
        taken, made = per_step
        if len(taken) != len(made) or sum(taken) != accepted or sum(made) != drafted:
            return "the per-step lists do not add up to the totals"
        if any(map(int.__gt__, taken, made)):
            return "a verify step accepted more tokens than it drafted"
    return None


def _positions(block: Block, histogram: list[int] | None) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """(rejected_at, reached) by position; a step that accepted all it drafted is no truncation."""
    k, steps = block.num_spec_tokens, block.num_spec_steps
    # Where every step drafted k tokens the histogram tells all; else only the steps themselves do.
    if histogram is not None and k is not None and block.num_draft_tokens == k * steps:
        padded = [*histogram, *[0] * (k + 1 - len(histogram))]
        return tuple(padded[:k]), tuple(sum(padded[position:]) for position in range(k))
    per_step = block.per_step()
    if per_step is None:
        return None, None
    size = k or max(per_step[1])
    rejected, reached = [0] * size, [0] * size
    for taken, made in zip(*per_step, strict=True):
        for position in range(min(taken + 1, made)):
            reached[position] += 1
        if taken < made:
            rejected[taken] += 1
    return tuple(rejected), tuple(reached)
