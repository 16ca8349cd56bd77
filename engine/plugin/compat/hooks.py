"""Which internals there must be."""

from __future__ import annotations

import importlib
import inspect
import logging
from typing import Any

log = logging.getLogger("vllm.specwatch")

KNOWN = frozenset(("0.32.0",))

#: Whether this process has the hooks.
installed = False

_SCHEDULER = "vllm.v1.core.sched.scheduler"
CORE = "vllm.v1.engine.core"
_RUNNER = "vllm.v1.worker.gpu_model_runner"
WORKER = "vllm.v1.worker.worker_base"

#: Functions that are called or wrapped: module, name, and the parameters that are relied on.
_FUNCTIONS = (
    ("vllm.config.scheduler", "SchedulerConfig.get_scheduler_cls", ("self",)),
    (_SCHEDULER, "Scheduler.schedule", ("self", "throttle_prefills")),
    (_SCHEDULER, "Scheduler.add_request", ("self", "request")),
    (_SCHEDULER, "Scheduler.update_from_output", ("self", "scheduler_output", "model_runner_output")),
    (_SCHEDULER, "Scheduler.make_spec_decoding_stats", ("self", "spec_decoding_stats", "num_draft_tokens")),
    (_SCHEDULER, "Scheduler._free_request", ("self", "request", "delay_free_blocks")),
    (_SCHEDULER, "Scheduler._free_blocks", ("self", "request")),
    (_SCHEDULER, "Scheduler.reset_prefix_cache", ("self", "reset_running_requests")),
    (CORE, "EngineCore.collective_rpc", ("self", "method", "timeout", "args")),
    (WORKER, "WorkerWrapperBase.init_device", ("self",)),
    (WORKER, "WorkerBase", ()),
    ("vllm.v1.engine.core_client", "AsyncMPClient.call_utility_async", ("self", "method")),
    ("vllm.v1.engine.core_client", "DPLBAsyncMPClient.call_utility_all_async", ("self", "method")),
    ("vllm.model_executor.model_loader.reload.inplace", "reload_weights", ("vllm_config", "model", "weights_iterator")),
    ("vllm.model_executor.model_loader.weight_checksum", "compute_tensor_digests", ("model",)),
    ("vllm.config", "set_current_vllm_config", ("vllm_config",)),
)

#: Attributes of objects, by a function of vLLM that uses them itself.
_ATTRIBUTES = (
    (
        _SCHEDULER,
        "Scheduler.schedule",
        ("dynamic_sd_lookup", "num_spec_tokens", "spec_token_ids", "running", "waiting"),
    ),
    (
        _SCHEDULER,
        "Scheduler.__init__",
        ("dynamic_sd_lookup", "num_spec_tokens", "max_num_running_reqs", "use_v2_model_runner", "vllm_config"),
    ),
    (
        _SCHEDULER,
        "Scheduler.update_from_output",
        (
            "sampled_token_ids",
            "scheduled_spec_decode_tokens",
            "num_invalid_spec_tokens",
            "make_spec_decoding_stats",
            "num_stale_output_tokens",
            "drop_stale_output",
        ),
    ),
    (_SCHEDULER, "Scheduler._free_request", ("request_id", "is_finished")),
    (_RUNNER, "GPUModelRunner.sample_tokens", ("execute_model_state",)),
    (_RUNNER, "GPUModelRunner.propose_draft_token_ids", ("_draft_probs", "_draft_prob_req_ids")),
    (_RUNNER, "GPUModelRunner._get_or_create_async_output_copy_stream", ("async_output_copy_stream",)),
)


def moved() -> list[str]:
    """Sentences about every internal of the installed vLLM that is not where it is expected to be."""
    found = []
    for module, name, parameters in _FUNCTIONS:
        try:
            target = find(module, name)
        except (ImportError, AttributeError) as error:
            found.append(f"{module}.{name} is gone ({error})")
            continue
        if parameters:
            there = tuple(inspect.signature(target).parameters)[: len(parameters)]
            if there != parameters:
                found.append(f"{module}.{name} takes ({', '.join(there)}), expected ({', '.join(parameters)})")
    for module, name, attributes in _ATTRIBUTES:
        try:
            code = inspect.unwrap(find(module, name)).__code__
        except (ImportError, AttributeError):
            found.append(f"{module}.{name} is gone")
            continue
        used = {*code.co_names, *code.co_varnames}
        found += [f"{module}.{name} no longer uses {each}" for each in attributes if each not in used]
    return found


def find(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def version() -> str:
    """vLLM's version, without the name of the build."""
    return str(importlib.import_module("vllm").__version__).partition("+")[0]
