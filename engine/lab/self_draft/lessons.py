"""What a draft can learn from its target: prompts, and the target's own greedy replies to them, as tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import prompts
from ..progress import Say

#: Prompts beyond are left out, as are those for which the model has no room.
LONGEST_PROMPT = 2048
#: Share of the lessons that nothing is learned from, and how many at most.
HELD_OUT_SHARE = 0.1
MOST_HELD_OUT = 64
#: Fewer give no figure that says anything.
LEAST = 10
#: Asked at once.
_BATCH = 32


class LessonsError(Exception):
    """There is nothing to learn from: a sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One prompt, with chat template, and what the target says to it; ids of tokens."""

    asked: tuple[int, ...]
    said: tuple[int, ...]


def lessons(teacher: Any, folder: Path, source: str, max_tokens: int, seed: int, most: int, say: Say) -> list[Lesson]:
    """The target's replies to at most `most` prompts of a file, of each scenario its share, in a random order.

    Each once, as two equal ones would be learned from and held out as well. Raises LessonsError.
    """
    asked = _asked(folder, source, max_tokens, seed, most, say)
    found = []
    # Of like length together, so that little is padding.
    order = sorted(asked, key=lambda item: (len(item[0]), item))
    with say.bar("replies of the target", len(order)) as bar:
        for start in range(0, len(order), _BATCH):
            part = order[start : start + _BATCH]
            found += [Lesson(ids, said) for (ids, _), said in zip(part, _replies(teacher, part), strict=True) if said]
            bar.advance(len(part))
    if len(found) < LEAST:
        raise LessonsError(f"--prompts: {source} gives {len(found)} replies of the target, and {LEAST} are the least")
    random.Random(f"lessons-{seed}").shuffle(found)  # noqa: S311 - an order, no secret
    return found


def _asked(
    folder: Path, source: str, max_tokens: int, seed: int, most: int, say: Say
) -> list[tuple[tuple[int, ...], int]]:
    """Each prompt's tokens, and how many it is answered by at most."""
    from transformers import AutoConfig, AutoTokenizer

    try:
        # A little more than needed, as some are equal or too long.
        wanted = prompts.sample(prompts.read(source, say), 2 * most, seed, least=1)
    except prompts.PromptError as error:
        raise LessonsError(str(error)) from None
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = AutoConfig.from_pretrained(folder).get_text_config()
    room = min(LONGEST_PROMPT, (getattr(config, "max_position_embeddings", None) or LONGEST_PROMPT) - max_tokens)
    found: dict[tuple[int, ...], int] = {}
    why: str | None = None
    left_out = 0
    for prompt in wanted:
        try:
            ids = tuple(_tokens(tokenizer, prompt.body))
        except Exception as error:  # of a template, which raises what it likes
            why, left_out = why or f"{prompt.id}: {' '.join(str(error).split())[:200]}", left_out + 1
            continue
        if not 0 < len(ids) <= room:
            why, left_out = why or f"{prompt.id} has {len(ids)} tokens, and {room} are the most", left_out + 1
            continue
        given = prompt.body.get("max_completion_tokens") or prompt.body.get("max_tokens") or max_tokens
        found.setdefault(ids, min(int(given), max_tokens))
        if len(found) == most:
            break
    if why is not None:
        say(f"{left_out} prompts are left out; the first: {why}")
    return list(found.items())


def _tokens(tokenizer: Any, body: dict[str, Any]) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return prompt
    if prompt is not None:
        return list(tokenizer(prompt).input_ids)
    more = body.get("chat_template_kwargs")
    text = tokenizer.apply_chat_template(
        [_plain(message) for message in body["messages"]],
        tools=body.get("tools"),
        add_generation_prompt=True,
        tokenize=False,
        **(more if isinstance(more, dict) else {}),
    )
    # The template has written the tokens that stand around a text.
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its parts of text joined, as vLLM gives them to a template of plain texts. Raises ValueError."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    found = (part.get("text") if isinstance(part, dict) else part for part in content)
    texts = [text for text in found if isinstance(text, str)]
    if len(texts) < len(content):
        raise ValueError("it has parts that are no text")
    return {**message, "content": "\n".join(texts)}


def _replies(teacher: Any, part: Sequence[tuple[tuple[int, ...], int]]) -> list[tuple[int, ...]]:
    import torch

    device = teacher.get_input_embeddings().weight.device
    longest = max(len(ids) for ids, _ in part)
    batch = torch.zeros((len(part), longest), dtype=torch.long)
    mask = torch.zeros_like(batch)
    for row, (ids, _) in enumerate(part):
        batch[row, longest - len(ids) :] = torch.tensor(ids)
        mask[row, longest - len(ids) :] = 1
    ends = teacher.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    with torch.no_grad():
        whole = teacher.generate(
            input_ids=batch.to(device),
            attention_mask=mask.to(device),
            do_sample=False,
            max_new_tokens=max(most for _, most in part),
            pad_token_id=0,
        )
    found = []
    for row, (_, most) in zip(whole[:, longest:].tolist(), part, strict=True):
        end = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
        found.append(tuple(row[: min(end, most)]))
    return found


def parted(found: Sequence[Lesson]) -> tuple[list[Lesson], list[Lesson]]:
    """Those to learn from, and those held out."""
    out = min(MOST_HELD_OUT, max(2, round(HELD_OUT_SHARE * len(found))))
    return list(found[out:]), list(found[:out])


def batches(train: Sequence[Lesson], size: int, seed: int) -> Iterator[list[Lesson]]:
    """Endless: every lesson once, then all again in another order; of `size`, but for a last one of what is left."""
    chance = random.Random(f"batches-{seed}")  # noqa: S311 - an order, no secret
    while True:
        order = list(train)
        chance.shuffle(order)
        for start in range(0, len(order), size):
            yield order[start : start + size]
