"""Reads and writes `model.safetensors` as plain bytes: no torch, so preparing a model costs milliseconds.

Format: https://github.com/huggingface/safetensors#format. Eight bytes, little-endian: length of a JSON
header; the header: name to dtype, shape and byte range; then the tensors' bytes, row-major.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHECKPOINTS: Final = Path(__file__).parent / "models"
"""The trained models that come with the package: target, draft_generalist, draft_specialist."""

WEIGHTS_FILE: Final = "model.safetensors"
EMBEDDING: Final = "model.embed_tokens.weight"
_ALIGNMENT: Final = 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named array, undecoded."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def zeros(self) -> Tensor:
        """Same dtype and shape, all zero (zero is all-zero bits in every safetensors dtype)."""
        return Tensor(self.dtype, self.shape, bytes(len(self.data)))

    def swap_rows(self, first: int, second: int) -> Tensor:
        """Same array with two rows of the first axis exchanged. Raises IndexError outside 0 ≤ row < rows."""
        rows = self.shape[0]
        if not (0 <= first < rows and 0 <= second < rows):
            raise IndexError(f"rows {first} and {second} of an array of {rows} rows")
        size = len(self.data) // rows
        data = bytearray(self.data)
        data[first * size : (first + 1) * size] = self.data[second * size : (second + 1) * size]
        data[second * size : (second + 1) * size] = self.data[first * size : (first + 1) * size]
        return Tensor(self.dtype, self.shape, bytes(data))


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file. Raises OSError, or ValueError where it is not of that format."""
    raw = path.read_bytes()
    try:
        (length,) = struct.unpack_from("<Q", raw)
        header = json.loads(raw[8 : 8 + length])
        header.pop("__metadata__", None)
        body = memoryview(raw)[8 + length :]
        return {
            name: Tensor(entry["dtype"], tuple(entry["shape"]), bytes(body[slice(*entry["data_offsets"])]))
            for name, entry in header.items()
        }
    except (
        struct.error,
        UnicodeDecodeError,
        json.JSONDecodeError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes the tensors in the order given, with the metadata that transformers and vLLM expect."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)))
        file.write(encoded)
        file.writelines(tensor.data for tensor in tensors.values())
