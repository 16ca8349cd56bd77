"""From what was measured to the judgement, in figures and in words. Pure: reads no file, asks no engine."""

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sidecar.probes.acceptance import Counted
from sidecar.probes.tokenizer_check.report import Report
from sidecar.probes.truncation import Positions, positions

from ..limits import Limits
from ..summary import Gate
from .gates import (
    BreakEven,
    PlainKind,
    StepTimes,
    Trial,
    Verdict,
    break_even_of,
    draft_step_gate,
    p_gate,
    step_times,
    tokenizer_gate,
    verdict,
)
from .measure import Asked
from .outputs import Found, Outputs, found_of, output_gates
from .pairs import Pair, Ratio, enough, ratio
from .scenarios import Overall, Scenario, Standing, judge, overall, worst_first

#: Share of failed requests above which nothing is said of p.
MOST_FAILED = 0.05


@dataclass(frozen=True)
class Evidence:
    """What a run measured, and what it was judged by."""

    facts: Mapping[str, Any]
    limits: Limits
    asked: Sequence[Asked]
    trials: Sequence[Trial]
    pairs: Sequence[Pair]
    outputs: Sequence[Outputs]
    #: Of the tokenizers, or why there is none; None where nothing has tokens of its own but the target.
    tokenizers: Report | str | None
    #: Why there are no pairs.
    no_pairs: str | None = None

    @cached_property
    def sums(self) -> dict[str, Counted]:
        """By scenario, those of the file that were asked nothing included."""
        found = {name: Counted() for name in self.facts["shares"]}
        for each in self.asked:
            if (row := each.counted()) is not None:
                found.setdefault(each.scenario, Counted()).put(row)
        return found

    @cached_property
    def positions(self) -> dict[str, Positions]:
        """By scenario."""
        rows = [(each.scenario, row) for each in self.asked if (row := each.counted()) is not None]
        return {name: positions(row for scenario, row in rows if scenario == name) for name in self.sums}

    @cached_property
    def k(self) -> int | None:
        """Draft tokens a step as configured, or the most that a request had."""
        told = [each.counts[3] for each in self.asked if each.counts is not None and each.counts[3]]
        return self.facts["k"] or max((k for k in told if k is not None), default=None)

    @cached_property
    def ratios(self) -> list[Ratio]:
        """Of all scenarios together, by concurrency."""
        return [ratio(self.pairs, at, self.facts["baseline"]) for at in sorted({p.concurrency for p in self.pairs})]

    @cached_property
    def latencies(self) -> dict[str, Ratio]:
        """Of each scenario, at the concurrency with most of its pairs; those with too few have that of all such."""
        found = {}
        for name in self.sums:
            told = self._latency([pair for pair in self.pairs if pair.scenario == name], name)
            if told is not None:
                found[name] = told
        # Many small scenarios could else be certified that are slower, each of too few pairs to show it.
        rest = [pair for pair in self.pairs if pair.scenario not in found]
        together = self._latency(rest, None)
        return found if together is None else found | dict.fromkeys((pair.scenario for pair in rest), together)

    @cached_property
    def broken(self) -> dict[str, list[str]]:
        """What is wrong with the replies of each scenario, in sentences: a mean over all hides one that is bad."""
        found = {}
        for name in self.sums:
            own = found_of([each for each in self.outputs if each.scenario == name])
            found[name] = [gate.words for gate in output_gates(own) if gate.passed is False]
        return found

    def _latency(self, pairs: Sequence[Pair], scenario: str | None) -> Ratio | None:
        for at, number in Tally(pair.concurrency for pair in pairs).most_common(1):
            told = ratio(pairs, at, self.facts["baseline"], scenario)
            if enough(number) and told.ratio is not None:
                return told
        return None


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    overall: Overall
    scenarios: list[Scenario]
    gates: list[Gate]
    steps: StepTimes | str
    break_even: BreakEven | None
    found: Found
    ratios: list[Ratio]
    reasons: list[str]


def judged(evidence: Evidence) -> Judgement:
    limits, facts = evidence.limits, evidence.facts
    shares = facts["shares"]
    scenarios = worst_first(
        [
            judge(name, shares.get(name, 0.0), sums, limits.p, evidence.latencies.get(name), evidence.broken[name])
            for name, sums in evidence.sums.items()
        ]
    )
    total = overall(evidence.sums, shares)
    steps = _steps(evidence)
    needed = [
        draft_step_gate(steps, limits.draft_step, unlike=bool(facts.get("unlike"))),
        p_gate(total, limits.p),
    ]
    if evidence.tokenizers is not None:
        needed.append(tokenizer_gate(evidence.tokenizers))
    needed += _answered(evidence)
    found = found_of(evidence.outputs)
    beside = output_gates(found)
    if found.unlike:
        needed.append(beside.pop(0))
    even = break_even_of(steps, total, evidence.k)
    made = verdict(needed, beside, scenarios)
    reasons = _reasons(evidence, made, [*needed, *beside], scenarios, even)
    return Judgement(made, total, scenarios, [*needed, *beside], steps, even, found, evidence.ratios, reasons)


def _answered(evidence: Evidence) -> list[Gate]:
    """A gate where so many requests failed that those which did not may be another kind."""
    failed = sum(each.outcome != "ok" for each in evidence.asked)
    share = failed / len(evidence.asked) if evidence.asked else 0.0
    if share <= MOST_FAILED:
        return []
    words = f"{failed} of {len(evidence.asked)} requests failed, so that p may be that of the easy ones: see why."
    return [Gate("failed requests", None, share, MOST_FAILED, words)]


def _steps(evidence: Evidence) -> StepTimes | str:
    if not evidence.trials:
        return str(evidence.facts.get("no_steps") or "no step was measured")
    kind = evidence.facts["plain_kind"]
    return step_times(evidence.trials, None if kind is None else PlainKind(kind))


# ---- in words


def _reasons(
    evidence: Evidence, made: Verdict, gates: Sequence[Gate], scenarios: Sequence[Scenario], even: BreakEven | None
) -> list[str]:
    """The weightiest first."""
    said = [gate.words for gate in gates if gate.passed is False]
    said += [gate.words for gate in gates if gate.passed is None]
    for standing in (Standing.REJECTED, Standing.UNCERTAIN):
        said += [f"{each.name} is {standing}: {each.why}" for each in scenarios if each.standing is standing]
    certified = [each for each in scenarios if each.certified]
    if certified:
        worst = min(certified, key=lambda each: each.figures.low or 0.0)
        names = ", ".join(sorted(each.name for each in certified))
        word = "Certified" if made.certifies else "Not certified, although good enough by their own p"
        said.append(f"{word}: {names}. The lowest of their intervals begins at {worst.figures.low:.3f} ({worst.name}).")
    if even is not None:
        said += _of_break_even(even)
    said += [gate.words for gate in gates if gate.passed is True]
    said += _of_latency(evidence)
    failed = Tally(each.outcome for each in evidence.asked if each.outcome != "ok")
    if failed:
        words = ", ".join(f"{number} {outcome}" for outcome, number in failed.most_common())
        said.append(f"{failed.total()} of {len(evidence.asked)} requests failed ({words}), and count for nothing.")
    silent = [each for each in evidence.asked if each.counts is None and each.outcome == "ok"]
    if silent:
        reason, number = Tally(each.reason for each in silent).most_common(1)[0]
        said.append(f"{len(silent)} replies tell no acceptance figures, {number} of them because: {reason}.")
    return said


def _of_break_even(even: BreakEven) -> list[str]:
    if even.pays is None or even.tokens is None or even.given is None:
        return []
    word = "pays" if even.pays else "does not pay"
    needed = f" (by c alone: a p per token of {even.p:.3f}" if even.p is not None else ""
    needed += f"; it is {even.measured:.3f})" if needed and even.measured is not None else ")" if needed else ""
    times = f"a verify step takes {even.tokens:.2f} plain steps and gives {even.given:.2f} tokens"
    return [f"Drafting {even.k} tokens a step {word} at concurrency 1: {times}{needed}."]


def _of_latency(evidence: Evidence) -> list[str]:
    if evidence.no_pairs:
        return [f"Latency and replies were not compared with plain decoding: {evidence.no_pairs}."]
    told = [each for each in evidence.ratios if each.ratio is not None]
    if not told:
        return [
            f"There is no latency ratio at concurrency {each.concurrency}: {each.reason}." for each in evidence.ratios
        ]
    figures = "; ".join(f"{each.ratio:.2f} at {each.concurrency}" for each in told)
    said = [f"p95 latency with speculation / without ({told[0].baseline}), by concurrency: {figures}."]
    if evidence.facts.get("unlike"):
        said.append(
            "Plain decoding may be faster than it was here, as a GPU may lack CUDA graphs for it: have the lab start "
            "the engine, by -c FILE, or give --plain."
        )
    return said
