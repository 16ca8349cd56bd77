"""Inside an engine core: what the scheduler is made to do, and what is told of its steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..events import NO_ROWS, Events, encode_rows
from ..identity import digest, processor
from ..switch import Switch, opted_out
from . import hooks
from .hooks import log

#: Path of the socket on which the sidecar listens.
EVENTS = "SPECWATCH_ENGINE_EVENTS"

#: More steps than an engine core ever has under way: one for each stage of a pipeline, and one ahead.
_IN_FLIGHT = 64

#: Methods without a draft model: in its place vLLM has the target's configuration, or none.
_NO_DRAFT_MODEL = frozenset(("ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states"))


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
        self._specwatch: Watch | None = None
        try:
            if self.num_spec_tokens:
                self._specwatch = Watch(self)
        except Exception:
            self._specwatch_failed()

    def _specwatch_failed(self) -> None:
        log.exception("Specwatch failed and stands down, the engine serves on as configured")
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

    def reset_prefix_cache(self, reset_running_requests: bool = False, *args: Any, **kwargs: Any) -> Any:
        if self._specwatch is not None and reset_running_requests:
            self._specwatch.after_reset = _IN_FLIGHT
        return super().reset_prefix_cache(reset_running_requests, *args, **kwargs)  # type: ignore[misc]

    def _free_blocks(self, request: Any) -> Any:
        if self._specwatch is not None:
            self._specwatch.lingering.discard(request.request_id)
        return super()._free_blocks(request)  # type: ignore[misc]


class Watch:
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
        #: Updates after a reset of the cache in which steps from before it may still come.
        self.after_reset = 0
        draft = None if speculative.method in _NO_DRAFT_MODEL else speculative.draft_model_config
        self._hello: dict[str, Any] = {
            "engine": self.engine,
            "pid": os.getpid(),
            "vllm": hooks.version(),
            "method": speculative.method,
            "num_speculative_tokens": self.switch.most,
            "target_model": str(config.model_config.model),
            "target_tokenizer": str(config.model_config.tokenizer),
            "draft_model": None if draft is None else str(draft.model),
            "draft_tokenizer": None if draft is None else str(draft.tokenizer),
        }
        #: What a decision about these weights on this machine is tied to; read once, before the first step.
        self._identity: dict[str, str | None] = {
            "target_digest": digest(_folder(config.model_config)),
            "draft_digest": digest(_folder(draft)),
            "device": _device(parallel),
        }
        self.events = Events(os.environ.get(EVENTS, ""), self._hello)
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

    @property
    def draft_model(self) -> str | None:
        """Folder or name; None where there is none."""
        found: str | None = self._hello["draft_model"]
        return found

    def swapped(self, checkpoint: str, content: str | None) -> None:
        """The draft model has the weights of another folder, of which those are told who connect from now on;
        `content` is their digest.
        """
        hello = self._hello
        self._identity["draft_digest"] = content
        if hello["draft_tokenizer"] == hello["draft_model"]:
            hello["draft_tokenizer"] = checkpoint
        hello["draft_model"] = checkpoint
        self.events.introduce(hello)

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
        elif lingering or self.after_reset or not all(map(requests.__contains__, ids)):
            # vLLM passes over what was aborted, or set back by a reset of its cache, while this step ran.
            self.after_reset = max(self.after_reset - 1, 0)
            gone = {
                each
                for each in ids
                if (request := requests.get(each)) is None
                or each in lingering
                or (request.num_stale_output_tokens and request.drop_stale_output)
            }
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
            "vllm": hooks.version(),
            "method": switch.method,
            "num_speculative_tokens": switch.most,
            "cap": switch.cap,
            "mode": switch.mode.value,
            "at_zero": switch.at_zero,
            "step": events.steps,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "opted_out": len(self._out),
            "target_model": self._hello["target_model"],
            "draft_model": self.draft_model,
            **self._identity,
            "events": {"sent": events.sent, "dropped": events.dropped, "connected": connected},
        }


def _folder(model: Any) -> str | None:
    """Where a checkpoint lies, be it in the hub's cache under its name; None: there is none, or not on this machine."""
    if model is None:
        return None
    try:
        if os.path.isdir(model.model):
            return str(model.model)
        download = hooks.find("huggingface_hub", "snapshot_download")
        return str(download(model.model, revision=model.revision, local_files_only=True))
    except Exception:
        return None


def _device(parallel: Any) -> str | None:
    """What all ranks of this engine run on, as `NVIDIA H200 x 2`."""
    try:
        here = hooks.find("vllm.platforms", "current_platform")
        if here.device_type == "cpu":
            return processor()
        return f"{here.get_device_name()} x {parallel.world_size_across_dp}"
    except Exception:
        return None


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
