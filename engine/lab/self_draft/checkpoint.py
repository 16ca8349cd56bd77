"""A checkpoint in the layout of Hugging Face, read and written as bytes: a model of any size takes a few megabytes.

Format: https://github.com/huggingface/safetensors#format. Eight bytes, little-endian: length of a JSON header; the
header: name to dtype, shape and byte range; then the tensors' bytes. Types that are new or packed (fp8, int4 with its
scales) are carried like any other, since nothing is decoded.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from sidecar.probes.vocabulary import folder_of

CONFIG = "config.json"
WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
#: Longest header that safetensors itself accepts, bytes.
_MAX_HEADER = 100_000_000
#: A file is begun anew beyond this, as Hugging Face's own writer does, bytes.
SHARD_BYTES = 5_000_000_000
#: Read and written at a time, bytes.
PIECE_BYTES = 4 << 20
_ALIGNMENT = 8
#: What holds weights, in this format or another, or an optimizer's state: never copied beside weights that are written.
WEIGHTS = frozenset((".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack", ".npz"))
#: Bytes of weights in formats that are not read, with what makes them one that is.
_OTHER_FORMATS = {
    ".gguf": "name the folder of the model that it was made of",
    ".bin": "write it once with save_pretrained(…, safe_serialization=True)",
    ".pth": "write it once with save_pretrained(…, safe_serialization=True)",
}


class CheckpointError(Exception):
    """A checkpoint that is not there, is not whole or cannot be read: a sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where the bytes of a named array lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    #: Of its first byte in the file.
    start: int
    #: In bytes.
    size: int

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def named(self, name: str) -> Tensor:
        return replace(self, name=name)


def find(name: str) -> Path:
    """The folder of a model: as named, or in the local cache of the Hugging Face hub; nothing is fetched."""
    folder = Path(name) if os.path.isdir(name) else folder_of(name)
    if folder is None and name.startswith(("/", ".", "~")):
        raise CheckpointError(f"{name}: no such folder: name the folder that holds its {CONFIG}")
    if folder is None:
        raise CheckpointError(
            f"{name}: neither a folder nor in the local cache of the Hugging Face hub: "
            f"fetch it first (hf download {name}), or name its folder"
        )
    if not folder.is_dir():  # a file was named
        folder = folder.parent
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder} has no {CONFIG}: name the folder of a checkpoint of Hugging Face's layout")
    return folder


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError."""
    try:
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds no JSON object")
    return value


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def tensors(folder: Path) -> list[Tensor]:
    """All tensors of a checkpoint, in the order in which they lie in its files. Raises CheckpointError."""
    found: dict[str, Tensor] = {}
    for file in _files(folder):
        for tensor in header(file):
            if tensor.name in found:
                raise CheckpointError(f"{folder}: {tensor.name} is in {found[tensor.name].file.name} and {file.name}")
            found[tensor.name] = tensor
    if not found:
        raise CheckpointError(f"{folder}: its *.safetensors hold no tensor")
    return list(found.values())


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        listed = read_json(folder / INDEX).get("weight_map")
        if not isinstance(listed, dict) or not all(isinstance(each, str) for each in listed.values()):
            raise CheckpointError(f"{folder / INDEX} has no weight_map of names")
        names = sorted(set(listed.values()))
        if outside := [name for name in names if Path(name).name != name]:
            raise CheckpointError(f"{folder / INDEX} names {outside[0]}, which is not in its folder")
        if missing := [name for name in names if not (folder / name).is_file()]:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise CheckpointError(f"{folder}: {missing[0]}{more} of {INDEX} is not there: fetch the model again")
        return [folder / name for name in names]
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    if (folder / "adapter_config.json").is_file():
        raise CheckpointError(f"{folder} is an adapter (LoRA), not a model: merge it into its base model first")
    # Those of `consolidated` hold the same weights under the names of their makers.
    if files := sorted(each for each in folder.glob("*.safetensors") if not each.name.startswith("consolidated")):
        return files
    for suffix, remedy in _OTHER_FORMATS.items():
        if others := sorted(folder.glob(f"*{suffix}")):
            raise CheckpointError(f"{folder} has no *.safetensors, only {others[0].name}: {remedy}")
    raise CheckpointError(f"{folder} has no *.safetensors: fetch the model's weights too")


def header(file: Path) -> list[Tensor]:
    """The tensors of one file by where they lie. Raises CheckpointError where it is no whole safetensors file."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            first = stream.read(8)
            if first == b"version ":
                raise CheckpointError(f"{file} is a pointer of git-lfs, not the weights: fetch them by git lfs pull")
            (length,) = struct.unpack("<Q", first)
            if length > min(_MAX_HEADER, size - 8):
                raise ValueError(f"its header claims {length} bytes")
            entries = json.loads(stream.read(length))
        entries.pop("__metadata__", None)
        found = [_tensor(file, name, entry, 8 + length) for name, entry in entries.items()]
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} is not a safetensors file: {error}") from None
    end = max((tensor.start + tensor.size for tensor in found), default=0)
    if end > size:
        raise CheckpointError(f"{file} is cut: it has {size} of {end} bytes: fetch it again")
    return sorted(found, key=lambda tensor: tensor.start)


def _tensor(file: Path, name: str, entry: Any, base: int) -> Tensor:
    first, last = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(isinstance(each, int) and each >= 0 for each in (first, last, *shape)) or last < first:
        raise ValueError(f"{name} has a shape or a place that cannot be")
    if not isinstance(entry["dtype"], str):
        raise TypeError(f"{name} has no dtype")
    return Tensor(name, entry["dtype"], shape, file, base + first, last - first)


def shards(wanted: Sequence[Tensor], limit: int = SHARD_BYTES) -> list[list[Tensor]]:
    """The tensors by the file that they go to: each of at most `limit` bytes, or of one tensor."""
    parts: list[list[Tensor]] = [[]]
    size = 0
    for tensor in wanted:
        if parts[-1] and size + tensor.size > limit:
            parts.append([])
            size = 0
        parts[-1].append(tensor)
        size += tensor.size
    return parts


def write(folder: Path, wanted: Sequence[Tensor], on_bytes: Callable[[int], None], limit: int = SHARD_BYTES) -> None:
    """Copy the tensors into a checkpoint of `folder`; `on_bytes` hears of every piece. Raises OSError.

    One file, or several with their index. The metadata is what transformers and vLLM expect.
    """
    parts = shards(wanted, limit)
    where: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        name = WHOLE if len(parts) == 1 else f"model-{number:05}-of-{len(parts):05}.safetensors"
        where |= dict.fromkeys((tensor.name for tensor in part), name)
        _write_file(folder / name, part, on_bytes)
    if len(parts) > 1:
        total = sum(tensor.size for tensor in wanted)
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})


def _write_file(file: Path, part: Iterable[Tensor], on_bytes: Callable[[int], None]) -> None:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in part:
        end = offset + tensor.size
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(entries, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(encoded)))
        out.write(encoded)
        for tensor in part:
            with tensor.file.open("rb") as source:
                source.seek(tensor.start)
                _copy(source, out, tensor, on_bytes)


def _copy(source: Any, out: Any, tensor: Tensor, on_bytes: Callable[[int], None]) -> None:
    left = tensor.size
    while left:
        piece = source.read(min(left, PIECE_BYTES))
        if not piece:
            raise OSError(f"{tensor.file} became shorter while it was read")
        out.write(piece)
        on_bytes(len(piece))
        left -= len(piece)


def overwrite(folder: Path, values: Mapping[str, bytes]) -> None:
    """Put other bytes, as many, in the place of tensors' own. Raises KeyError, ValueError, OSError."""
    there = {tensor.name: tensor for tensor in tensors(folder)}
    for name, value in values.items():
        tensor = there[name]
        if len(value) != tensor.size:
            raise ValueError(f"{name} has {tensor.size} bytes, not {len(value)}")
        with tensor.file.open("r+b") as file:
            file.seek(tensor.start)
            file.write(value)
