"""Inside a worker: other weights for the draft model, read beside the running steps and put in between two of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..checkpoint import differences
from .hooks import find, log


def stage(worker: Any, checkpoint: str) -> str:
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


def forget(worker: Any) -> None:
    """Let go of what is staged."""
    worker.__dict__.pop("specwatch_swap", None)


def staged(worker: Any) -> dict[str, Any]:
    """How far the swap is: `busy`, `error`, `before`, `after`, and the seconds it took."""
    state = worker.__dict__.get("specwatch_swap", {})
    return {name: value for name, value in state.items() if name != "weights"}


def load(worker: Any, checkpoint: str) -> str:
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
    with find("vllm.config", "set_current_vllm_config")(config), torch.inference_mode():
        reload_weights = find("vllm.model_executor.model_loader.reload.inplace", "reload_weights")
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
            log.exception("Specwatch: no checksum of the draft model")
        state["busy"] = False

    threading.Thread(target=check, name="specwatch-checksum", daemon=True).start()
    return checkpoint


def _pack_again(model: Any) -> None:
    # On the CPU a linear layer computes with a packed copy of its weight. Where the weight is another layer's (a
    # tied lm_head), reloading does not renew that copy.
    pack = find("vllm.model_executor.layers.utils", "dispatch_cpu_unquantized_gemm")
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
    download = find("huggingface_hub", "snapshot_download")
    return Path(download(draft.model, revision=draft.revision, local_files_only=True))


def _weights(folder: Path) -> Iterator[tuple[str, Any]]:
    safe_open = find("safetensors", "safe_open")
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                yield name, opened.get_tensor(name)


def _checksum(worker: Any) -> str:
    """SHA-256 over names and contents of the draft model's parameters as they are in memory."""
    import hashlib

    digests = find("vllm.model_executor.model_loader.weight_checksum", "compute_tensor_digests")
    found = digests(worker.model_runner.get_draft_model())
    return hashlib.sha256("\n".join(f"{name} {found[name]}" for name in sorted(found)).encode()).hexdigest()
