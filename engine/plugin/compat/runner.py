"""Inside a worker: draft ids that stay on the device are copied out, and the draft model is left out on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .hooks import log


def hook(runner: Any) -> None:
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


_failed = False

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
        drafts = _guarded(drafts_of, self)
        output = sample(self, grammar_output)
        if drafts is not None and hasattr(output, "get_output"):
            take = _guarded(copied, self, drafts)
            get = output.get_output

            def get_output() -> Any:
                result = get()
                result.specwatch_drafts = None if take is None else _guarded(take)
                return result

            output.get_output = get_output
        return output

    def copied(runner: Any, drafts: _Drafts) -> Callable[[], dict[str, list[int]]]:
        ids, names, parts = drafts
        make = getattr(runner, "_get_or_create_async_output_copy_stream", None)
        stream = make() if make else runner.output_copy_stream
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        present = torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            stream.wait_stream(present)
            host = ids.to("cpu", non_blocking=True, copy=True)
            done.record()

        def take() -> dict[str, list[int]]:
            done.synchronize()
            # `ids` must outlive the copy.
            flat = host.tolist() if len(ids) else []
            return {name: flat[part] for name, part in zip(names, parts, strict=True) if part.stop > part.start}

        return take

    return sample_tokens


def _guarded(part: Callable[..., Any], *args: Any) -> Any:
    """What `part` gives; None where it fails, which must not end the worker. The first failure is told."""
    global _failed
    try:
        return part(*args)
    except Exception:
        if not _failed:
            _failed = True
            log.exception("Specwatch sees no draft tokens any more")
        return None


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
