"""Every name of vLLM's internals that the plugin uses, and the hooks made of them.

Read in and run against vLLM 0.32.0. vLLM promises none of these names, so that `moved` looks for each before a
hook is put in place, and a vLLM of another version is left alone. To take in a new version: run the tests of
this room against it, mend what they name, add it to `KNOWN`.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .checkpoint import differences
from .events import NO_ROWS, Events, encode_rows
from .switch import Refused, Switch, opted_out

_log = logging.getLogger("vllm.specwatch")

KNOWN = frozenset(("0.32.0",))

EVENTS = "SPECWATCH_ENGINE_EVENTS"

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_CORE = "vllm.v1.engine.core"
_WORKER = "vllm.v1.worker.worker_base"

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
    (_CORE, "EngineCore.collective_rpc", ("self", "method", "timeout", "args")),
    (_WORKER, "WorkerWrapperBase.init_device", ("self",)),
    (_WORKER, "WorkerBase", ()),
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
)


# ---- what this vLLM is


def moved() -> list[str]:
    """Sentences about every internal of the installed vLLM that is not where it is expected to be."""
    found = []
    for module, name, parameters in _FUNCTIONS:
        try:
            target = _find(module, name)
        except (ImportError, AttributeError) as error:
            found.append(f"{module}.{name} is gone ({error})")
            continue
        if parameters:
            there = tuple(inspect.signature(target).parameters)[: len(parameters)]
            if there != parameters:
                found.append(f"{module}.{name} takes ({', '.join(there)}), expected ({', '.join(parameters)})")
    for module, name, attributes in _ATTRIBUTES:
        try:
            code = _find(module, name).__code__
        except (ImportError, AttributeError):
            found.append(f"{module}.{name} is gone")
            continue
        used = {*code.co_names, *code.co_varnames}
        found += [f"{module}.{name} no longer uses {each}" for each in attributes if each not in used]
    return found


def _find(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def version() -> str:
    """vLLM's version, without the name of the build."""
    return str(importlib.import_module("vllm").__version__).partition("+")[0]


# ---- putting the hooks in place

_installed = False


def install() -> None:
    """Put all hooks in place, once a process. Raises RuntimeError, and changes nothing, on a vLLM not known."""
    global _installed
    if _installed:
        return
    if version() not in KNOWN:
        raise RuntimeError(f"vLLM {version()} is not known, only {', '.join(sorted(KNOWN))}")
    if problems := moved():
        raise RuntimeError(f"vLLM {version()} is not as expected: {'; '.join(problems)}")
    _installed = True
    config = _find("vllm.config.scheduler", "SchedulerConfig")
    chosen = config.get_scheduler_cls

    def get_scheduler_cls(self: Any) -> Any:
        base = chosen(self)
        if not isinstance(base, type) or issubclass(base, SchedulerMixin):
            return base
        return type(base.__name__, (SchedulerMixin, base), {"__module__": base.__module__})

    config.get_scheduler_cls = get_scheduler_cls
    core = _find(_CORE, "EngineCore")
    core.specwatch_order = _order
    core.specwatch_commit = _commit
    wrapper, worker = _find(_WORKER, "WorkerWrapperBase"), _find(_WORKER, "WorkerBase")
    prepare = wrapper.init_device

    def init_device(self: Any) -> Any:
        result = prepare(self)
        try:
            _hook_runner(self.worker.model_runner)
        except Exception as error:
            _log.warning("Specwatch sees no draft tokens here: %s", error)
        return result

    wrapper.init_device = init_device
    worker.specwatch_stage = _stage
    worker.specwatch_staged = _staged
    worker.specwatch_load = _load


# ---- the scheduler


class SchedulerMixin:
    """Goes before the scheduler class that vLLM chose. Every hook leaves the work to vLLM where its own part fails."""

    # What vLLM's scheduler has.
    vllm_config: Any
    running: list[Any]
    waiting: Any
    requests: dict[str, Any]
    num_spec_tokens: int
    max_num_running_reqs: int
    use_v2_model_runner: bool
    dynamic_sd_lookup: list[int] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._specwatch: _Watch | None = None
        try:
            if self.num_spec_tokens:
                self._specwatch = _Watch(self)
        except Exception:
            self._specwatch_failed()

    def _specwatch_failed(self) -> None:
        _log.exception("Specwatch failed and stands down, the engine serves on as configured")
        watch, self._specwatch = getattr(self, "_specwatch", None), None
        if watch is not None:
            self.dynamic_sd_lookup = watch.table
            watch.events.close()

    def add_request(self, request: Any) -> None:
        if self._specwatch is not None:
            try:
                self._specwatch.add(request)
            except Exception:
                self._specwatch_failed()
        super().add_request(request)  # type: ignore[misc]

    def schedule(self, throttle_prefills: bool = False) -> Any:
        watch = self._specwatch
        if watch is not None:
            try:
                watch.before_schedule(self)
            except Exception:
                self._specwatch_failed()
        output = super().schedule(throttle_prefills)  # type: ignore[misc]
        if self._specwatch is not None and self._specwatch.switch.skips_draft:
            output.specwatch_skip = True
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        watch = self._specwatch
        if watch is None:
            return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        try:
            watch.before_update(self, scheduler_output, model_runner_output)
        except Exception:
            self._specwatch_failed()
        result = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        try:
            if self._specwatch is not None:
                watch.after_update()
        except Exception:
            self._specwatch_failed()
        return result

    def make_spec_decoding_stats(self, *args: Any, **kwargs: Any) -> Any:
        if self._specwatch is not None:
            self._specwatch.counted += 1
        return super().make_spec_decoding_stats(*args, **kwargs)  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._free_request(request, *args, **kwargs)  # type: ignore[misc]
        if self._specwatch is not None:
            try:
                self._specwatch.finish(self, request)
            except Exception:
                self._specwatch_failed()
        return result

    def _free_blocks(self, request: Any) -> Any:
        if self._specwatch is not None:
            self._specwatch.lingering.discard(request.request_id)
        return super()._free_blocks(request)  # type: ignore[misc]


class _Watch:
    """What the plugin keeps beside one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        config = scheduler.vllm_config
        speculative, parallel = config.speculative_config, config.parallel_config
        self.engine = int(parallel.data_parallel_index)
        self.switch = Switch(scheduler.num_spec_tokens, speculative.method, *_abilities(scheduler))
        #: The configured number of draft tokens by batch size; None: always all.
        self.table: list[int] | None = scheduler.dynamic_sd_lookup
        size = len(self.table) if self.table else scheduler.max_num_running_reqs + 1
        whole = self.table or [self.switch.most] * size
        self._capped = [[min(cap, most) for most in whole] for cap in range(self.switch.most + 1)]
        self._out: set[str] = set()
        #: Finished requests whose blocks vLLM still keeps, so that it still lists them.
        self.lingering: set[str] = set()
        draft = speculative.draft_model_config
        self.draft_model = None if draft is None else str(draft.model)
        self.events = Events(
            os.environ.get(EVENTS, ""),
            {
                "engine": self.engine,
                "pid": os.getpid(),
                "vllm": version(),
                "method": speculative.method,
                "num_speculative_tokens": self.switch.most,
                "target_model": str(config.model_config.model),
                "target_tokenizer": str(config.model_config.tokenizer),
                "draft_model": self.draft_model,
                "draft_tokenizer": None if draft is None else str(draft.tokenizer),
            },
        )
        # Before the first step, so that a sidecar that is there learns of this engine at once.
        self.events.wanted()
        self._started: list[tuple[str, int]] = []
        self._finished: list[tuple[str, int, str]] = []
        #: Of the step under way: its rows, how many of them have drafts, and how many vLLM has counted.
        self._rows: bytes | None = None
        self._drafting = 0
        self.counted = 0
        self._invalid: Mapping[str, int] | None = None
        self._updating = False

    # ---- switch and opt-out

    def add(self, request: Any) -> None:
        if request.sampling_params is not None and opted_out(request.sampling_params.extra_args):
            self._out.add(request.request_id)
        self._started.append((request.request_id, request.num_prompt_tokens))

    def before_schedule(self, scheduler: Any) -> None:
        out, limit = self._out, self.switch.limit
        nobody = False
        if out or limit < self.switch.most:
            nobody = bool(scheduler.running) and not scheduler.waiting
            for request in scheduler.running:
                if request.request_id in out:
                    if request.spec_token_ids:
                        request.spec_token_ids = []
                else:
                    nobody = False
                    if len(request.spec_token_ids) > limit:
                        # A list of its own: under asynchronous scheduling all requests share one of placeholders.
                        request.spec_token_ids = request.spec_token_ids[:limit]
        if nobody:
            limit = 0
        told = limit < self.switch.most and not self.switch.soft_only and (self.switch.told or nobody)
        scheduler.dynamic_sd_lookup = self._capped[limit] if told else self.table

    # ---- events

    def before_update(self, scheduler: Any, scheduler_output: Any, model_runner_output: Any) -> None:
        self._updating = True
        self._rows, self._drafting, self.counted = None, 0, 0
        if not self.events.wanted():
            return
        ids, emitted = model_runner_output.req_ids, model_runner_output.sampled_token_ids
        drafted = scheduler_output.scheduled_spec_decode_tokens
        requests, lingering = scheduler.requests, self.lingering
        if not emitted:
            ids, drafted = (), {}
        elif gone := {
            each
            for each in ids
            if (request := requests.get(each)) is None
            or each in lingering
            or (request.num_stale_output_tokens and request.drop_stale_output)
        }:
            # vLLM passes over what was aborted, or set back by a reset of its cache, while this step ran.
            kept = [(each, tokens) for each, tokens in zip(ids, emitted, strict=True) if each not in gone]
            ids, emitted = [each for each, _ in kept], [tokens for _, tokens in kept]
            drafted = {each: tokens for each, tokens in drafted.items() if each not in gone}
        self._drafting = len(drafted)
        # Where drafts stay on the device, the scheduler has placeholders and the worker sends the ids along.
        seen = getattr(model_runner_output, "specwatch_drafts", None)
        if seen is not None:
            drafted = {each: seen.get(each, tokens) for each, tokens in drafted.items()}
        # Now, because vLLM cuts `emitted` in place where a request stops.
        self._rows = encode_rows(ids, emitted, drafted)
        self._invalid = scheduler_output.num_invalid_spec_tokens

    def after_update(self) -> None:
        self._updating = False
        rows, started, finished = self._rows, self._started, self._finished
        if rows is None or self.counted != self._drafting:
            # Nobody listens; or vLLM did not count what ran, as after a preemption: better none than wrong figures.
            if rows is not None or started or finished or self.counted:
                self.events.skip()
        elif rows != NO_ROWS or started or finished:
            self.events.add(started, rows, self._invalid, finished)
        self._started, self._finished = [], []

    def finish(self, scheduler: Any, request: Any) -> None:
        self._out.discard(request.request_id)
        if request.request_id in scheduler.requests:
            self.lingering.add(request.request_id)
        reason = request.get_finished_reason()
        self._finished.append(
            (request.request_id, request.num_output_tokens, "abort" if reason is None else str(reason))
        )
        if not self._updating:
            # An abort between two steps; there may be no other step for long.
            if self.events.wanted():
                self.events.add(self._started, NO_ROWS, None, self._finished)
            else:
                self.events.skip()
            self._started, self._finished = [], []

    def state(self, scheduler: Any) -> dict[str, Any]:
        switch, events = self.switch, self.events
        # A sidecar that came after the last step asks here.
        connected = events.wanted()
        return {
            "engine": self.engine,
            "vllm": version(),
            "method": switch.method,
            "num_speculative_tokens": switch.most,
            "cap": switch.cap,
            "mode": switch.mode.value,
            "at_zero": switch.at_zero,
            "step": events.steps,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "opted_out": len(self._out),
            "draft_model": self.draft_model,
            "events": {"sent": events.sent, "dropped": events.dropped, "connected": connected},
        }


def _abilities(scheduler: Any) -> tuple[str, bool]:
    """Why drafts can only be dropped here (empty: they need not be), and whether the draft model can be skipped."""
    config = scheduler.vllm_config
    speculative = config.speculative_config
    if config.parallel_config.data_parallel_size > 1 and config.model_config.is_moe:
        return "ranks of a data-parallel mixture of experts must all run the draft model alike", False
    if speculative.parallel_drafting:
        return "parallel drafting makes a fixed number of tokens", False
    has_model = speculative.uses_draft_model() or speculative.use_eagle()
    if scheduler.use_v2_model_runner:
        if not (speculative.uses_draft_model() or speculative.method in ("eagle", "eagle3", "mtp")):
            return f"vLLM's second model runner tells the proposer {speculative.method} no number", False
        return "", False
    return "", has_model


# ---- orders, in the engine core


def _watch(core: Any) -> _Watch | None:
    found = getattr(core.scheduler, "_specwatch", None)
    return found if isinstance(found, _Watch) else None


def _order(core: Any, command: Mapping[str, Any]) -> dict[str, Any]:
    """Runs between two steps of the engine core."""
    watch = _watch(core)
    if watch is None:
        if command:
            return {"refused": "this engine does not speculate, or the plugin has failed (see its log)", "param": None}
        return {"engine": core.vllm_config.parallel_config.data_parallel_index, "vllm": version(), "method": None}
    if command:
        try:
            holes = watch.switch.order(command)
        except Refused as refused:
            return {"refused": str(refused), "param": refused.param}
        _log.warning("Specwatch: draft tokens capped at %s, mode %s", watch.switch.cap, watch.switch.mode)
        if holes:
            # Only now, with drafting on again: what is computed anew must fill the draft model's cache as well.
            core.scheduler.reset_prefix_cache(reset_running_requests=True)
    return watch.state(core.scheduler)


def _commit(core: Any, checkpoint: str) -> dict[str, Any]:
    """Swap the staged weights in, and drop what the old ones left in the cache. Runs between two steps."""
    watch = _watch(core)
    began = time.monotonic()
    workers = core.collective_rpc("specwatch_load", None, (checkpoint,))
    core.scheduler.reset_prefix_cache(reset_running_requests=True)
    if watch is not None:
        watch.draft_model = checkpoint
    _log.warning("Specwatch: the draft model now has the weights of %s", checkpoint)
    return {"workers": workers, "still_s": round(time.monotonic() - began, 4)}


# ---- the draft model, in a worker


def _stage(worker: Any, checkpoint: str) -> str:
    """Read a checkpoint into memory in a thread. Returns why it cannot be used, or nothing."""
    if worker.model_runner.get_draft_model() is None:
        return "this engine has no draft model whose weights could be swapped"
    state = worker.__dict__.setdefault("specwatch_swap", {})
    if state.get("busy"):
        return "another swap is under way"
    if refusal := differences(_folder(worker), Path(checkpoint)):
        return refusal
    state.clear()
    state.update(busy=True, checkpoint=checkpoint)

    def read() -> None:
        began = time.monotonic()
        try:
            state["before"] = _checksum(worker)
            state["weights"] = list(_weights(Path(checkpoint)))
        except Exception as error:
            state["error"] = f"{type(error).__name__}: {error}"
        state["stage_s"] = round(time.monotonic() - began, 4)
        state["busy"] = False

    threading.Thread(target=read, name="specwatch-stage", daemon=True).start()
    return ""


def _staged(worker: Any) -> dict[str, Any]:
    """How far the swap is: `busy`, `error`, `before`, `after`, and the seconds it took."""
    state = worker.__dict__.get("specwatch_swap", {})
    return {name: value for name, value in state.items() if name != "weights"}


def _load(worker: Any, checkpoint: str) -> str:
    """Put the staged weights in place; the checksum of the result is computed in a thread."""
    import torch

    state = worker.specwatch_swap
    if state.get("checkpoint") != checkpoint or "weights" not in state:
        raise RuntimeError(f"{checkpoint} is not staged")
    weights = state.pop("weights")
    runner = worker.model_runner
    model = runner.get_draft_model()
    drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
    make = getattr(drafter, "_create_draft_vllm_config", None)
    config = make() if make else getattr(drafter, "_draft_vllm_config", worker.vllm_config)
    began = time.monotonic()
    with _find("vllm.config", "set_current_vllm_config")(config), torch.inference_mode():
        reload_weights = _find("vllm.model_executor.model_loader.reload.inplace", "reload_weights")
        reload_weights(config, model, weights_iterator=iter(weights), weights_path=None, is_checkpoint_format=True)
        if runner.device.type == "cpu":
            _pack_again(model)
    state["commit_s"] = round(time.monotonic() - began, 4)
    state["busy"] = True

    def check() -> None:
        try:
            state["after"] = _checksum(worker)
        except Exception:
            # Not the swap's failure: the weights are in place.
            _log.exception("Specwatch: no checksum of the draft model")
        state["busy"] = False

    threading.Thread(target=check, name="specwatch-checksum", daemon=True).start()
    return checkpoint


def _pack_again(model: Any) -> None:
    # On the CPU a linear layer computes with a packed copy of its weight. Where the weight is another layer's (a
    # tied lm_head), reloading does not renew that copy.
    pack = _find("vllm.model_executor.layers.utils", "dispatch_cpu_unquantized_gemm")
    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        if hasattr(layer, "cpu_linear") and weight is not None and weight.numel():
            pack(layer, remove_weight=False)


def _folder(worker: Any) -> Path:
    """Where the running draft model's first checkpoint lies."""
    draft = worker.vllm_config.speculative_config.draft_model_config
    path = Path(draft.model)
    if path.is_dir():
        return path
    download = _find("huggingface_hub", "snapshot_download")
    return Path(download(draft.model, revision=draft.revision, local_files_only=True))


def _weights(folder: Path) -> Iterator[tuple[str, Any]]:
    safe_open = _find("safetensors", "safe_open")
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                yield name, opened.get_tensor(name)


def _checksum(worker: Any) -> str:
    """SHA-256 over names and contents of the draft model's parameters as they are in memory."""
    import hashlib

    digests = _find("vllm.model_executor.model_loader.weight_checksum", "compute_tensor_digests")
    found = digests(worker.model_runner.get_draft_model())
    return hashlib.sha256("\n".join(f"{name} {found[name]}" for name in sorted(found)).encode()).hexdigest()


# ---- the model runner, in a worker


def _hook_runner(runner: Any) -> None:
    kind = type(runner)
    if getattr(kind, "specwatch_hooked", False) or runner.vllm_config.speculative_config is None:
        return
    kind.specwatch_hooked = True
    if hasattr(runner, "speculator"):
        kind.sample_tokens = _seeing(kind.sample_tokens, _second_runner_drafts)
        _tell_number(type(runner.speculator))
        return
    kind.propose_draft_token_ids = _skipping(kind.propose_draft_token_ids)
    if runner.use_async_scheduling:
        kind.sample_tokens = _seeing(kind.sample_tokens, _first_runner_drafts)


def _skipping(propose: Callable[..., Any]) -> Callable[..., Any]:
    """The first model runner's call of the draft model, left out where the scheduler says so."""
    import torch

    def propose_draft_token_ids(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(scheduler_output, "specwatch_skip", False):
            return propose(self, scheduler_output, *args, **kwargs)
        self._draft_probs = None
        self._draft_prob_req_ids = None
        return torch.empty((self.input_batch.num_reqs, 0), dtype=torch.int64, device=self.device)

    return propose_draft_token_ids


# Draft ids on the device, ids of the requests, and the part of the former that is each request's.
_Drafts = tuple[Any, list[str], list[slice]]


def _first_runner_drafts(runner: Any) -> _Drafts | None:
    state = runner.execute_model_state
    found = state.spec_decode_metadata if state is not None else None
    if found is None:
        return None
    parts, at = [], 0
    for number in found.num_draft_tokens:
        parts.append(slice(at, at + number))
        at += number
    return found.draft_token_ids, list(runner.input_batch.req_ids), parts


def _second_runner_drafts(runner: Any) -> _Drafts | None:
    state = runner.execute_model_state
    batch = state.input_batch if state is not None else None
    if batch is None or not batch.num_draft_tokens or batch.num_draft_tokens_per_req is None:
        return None
    # Of each request the last token, then its drafts.
    bounds, drafted = batch.cu_num_logits_np.tolist(), batch.num_draft_tokens_per_req.tolist()
    parts = [slice(bounds[i] + 1, bounds[i + 1] if drafted[i] else bounds[i] + 1) for i in range(len(drafted))]
    return batch.input_ids[batch.logits_indices], list(batch.req_ids), parts


def _seeing(sample: Callable[..., Any], drafts_of: Callable[[Any], _Drafts | None]) -> Callable[..., Any]:
    """Sampling, with the verified draft ids copied beside the sampled ones.

    They are copied as vLLM copies its own: on the runner's copy stream, waited for only when the output is taken.
    """
    import torch

    def sample_tokens(self: Any, grammar_output: Any) -> Any:
        drafts = drafts_of(self)
        output = sample(self, grammar_output)
        if drafts is None or not hasattr(output, "get_output"):
            return output
        ids, names, parts = drafts
        make = getattr(self, "_get_or_create_async_output_copy_stream", None)
        stream = make() if make else self.output_copy_stream
        copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        present = torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            stream.wait_stream(present)
            host = ids.to("cpu", non_blocking=True, copy=True)
            copied.record()
        get = output.get_output

        def get_output() -> Any:
            result = get()
            copied.synchronize()
            # `ids` must outlive the copy.
            flat = host.tolist() if len(ids) else []
            result.specwatch_drafts = {
                name: flat[part] for name, part in zip(names, parts, strict=True) if part.stop > part.start
            }
            return result

        output.get_output = get_output
        return output

    return sample_tokens


def _tell_number(kind: Any) -> None:
    """The second model runner's proposer for draft models is given the number of tokens and does not heed it."""
    if kind.__name__ != "StandaloneARSpeculator":
        return
    propose = kind.propose

    def heeding(self: Any, *args: Any, num_speculative_tokens: int | None = None, **kwargs: Any) -> Any:
        most = self.num_speculative_steps
        if num_speculative_tokens is not None and num_speculative_tokens < most:
            # At 0 one step remains, which keeps the draft model's cache.
            self.num_speculative_steps = max(1, num_speculative_tokens)
        try:
            return propose(self, *args, num_speculative_tokens=num_speculative_tokens, **kwargs)
        finally:
            self.num_speculative_steps = most

    kind.propose = heeding


# ---- orders, in the API server

_SWAPPED = ("before", "after", "stage_s", "commit_s")


class Client:
    """Reaches every engine core from the API server; what cannot be done raises Refused."""

    #: Between two looks at a swap under way, s; and how long reading a checkpoint may take.
    LOOK_S = 0.05
    STAGE_S = 600.0

    def __init__(self, app: Any) -> None:
        self._core = app.state.engine_client.engine_core

    async def order(self, command: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every core's state after `command`; an empty one only asks."""
        states = await self._all("specwatch_order", dict(command))
        for state in states:
            if "refused" in state:
                raise Refused(state["refused"], state["param"])
        return states

    async def swap(self, checkpoint: str) -> list[dict[str, Any]]:
        """Stage everywhere, and only where all workers of all cores are content put it in place."""
        engines = [state["engine"] for state in await self.order({})]
        for refusals in await self._workers("specwatch_stage", checkpoint):
            if refusal := next(filter(None, refusals), None):
                raise Refused(f"checkpoint: {refusal}", "checkpoint")
        await self._settled()
        commits = await self._all("specwatch_commit", checkpoint)
        return [
            {
                "engine": engine,
                "workers": [{name: each.get(name) for name in _SWAPPED} for each in workers],
                "still_s": commit["still_s"],
            }
            for engine, commit, workers in zip(engines, commits, await self._settled(), strict=True)
        ]

    async def _settled(self) -> list[list[dict[str, Any]]]:
        """By core and worker, once none is busy. Raises Refused where one failed."""
        until = time.monotonic() + self.STAGE_S
        while True:
            found = await self._workers("specwatch_staged")
            every = [each for workers in found for each in workers]
            if error := next((each["error"] for each in every if "error" in each), None):
                raise Refused(f"checkpoint: {error}", "checkpoint")
            if not any(each.get("busy") for each in every):
                return found
            if time.monotonic() > until:
                raise Refused(f"checkpoint: not read after {self.STAGE_S:g} s", "checkpoint")
            await asyncio.sleep(self.LOOK_S)

    async def _workers(self, method: str, *args: Any) -> list[list[Any]]:
        return await self._all("collective_rpc", method, None, args)

    async def _all(self, method: str, *args: Any) -> list[Any]:
        if not _installed:
            raise Refused("the plugin does not know this vLLM and stands down; the engine's log says why")
        return list(await self._core.call_utility_all_async(method, *args))
