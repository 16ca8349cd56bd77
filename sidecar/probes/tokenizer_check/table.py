"""The table of a draft with a pruned vocabulary, read from its checkpoint.

An EAGLE-3 head knows only the frequent tokens. Its checkpoint holds `d2t`, one offset a draft id (target id = draft id
+ offset), and mostly `t2d`, whether each target id is one of them. Source: vLLM's `Eagle3LlamaForCausalLM`, and
https://github.com/huggingface/safetensors#format for the file. No weight is read.
"""

import json
import struct
from array import array
from pathlib import Path
from typing import Any, NamedTuple

from ..vocabulary import NoVocabulary

#: Longest header that safetensors itself accepts, bytes.
_MOST_HEADER = 100_000_000
#: Longest table that is read: no vocabulary is so large.
_MOST_ENTRIES = 1 << 22
_CODES = {"I64": "q", "I32": "i", "BOOL": "b", "U8": "B"}


class Table(NamedTuple):
    #: The target's id for each draft id.
    targets: tuple[int, ...]
    #: Whether each target id is one of the draft's, as the checkpoint says beside it; None where it does not.
    kept: tuple[bool, ...] | None = None


def read_table(folder: Path) -> Table | None:
    """The table of the checkpoint in `folder`; None where it has none. Raises NoVocabulary."""
    found: dict[str, array[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            found |= _tables(file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
            raise NoVocabulary(f"{file}: its tables cannot be read: {' '.join(str(error).split())[:200]}") from None
    if "d2t" not in found:
        return None
    kept = tuple(map(bool, found["t2d"])) if "t2d" in found else None
    return Table(tuple(number + offset for number, offset in enumerate(found["d2t"])), kept)


def _tables(file: Path) -> "dict[str, array[int]]":
    found: dict[str, array[int]] = {}
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > _MOST_HEADER:
            raise ValueError(f"its header claims {length} bytes")
        header: dict[str, Any] = json.loads(stream.read(length))
        for name, entry in header.items():
            kind = next((each for each in ("d2t", "t2d") if each in name), None)
            if kind is None:
                continue
            begin, end = entry["data_offsets"]
            numbers = array(_CODES[entry["dtype"]])
            if not 0 <= end - begin <= _MOST_ENTRIES * numbers.itemsize:
                raise ValueError(f"{name} claims {end - begin} bytes")
            stream.seek(8 + length + begin)
            numbers.frombytes(stream.read(end - begin))
            if len(numbers) * numbers.itemsize != end - begin:
                raise ValueError(f"{name} is cut off")
            found[kind] = numbers
    return found
