"""Puts the hooks in their place."""

from __future__ import annotations

from typing import Any

from . import draft, hooks, orders, runner
from .hooks import find, log
from .scheduler import SchedulerMixin


def install() -> None:
    """Put all hooks in place, once a process. Raises RuntimeError, and changes nothing, on a vLLM not known."""
    if hooks.installed:
        return
    if hooks.version() not in hooks.KNOWN:
        raise RuntimeError(f"vLLM {hooks.version()} is not known, only {', '.join(sorted(hooks.KNOWN))}")
    if problems := hooks.moved():
        raise RuntimeError(f"vLLM {hooks.version()} is not as expected: {'; '.join(problems)}")
    hooks.installed = True
    config = find("vllm.config.scheduler", "SchedulerConfig")
    chosen = config.get_scheduler_cls

    def get_scheduler_cls(self: Any) -> Any:
        base = chosen(self)
        if not isinstance(base, type) or issubclass(base, SchedulerMixin):
            return base
        return type(base.__name__, (SchedulerMixin, base), {"__module__": base.__module__})

    config.get_scheduler_cls = get_scheduler_cls
    core = find(hooks.CORE, "EngineCore")
    core.specwatch_order = orders.order
    core.specwatch_commit = orders.commit
    wrapper, worker = find(hooks.WORKER, "WorkerWrapperBase"), find(hooks.WORKER, "WorkerBase")
    prepare = wrapper.init_device

    def init_device(self: Any) -> Any:
        result = prepare(self)
        try:
            runner.hook(self.worker.model_runner)
        except Exception as error:
            log.warning("Specwatch sees no draft tokens here: %s", error)
        return result

    wrapper.init_device = init_device
    worker.specwatch_stage = draft.stage
    worker.specwatch_staged = draft.staged
    worker.specwatch_load = draft.load
    worker.specwatch_forget = draft.forget
