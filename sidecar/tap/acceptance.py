"""vLLM's per-request speculative-decoding block -> `Acceptance`.

The block is marked experimental by vLLM and has moved before, so every identity it must satisfy is checked
and nothing is guessed: figures that disagree are kept raw, and a shape not known is said to be unknown.
"""

import json
from typing import Any

from ..record import Acceptance, AcceptanceQuality, AcceptanceSource

#: Longest raw block kept beside a row, characters.
MAX_RAW = 4_096
#: More draft tokens per step than any proposer makes.
MAX_K = 1_024


def from_block(block: object) -> Acceptance:
    """Figures of one reply from its `metrics.speculative_decoding`. Never raises."""
    try:
        return _checked(block)
    except (_Unknown, TypeError, ValueError, OverflowError) as error:
        return _untrusted(block, AcceptanceQuality.UNKNOWN, f"acceptance block of unknown shape: {error}")


def missing(reason: str) -> Acceptance:
    return Acceptance(reason=reason)


class _Unknown(Exception):
    pass


def _checked(block: object) -> Acceptance:
    if not isinstance(block, dict):
        raise _Unknown("not an object")
    k = _count(block, "num_spec_tokens", required=False)
    steps = _count(block, "num_spec_steps")
    drafted = _count(block, "num_draft_tokens")
    accepted = _count(block, "num_accepted_draft_tokens")
    assert steps is not None
    assert drafted is not None
    assert accepted is not None
    if k is not None and not 1 <= k <= MAX_K:
        raise _Unknown(f"num_spec_tokens is {k}")
    histogram = _histogram(block.get("acceptance_histogram"), k)
    if drafted == 0:
        # vLLM sends an all-zero block, rate 0.0 included, for a request that was never drafted for.
        if accepted or steps:
            return _untrusted(block, AcceptanceQuality.INCONSISTENT, "nothing drafted, yet steps or accepted tokens")
        return missing("nothing was drafted for this request")
    problem = _disagreement(block, k, steps, drafted, accepted, histogram)
    if problem:
        return _untrusted(block, AcceptanceQuality.INCONSISTENT, problem, k, steps, drafted, accepted)
    rejected_at, reached = _positions(block, k, steps, drafted, histogram)
    return Acceptance(
        source=AcceptanceSource.RESPONSE,
        quality=AcceptanceQuality.OK,
        num_speculative_tokens=k,
        verify_steps=steps,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        histogram=histogram,
        rejected_at=rejected_at,
        reached=reached,
    )


def _count(block: dict[str, Any], key: str, *, required: bool = True) -> int | None:
    value = block.get(key)
    if value is None and not required:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise _Unknown(f"{key} is {value!r:.40}")
    return value


def _histogram(value: object, k: int | None) -> tuple[int, ...] | None:
    """Dense counts by accepted length; also from the string-keyed map that earlier builds sent."""
    if value is None:
        return None
    if isinstance(value, dict):
        counts = {int(key): count for key, count in value.items()}
        top = max([*counts, k or 0])
        if min([*counts, 0]) < 0 or top > MAX_K:
            raise _Unknown("acceptance_histogram has impossible lengths")
        value = [counts.get(length, 0) for length in range(top + 1)]
    if not isinstance(value, list) or not all(type(count) is int and count >= 0 for count in value):
        raise _Unknown("acceptance_histogram is no list of counts")
    if len(value) > MAX_K + 1:
        raise _Unknown("acceptance_histogram is too long")
    return tuple(value)


def _disagreement(
    block: dict[str, Any],
    k: int | None,
    steps: int,
    drafted: int,
    accepted: int,
    histogram: tuple[int, ...] | None,
) -> str | None:
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
    per_step = _per_step(block)
    if per_step is not None:
        taken, made = per_step
        if sum(taken) != accepted or sum(made) != drafted or any(a > d for a, d in zip(taken, made, strict=True)):
            return "the per-step lists do not add up to the totals"
    return None


def _per_step(block: dict[str, Any]) -> tuple[list[int], list[int]] | None:
    taken, made = block.get("per_step_accepted"), block.get("per_step_drafted")
    if not isinstance(taken, list) or not isinstance(made, list) or len(taken) != len(made):
        return None
    if not all(type(value) is int and 0 <= value <= MAX_K for value in (*taken, *made)):
        raise _Unknown("per-step lists are no counts")
    return taken, made


def _positions(
    block: dict[str, Any], k: int | None, steps: int, drafted: int, histogram: tuple[int, ...] | None
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """(rejected_at, reached) by position; a step that accepted all it drafted is no truncation."""
    per_step = _per_step(block)
    if per_step is not None:
        size = k or max(per_step[1], default=0)
        rejected, reached = [0] * size, [0] * size
        for taken, made in zip(*per_step, strict=True):
            for position in range(min(taken + 1, made)):
                reached[position] += 1
            if taken < made:
                rejected[taken] += 1
        return tuple(rejected), tuple(reached)
    # The histogram alone tells a full acceptance from a cut only if every step drafted k tokens.
    if histogram is not None and k is not None and drafted == k * steps:
        padded = (*histogram, *(0,) * (k + 1 - len(histogram)))
        return padded[:k], tuple(sum(padded[position:]) for position in range(k))
    return None, None


def _untrusted(
    block: object,
    quality: AcceptanceQuality,
    reason: str,
    k: int | None = None,
    steps: int | None = None,
    drafted: int | None = None,
    accepted: int | None = None,
) -> Acceptance:
    try:
        raw = json.dumps(block, separators=(",", ":"))[:MAX_RAW]
    except (TypeError, ValueError, RecursionError):
        raw = repr(block)[:MAX_RAW]
    source = AcceptanceSource.RESPONSE if quality is AcceptanceQuality.INCONSISTENT else AcceptanceSource.NONE
    return Acceptance(
        source=source,
        quality=quality,
        reason=reason,
        num_speculative_tokens=k,
        verify_steps=steps,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        raw=raw,
    )
