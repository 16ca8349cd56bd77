"""The target with some of its layers alone: what that has, what a step of it may take, and its files."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..progress import Say
from . import checkpoint, layers
from .checkpoint import CheckpointError, Tensor

_QUANTISATION = "hf_quant_config.json"
#: Beside the weights, of the tokenizer.
_FOLDERS = ("additional_chat_templates",)
#: Written by hand, or of Mistral's own layout, which tells of all layers.
_LEFT_OUT = frozenset((checkpoint.CONFIG, _QUANTISATION, "params.json"))
_HEADS = ("lm_head.weight", "embed_out.weight", "output_layer.weight", "output.weight")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


@dataclass(frozen=True, slots=True)
class Plan:
    """What the draft is to be, before anything is written."""

    target: Path
    stack: layers.Stack
    kept: tuple[int, ...]
    """Layers of the target, ascending."""
    config: dict[str, Any]
    tensors: list[Tensor]
    """By the names that they have in the draft."""
    target_numbers: int
    target_size: int
    """In bytes."""
    share_of_bytes: float | None
    """Of what the target reads for a token, what the draft reads; None where that is not the same for each token."""

    @property
    def numbers(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def share_of_layers(self) -> float:
        return len(self.kept) / self.stack.count

    @property
    def lowest(self) -> bool:
        return self.kept[-1] == len(self.kept) - 1


def planned(target: str, depth: int | None, pick: str | None) -> Plan:
    """What to keep of a model by name or folder: the lowest `depth` layers, those of `pick`, or by default.

    Raises CheckpointError, LayersError; ValueError for layers that it does not have.
    """
    folder = checkpoint.find(target)
    config = checkpoint.read_json(folder / checkpoint.CONFIG)
    there = checkpoint.tensors(folder)
    stack = layers.stack(config, (tensor.name for tensor in there))
    kept = layers.picked(pick, stack.count) if pick is not None else layers.lowest(depth, stack.count)
    numbers = {old: new for new, old in enumerate(kept)}
    wanted = []
    for tensor in there:
        layer = stack.layer(tensor.name)
        if layer is None:
            wanted.append(tensor)
        elif layer in numbers:
            wanted.append(tensor.named(stack.renamed(tensor.name, numbers[layer])))
    return Plan(
        target=folder,
        stack=stack,
        kept=tuple(kept),
        config=layers.keep(config, stack.count, kept),
        tensors=wanted,
        target_numbers=sum(tensor.elements for tensor in there),
        target_size=sum(tensor.size for tensor in there),
        share_of_bytes=None if layers.has_experts(config) else _share_of_bytes(stack, there, set(kept)),
    )


def _share_of_bytes(stack: layers.Stack, there: Iterable[Tensor], kept: set[int]) -> float | None:
    """A decoding step at small batches takes as long as reading its weights does: those of each layer, and the matrix
    of the output, which is the embedding where they are tied. None where there is no such matrix."""
    outside: list[Tensor] = []
    by_layer = dict.fromkeys(range(stack.count), 0)
    for tensor in there:
        layer = stack.layer(tensor.name)
        if layer is None:
            outside.append(tensor)
        elif layer in by_layer:
            by_layer[layer] += tensor.size
    head = next((t.size for ends in (_HEADS, _EMBEDDINGS) for t in outside if t.name.endswith(ends)), None)
    if head is None:
        return None
    return (head + sum(by_layer[layer] for layer in kept)) / (head + sum(by_layer.values()))


def write(plan: Plan, folder: Path, say: Say) -> None:
    """The draft's files into an empty folder: weights, configuration, and all else as it is. Raises OSError,
    CheckpointError where it has no room."""
    free = shutil.disk_usage(folder).free
    if free < plan.size:
        words = f"the draft takes {plan.size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        raise CheckpointError(f"--out: {words} there: name a folder on another disk")
    for file in sorted(plan.target.iterdir()):
        if _belongs(file):
            shutil.copyfile(file, folder / file.name)
        elif file.name in _FOLDERS and file.is_dir():
            shutil.copytree(file, folder / file.name)
    checkpoint.write_json(folder / checkpoint.CONFIG, plan.config)
    if (plan.target / _QUANTISATION).is_file():
        told = checkpoint.read_json(plan.target / _QUANTISATION)
        numbers = {old: new for new, old in enumerate(plan.kept)}
        checkpoint.write_json(folder / _QUANTISATION, layers.rename(told, numbers))
    with say.bar("megabytes of weights", round(plan.size / 1e6, 1)) as bar:
        checkpoint.write(folder, plan.tensors, lambda size: bar.advance(size / 1e6))


def _belongs(file: Path) -> bool:
    if file.name.startswith(".") or file.name in _LEFT_OUT or not file.is_file():
        return False
    return file.suffix.lower() not in checkpoint.WEIGHTS and not file.name.endswith(".index.json")
