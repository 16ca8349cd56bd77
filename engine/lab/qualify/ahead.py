"""What can be told of a qualification before it is measured: what will stay untold, and how long it takes. Pure."""

from collections.abc import Mapping, Sequence
from itertools import count

from ..run import RunError
from .gates import ENOUGH_TRIALS
from .measure import Asked, pairs_of
from .pairs import enough
from .scenarios import ENOUGH

_NOT_QUALIFIED = "the draft can be rejected, but not qualified"


def untold(prompts: Mapping[str, int], step_prompts: int, pairs: int) -> list[str]:
    """Sentences on what the options leave untold, whatever is measured. `prompts`: how many there are by scenario.

    Raises RunError where no verdict can come of it.
    """
    number = sum(prompts.values())
    if number < ENOUGH_TRIALS:
        raise RunError(
            f"--prompts: {number} are too few for any verdict: step times take {ENOUGH_TRIALS}, p takes {ENOUGH}; give "
            "more (`specwatch tokenizers TARGET DRAFT` needs none)"
        )
    found = []
    few = sorted(name for name, there in prompts.items() if there < ENOUGH)
    if number < ENOUGH:
        found.append(f"--prompts: {number} are too few for p, which takes {ENOUGH}: {_NOT_QUALIFIED}")
    elif few:
        so = f": {_NOT_QUALIFIED}" if len(few) == len(prompts) else ""
        names = ", ".join(few)
        found.append(f"--prompts: fewer than {ENOUGH} are of {names}, which will be uncertain: give more of them{so}")
    if step_prompts < ENOUGH_TRIALS:
        found.append(
            f"--step-prompts: {step_prompts} are too few for the step times, which take {ENOUGH_TRIALS}: "
            f"{_NOT_QUALIFIED}"
        )
    if not enough(pairs_of(pairs)) and any(there > pairs_of(pairs) for there in prompts.values()):
        least = next(each for each in count(pairs) if enough(pairs_of(each)))
        together = enough(sum(min(there, pairs_of(pairs)) for there in prompts.values()))
        of = "of all scenarios together, but not of each" if together else "of none"
        found.append(f"--pairs: whether it is slower than plain decoding will be told {of}: give at least {least}")
    return found


def rest_s(
    asked: Sequence[Asked], concurrency: int, *, arms: int, trials: int, pairs: Mapping[int, int]
) -> float | None:
    """Seconds that step times and pairs take at most, by what the pass with speculation took at `concurrency`; None
    where it tells nothing.

    `arms`: numbers of draft tokens that are timed, plain steps too, by `trials` prompts; `pairs`: by concurrency. A
    reply takes less long alone than among others, and at most in proportion to how many there are. With fewer or no
    draft tokens it takes at most as many times longer as a verify step gives tokens.
    """
    told = [each.latency_ms for each in asked if each.outcome == "ok" and each.latency_ms is not None]
    counts = [row for each in asked if (row := each.counted()) is not None]
    if not told or not counts:
        return None
    reply_s = sum(told) / len(told) / 1000
    longer = 1 + sum(row.accepted_tokens for row in counts) / max(sum(row.verify_steps for row in counts), 1)
    steps = trials * (1 + (arms - 1) * longer)
    both = sum(number * (1 + longer) / min(at, concurrency) for at, number in pairs.items())
    return reply_s * (steps + both)
