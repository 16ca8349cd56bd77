"""Which of a model's tensors belong to which of its layers, and what its configuration says of each layer.

Pure. A model is a stack of layers between an embedding and an output: the tensors of layer 3 are named `PREFIX3.…`,
with one prefix for the whole stack, as `model.layers.` (Llama, Qwen, Mistral, Gemma, Phi-3 and most others),
`transformer.h.` (GPT-2), `gpt_neox.layers.`, `model.decoder.layers.` (OPT). A stack with fewer layers, numbered anew,
is a model of the same kind.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..limits import Limits

#: What configurations call the number of layers.
_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
#: Where a model of several media keeps what concerns its text.
_TEXT = ("text_config", "llm_config", "language_config")
#: Parts of names that say of a stack that it is not the one that writes.
_OTHER_STACKS = frozenset((
    "visual", "vision", "vision_model", "vision_tower", "vision_encoder", "image", "audio", "audio_tower",
    "audio_model", "speech", "mtp", "multi_modal_projector", "encoder_decoder",
))  # fmt: skip
_INDEXED = re.compile(r"(?P<prefix>(?:[^.]+\.)*?)(?P<layer>\d+)\.(?P<rest>.+)")

#: Lists of numbers of layers.
_NUMBERS = frozenset((
    "mlp_only_layers", "full_attn_idxs", "full_attention_layers", "full_attn_layers", "sliding_window_layers",
    "attn_layer_idxs", "attn_layer_indices", "attention_layers_idx", "global_attn_idxs", "moe_layers",
    "cross_attention_layers",
))  # fmt: skip
#: Layers below this number are of one kind, the others of another.
_FIRST = frozenset((
    "max_window_layers", "first_k_dense_replace", "num_dense_layers", "n_dense_layers", "moe_layer_start_index",
))  # fmt: skip
#: The number of the last layer of a kind.
_LAST = frozenset(("moe_layer_end_index",))
#: Every so many layers one is of another kind, unless `layer_types` says it layer by layer.
_ATTENTION_PERIODS = frozenset((
    "sliding_window_pattern", "_sliding_window_pattern", "full_attention_interval", "global_attn_every_n_layers",
))  # fmt: skip
_PERIODS = frozenset((
    "decoder_sparse_step", "moe_layer_interval", "interleave_moe_layer_step", "attn_layer_period",
    "expert_layer_period", "moe_layer_freq", "no_rope_layer_interval", "sparse_step",
))  # fmt: skip
#: Heads beyond the last layer that guess further tokens; a draft has no use for them.
_FURTHER = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
#: Lists that have nothing to do with layers, whatever their length; and any of token ids.
_NO_LAYERS = frozenset((
    "architectures", "mrope_section", "auto_map", "id2label",
))  # fmt: skip
#: What a model may say to leave out of quantisation, by the names of its layers.
_QUANTISATION = ("quantization_config", "compression_config", "quantization")
_IN_NAME = re.compile(r"(?<=[.\\])(?P<layer>\d+)(?=[.\\]|$)")
#: More experts than one are said by any of these.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

#: vLLM 0.32 takes a draft of these for the target's own MTP head (`SpeculativeConfig.hf_config_override`), so it can
#: serve none of their layers as a draft model.
_TAKEN_FOR_HEADS = frozenset((
    "deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_v41", "glm_moe_dsa", "pangu_ultra_moe", "kimi_k3", "mimo",
    "mimo_v2", "mimo_v2_flash", "glm4_moe", "glm4_moe_lite", "glm_ocr", "ernie4_5_moe", "qwen3_next", "qwen4_exp",
    "qwen4_exp_text", "bailing_hybrid", "exaone_moe", "exaone4_5", "qwen3_5", "qwen3_5_moe", "qwen3_5_text",
    "qwen3_5_moe_text", "longcat_flash", "step3p5", "step3p7", "hy_v3", "hy_v4", "inkling_model", "inkling_mm_model",
    "dots3_note",
))  # fmt: skip


class LayersError(Exception):
    """A model whose layers cannot be taken apart: a sentence that says why."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers that write."""

    prefix: str
    count: int

    def layer(self, name: str) -> int | None:
        """The layer that a tensor belongs to; None for those of the rest."""
        if not name.startswith(self.prefix):
            return None
        number, _, rest = name[len(self.prefix) :].partition(".")
        return int(number) if number.isdecimal() and rest else None

    def renamed(self, name: str, layer: int) -> str:
        """What a layer's tensor is called in another layer."""
        rest = name[len(self.prefix) :].partition(".")[2]
        return f"{self.prefix}{layer}.{rest}"


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a configuration that tells of the stack. Raises LayersError."""
    if config.get("is_encoder_decoder") or ("encoder" in config and "decoder" in config):
        raise LayersError("an encoder with a decoder has no lower layers that could write by themselves")
    parts: list[Mapping[str, Any]] = [config[key] for key in _TEXT if isinstance(config.get(key), Mapping)]
    for part in (*parts, config):
        if any(_whole(part.get(key)) for key in _COUNTS):
            return part
    raise LayersError(f"config.json does not say how many layers there are ({', '.join(_COUNTS)})")


def stack(config: Mapping[str, Any], names: Iterable[str]) -> Stack:
    """The one family of tensors that is as long as the configuration says. Raises LayersError."""
    part = text_part(config)
    kind = str(config.get("model_type", ""))
    if kind in _TAKEN_FOR_HEADS:
        raise LayersError(
            f"vLLM takes every draft of the kind {kind} for the head that such models bring along (method mtp), "
            "so it could not serve these layers as a draft model; speculate by that head instead"
        )
    if part.get("hidden_size_per_layer_input"):
        raise LayersError("its embedding holds a part for each layer (Gemma 3n), so no layer can be left out")
    count = next(number for key in _COUNTS if (number := _whole(part.get(key))))
    families: dict[str, set[int]] = {}
    for name in names:
        if match := _INDEXED.fullmatch(name):
            families.setdefault(match["prefix"], set()).add(int(match["layer"]))
    further = sum(_whole(part.get(key)) or 0 for key in _FURTHER)
    whole = [
        prefix
        for prefix, layers in families.items()
        if set(range(count)) <= layers <= set(range(count + further))
        and not _OTHER_STACKS & set(prefix.lower().split("."))
    ]
    if len(whole) == 1:
        return Stack(whole[0], count)
    if whole:
        raise LayersError(f"several families of tensors have {count} layers: {', '.join(sorted(whole))}")
    seen = ", ".join(f"{prefix}N ({len(layers)})" for prefix, layers in sorted(families.items())[:4]) or "none"
    raise LayersError(f"config.json tells of {count} layers, and no family of tensors has as many; there are: {seen}")


def has_experts(config: Mapping[str, Any]) -> bool:
    """Whether a token passes only some of the weights."""
    return any((_whole(text_part(config).get(key)) or 0) > 1 for key in _EXPERTS)


def keep(config: Mapping[str, Any], count: int, kept: Sequence[int]) -> dict[str, Any]:
    """The configuration of the same model with the layers `kept` alone, ascending and numbered anew.

    Raises LayersError where it has a rule that the kept layers do not follow by their new numbers.
    """
    edited = copy.deepcopy(dict(config))
    parts = [edited, *(edited[key] for key in _TEXT if isinstance(edited.get(key), dict))]
    for part in parts:
        if part is edited or any(part.get(key) == count for key in _COUNTS):
            _keep_in(part, count, kept)
    renumbered = {old: new for new, old in enumerate(kept)}
    for part in parts:
        for key in _QUANTISATION:
            if key in part:
                part[key] = rename(part[key], renumbered)
    return edited


def _keep_in(part: dict[str, Any], count: int, kept: Sequence[int]) -> None:
    renumbered = {old: new for new, old in enumerate(kept)}
    spelled_out = isinstance(part.get("layer_types"), list)
    for key, value in list(part.items()):
        if key in _COUNTS:
            if value == count:
                part[key] = len(kept)
        elif key in _FURTHER:
            part[key] = 0
        elif key == "num_kv_shared_layers":
            if value and kept[-1] >= count - value:
                raise LayersError(f"its last {value} layers have no keys and values of their own: keep lower ones")
            part[key] = 0
        elif key in _FIRST and _whole(value) is not None:
            part[key] = sum(layer < value for layer in kept)
        elif key in _LAST and _whole(value) is not None:
            part[key] = sum(layer <= value for layer in kept) - 1
        elif key in _PERIODS or (key in _ATTENTION_PERIODS and not spelled_out):
            part[key] = _periodic(key, value, count, kept)
        elif key == "moe_layers_enum" and isinstance(value, str):  # Step-3: "4,5,6"
            part[key] = ",".join(str(renumbered[int(each)]) for each in value.split(",") if int(each) in renumbered)
        elif isinstance(value, list) and key in _NUMBERS and not _flags(value, count):
            part[key] = [renumbered[each] for each in value if each in renumbered]
        elif key == "hybrid_override_pattern" and isinstance(value, str) and len(value) == count:
            part[key] = "".join(value[layer] for layer in kept)
        elif isinstance(value, list) and _by_layer(key, value, count):
            part[key] = [value[layer] for layer in kept]


def _flags(value: list[Any], count: int) -> bool:
    """Whether a list that could be of numbers of layers is rather one of a value for each."""
    return len(value) == count and sorted(map(str, value)) != sorted(map(str, set(value)))


def _by_layer(key: str, value: list[Any], count: int) -> bool:
    return len(value) == count and key not in _NO_LAYERS and "token" not in key and not key.endswith("_ids")


def _periodic(key: str, value: Any, count: int, kept: Sequence[int]) -> Any:
    if isinstance(value, list):
        return [value[layer] for layer in kept] if len(value) == count else value
    period = _whole(value)
    if period and period > 1 and (moved := [old for new, old in enumerate(kept) if (old - new) % period]):
        raise LayersError(
            f"its layers take turns ({key} {period}), and layer {moved[0]} would be of another kind by its new "
            "number: keep the lowest layers, or such that each moves by a multiple of that"
        )
    return value


def rename(value: Any, renumbered: Mapping[int, int]) -> Any:
    """What a configuration of quantisation says, with the names of layers as they are now; of those left out, nothing.

    Raises LayersError for a pattern of names where numbers change.
    """
    if isinstance(value, dict):
        return {
            new: rename(each, renumbered)
            for key, each in value.items()
            if (new := _renamed(key, renumbered)) is not None
        }
    if isinstance(value, list):
        return [
            rename(each, renumbered)
            for each in value
            if not isinstance(each, str) or _renamed(each, renumbered) is not None
        ]
    return _renamed(value, renumbered) if isinstance(value, str) else value


def _renamed(text: str, renumbered: Mapping[int, int]) -> str | None:
    """None for what names a layer that is left out."""
    if ("layers" not in text and ".h." not in text) or _OTHER_STACKS & set(re.split(r"[\W]+", text)):
        return text
    if not (match := _IN_NAME.search(text)):
        moved = any(old != new for old, new in renumbered.items())
        if moved and text.startswith(("re:", "+:", "-:")) and re.search(r"\d", text):
            raise LayersError(f"its quantisation names layers by the pattern {text!r}: keep the lowest layers")
        return text
    number = renumbered.get(int(match["layer"]))
    return None if number is None else text[: match.start()] + str(number) + text[match.end() :]


def lowest(depth: int | None, count: int) -> list[int]:
    """The lowest `depth` layers; None: the most that are fewer than a third of all, as the gate of the draft step asks.

    Raises ValueError, which says what is wrong.
    """
    if count < 2:
        raise ValueError("cannot be followed: a target of one layer has no lower ones; qualify another draft model")
    if depth is None:
        depth = max(1, math.ceil(count * Limits().draft_step) - 1)
    if not 0 < depth < count:
        raise ValueError(f"must be from 1 to {count - 1}, as the target has {count}, not {depth}")
    return list(range(depth))


def picked(text: str, count: int) -> list[int]:
    """The layers of `--pick 0,2,5`. Raises ValueError, which says what is wrong."""
    try:
        found = [int(each) for each in text.split(",")]
    except ValueError:
        raise ValueError(f"must be a list of layers by number, as 0,2,5, not {text!r}") from None
    if found != sorted(set(found)):
        raise ValueError(f"must name each layer once, in ascending order, not {text!r}")
    if found[0] < 0 or found[-1] >= count:
        raise ValueError(f"must name layers from 0 to {count - 1}, as the target has {count}, not {text!r}")
    if len(found) == count:
        raise ValueError("names all layers: that would be the target itself; leave some out")
    return found


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
