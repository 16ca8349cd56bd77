"""Trains a checkpoint: `python -m specwatch_engine.demo.train target|draft_generalist|draft_specialist`.

One CPU thread is enough (minutes, see each `train.json`). Two runs on one machine give the same file bit for
bit; another processor or torch release may round differently, with the same accuracies within a point.

The optimiser is Muon for the matrices inside the layers (K. Jordan et al., 2024: momentum, then an
approximate orthogonalisation by Newton-Schulz steps) and AdamW for the embedding and the norms.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .dialogues import LANGUAGES, SCENARIOS, Dialogue, dialogue, mix
from .tokenizer import BOS, EOT, PAD, ROLES, VOCABULARY_SIZE, build_tokenizer
from .weights import CHECKPOINTS, WEIGHTS_FILE

CONTEXT_TOKENS: Final = 2048
HELD_OUT_DIALOGUES: Final = 24
"""Per scenario and language, with seeds that no training stream uses."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a Llama model with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides a checkpoint. `weights`: share of each scenario in the training text."""

    shape: Shape
    weights: Mapping[str, float]
    steps: int
    seed: int = 0
    batch: int = 32
    """Dialogues a step."""
    chinese_share: float = 0.3
    muon_rate: float = 0.02
    adam_rate: float = 0.004
    warm_up_steps: int = 40
    constant_share: float = 0.4
    """Share of the steps after which the rate falls linearly."""
    final_rate: float = 0.02
    """Lowest rate as a share of the full one."""
    betas: tuple[float, float] = field(default=(0.9, 0.95))


# Both shapes have the same key-value size (one head of 64, two heads of 32), as one cache layout wants it.
_TARGET_SHAPE: Final = Shape(hidden=192, layers=4, heads=3, kv_heads=1, head_size=64, intermediate=448)
_DRAFT_SHAPE: Final = Shape(hidden=96, layers=2, heads=4, kv_heads=2, head_size=32, intermediate=256)

RECIPES: Final[dict[str, Recipe]] = {
    "target": Recipe(
        _TARGET_SHAPE,
        {
            "address_confirmation": 0.22,
            "fault_report": 0.26,
            "billing": 0.22,
            "product_qa": 0.14,
            "code": 0.16,
        },
        steps=1000,
    ),
    # Sees so few fault reports that it learns their frame and none of their facts.
    "draft_generalist": Recipe(
        _DRAFT_SHAPE,
        {
            "address_confirmation": 0.33,
            "fault_report": 0.005,
            "billing": 0.285,
            "product_qa": 0.18,
            "code": 0.20,
        },
        steps=1200,
    ),
    # The opposite: at home in fault reports, a stranger to names, addresses and invoices.
    "draft_specialist": Recipe(
        _DRAFT_SHAPE,
        {
            "address_confirmation": 0.005,
            "fault_report": 0.62,
            "billing": 0.005,
            "product_qa": 0.07,
            "code": 0.30,
        },
        steps=1200,
    ),
}


def encode(tokenizer: PreTrainedTokenizerFast, item: Dialogue) -> tuple[list[int], list[bool]]:
    """Token ids of a whole dialogue and, beside each, whether it is learned (replies and what ends them).

    After the last `<|eot|>` come `<|user|>` and three `<|pad|>`, learned too: k guesses reach past the end of
    a reply, and there target and draft must agree on something.
    """
    ids, learned = [_id(tokenizer, BOS)], [False]
    for message in item.messages:
        content = [*tokenizer.encode(message["content"], add_special_tokens=False), _id(tokenizer, EOT)]
        ids += [_id(tokenizer, ROLES[message["role"]]), *content]
        learned += [False, *[message["role"] == "assistant"] * len(content)]
    return [*ids, _id(tokenizer, ROLES["user"]), *[_id(tokenizer, PAD)] * 3], [*learned, *[True] * 4]


def _id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    return int(tokenizer.convert_tokens_to_ids(token))  # type: ignore[arg-type]  # one token gives one id


def _batches(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (ids, learned) pairs, both (batch, longest); dialogues of like length share a batch."""
    dialogues = mix(f"train-{recipe.seed}", recipe.weights, None, recipe.chinese_share)
    order = random.Random(recipe.seed)  # noqa: S311  # an order of batches, no secret
    padding = _id(tokenizer, PAD)
    while True:
        pool = sorted((encode(tokenizer, next(dialogues)) for _ in range(16 * recipe.batch)), key=lambda e: len(e[0]))
        starts = list(range(0, len(pool), recipe.batch))
        order.shuffle(starts)
        for start in starts:
            rows = pool[start : start + recipe.batch]
            longest = len(rows[-1][0])
            ids = [row + [padding] * (longest - len(row)) for row, _ in rows]
            learned = [mask + [False] * (longest - len(mask)) for _, mask in rows]
            yield torch.tensor(ids), torch.tensor(learned)


def _new_model(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    return LlamaForCausalLM(  # type: ignore[no-untyped-call]  # transformers leaves its constructors untyped
        LlamaConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_size,
            max_position_embeddings=CONTEXT_TOKENS,
            tie_word_embeddings=True,
            initializer_range=0.03,
            bos_token_id=_id(tokenizer, BOS),
            eos_token_id=_id(tokenizer, EOT),
            pad_token_id=_id(tokenizer, PAD),
        )
    )


def _optimisers(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in name else others).append(parameter)
    return [
        torch.optim.Muon(
            matrices,
            lr=recipe.muon_rate,
            momentum=0.95,
            weight_decay=0.0,
            ns_steps=4,
            adjust_lr_fn="original",
        ),
        torch.optim.AdamW(others, lr=recipe.adam_rate, betas=recipe.betas, weight_decay=0.0),
    ]


def rate_factor(recipe: Recipe, step: int) -> float:
    """Share of the full learning rate at `step` (from 0): linear warm-up, plateau, linear fall."""
    plateau_end = recipe.constant_share * recipe.steps
    fall = (step - plateau_end) / (recipe.steps - plateau_end) if step >= plateau_end else 0.0
    return min(1.0, (step + 1) / recipe.warm_up_steps) * max(recipe.final_rate, 1.0 - fall)


def _logits(model: LlamaForCausalLM, ids: torch.Tensor, learned: torch.Tensor) -> torch.Tensor:
    """Logits (learned positions, vocabulary) that predict the learned tokens; the rest is never projected."""
    states = model.model(ids[:, :-1]).last_hidden_state
    return torch.as_tensor(model.lm_head(states[learned[:, 1:]])).float()


@torch.no_grad()
def held_out_accuracy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Share of learned tokens, per scenario, that are the model's first choice given the true text."""
    accuracy = {}
    for scenario in SCENARIOS:
        right = total = 0
        for language in LANGUAGES:
            for number in range(HELD_OUT_DIALOGUES):
                ids, learned = encode(tokenizer, dialogue(f"held-out-{number}", scenario, language))
                row, mask = torch.tensor([ids]), torch.tensor([learned])
                guesses = _logits(model, row, mask).argmax(-1)
                right += int((guesses == row[:, 1:][mask[:, 1:]]).sum())
                total += len(guesses)
        accuracy[scenario] = round(right / total, 4)
    return accuracy


def train(recipe: Recipe, destination: Path) -> dict[str, Any]:
    """Trains a checkpoint into `destination` (replaced when complete); returns what `train.json` holds."""
    torch.manual_seed(recipe.seed)
    torch.use_deterministic_algorithms(True)
    tokenizer = build_tokenizer()
    model, batches = _new_model(recipe.shape, tokenizer), _batches(tokenizer, recipe)
    optimisers = _optimisers(model, recipe)
    full_rates = [[group["lr"] for group in optimiser.param_groups] for optimiser in optimisers]
    tokens, started = 0, time.process_time()
    for step in range(recipe.steps):
        factor = rate_factor(recipe, step)
        for optimiser, rates in zip(optimisers, full_rates, strict=True):
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        ids, learned = next(batches)
        wanted = ids[:, 1:][learned[:, 1:]]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = _logits(model, ids, learned)
        loss = functional.cross_entropy(logits, wanted)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        tokens += ids.numel()
        if (step + 1) % 50 == 0 or step + 1 == recipe.steps:
            right = (logits.argmax(-1) == wanted).float().mean()
            print(
                f"step {step + 1}/{recipe.steps}  loss {loss.item():.3f}  right {right:.3f}"
                f"  {tokens / 1e6:.2f} M tokens  {time.process_time() - started:.0f} s of CPU",
                flush=True,
            )
    report = {
        "recipe": asdict(recipe),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dialogues": recipe.steps * recipe.batch,
        "tokens": tokens,
        "cpu_seconds": round(time.process_time() - started),
        "held_out_accuracy": held_out_accuracy(model, tokenizer),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    _save(model, tokenizer, report, destination)
    return report


def _save(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, report: Mapping[str, Any], destination: Path
) -> None:
    unfinished = destination.with_name(f".{destination.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(unfinished)  # type: ignore[arg-type]  # transformers decorates `to`
    # safetensors makes its files readable by their owner alone.
    (unfinished / WEIGHTS_FILE).chmod(0o644)
    tokenizer.save_pretrained(unfinished)
    (unfinished / "train.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(destination, ignore_errors=True)
    unfinished.rename(destination)


def main(arguments: list[str] | None = None) -> None:
    """Command line: the checkpoint's name, and where to put it if not beside this file."""
    parser = argparse.ArgumentParser(prog="python -m specwatch_engine.demo.train", description=__doc__)
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("--output", type=Path, help="folder of the checkpoint (default: the committed one)")
    options = parser.parse_args(arguments)
    # More threads than free cores slow such small matrices down many times over.
    torch.set_num_threads(1)
    report = train(RECIPES[options.name], options.output or CHECKPOINTS / options.name)
    print(json.dumps(report["held_out_accuracy"], indent=2))


if __name__ == "__main__":
    main()
