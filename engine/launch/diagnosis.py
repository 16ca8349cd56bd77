"""Why an engine ended: log text and exit status -> cause, evidence, remedy. Pure.

The patterns are the texts of vLLM 0.32, PyTorch and the hub client as they stand in their source.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A known way to fail. `permanent`: starting again without a change cannot help."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    remedy: str
    permanent: bool = True


@dataclass(frozen=True)
class Diagnosis:
    """What happened. `name` is the case's name or `unknown`; `evidence` is the line of the log, or ""."""

    name: str
    cause: str
    evidence: str
    remedy: str
    permanent: bool


def _case(name: str, pattern: str, cause: str, remedy: str, permanent: bool = True) -> Case:
    return Case(name, re.compile(pattern), cause, remedy, permanent)


CASES: tuple[Case, ...] = (
    _case(
        "unknown-argument",
        r"error: unrecognized arguments|error: argument --?[\w-]+|error: ambiguous option",
        "vLLM does not know an argument, or not this value for it",
        "correct or delete the key of that name (look under extra_args first)",
    ),
    _case(
        "vocabulary-mismatch",
        r"Target and draft model should have the same vocabulary size|input_size mismatch.*vocab",
        "draft and target have vocabularies of different size",
        "use a draft trained with the target's tokenizer, or set use_heterogeneous_vocab: true inside "
        "speculative_config (slower; `specwatch tokenizers TARGET DRAFT` shows what differs)",
    ),
    _case(
        "speculative-method",
        r"Unsupported speculative method|num_speculative_tokens was provided but without speculative model"
        r"|^\s+Input should be 'ngram', 'medusa'|A speculative model was provided, but"
        r"|num_speculative_tokens must be provided with",
        "vLLM does not support this speculative method or lacks a setting for it",
        "inside speculative_config set method (draft_model, eagle3, mtp, ngram) and num_speculative_tokens",
    ),
    _case(
        "method-dependency",
        r"Arctic Inference is required for suffix decoding|No module named 'numba'",
        "the speculative method needs a package that is not installed",
        "install what the line names, or use method: draft_model",
    ),
    _case(
        "draft-parallel-size",
        r"'draft_tensor_parallel_size' and 'tensor_parallel_size' must be the same"
        r"|speculative_draft_tensor_parallel_size=.* cannot be",
        "draft and target are split over different numbers of devices",
        "delete speculative_draft_tensor_parallel_size: the draft then follows tensor_parallel_size",
    ),
    _case(
        "port-taken",
        r"address already in use|EADDRINUSE|Address already in use",
        "another process listens on the engine's port",
        "stop that process or choose another port (port: in the file, or --port)",
        permanent=False,
    ),
    _case(
        "model-missing",
        r"Cannot find an appropriate cached snapshot folder|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|Repository Not Found"
        r"|RepositoryNotFoundError|is not a local folder and is not a valid model identifier"
        r"|Invalid repository ID or local directory|HFValidationError"
        r"|couldn't connect to 'https://huggingface\.co'|No such file or directory: '[^']*config\.json'",
        "a model is neither a folder here nor can it be fetched from the hub",
        "check model and speculative_model; fetch the model first, or allow the network "
        "(unset HF_HUB_OFFLINE, check the proxy)",
    ),
    _case(
        "kv-cache-too-small",
        r"No available memory for the cache blocks|max seq len\s*\(\d+\).*(KV cache|maximum number of tokens)"
        r"|larger than the maximum number of tokens",
        "the memory left for the KV cache does not hold one request of full length",
        "lower max_model_len, or raise kv_cache_memory_bytes (CPU) or gpu_memory_utilization (GPU)",
    ),
    _case(
        "gpu-memory-taken",
        r"Free memory on device .* on startup is\s+less than",
        "other processes already hold the GPU's memory",
        "end them, choose other gpu_devices, or lower gpu_memory_utilization",
        permanent=False,
    ),
    _case(
        "host-memory-short",
        r"Available memory on node .* less than|DefaultCPUAllocator: (can't|not enough)"
        r"|Cannot allocate memory|^MemoryError",
        "the machine has too little free memory",
        "lower kv_cache_memory_bytes, max_num_seqs or max_model_len, or end other processes",
        permanent=False,
    ),
    _case(
        "gpu-out-of-memory",
        r"CUDA out of memory|torch\.OutOfMemoryError|torch\.cuda\.OutOfMemoryError|not enough GPU memory"
        r"|CUDA error: out of memory",
        "the GPU's memory does not hold target, draft and KV cache together",
        "lower gpu_memory_utilization (room for the draft), max_model_len or max_num_seqs, raise "
        "tensor_parallel_size, or use a smaller or quantised draft",
    ),
    _case(
        "torchvision",
        r"operator torchvision::nms does not exist",
        "the installed torchvision was built for another torch",
        "uninstall torchvision, torchaudio and torchcodec: serving text needs none of them",
    ),
    _case(
        "compiler-missing",
        r"Failed to find C compiler|InvalidCxxCompiler|No working C\+\+ compiler found"
        r"|No such file or directory: '(gcc|g\+\+|cc|c\+\+|clang)'|Could not find nvcc",
        "vLLM compiles code at start and finds no compiler",
        "install gcc (Debian: apt-get install gcc g++), or set enforce_eager: true",
    ),
    _case(
        "gpu-missing",
        r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver",
        "this build of vLLM finds no GPU",
        "check the driver and gpu_devices, or install specwatch[engine-cpu]",
    ),
    _case(
        "vllm-missing",
        r"No module named 'vllm'",
        "vLLM is not installed in this environment",
        "install specwatch[engine] (GPU) or specwatch[engine-cpu] (CPU only)",
    ),
)
"""The first case that matches decides: the plainest statements stand first, memory after them."""


def diagnose(log: str, status: int | None) -> Diagnosis:
    """The cause as far as `log` tells. `status` as of subprocess: negative for a signal, None if unknown."""
    lines = log.splitlines()
    for case in CASES:
        for line in reversed(lines):
            if case.pattern.search(line):
                return Diagnosis(case.name, case.cause, line.strip(), case.remedy, case.permanent)
    if status == -signal.SIGKILL or status == 128 + signal.SIGKILL:
        return Diagnosis(
            "killed",
            "something ended the engine with SIGKILL; most often the system, out of memory",
            "",
            "look at `dmesg | grep -i oom`; lower kv_cache_memory_bytes, max_num_seqs or max_model_len",
            permanent=False,
        )
    if any("died unexpectedly" in line or "EngineDeadError" in line for line in lines):
        evidence = next(x for x in reversed(lines) if "died unexpectedly" in x or "EngineDeadError" in x)
        return Diagnosis(
            "child-died",
            "a process of the engine ended without a message; most often the system ended it, out of memory",
            evidence.strip(),
            "look at `dmesg | grep -i oom`; lower kv_cache_memory_bytes, max_num_seqs or max_model_len",
            permanent=False,
        )
    ended = "" if status is None else f" ({describe_status(status)})"
    return Diagnosis(
        "unknown", f"unknown{ended}", "", "read the end of the log; the first error counts", permanent=False
    )


def describe_status(status: int) -> str:
    """`exit status 1`, or the name of the signal."""
    if status < 0:
        try:
            return f"ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"ended by signal {-status}"
    return f"exit status {status}"
