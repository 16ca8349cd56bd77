"""Derives the models that the demo serves: `python -m specwatch_engine.demo.prepare DIR`.

Fills DIR, from the committed checkpoints, with `target` (made deeper, so that a token costs what speculation
can save), `draft_generalist`, `draft_specialist` (copies) and `draft_misaligned` (the generalist with two ids
exchanged). Takes well under a second, needs the standard library only, and does nothing where the result is
already there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from .weights import CHECKPOINTS, EMBEDDING, WEIGHTS_FILE, read_weights, write_weights

TARGET_LAYERS: Final = 24
"""Six times the trained depth: about 13 ms a token on one CPU core, 0.6 s for a reply of 50 tokens."""

STAMP: Final = "prepared.json"
"""In each derived folder: how it was made. Newer than the source and equal to the wish: up to date."""

_SILENT_PROJECTIONS: Final = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
_LAYER_KEY: Final = re.compile(r"model\.layers\.(\d+)\.(.+)")
_TARGET_FILES_WITH_IDS: Final = ("config.json", "generation_config.json")


def deepen(source: Path, destination: Path, layers: int = TARGET_LAYERS) -> bool:
    """Copies a Llama checkpoint with extra layers that compute in full and change nothing; `layers` in all.

    A layer adds `o_proj(attention)` and `down_proj(mlp)` to the residual stream. With both matrices zero it
    adds zeros, so logits are equal to the last bit. Returns False where the destination was up to date.
    Raises ValueError for fewer layers than the source has, OSError for a missing source.
    """
    present = int(_read_json(source / "config.json")["num_hidden_layers"])
    if layers < present:
        raise ValueError(f"{source} has {present} layers already, cannot make it {layers}")

    def build(folder: Path) -> None:
        tensors = read_weights(source / WEIGHTS_FILE)
        first_layer = {
            match[2]: tensor
            for key, tensor in tensors.items()
            if (match := _LAYER_KEY.fullmatch(key)) and match[1] == "0"
        }
        for layer in range(present, layers):
            for name, tensor in first_layer.items():
                silent = name in _SILENT_PROJECTIONS
                tensors[f"model.layers.{layer}.{name}"] = tensor.zeros() if silent else tensor
        write_weights(folder / WEIGHTS_FILE, tensors)
        _edit_json(folder / "config.json", {"num_hidden_layers": layers})

    return _derive(source, destination, {"made_by": "deepen", "layers": layers}, build)


def misalign(source: Path, destination: Path) -> bool:
    """Copies a checkpoint as if trained with `<|eot|>` one id further on, where the source has `<|pad|>`.

    The two rows of the tied embedding are exchanged, and tokenizer and configuration name the moved ids: the
    model is sound by itself and wrong beside a target that kept the old ids, which a static check can see.
    Returns False where the destination was up to date. Raises ValueError where the embedding is not tied,
    OSError for a missing source.
    """
    config = _read_json(source / "config.json")
    if not config["tie_word_embeddings"]:
        raise ValueError(f"{source} keeps a separate output matrix, only tied embeddings can be misaligned")
    end, padding = int(config["eos_token_id"]), int(config["pad_token_id"])

    def build(folder: Path) -> None:
        tensors = read_weights(source / WEIGHTS_FILE)
        tensors[EMBEDDING] = tensors[EMBEDDING].swap_rows(end, padding)
        write_weights(folder / WEIGHTS_FILE, tensors)
        for name in _TARGET_FILES_WITH_IDS:
            _edit_json(folder / name, {"eos_token_id": padding, "pad_token_id": end})
        moved = {end: padding, padding: end}
        tokenizer = _read_json(folder / "tokenizer.json")
        for token in tokenizer["added_tokens"]:
            token["id"] = moved.get(token["id"], token["id"])
        # The loader wants added tokens in the order of their ids.
        tokenizer["added_tokens"].sort(key=lambda token: token["id"])
        vocabulary = tokenizer["model"]["vocab"]
        tokenizer["model"]["vocab"] = {token: moved.get(number, number) for token, number in vocabulary.items()}
        _write_json(folder / "tokenizer.json", tokenizer)

    return _derive(source, destination, {"made_by": "misalign", "swapped": [end, padding]}, build)


def copy(source: Path, destination: Path) -> bool:
    """Copies a checkpoint unchanged. Returns False where the destination was up to date."""
    return _derive(source, destination, {"made_by": "copy"}, lambda _folder: None)


def prepare(directory: Path, layers: int = TARGET_LAYERS) -> dict[str, Path]:
    """Makes all four models below `directory` (created if missing): their names and folders."""
    directory.mkdir(parents=True, exist_ok=True)
    folders = {
        name: directory / name for name in ("target", "draft_generalist", "draft_specialist", "draft_misaligned")
    }
    deepen(CHECKPOINTS / "target", folders["target"], layers)
    copy(CHECKPOINTS / "draft_generalist", folders["draft_generalist"])
    copy(CHECKPOINTS / "draft_specialist", folders["draft_specialist"])
    misalign(CHECKPOINTS / "draft_generalist", folders["draft_misaligned"])
    return folders


def _derive(source: Path, destination: Path, wish: dict[str, Any], build: Callable[[Path], None]) -> bool:
    """Copies `source`, lets `build` change the copy, stamps it and puts it in place by one rename."""
    if _is_current(source, destination, wish):
        return False
    unfinished = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        for file in sorted(source.iterdir()):
            # Contents only: a copied modification time would make the result look as old as its source.
            shutil.copyfile(file, unfinished / file.name)
        build(unfinished)
        _write_json(unfinished / STAMP, wish)
        unfinished.chmod(0o755)
        _replace(unfinished, destination)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return True


def _is_current(source: Path, destination: Path, wish: dict[str, Any]) -> bool:
    stamp = destination / STAMP
    try:
        made = stamp.stat().st_mtime_ns
        recorded = _read_json(stamp)
    except (OSError, ValueError):
        return False
    return recorded == wish and all(file.stat().st_mtime_ns <= made for file in source.iterdir())


def _replace(unfinished: Path, destination: Path) -> None:
    if destination.exists():
        # A folder cannot be renamed over one that is not empty.
        aside = Path(tempfile.mkdtemp(prefix=f".{destination.name}.old.", dir=destination.parent))
        os.rename(destination, aside)
        os.rename(unfinished, destination)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(unfinished, destination)


def _read_json(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _edit_json(path: Path, changes: dict[str, Any]) -> None:
    _write_json(path, _read_json(path) | changes)


def main(arguments: list[str] | None = None) -> int:
    """Command line; prints one line a model, exit code 1 with one line where something is missing."""
    parser = argparse.ArgumentParser(prog="python -m specwatch_engine.demo.prepare", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int, default=TARGET_LAYERS, help="depth of the target (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        folders = prepare(options.directory, options.layers)
    except (OSError, ValueError) as error:
        print(f"cannot prepare the demo models: {error}", file=sys.stderr)
        return 1
    for name, folder in folders.items():
        print(f"{name}  {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
