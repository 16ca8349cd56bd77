"""Whether replies are as good with speculation as without: texts, JSON, tool calls. Pure.

Verification keeps the target's distribution, so that at temperature 0 both replies ought to be one; what parts them is
the arithmetic of another batch shape, or a fault. Texts are compared at temperature 0 only.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from sidecar.probes.similarity import Level, Limits, first_divergence

from ..summary import Gate

#: Cosine: an alarm below the first, and a failed gate below the second, where complaints tripled (operators' guide).
SIMILARITY = Limits(0.82, 0.75)
#: Probability that as many or more replies were broken by speculation only, if it broke them no oftener than it
#: mended them.
_CHANCE = 0.05
_ENOUGH = 20


class Answer(msgspec.Struct, frozen=True):
    """What a reply said."""

    text: str
    tool_calls: list[dict[str, Any]] | None = None

    def whole(self) -> str:
        """Its text with the tool calls, their ids aside, which are random."""
        calls = [_function(call) for call in self.tool_calls or ()]
        return "\n".join([self.text, *(f"{name}({arguments})" for name, arguments in calls)]).strip()


class Outputs(msgspec.Struct, frozen=True):
    """Two replies to one prompt, without their texts."""

    prompt: str
    scenario: str
    identical: bool
    #: Characters that they have in common before they part; None where they do not.
    divergence: int | None = None
    #: Cosine of their embeddings where they differ; None where there is none, for the reason.
    similarity: float | None = None
    reason: str | None = None
    #: Whether each (speculative, plain) is valid JSON; None where none was asked for, and none given.
    json: tuple[bool, bool] | None = None
    #: The same of tool calls.
    tools: tuple[bool, bool] | None = None
    #: Requests in flight.
    concurrency: int = 0


def compared(prompt: str, scenario: str, body: Mapping[str, Any], ours: Answer, plain: Answer) -> Outputs:
    """All but the similarity, which another process tells."""
    texts = ours.whole(), plain.whole()
    parted = first_divergence(*texts)
    return Outputs(
        prompt,
        scenario,
        parted is None,
        None if parted is None else parted.characters,
        json=_json_validity(body, ours, plain),
        tools=_tool_validity(body, ours, plain),
    )


def is_greedy(body: Mapping[str, Any]) -> bool:
    return not body.get("temperature")


def _json_validity(body: Mapping[str, Any], ours: Answer, plain: Answer) -> tuple[bool, bool] | None:
    asked = body.get("response_format")
    wanted = isinstance(asked, Mapping) and asked.get("type") in ("json_object", "json_schema")
    valid = _is_json(plain.text)
    return (_is_json(ours.text), valid) if wanted or valid else None


def _is_json(text: str) -> bool:
    """An object or a list: a mere number or word is JSON by accident."""
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _tool_validity(body: Mapping[str, Any], ours: Answer, plain: Answer) -> tuple[bool, bool] | None:
    """None where no tool may be called, or neither calls one. A reply that calls none where the other does is none."""
    tools = body.get("tools")
    if not isinstance(tools, list) or not (ours.tool_calls or plain.tool_calls):
        return None
    names = {_function(tool)[0] for tool in tools if isinstance(tool, Mapping)}
    return _calls_are_good(ours, names), _calls_are_good(plain, names)


def _calls_are_good(answer: Answer, names: set[str]) -> bool:
    calls = [_function(call) for call in answer.tool_calls or ()]
    return bool(calls) and all(name in names and _is_object(arguments) for name, arguments in calls)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _function(call: Mapping[str, Any]) -> tuple[str, str]:
    """Name and arguments."""
    function = call.get("function")
    named = function if isinstance(function, Mapping) else call
    return str(named.get("name") or ""), str(named.get("arguments") or "")


# ---- all pairs


@dataclass(frozen=True, slots=True)
class Validity:
    pairs: int
    speculative: int
    plain: int
    #: Prompts of which only the plain reply is valid, and only the speculative one; oftener than the other way round,
    #: where they were asked at several concurrencies.
    broken: int
    mended: int


@dataclass(frozen=True, slots=True)
class Found:
    """Of several pairs."""

    pairs: int
    identical: int
    #: Characters before the first difference, of the pairs that differ.
    divergence: float | None
    #: Mean over all pairs, of which the identical ones count 1; None where a pair that differs has none.
    similarity: float | None
    #: Of those that differ and have one.
    scored: int
    lowest: float | None
    warning: int
    critical: int
    #: Why one that differs has none.
    reason: str | None
    json: Validity
    tools: Validity

    @property
    def unlike(self) -> bool:
        """Whether most replies are others than the plain ones, and nothing tells whether they mean the same."""
        return self.similarity is None and 2 * self.identical < self.pairs


def found_of(pairs: Sequence[Outputs]) -> Found:
    parted = [each for each in pairs if not each.identical]
    scores = [each.similarity for each in parted if each.similarity is not None]
    levels = [SIMILARITY.level(score) for score in scores]
    identical = len(pairs) - len(parted)
    whole = bool(pairs) and len(scores) == len(parted)
    return Found(
        len(pairs),
        identical,
        median(each.divergence or 0 for each in parted) if parted else None,
        (identical + math.fsum(scores)) / len(pairs) if whole else None,
        len(scores),
        min(scores, default=None),
        levels.count(Level.WARNING),
        levels.count(Level.CRITICAL),
        next((each.reason for each in parted if each.similarity is None), None),
        _validity([(each.prompt, each.json) for each in pairs]),
        _validity([(each.prompt, each.tools) for each in pairs]),
    )


def _validity(found: Sequence[tuple[str, tuple[bool, bool] | None]]) -> Validity:
    told = [(prompt, each) for prompt, each in found if each is not None]
    # A prompt that breaks at one concurrency breaks at the next: it is one piece of evidence, not several.
    lost = Counter[str]()
    for prompt, (ours, plain) in told:
        lost[prompt] += plain - ours
    return Validity(
        len(told),
        sum(ours for _, (ours, _) in told),
        sum(plain for _, (_, plain) in told),
        sum(number > 0 for number in lost.values()),
        sum(number < 0 for number in lost.values()),
    )


def output_gates(found: Found) -> list[Gate]:
    """Those that there is anything to say of: texts, JSON, tool calls."""
    gates = [_text_gate(found)]
    for name, validity in (("JSON", found.json), ("tool calls", found.tools)):
        if validity.pairs:
            gates.append(_validity_gate(name, validity))
    return gates


def _text_gate(found: Found) -> Gate:
    name, limit = "replies", SIMILARITY.critical
    if not found.pairs:
        return Gate(name, None, None, limit, "No prompt was answered both ways at temperature 0.")
    differ = found.pairs - found.identical
    words = f"{found.identical} of {found.pairs} replies are the same to the letter with speculation and without."
    if differ and found.divergence is not None:
        words += f" The others part after {found.divergence:.0f} characters (median)."
    if found.similarity is None:
        return Gate(name, None, None, limit, f"{words} They could not be compared by meaning: {found.reason}.")
    if found.scored:
        words += f" The similarity of these is {found.lowest:.2f} at least"
        words += f"; {found.critical} lie below {SIMILARITY.critical:g}, {found.warning} more below "
        words += f"{SIMILARITY.warning:g}."
    if found.pairs < _ENOUGH:
        words += f" {_ENOUGH} pairs are needed for a judgement."
        return Gate(name, None, found.similarity, limit, words)
    level = SIMILARITY.level(found.similarity)
    words += f" Over all pairs it is {found.similarity:.3f}."
    if level is Level.WARNING:
        words += f" That is below {SIMILARITY.warning:g}: look at the replies."
    return Gate(name, level is not Level.CRITICAL, found.similarity, limit, words)


def _validity_gate(name: str, found: Validity) -> Gate:
    """Fails where more replies are broken by speculation than chance allows (sign test of the prompts that differ)."""
    words = f"{found.speculative} of {found.pairs} are valid with speculation, {found.plain} without."
    failed = _at_least(found.broken, found.broken + found.mended) < _CHANCE
    if failed:
        words += f" For {found.broken} prompts only the plain reply is valid, for {found.mended} only the other."
    return Gate(name, not failed, found.speculative / found.pairs, found.plain / found.pairs, words)


def _at_least(k: int, n: int) -> float:
    """P(X >= k) of X binomial (n, 1/2)."""
    return float(sum(math.comb(n, i) for i in range(k, n + 1)) / 2**n)
