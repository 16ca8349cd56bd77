"""Acceptance of the demo drafts without an engine: `python -m specwatch_engine.demo.evaluate [--k 4]`.

The target answers greedily; each draft then says, at every position of that text, what it would have guessed.
Since greedy verification accepts a guess exactly where it equals the target's choice, and since every
accepted prefix is the target's own text, replaying those hits step by step gives the p that an engine would
report.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from .dialogues import LANGUAGES, SCENARIOS, Dialogue, dialogue
from .weights import CHECKPOINTS

LONGEST_REPLY: Final = 120
DRAFTS: Final = ("draft_generalist", "draft_specialist")


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy reply of the target."""

    scenario: str
    prompt: list[int]
    reply: list[int]
    """Up to `<|eot|>` and, if it was reached, what the target says in the following places."""
    length: int
    """Tokens up to and with `<|eot|>`; all of them where it never came."""
    ended: bool


@dataclass(slots=True)
class Tally:
    """Drafted and accepted tokens, and the verify steps they took."""

    drafted: int = 0
    accepted: int = 0
    steps: int = 0

    @property
    def p(self) -> float:
        """Accepted / drafted; 0 / 0 does not occur here because no reply is empty."""
        return self.accepted / self.drafted


def replay(hits: Sequence[bool], length: int, k: int) -> Tally:
    """Counts the steps of greedy verification for a reply of `length` tokens.

    `hits[i]`: the draft's guess for token i is the target's. Token 0 comes from the prompt's own forward
    pass. Each step drafts k tokens, accepts up to the first miss and adds the target's own token; hits past
    `length` count, as an engine counts what it verified before it noticed the end.
    """
    tally, position = Tally(), 1
    while position < length:
        accepted = 0
        while accepted < k and position + accepted < len(hits) and hits[position + accepted]:
            accepted += 1
        tally.drafted += k
        tally.accepted += accepted
        tally.steps += 1
        position += accepted + 1
    return tally


@torch.no_grad()
def answers(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, asked: Sequence[Dialogue], k: int
) -> list[Answer]:
    """The target's replies."""
    end = target.config.eos_token_id
    # Replies are cut by hand below, because k guesses reach past the end.
    target.generation_config.eos_token_id = None
    tokenizer.padding_side = "left"
    prompts = [
        str(tokenizer.apply_chat_template(list(item.prompt), tokenize=False, add_generation_prompt=True))
        for item in asked
    ]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    outputs = target.generate(  # type: ignore[misc]  # transformers' self type rejects its own models
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        do_sample=False,
        max_new_tokens=LONGEST_REPLY,
        pad_token_id=tokenizer.pad_token_id,
    )
    found = []
    for item, padded, mask, output in zip(asked, batch["input_ids"], batch["attention_mask"], outputs, strict=True):
        reply = output[len(padded) :].tolist()
        ended = end in reply
        length = reply.index(end) + 1 if ended else len(reply)
        found.append(Answer(item.scenario, padded[mask.bool()].tolist(), reply[: length + k], length, ended))
    return found


@torch.no_grad()
def acceptance(draft: LlamaForCausalLM, replies: Sequence[Answer], k: int) -> dict[str, Tally]:
    """The draft's tally per scenario."""
    tallies = {scenario: Tally() for scenario in SCENARIOS}
    for answer in replies:
        text = torch.tensor([answer.prompt + answer.reply])
        guesses = draft(text).logits[0, len(answer.prompt) - 1 : -1].argmax(-1)
        hits = (guesses == text[0, len(answer.prompt) :]).tolist()
        seen, total = replay(hits, answer.length, k), tallies[answer.scenario]
        total.drafted += seen.drafted
        total.accepted += seen.accepted
        total.steps += seen.steps
    return tallies


def load(folder: Path) -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.requires_grad_(False)
    return model


def main(arguments: list[str] | None = None) -> None:
    """Prints p per scenario and draft, the reply lengths and the share of replies that end by themselves."""
    parser = argparse.ArgumentParser(prog="python -m specwatch_engine.demo.evaluate", description=__doc__)
    parser.add_argument("--models", type=Path, default=CHECKPOINTS, help="folder that holds target and drafts")
    parser.add_argument("--drafts", nargs="+", default=list(DRAFTS), metavar="NAME")
    parser.add_argument("--dialogues", type=int, default=20, help="per scenario and language (default: %(default)s)")
    parser.add_argument("--k", type=int, default=4, help="tokens drafted a step (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(options.models / "target")
    asked = [
        dialogue(f"evaluate-{number}", scenario, language)
        for scenario in SCENARIOS
        for language in LANGUAGES
        for number in range(options.dialogues)
    ]
    replies = answers(load(options.models / "target"), tokenizer, asked, options.k)
    tallies = {name: acceptance(load(options.models / name), replies, options.k) for name in options.drafts}
    print(f"{'scenario':22}{'reply tokens':>16}{'ended':>8}" + "".join(f"{name:>20}" for name in tallies))
    for scenario in SCENARIOS:
        own = [answer for answer in replies if answer.scenario == scenario]
        lengths = [answer.length for answer in own]
        ended = sum(answer.ended for answer in own) / len(own)
        line = f"{scenario:22}{f'{min(lengths)}-{max(lengths)}':>16}{ended:>8.0%}"
        print(line + "".join(f"{tally[scenario].p:>20.3f}" for tally in tallies.values()))


if __name__ == "__main__":
    main()
