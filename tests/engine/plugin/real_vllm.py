"""Asks the installed vLLM, in a process of its own, and prints the answers as JSON; no engine is started."""

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from types import SimpleNamespace as Thing
from typing import Any
from unittest.mock import patch

from specwatch_engine import plugin
from specwatch_engine.plugin.compat import hooks, scheduler


def main() -> None:
    answers: dict[str, Any] = {
        "version": hooks.version(),
        "moved": hooks.moved(),
        "changed": {name: _changed(*change) for name, change in CHANGES.items()},
        "unknown version": _stands_down(patch.object(hooks, "version", lambda: "0.99.0")),
        "moved hook": _stands_down(
            patch.object(_found("vllm.v1.core.sched.scheduler", "Scheduler"), "schedule", new=len)
        ),
        "not there": _stands_down(patch.object(hooks, "version", side_effect=ImportError("No module named 'vllm'"))),
        "installed": _installed(),
    }
    print("ANSWER" + json.dumps(answers))


#: What a later vLLM may do: the owner, the name, and what is there instead (None: nothing).
CHANGES: dict[str, tuple[str, str, Any]] = {
    "a method gone": ("vllm.v1.core.sched.scheduler.Scheduler", "_free_request", None),
    "a function gone": ("vllm.model_executor.model_loader.weight_checksum", "compute_tensor_digests", None),
    "a class gone": ("vllm.v1.worker.worker_base", "WorkerWrapperBase", None),
    "a parameter renamed": (
        "vllm.v1.core.sched.scheduler.Scheduler",
        "update_from_output",
        lambda self, output, model_runner_output: output.sampled_token_ids,
    ),
    "attributes not used any more": (
        "vllm.v1.core.sched.scheduler.Scheduler",
        "update_from_output",
        lambda self, scheduler_output, model_runner_output: model_runner_output.sampled_token_ids,
    ),
    "a parameter before": ("vllm.v1.engine.core.EngineCore", "collective_rpc", lambda self, rank, method: None),
    "a parameter behind": (
        "vllm.config.scheduler.SchedulerConfig",
        "get_scheduler_cls",
        lambda self, more=None: None,
    ),
    "no parameters": ("vllm.v1.core.sched.scheduler.Scheduler", "reset_prefix_cache", lambda: None),
}


def _found(module: str, name: str) -> Any:
    return hooks.find(module, name)


@contextlib.contextmanager
def _without(owner: Any, name: str) -> Iterator[None]:
    kept = owner.__dict__[name]
    delattr(owner, name)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def _changed(owner: str, name: str, instead: Any) -> list[str]:
    module, _, last = owner.rpartition(".")
    thing = _found(module, last)
    with _without(thing, name) if instead is None else patch.object(thing, name, new=instead):
        return hooks.moved()


def _hooks() -> dict[str, Any]:
    return {
        "scheduler": _found("vllm.config.scheduler", "SchedulerConfig").get_scheduler_cls,
        "worker": _found("vllm.v1.worker.worker_base", "WorkerWrapperBase").init_device,
        "order": getattr(_found("vllm.v1.engine.core", "EngineCore"), "specwatch_order", None),
        "stage": getattr(_found("vllm.v1.worker.worker_base", "WorkerBase"), "specwatch_stage", None),
    }


def _stands_down(change: Any) -> dict[str, Any]:
    """What `register` logs, and whether anything of vLLM is another thing afterwards."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger("vllm.specwatch")
    log.addHandler(handler)
    before = _hooks()
    with change:
        plugin.register()
    log.removeHandler(handler)
    return {
        "log": [[record.levelname, record.getMessage()] for record in records],
        "same": _hooks() == before,
        "installed": hooks.installed,
    }


def _installed() -> dict[str, Any]:
    """The real hooks in place, twice."""
    before = _hooks()
    plugin.register()
    once = _hooks()
    plugin.register()
    config = _found("vllm.config.scheduler", "SchedulerConfig")
    base = _found("vllm.v1.core.sched.scheduler", "Scheduler")
    asynchronous = _found("vllm.v1.core.sched.async_scheduler", "AsyncScheduler")
    chosen = {
        name: config.get_scheduler_cls(Thing(scheduler_cls=given, async_scheduling=False, watermark=0.0))
        for name, given in {"default": None, "of the user": asynchronous}.items()
    }
    own = scheduler.SchedulerMixin
    return {
        "changed": [name for name in before if once[name] is not before[name]],
        "twice": once == _hooks(),
        "classes": {name: [each.__name__ for each in made.__mro__[:3]] for name, made in chosen.items()},
        "wrapped": all(issubclass(made, own) and issubclass(made, base) for made in chosen.values()),
        "again": config.get_scheduler_cls(Thing(scheduler_cls=chosen["default"], async_scheduling=False))
        is chosen["default"],
        "names": {name: [made.__name__, made.__module__] for name, made in chosen.items()},
    }


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()
