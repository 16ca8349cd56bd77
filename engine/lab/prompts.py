"""Prompts to measure with: files of four formats, or the recorded traffic of a sidecar; and samples of them.

{"messages": […], "scenario": "billing", "max_tokens": 160}        a request a line (also "prompt" for completions)
{"custom_id": "a", "url": "/v1/chat/completions", "body": {…}}      OpenAI's batch files
[{"conversations": [{"from": "human", "value": "…"}, …]}, …]        ShareGPT, as one JSON list or a line each
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .run import Run

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
DEFAULT_SCENARIO = "default"

#: Faults of a file that are told; more lines would hide the first.
MOST_FAULTS = 10
#: Recorded prompts that are read; each is a request to the sidecar, which answers 50 a second where nothing is set.
MOST_RECORDED = 5_000
#: Prompts of each scenario in a sample, where there are as many.
LEAST = 50
#: The rows of a run that tell which recorded prompts it has, without a word of them.
SAMPLES = "samples"
#: Fields of a request that the lab sets itself, or that would keep the figures away: several replies to one prompt
#: have none of their own.
_NOT_SENT = frozenset(("model", "stream", "stream_options", "n", "best_of", "scenario", "metadata", "id", "custom_id"))
#: Beyond any number that a request may have.
_HUGE = 2**31
#: What ShareGPT files call the three who speak; the other names are older exports'.
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked."""

    id: str
    """`custom_id` or `id` of the file, else `line 17`; unique in a file."""
    scenario: str
    """`default` where nothing names one."""
    body: dict[str, Any]
    """What is sent, without model, stream and stream_options; it has `messages` (chat) or `prompt` (completions)."""
    endpoint: str
    """`/v1/chat/completions` or `/v1/completions`."""


class PromptError(Exception):
    """A source of prompts that cannot be used: a sentence a fault, each with its place and the remedy."""

    def __init__(self, faults: Sequence[str], plain: Sequence[str] | None = None) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)
        #: The same without a word of the prompts, for what is kept.
        self.plain = "\n".join(faults if plain is None else plain)


class _Fault(Exception):
    """What is wrong with one line: the rule, and what stands there instead, which may be of a prompt."""

    def __init__(self, rule: str, *found: Any) -> None:
        super().__init__(rule + "".join(f", not {_shown(value)}" for value in found))
        self.rule = rule


Tell = Callable[[str], object]


def read(
    source: str | Path,
    tell: Tell = lambda sentence: None,
    most: int = MOST_RECORDED,
    *,
    run: Run | None = None,
) -> list[Prompt]:
    """The prompts of a file, or of a sidecar's admin port (`http://127.0.0.1:8001`): its newest, `most` at most.

    `tell` hears of what was left out, `run` is what they are for: one that goes on has the recorded prompts that it
    began with. Raises PromptError for a source that cannot be read, has a line that is no prompt, or has none, and for
    recorded prompts that are no longer there.
    """
    if str(source).startswith(("http://", "https://")):
        return _recorded(str(source), tell, most, run)
    path = Path(source)
    if path.is_dir():
        raise PromptError([f"--prompts: {path} is a folder: name a file in it"])
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise PromptError([f"--prompts: there is no file {path}: check the path"]) from None
    except UnicodeDecodeError as error:
        words = "gzip: unpack it first" if error.object[:2] == b"\x1f\x8b" else "no UTF-8 text: convert it first"
        raise PromptError([f"--prompts: {path} is {words}"]) from None
    except OSError as error:
        raise PromptError([f"--prompts: {path} cannot be read: {error.strerror or error}"]) from error
    return parse(text, str(path))


def _recorded(source: str, tell: Tell, most: int, run: Run | None) -> list[Prompt]:
    """Two samples in one run would be judged as if they were one. Raises PromptError."""
    from .recorded import recorded

    if run is None:
        return recorded(source, tell, most)
    row = next((row for row in run.rows(SAMPLES) if row["source"] == source), None)
    until = row["until"] if row is not None else datetime.now(UTC).isoformat()
    found = recorded(source, tell, most, until)
    if row is None:
        run.append(SAMPLES, {"source": source, "until": until, "ids": [prompt.id for prompt in found]})
        return found
    had = set(row["ids"])
    # A request that was under way then has been recorded since.
    found = [prompt for prompt in found if prompt.id in had]
    if len(found) < len(had):
        gone = len(had) - len(found)
        raise PromptError([f"--prompts: {gone} of the {len(had)} prompts of {source} are gone: begin a new run"])
    return found


def parse(text: str, name: str) -> list[Prompt]:
    """The prompts in the text of a file; `name` is what faults call it. Raises PromptError."""
    prompts: list[Prompt] = []
    faults: list[str] = []
    plain: list[str] = []
    places: dict[str, str] = {}
    for place, unit, row in _rows(text, name):
        try:
            prompt = _prompt(_json(row) if isinstance(row, bytes) else row, place)
            if prompt.id in places:
                raise _Fault(f"custom_id {_shown(prompt.id)} is that of {places[prompt.id]} too: ids must be unique")
        except (_Fault, RecursionError, ValueError) as error:
            fault = error if isinstance(error, _Fault) else _no_json(error)
            faults.append(f"{name}:{unit}: {fault}")
            plain.append(f"{name}:{unit}: {fault.rule}")
        else:
            places[prompt.id] = place
            prompts.append(prompt)
        if len(faults) == MOST_FAULTS:
            break
    if faults:
        raise PromptError(faults, plain)
    if not prompts:
        raise PromptError([f'{name}: has no prompts: a line each, as {{"messages": [{{"role": "user", …}}]}}'])
    return prompts


def _rows(text: str, name: str) -> Iterator[tuple[str, str, Any]]:
    """What may be prompts, each with its place in words and for a fault; lines are not yet read."""
    if text.lstrip()[:1] == "[":
        try:
            items = _json(text)
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", 1)
            why = getattr(error, "msg", "nested too deeply")
            raise PromptError(
                [f"{name}:{line}: is no JSON list ({why}): correct it, or write an object a line"]
            ) from None
        for number, item in enumerate(items, 1):
            yield f"item {number}", f"item {number}", item
        return
    # Not splitlines: a text may have U+2028 in it, which JSON does not escape.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"line {number}", str(number), line.encode("utf-8", "surrogatepass")


def _json(text: str | bytes) -> Any:
    """Raises ValueError; for NaN and the infinities too, which no server takes."""
    return json.loads(text, parse_constant=_no_constant, parse_float=_finite)


def _no_json(error: Exception) -> _Fault:
    if isinstance(error, RecursionError):
        return _Fault("is nested too deeply: it must be a JSON object of a request")
    why = getattr(error, "msg", str(error))
    return _Fault(f"is no JSON ({why}): each line must be a JSON object, or the whole file a list")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_constant(text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number that a server takes")


def _prompt(row: Any, place: str) -> Prompt:
    """Raises _Fault."""
    if not isinstance(row, dict):
        raise _Fault("must be a JSON object", row)
    given = next((row[name] for name in ("custom_id", "id") if isinstance(row.get(name), str | int)), None)
    found = place if given is None or str(given) == "" else _clean(str(given))
    scenario = _scenario(row)
    if "conversations" in row:
        return Prompt(found, scenario, {"messages": _turns(row["conversations"])}, CHAT)
    if "body" in row:
        body = row["body"]
        if not isinstance(body, dict):
            raise _Fault("body: must be the JSON object of a request", body)
        if row.get("method", "POST") != "POST":
            raise _Fault("method: must be POST", row["method"])
        if scenario == DEFAULT_SCENARIO:
            scenario = _scenario(body)
        return Prompt(found, scenario, *_asked(body, "body.", row.get("url")))
    return Prompt(found, scenario, *_asked(row, "", None))


def _asked(body: dict[str, Any], prefix: str, url: Any) -> tuple[dict[str, Any], str]:
    """What of a request is sent, and where to. Raises _Fault."""
    if url is not None and url not in (CHAT, COMPLETIONS):
        raise _Fault(f"url: must be {CHAT} or {COMPLETIONS}", url)
    chat = "messages" in body
    if chat == ("prompt" in body):
        raise _Fault(f"{prefix}messages: a request has either messages or prompt; give one of them")
    if url is not None and url != (CHAT if chat else COMPLETIONS):
        raise _Fault(f"url: {url} takes {'prompt' if chat else 'messages'}: correct the url")
    if chat:
        _check_messages(body["messages"], f"{prefix}messages")
    elif not _is_prompt(body["prompt"]):
        raise _Fault(f"{prefix}prompt: must be one text, or a list of token ids", body["prompt"])
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if value is not None and (type(value) is not int or not 1 <= value < _HUGE):
            raise _Fault(f"{prefix}{name}: must be a whole number of at least 1", value)
    value = body.get("temperature")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _HUGE):
        raise _Fault(f"{prefix}temperature: must be a number of at least 0", value)
    sent = {name: value for name, value in body.items() if name not in _NOT_SENT}
    own = sent.get("vllm_xargs")
    if isinstance(own, dict) and "speculative" in own:
        # Whether a request speculates is what is measured.
        sent["vllm_xargs"] = {name: value for name, value in own.items() if name != "speculative"}
    return sent, CHAT if chat else COMPLETIONS


def _check_messages(messages: Any, name: str) -> None:
    if not isinstance(messages, list) or not messages:
        raise _Fault(f"{name}: must be a list with at least one message", messages)
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _Fault(f'{name}[{number}]: must be an object with a role, as {{"role": "user", "content": "…"}}')
        content = message.get("content")
        if not isinstance(content, str | list) and not (message["role"] == "assistant" and content is None):
            raise _Fault(f"{name}[{number}].content: must be a text or a list of parts", content)


def _is_prompt(value: Any) -> bool:
    """One prompt: a list of several would have no figures of its own."""
    if isinstance(value, str):
        return bool(value)
    return isinstance(value, list) and bool(value) and all(type(each) is int and each >= 0 for each in value)


def _turns(turns: Any) -> list[dict[str, str]]:
    """Messages of a ShareGPT conversation, up to what was last asked. Raises _Fault."""
    if not isinstance(turns, list):
        raise _Fault("conversations: must be a list of turns", turns)
    messages = []
    for number, turn in enumerate(turns):
        speaker = turn.get("from") if isinstance(turn, dict) else None
        role = _ROLES.get(speaker) if isinstance(speaker, str) else None
        if role is None or not isinstance(turn.get("value"), str):
            words = 'must be {"from": "human", "gpt" or "system", "value": "…"}'
            raise _Fault(f"conversations[{number}]: {words}", turn)
        messages.append({"role": role, "content": turn["value"]})
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not any(message["role"] == "user" for message in messages):
        raise _Fault('conversations: nobody asks anything: there must be a turn with "from": "human"')
    return messages


def _scenario(row: dict[str, Any]) -> str:
    """Its own field, or that of its metadata, as the sidecar takes it."""
    metadata = row.get("metadata")
    for name, value in (
        ("scenario", row.get("scenario")),
        ("metadata.scenario", metadata.get("scenario") if isinstance(metadata, dict) else None),
    ):
        if value is None:
            continue
        if not isinstance(value, str) or not value.strip():
            raise _Fault(f"{name}: must be a name", value)
        return _clean(value.strip()[:200])
    return DEFAULT_SCENARIO


def _clean(text: str) -> str:
    """Without halves of surrogate pairs, which JSON can name and no file can hold."""
    return text.encode("utf-8", "replace").decode()


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 60 else text[:59] + "…"


# ---- samples


def shares(prompts: Sequence[Prompt]) -> dict[str, float]:
    """The share of each scenario, the largest first."""
    counts = Counter(prompt.scenario for prompt in prompts)
    return {name: count / len(prompts) for name, count in counts.most_common()}


def sample(prompts: Sequence[Prompt], number: int, seed: int, least: int = LEAST) -> list[Prompt]:
    """About `number` prompts, in a random order that the seed alone decides.

    Each scenario has its share of the file's, but at least `least` prompts, or all there are: a small one is to be
    judged as well, so that there may be more than `number`. Global figures are to be weighed by `shares`.
    """
    by_scenario: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_scenario.setdefault(prompt.scenario, []).append(prompt)
    chance = random.Random(f"sample-{seed}")  # noqa: S311 - which prompts are taken is no secret
    chosen: list[Prompt] = []
    # Sorted, so that the order of scenarios in the file does not count.
    for name in sorted(by_scenario):
        there = by_scenario[name]
        wanted = max(round(number * len(there) / len(prompts)), least)
        chosen += there if wanted >= len(there) else chance.sample(there, wanted)
    chance.shuffle(chosen)
    return chosen


def greedy(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The same, each at temperature 0."""
    return [replace(prompt, body={**prompt.body, "temperature": 0}) for prompt in prompts]


def limited(prompts: Sequence[Prompt], max_tokens: int) -> list[Prompt]:
    """The same, with a longest reply where a prompt names none."""
    named = ("max_tokens", "max_completion_tokens")
    return [
        prompt
        if any(prompt.body.get(name) is not None for name in named)
        else replace(prompt, body={**prompt.body, "max_tokens": max_tokens})
        for prompt in prompts
    ]
