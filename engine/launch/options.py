"""The keys of speculative_config.yaml: names, kinds, limits and the other names each one answers to.

Key names are compared with `-` and `_` taken as equal, so `enable-prefix-caching` is
`enable_prefix_caching`. Anything vLLM understands beyond this table goes under `extra_args:`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard

Kind = Literal["text", "path", "integer", "number", "switch", "size", "texts", "mapping", "table", "devices"]
Side = Literal["launch", "target", "speculative"]

_SIZE = re.compile(r"(\d+|\d+\.\d+(?=[kmgt]))[kKmMgGtT]?")
_MAX_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class Option:
    """One key: `side` says who reads it (this launcher, vLLM's target, vLLM's speculative_config)."""

    name: str
    kind: Kind
    side: Side = "target"
    minimum: float | None = None
    maximum: float | None = None
    synonyms: tuple[str, ...] = ()


LAUNCH = (
    Option("host", "text", "launch"),
    Option("port", "integer", "launch", 1, 65535),
    Option("log", "text", "launch", synonyms=("log_file",)),
    Option("request_timeout_s", "number", "launch", 0.001, 86400, ("request_timeout", "timeout")),
    Option("gpu_devices", "devices", "launch", synonyms=("gpu_affinity", "gpu_ids", "cuda_visible_devices")),
    Option("speculation_min_batch_size", "integer", "launch", 1),
    Option("speculation_max_batch_size", "integer", "launch", 1),
    Option("speculative_disable_by_batch_size", "integer", "launch", 1),
    Option("speculative_config", "mapping", "launch"),
    Option("extra_args", "mapping", "launch", synonyms=("extra_arguments", "vllm_args")),
)

TARGET = (
    Option("model", "path", synonyms=("target_model",)),
    Option("tokenizer", "path"),
    Option("served_model_name", "texts"),
    Option("tensor_parallel_size", "integer", minimum=1),
    Option("pipeline_parallel_size", "integer", minimum=1),
    Option("data_parallel_size", "integer", minimum=1),
    Option("gpu_memory_utilization", "number", minimum=0.01, maximum=1),
    Option("kv_cache_memory_bytes", "size"),
    Option("kv_cache_dtype", "text"),
    Option("block_size", "integer", minimum=1),
    Option("max_num_seqs", "integer", minimum=1),
    Option("max_num_batched_tokens", "size"),
    Option("max_model_len", "size"),
    Option("dtype", "text"),
    Option("quantization", "text"),
    Option("load_format", "text"),
    Option("revision", "text"),
    Option("tokenizer_revision", "text"),
    Option("tokenizer_mode", "text"),
    Option("trust_remote_code", "switch"),
    Option("seed", "integer", minimum=0),
    Option("enable_prefix_caching", "switch"),
    Option("enable_chunked_prefill", "switch"),
    Option("enforce_eager", "switch"),
    Option("async_scheduling", "switch"),
    Option("scheduling_policy", "text"),
    Option("attention_backend", "text"),
    Option("compilation_config", "mapping"),
    Option("cudagraph_capture_sizes", "table"),
    Option("cpu_offload_gb", "number", minimum=0),
    Option("download_dir", "text"),
    Option("generation_config", "text"),
    Option("hf_overrides", "mapping"),
    Option("chat_template", "text"),
    Option("reasoning_parser", "text"),
    Option("enable_auto_tool_choice", "switch"),
    Option("tool_call_parser", "text"),
    Option("enable_force_include_usage", "switch"),
    Option("enable_prompt_tokens_details", "switch"),
    Option("enable_log_requests", "switch"),
    Option("disable_uvicorn_access_log", "switch"),
)

SPECULATIVE = (
    Option("model", "path", "speculative", synonyms=("speculative_model", "draft_model")),
    Option("method", "text", "speculative", synonyms=("speculative_method",)),
    Option("num_speculative_tokens", "integer", "speculative", 1, 1000, ("num_speculative_tokens",)),
    Option(
        "draft_tensor_parallel_size",
        "integer",
        "speculative",
        1,
        synonyms=("speculative_draft_tensor_parallel_size",),
    ),
    Option("num_speculative_tokens_per_batch_size", "table", "speculative"),
    Option("max_model_len", "integer", "speculative", 1, synonyms=("speculative_max_model_len",)),
    Option("quantization", "text", "speculative", synonyms=("speculative_model_quantization",)),
    Option("revision", "text", "speculative"),
    Option("code_revision", "text", "speculative"),
    Option("enforce_eager", "switch", "speculative"),
    Option("attention_backend", "text", "speculative"),
    Option("moe_backend", "text", "speculative"),
    Option("kv_cache_dtype", "text", "speculative"),
    Option("prompt_lookup_max", "integer", "speculative", 1, synonyms=("ngram_prompt_lookup_max",)),
    Option("prompt_lookup_min", "integer", "speculative", 1, synonyms=("ngram_prompt_lookup_min",)),
    Option("parallel_drafting", "switch", "speculative"),
    Option("use_heterogeneous_vocab", "switch", "speculative"),
    Option("use_local_argmax_reduction", "switch", "speculative"),
    Option("disable_padded_drafter_batch", "switch", "speculative"),
    Option("disable_eagle_block_drop", "switch", "speculative"),
    Option("draft_sample_method", "text", "speculative"),
    Option("rejection_sample_method", "text", "speculative"),
    Option("synthetic_acceptance_rates", "table", "speculative"),
    Option("synthetic_acceptance_length", "number", "speculative", 1),
    Option("suffix_decoding_max_tree_depth", "integer", "speculative", 1),
    Option("suffix_decoding_max_cached_requests", "integer", "speculative", 0),
    Option("suffix_decoding_max_spec_factor", "number", "speculative", 0),
    Option("suffix_decoding_min_token_prob", "number", "speculative", 0, 1),
    Option("enable_adaptive_verification", "switch", "speculative"),
    Option("dspark_draft_topk", "integer", "speculative", 1),
    Option("index_share_for_mtp_iteration", "switch", "speculative"),
    Option("draft_load_config", "mapping", "speculative"),
)

REMOVED: Mapping[str, str] = {
    "disable_by_batch_size": "removed from vLLM, where it meant off ABOVE that size; "
    "write speculation_max_batch_size (the last size that still speculates) at the top level",
    "speculative_draft_token_count": "write num_speculative_tokens",
    "use_v2_block_manager": "removed from vLLM: it is always on; delete the line",
    "swap_space": "removed from vLLM; delete the line",
    "spec_model": "write speculative_model",
    "spec_method": "write method inside speculative_config",
    "spec_tokens": "write num_speculative_tokens",
}
"""Names that look valid to someone who knows an older vLLM, with what to write today."""

RESERVED: Mapping[str, str] = {
    "per_request_spec_decode_metrics": "the launcher sets it: acceptance cannot be read without it",
    "enable_per_request_metrics": "the launcher sets it",
    "disable_log_stats": "vLLM refuses it together with per-request metrics",
    "config": "this file takes its place",
    "headless": "the launcher needs the HTTP server",
    "grpc": "the launcher needs the HTTP server",
    "uds": "the launcher needs host and port",
    "ssl_keyfile": "the sidecar talks plain HTTP to the engine on the same machine",
    "ssl_certfile": "the sidecar talks plain HTTP to the engine on the same machine",
    "api_key": "other users of the machine can see arguments; set the environment variable VLLM_API_KEY",
    "hf_token": "other users of the machine can see arguments; set the environment variable HF_TOKEN",
}
"""vLLM arguments that may not stand under `extra_args`, with the reason."""


def plain(name: str) -> str:
    """The form in which key names are compared."""
    return name.strip().removeprefix("--").replace("-", "_").lower()


def shown(value: object, limit: int = 60) -> str:
    """A value as an error message may quote it; never raises."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def problem_with(option: Option, value: object) -> str | None:
    """What is wrong with `value` for `option`, as the end of a sentence; None when it is fine."""
    expected = _mismatch(option.kind, value)
    if expected:
        return f"must be {expected}, not {shown(value)}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = option.minimum, option.maximum
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            between = f"between {low:g} and {high:g}" if high is not None else f"at least {low:g}"
            return f"must be {between}, not {shown(value)}"
    return None


def _mismatch(kind: Kind, value: object) -> str | None:
    match kind:
        case "text" | "path":
            return None if is_text(value) else "a text"
        case "integer":
            return None if is_integer(value) else "a whole number"
        case "number":
            return None if is_number(value) else "a number"
        case "switch":
            return None if isinstance(value, bool) else "true or false"
        case "size":
            ok = is_integer(value) and (value == -1 or value > 0)
            ok = ok or value == "auto" or (isinstance(value, str) and bool(_SIZE.fullmatch(value)))
            return None if ok else "a whole number, or one with a unit such as 64M or 4k"
        case "texts":
            ok = is_text(value) or (isinstance(value, list) and bool(value) and all(map(is_text, value)))
            return None if ok else "a text or a list of texts"
        case "mapping":
            ok = isinstance(value, dict) and all(isinstance(k, str) for k in value) and is_json(value)
            return None if ok else "a mapping of names to plain values"
        case "table":
            return None if isinstance(value, list) and value and is_json(value) else "a list"
        case "devices":
            return None if devices(value) is not None else "a device number, or a list such as [0, 1]"


def devices(value: object) -> tuple[str, ...] | None:
    """Device ids of `0`, `[0, 1]`, `"0,1"` or `["GPU-…"]`; None when it is none of these."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    names = [str(item).strip() for item in items if is_text(item) or (is_integer(item) and item >= 0)]
    fine = names and len(names) == len(items) and all(names) and len(set(names)) == len(names)
    return tuple(names) if fine and not any("," in name for name in names) else None


def is_text(value: object) -> bool:
    """True for a non-empty string that can stand on a command line."""
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value and _encodes(value)


def is_integer(value: object) -> TypeGuard[int]:
    """True for a whole number of ordinary size (booleans are not numbers here)."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_INTEGER


def is_number(value: object) -> bool:
    """True for a finite number."""
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def is_json(value: object) -> bool:
    """True when `value` survives the trip through JSON and can stand on a command line."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return "\\u0000" not in text and "\0" not in text and _encodes(text)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
