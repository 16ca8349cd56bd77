"""For tests: changes to vLLM's CPU build. On the path of an engine this is a plugin of vLLM, like ours.

Its processes are forked, where vLLM starts each anew and has it import everything again: a third of the time. With
ASYNC_ON_CPU=1 it also schedules asynchronously, as it does on a GPU, with streams that do nothing.
"""

import os
from typing import Any


class _Nothing:
    def __init__(self, *_: Any, **__: Any) -> None:
        import torch

        self.device = torch.device("cpu")

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def record(self, *_: object) -> None:
        pass

    synchronize = wait = wait_stream = wait_event = record

    def query(self) -> bool:
        return True


def register() -> None:
    import torch
    from vllm.platforms.cpu import CpuPlatform

    if hasattr(CpuPlatform, "changed_for_tests"):
        return
    CpuPlatform.changed_for_tests = True
    checked = CpuPlatform.check_and_update_config.__func__
    asynchronous = os.environ.get("ASYNC_ON_CPU") == "1"

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        checked(cls, vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        if asynchronous:
            vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    if asynchronous:
        torch.cuda.Event = torch.Event = torch.cuda.Stream = _Nothing
        torch.cuda.current_stream = torch.cuda.stream = _Nothing
