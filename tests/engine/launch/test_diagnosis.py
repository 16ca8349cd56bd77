"""Real last words of engines -> cause. The texts are vLLM 0.32's, PyTorch's and the hub client's."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.launch.diagnosis import CASES, describe_status, diagnose
from specwatch_engine.launch.progress import STAGES, stage_of

SEEN = [
    ("unknown-argument", "vllm serve: error: unrecognized arguments: --no-such-thing 3"),
    ("unknown-argument", "vllm serve: error: argument --dtype: invalid choice: 'bf61'"),
    (
        "vocabulary-mismatch",
        (
            "  Value error, Target and draft model should have the same vocabulary size. Target model "
            "vocab_size=2048. Draft model vocab_size=2050. Using models with different tokenizers can cause"
        ),
    ),
    ("speculative-method", "NotImplementedError: Unsupported speculative method: 'medusa2'"),
    ("speculative-method", "  Input should be 'ngram', 'medusa', 'mlp_speculator', 'draft_model', 'suffix'"),
    (
        "speculative-method",
        "ValueError: num_speculative_tokens was provided but without speculative model.",
    ),
    ("method-dependency", "ImportError: Arctic Inference is required for suffix decoding. Install via"),
    ("method-dependency", "ModuleNotFoundError: No module named 'numba'"),
    (
        "draft-parallel-size",
        "ValueError: Currently, 'draft_tensor_parallel_size' and 'tensor_parallel_size' must be the same. Got 1 and 2.",
    ),
    ("port-taken", "OSError: [Errno 98] Address already in use"),
    ("port-taken", "ERROR: [Errno 98] error while attempting to bind on address: address already in use"),
    (
        "model-missing",
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for",
    ),
    ("model-missing", "OSError: nobody/nothing is not a local folder and is not a valid model identifier"),
    ("model-missing", "ValueError: Invalid repository ID or local directory specified: 'models/nope'."),
    ("kv-cache-too-small", "ValueError: No available memory for the cache blocks. Try increasing"),
    (
        "kv-cache-too-small",
        (
            "ValueError: To serve at least one request with the model's max seq len (2048), (0.5 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (0.1 GiB)."
        ),
    ),
    (
        "kv-cache-too-small",
        (
            "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be "
            "stored in KV cache (4096)."
        ),
    ),
    (
        "gpu-memory-taken",
        (
            "ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired GPU memory "
            "utilization (0.92, 72.8 GiB)."
        ),
    ),
    (
        "host-memory-short",
        (
            "ValueError: Available memory on node 0 (4.48/10.09 GiB) on startup is less than desired CPU memory "
            "utilization (0.92, 9.28 GiB)."
        ),
    ),
    ("host-memory-short", "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ("gpu-out-of-memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("torchvision", "RuntimeError: operator torchvision::nms does not exist"),
    ("compiler-missing", "RuntimeError: Failed to find C compiler. Please specify via CC environment variable"),
    ("compiler-missing", "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in"),
    ("compiler-missing", "FileNotFoundError: [Errno 2] No such file or directory: 'g++'"),
    ("gpu-missing", "RuntimeError: Failed to infer device type, please set the environment variable"),
    ("vllm-missing", "ModuleNotFoundError: No module named 'vllm'"),
]

BOOT = """\
Specwatch: importing vLLM
(APIServer pid=1) INFO 11-29 18:27:24 [api_utils.py:286] non-default args: {'host': '127.0.0.1'}
(EngineCore pid=2) INFO 11-29 18:28:12 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config:
(Worker pid=3) INFO 11-29 18:28:37 [cpu_model_runner.py:68] Starting to load model models/target_a...
(Worker pid=3) INFO 11-29 18:28:39 [cpu_model_runner.py:75] Loading drafter model...
(EngineCore pid=2) INFO 11-29 18:28:41 [kv_cache_utils.py:2327] CPU KV cache size: 52,352 tokens
(APIServer pid=1) INFO 11-29 18:28:43 [entry.py:140] Starting vLLM server on http://127.0.0.1:8299
"""


@pytest.mark.parametrize(("name", "line"), SEEN, ids=[f"{name}-{at}" for at, (name, _) in enumerate(SEEN)])
def test_known_causes(name: str, line: str) -> None:
    log = f"INFO starting\n{line}\nRuntimeError: Engine core initialization failed. See root cause above.\n"
    found = diagnose(log, 1)
    assert (found.name, found.evidence) == (name, line.strip())
    assert found.cause
    assert found.remedy


def test_every_case_has_an_example() -> None:
    assert {case.name for case in CASES} == {name for name, _ in SEEN}


@pytest.mark.parametrize(
    ("log", "status", "name", "cause"),
    [
        ("INFO all is well", -9, "killed", "SIGKILL"),
        ("INFO all is well", 137, "killed", "SIGKILL"),
        ("Worker proc VllmWorker-0 died unexpectedly, shutting down executor.", 1, "child-died", "without a"),
        ("INFO all is well", 1, "unknown", "unknown (exit status 1)"),
        ("", -11, "unknown", "unknown (ended by SIGSEGV)"),
        ("", None, "unknown", "unknown"),
    ],
)
def test_causes_without_a_message(log: str, status: int | None, name: str, cause: str) -> None:
    found = diagnose(log, status)
    assert found.name == name
    assert cause in found.cause
    assert not found.permanent


@pytest.mark.parametrize("line", BOOT.splitlines())
def test_a_healthy_boot_shows_no_cause(line: str) -> None:
    assert diagnose(line, 0).name == "unknown"


@given(st.text(), st.integers(-70, 260))
def test_any_log_gets_an_answer(log: str, status: int) -> None:
    assert diagnose(log, status).remedy
    assert describe_status(status)


def test_stages_come_in_the_order_of_a_real_boot() -> None:
    stage, seen = "", []
    for line in BOOT.splitlines():
        stage = stage_of(line, stage)
        seen.append(stage)
    order = [name for name, _ in STAGES]
    assert len(set(seen)) == len(BOOT.splitlines())
    assert seen == sorted(seen, key=order.index)


def test_a_stage_never_goes_back() -> None:
    assert stage_of("Starting to load model x", "loading draft") == "loading draft"
    assert stage_of(BOOT, "") == "opening the server"
    assert stage_of("nothing known", "KV cache") == "KV cache"
    assert all(isinstance(pattern, re.Pattern) for _, pattern in STAGES)
