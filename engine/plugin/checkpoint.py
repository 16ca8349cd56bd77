"""Whether a checkpoint can take the place of the one that the draft model was loaded from.

vLLM overwrites the weights of a running model without asking; where one does not fit, the engine dies. So all
that files can tell is compared before anything is touched. Standard library only; no weight is read.
Format: https://github.com/huggingface/safetensors#format.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Longest header that safetensors itself accepts, bytes.
_MAX_HEADER = 100_000_000
#: Settings of a model without which the same weights compute something else.
_ARCHITECTURE = (
    "vocab_size",
    "architectures",
    "hidden_act",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "sliding_window",
)
#: Differences that are named in a message.
_NAMED = 3
#: What reading JSON that means something else may raise.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def differences(present: Path, wanted: Path) -> str:
    """Why the checkpoint in folder `wanted` cannot replace that in `present`; empty where it can."""
    try:
        if not wanted.is_dir():
            return f"{wanted} is no folder on the engine's machine"
        old, new = headers(present), headers(wanted)
        if not new:
            return f"{wanted} has no *.safetensors file"
        if not old:
            return f"the running draft model's checkpoint {present} has no *.safetensors file to compare with"
        return _tensors(old, new) or _config(present, wanted) or _vocabulary(present, wanted)
    except (OSError, ValueError) as error:
        return str(error)


def headers(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Every tensor's dtype and shape. Raises OSError, or ValueError where a file is not of that format."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            try:
                (length,) = struct.unpack("<Q", stream.read(8))
                if length > _MAX_HEADER:
                    raise ValueError(f"its header claims {length} bytes")
                header = json.loads(stream.read(length))
                header.pop("__metadata__", None)
                found |= {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
            except (struct.error, *_MALFORMED) as error:
                raise ValueError(f"{file} is not a safetensors file: {error}") from None
    return found


def _tensors(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    lines = [f"{name} is missing" for name in sorted(old.keys() - new.keys())]
    lines += [f"{name} is not in the running model" for name in sorted(new.keys() - old.keys())]
    for name in sorted(old.keys() & new.keys()):
        if old[name] != new[name]:
            lines.append(f"{name} is {_shape(new[name])}, the running model's is {_shape(old[name])}")
    return _listed("its weights have another shape: ", lines)


def _shape(entry: tuple[str, tuple[int, ...]]) -> str:
    return f"{entry[0]} {'x'.join(map(str, entry[1]))}"


def _config(present: Path, wanted: Path) -> str:
    old, new = _read(present / "config.json"), _read(wanted / "config.json")
    return _listed(
        "its config.json describes another model: ",
        [
            f"{each} is {new[each]}, the running model's is {old[each]}"
            for each in _ARCHITECTURE
            if each in old and each in new and old[each] != new[each]
        ],
    )


def _vocabulary(present: Path, wanted: Path) -> str:
    if _same_file(present / "tokenizer.json", wanted / "tokenizer.json"):
        return ""
    old, new = _tokens(present), _tokens(wanted)
    if not old or not new:
        return ""
    other = sorted((token for token in old.keys() | new.keys() if old.get(token) != new.get(token)), key=repr)
    return _listed(
        "its tokenizer gives tokens another id: ",
        [
            f"{each!r} is {new.get(each, 'missing')}, the running model's is {old.get(each, 'missing')}"
            for each in other
        ],
    )


def _same_file(one: Path, other: Path) -> bool:
    # Nearly always so; and reading two large ones as JSON would hold up the engine for a second.
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def _listed(what: str, lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
    return what + "; ".join(lines[:_NAMED]) + more if lines else ""


def _tokens(folder: Path) -> dict[str, int]:
    """Token to id, added tokens included; empty where there is no tokenizer.json with a map. Raises as `headers`."""
    file = folder / "tokenizer.json"
    tokenizer = _read(file)
    try:
        vocabulary = tokenizer.get("model", {}).get("vocab")
        if not isinstance(vocabulary, dict):
            return {}
        return vocabulary | {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}
    except _MALFORMED as error:
        raise ValueError(f"{file} is not a tokenizer's: {error!r}") from None


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        value = json.loads(file.read_bytes())
    except _MALFORMED as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    return value if isinstance(value, dict) else {}
