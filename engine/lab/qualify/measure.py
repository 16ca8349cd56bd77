"""The phases of a qualification: each asks an engine and leaves rows, none of which has a text in it.

A phase goes on from the rows there are, so that an interrupted run loses the requests in flight only.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sidecar.probes.acceptance import Counted, counted, one
from sidecar.record import Arm, Record

from ..load import NO_FIGURES, Reply, check_cap, check_plain, one_token, replies
from ..progress import Bar, Say
from ..prompts import Prompt
from ..run import Run
from ..stand import Engine, StandError
from .gates import PlainKind, Steps, Trial, step_times
from .outputs import Answer, compared, is_greedy
from .pairs import Pair, Timed
from .similarity import Similarity
from .step_plan import StepPlan

#: Names of the rows' files.
ASKED, TRIALS, PAIRS, OUTPUTS = "speculative", "steps", "pairs", "outputs"
#: Prompts at least until the mean step times are looked at, and how narrow the interval of c must be then, as a share
#: of its limit to each side.
_FIRST_TRIALS, _NARROW = 16, 0.1
#: Pairs that are compared at a concurrency where scenarios are not told apart; some more than a ratio needs.
_SPARE = 1.1
_OF_ALL = 64
#: Requests in a row that failed, after which the engine is taken for gone; and prompts in a row that told nothing.
_MOST_FAILURES = 20


class Asked(msgspec.Struct, frozen=True):
    """A request of the pass with speculation."""

    prompt: str
    scenario: str
    outcome: str
    #: (verify steps, draft tokens, accepted tokens, k, rejected_at, reached); None where they are not known.
    counts: tuple[int, int, int, int | None, list[int] | None, list[int] | None] | None
    #: Why they are not.
    reason: str | None
    latency_ms: float | None
    ttft_ms: float | None
    completion_tokens: int | None

    def counted(self) -> Counted | None:
        return None if self.counts is None else one(*self.counts)


@dataclass
class Measure:
    engine: Engine
    run: Run
    #: The sample, in the order in which it is asked.
    prompts: Sequence[Prompt]
    say: Say
    _failed: int = field(default=0, init=False)

    # ---- 1: acceptance

    async def acceptance(self, concurrency: int) -> None:
        """Ask each prompt once, with speculation. Raises StandError where the first replies tell nothing of it."""
        rows = [row for row in self.run.rows(ASKED) if row["outcome"] == "ok"]
        done = {row["prompt"] for row in rows}
        waiting = [prompt for prompt in self.prompts if prompt.id not in done]
        sums, silent = Counted(), 0
        told = any(row["counts"] is not None for row in rows)

        def took(reply: Reply, bar: Bar) -> None:
            nonlocal silent, told
            self._watch(reply)
            row = asked(reply)
            self.run.append(ASKED, msgspec.to_builtins(row))
            if (counts := row.counted()) is not None:
                sums.put(counts)
                told = True
            elif reply.ok and not told:
                silent += 1
                if silent >= _MOST_FAILURES:
                    raise StandError(NO_FIGURES)
            p = sums.figures(None).p
            bar.advance(words=None if p is None else f"p {p:.3f}")

        if waiting:
            with self.say.bar("acceptance", len(self.prompts), len(self.prompts) - len(waiting)) as bar:
                await self._ask(waiting, concurrency, lambda reply: took(reply, bar))

    # ---- 2: step times

    async def steps(self, plan: StepPlan, most: int, limit: float) -> None:
        """Ask prompts one at a time with each number of draft tokens, interleaved so that drift cancels.

        Ends early where the step times are known well enough, or prompt after prompt tells nothing of them.
        """
        trials = trials_of(self.run)
        done = {trial.prompt for trial in trials}
        waiting = [prompt for prompt in self.prompts if prompt.id not in done]
        with self.say.bar("step times", most, len(trials)) as bar:
            in_vain = 0
            try:
                while len(trials) < most and waiting and not self._narrow(trials, plan, limit):
                    prompt = waiting.pop(0)
                    trial = await self._trial(prompt, plan, len(trials))
                    in_vain = in_vain + 1 if trial is None else 0
                    if in_vain >= _MOST_FAILURES:
                        break
                    if trial is not None:
                        trials.append(trial)
                        self.run.append(TRIALS, msgspec.to_builtins(trial, str_keys=True))
                        bar.advance()
            finally:
                if plan.mode is not None:
                    self.engine.control.cap(None, plan.mode)

    def _narrow(self, trials: Sequence[Trial], plan: StepPlan, limit: float) -> bool:
        if len(trials) < _FIRST_TRIALS:
            return False
        c = step_times(trials, plan.plain).c
        return c is None or (c.high is not None and c.high - c.value <= _NARROW * limit)

    async def _trial(self, prompt: Prompt, plan: StepPlan, number: int) -> Trial | None:
        """None where a reply failed, or took no step."""
        arms: list[int | None] = [*plan.caps, *([0] if plan.plain is not None else [])]
        by_k: dict[int, Steps] = {}
        plain: Steps | None = None
        for i in range(len(arms)):
            arm = arms[(i + number) % len(arms)]
            is_plain = arm == 0
            apart = is_plain and self.engine.plain_url is not None
            if plan.mode is not None and not apart:
                cold = is_plain and plan.plain is PlainKind.DISABLED
                self.engine.control.cap(arm, "cold" if cold else plan.mode)
            found: list[Reply] = []
            await self._ask([prompt], 1, found.append, plain=apart)
            steps = steps_of(found[0].record, plain=is_plain) if found else None
            if steps is None:
                self._watch(found[0])
                return None
            k = found[0].record.acceptance.num_speculative_tokens if arm is None else arm
            if is_plain:
                plain = steps
            elif k:
                by_k[k] = steps
        self._failed = 0
        return Trial(prompt.id, by_k, plain) if by_k else None

    # ---- 3 and 4: pairs

    async def pairs(self, concurrency: int, chosen: Sequence[Prompt], similarity: Similarity) -> None:
        """Ask `chosen` with speculation and without, in parts of one order and the other; then compare the replies.

        First the prompts of a part are sent once for a single token each, so that each side finds them in the prefix
        cache.
        """
        done = {row["prompt"] for row in self.run.rows(PAIRS) if row["concurrency"] == concurrency}
        waiting = [prompt for prompt in chosen if prompt.id not in done]
        if not waiting:
            return
        with self.say.bar(f"latency at concurrency {concurrency}", len(chosen), len(chosen) - len(waiting)) as bar:
            for number, whole in enumerate(parts(chosen, concurrency)):
                part = [prompt for prompt in whole if prompt.id not in done]
                if not part:
                    continue
                plain_first = number % 2 == 1
                found: dict[bool, dict[str, Reply]] = {False: {}, True: {}}
                await self._warm(part, concurrency)
                for plain in (plain_first, not plain_first):
                    with self._arm(plain):
                        await self._ask(part, concurrency, _into(found[plain], self._watch), plain=plain)
                outputs = [
                    compared(prompt.id, prompt.scenario, prompt.body, answer(ours), answer(theirs))
                    for prompt in part
                    if (ours := found[False].get(prompt.id)) is not None
                    and (theirs := found[True].get(prompt.id)) is not None
                    and ours.ok
                    and theirs.ok
                    and theirs.record.arm is Arm.BASELINE
                    and is_greedy(prompt.body)
                ]
                texts = {
                    each.prompt: (answer(found[False][each.prompt]).whole(), answer(found[True][each.prompt]).whole())
                    for each in outputs
                    if not each.identical
                }
                for each in await similarity.of(outputs, texts):
                    row = msgspec.structs.replace(each, concurrency=concurrency)
                    self.run.append(OUTPUTS, msgspec.to_builtins(row))
                for prompt in part:
                    pair = self._pair(prompt, concurrency, found)
                    self.run.append(PAIRS, msgspec.to_builtins(pair))
                bar.advance(len(part))

    def _pair(self, prompt: Prompt, concurrency: int, found: dict[bool, dict[str, Reply]]) -> Pair:
        ours, theirs = (found[plain].get(prompt.id) for plain in (False, True))
        theirs = theirs if theirs is not None and theirs.record.arm is Arm.BASELINE else None
        return Pair(prompt.id, prompt.scenario, concurrency, self.engine.baseline, timed(ours), timed(theirs))

    async def _warm(self, part: Sequence[Prompt], concurrency: int) -> None:
        short = [one_token(prompt) for prompt in part]
        for plain in (False, True) if self.engine.plain_url is not None else (False,):
            await self._ask(short, concurrency, self._watch, plain=plain)

    @contextmanager
    def _arm(self, plain: bool) -> Iterator[None]:
        """Plain decoding of the one engine there is, under a cap of 0, as k = 0 of its table would be: where requests
        only opt out, each step that admits one drafts for it all the same. Raises StandError where something else
        lifts the cap.
        """
        if not plain or self.engine.plain_url is not None:
            yield
            return
        control = self.engine.control
        control.cap(0, "hard")
        try:
            yield
            check_cap(self.engine, 0)
        finally:
            control.cap(None)

    # ---- what all phases do

    async def _ask(
        self, prompts: Sequence[Prompt], concurrency: int, on_reply: Callable[[Reply], None], *, plain: bool = False
    ) -> None:
        batch = await replies(self.engine, prompts, concurrency=concurrency, plain=plain, on_reply=on_reply)
        if self.engine.plain_url is not None:
            check_plain(self.engine, batch)

    def _watch(self, reply: Reply) -> None:
        """Raises StandError where the engine seems to be gone: its prompts are to be asked again by a later run."""
        self._failed = 0 if reply.ok else self._failed + 1
        if self._failed >= _MOST_FAILURES:
            raise StandError(
                f"the last {_MOST_FAILURES} requests to {self.engine.url} failed, this one with "
                f"{reply.record.outcome.value}: see that the engine runs"
            )


def asked(reply: Reply) -> Asked:
    record, figures = reply.record, reply.record.acceptance
    counts = counted(record)
    return Asked(
        reply.prompt.id,
        reply.prompt.scenario,
        record.outcome.value,
        None
        if counts is None
        else (
            counts.verify_steps,
            counts.draft_tokens,
            counts.accepted_tokens,
            counts.num_speculative_tokens,
            None if counts.rejected_at is None else list(counts.rejected_at),
            None if counts.reached is None else list(counts.reached),
        ),
        None if counts is not None else figures.reason or "nothing was drafted",
        record.latency_ms,
        record.ttft_ms,
        record.completion_tokens,
    )


def steps_of(record: Record, *, plain: bool) -> Steps | None:
    """The time after the first token, and what it took: a verify step each, or a step a token in plain decoding.

    A step at the very end of a reply may have had nothing drafted; it counts as a step too.
    """
    if record.outcome != "ok" or record.latency_ms is None or record.ttft_ms is None:
        return None
    tokens, figures = record.completion_tokens or 0, record.acceptance
    steps = tokens - 1
    if not plain:
        if figures.verify_steps is None or figures.accepted_tokens is None or figures.quality != "ok":
            return None
        steps = figures.verify_steps + max(tokens - 1 - figures.verify_steps - figures.accepted_tokens, 0)
    return Steps(record.latency_ms - record.ttft_ms, steps, record.ttft_ms) if steps > 0 else None


def timed(reply: Reply | None) -> Timed | None:
    if reply is None or not reply.ok or reply.record.latency_ms is None:
        return None
    record = reply.record
    return Timed(float(reply.record.latency_ms), record.ttft_ms, record.completion_tokens)


def trials_of(run: Run) -> list[Trial]:
    # Not strict: the keys of JSON objects are texts.
    return [msgspec.convert(row, Trial, strict=False) for row in run.rows(TRIALS)]


def answer(reply: Reply) -> Answer:
    return Answer(reply.text, reply.tool_calls)


def choose(prompts: Sequence[Prompt], per_scenario: int | None, concurrency: int) -> list[Prompt]:
    """Prompts to be paired: so many of each scenario, or of all together as the sample has them."""
    if per_scenario is None:
        return list(prompts[: max(_OF_ALL, 4 * concurrency)])
    most = pairs_of(per_scenario)
    taken: dict[str, int] = {}
    chosen = []
    for prompt in prompts:
        taken[prompt.scenario] = taken.get(prompt.scenario, 0) + 1
        if taken[prompt.scenario] <= most:
            chosen.append(prompt)
    return chosen


def pairs_of(per_scenario: int) -> int:
    """How many are asked for, so that so many come of them where some fail."""
    return round(per_scenario * _SPARE)


def parts(chosen: Sequence[Prompt], concurrency: int) -> list[Sequence[Prompt]]:
    """An even number of nearly equal ones, so that each side comes first as often as second."""
    number = 2 * math.ceil(len(chosen) / (2 * max(16, 4 * concurrency)))
    return [chosen[len(chosen) * i // number : len(chosen) * (i + 1) // number] for i in range(number)]


def _into(found: dict[str, Reply], watch: Callable[[Reply], None]) -> Callable[[Reply], None]:
    def took(reply: Reply) -> None:
        found[reply.prompt.id] = reply
        watch(reply)

    return took


def facts(engine: Engine, prompts: Sequence[Prompt], shares: dict[str, float], plan: StepPlan) -> dict[str, Any]:
    """What the judgement needs of the engine and the prompts, a row."""
    return {
        "url": engine.url,
        "model": engine.model,
        "target": engine.target,
        "draft": engine.draft,
        "k": engine.k,
        "fingerprint": engine.fingerprint,
        "baseline": engine.baseline,
        "plain_kind": plan.plain,
        "no_steps": plan.reason,
        "unlike": plan.unlike,
        "shares": shares,
        "sampled": len(prompts),
    }
