"""For tests: lets vLLM's CPU build schedule asynchronously, as it does on a GPU, with streams that do nothing.

On the path of an engine this is a plugin of vLLM, like ours; see the folder beside it.
"""

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

    if hasattr(CpuPlatform, "schedules_asynchronously"):
        return
    CpuPlatform.schedules_asynchronously = True
    checked = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        checked(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    torch.cuda.Event = torch.Event = torch.cuda.Stream = _Nothing
    torch.cuda.current_stream = torch.cuda.stream = _Nothing
