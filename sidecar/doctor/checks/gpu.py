"""The GPU, where there is one here."""

from collections.abc import Iterator

from ..facts import Facts, Unseen
from ..findings import Check, NotLooked, Result, fine, note, warning

#: Memory that is left; vLLM takes what gpu_memory_utilization says at its start, 0.9 mostly, and no more.
_FULL, _TIGHT_MIB = 0.97, 512
_VLLM = ("vllm", "VLLM")


def gpus(facts: Facts) -> Iterator[Result]:
    if isinstance(facts.gpus, Unseen):
        yield NotLooked("gpu", f"the GPU: {facts.gpus.why}")
        return
    for number, gpu in enumerate(facts.gpus):
        said = False
        name, command = f"GPU {number} ({gpu.name})", "nvidia-smi -q -d MEMORY,PERFORMANCE"
        free = gpu.total_mib - gpu.used_mib
        others = [
            each for each in gpu.processes if not any(word in each[1] for word in _VLLM) and "python" not in each[1]
        ]
        if gpu.total_mib and (gpu.used_mib > _FULL * gpu.total_mib or free < _TIGHT_MIB):
            said = True
            yield warning(
                "gpu-memory",
                f"the memory of {name} is nearly full: {free} of {gpu.total_mib} MiB are free",
                *(f"process {pid} ({program}): {held} MiB" for pid, program, held in gpu.processes[:5]),
                cause="the engine was given nearly all (gpu_memory_utilization), or others hold a part",
                remedy="gpu_memory_utilization: 0.85 leaves room for the draft's graphs and peaks; end what else runs "
                "there",
                command=command,
            )
        if gpu.throttled:
            said = True
            yield warning(
                "gpu-slowed",
                f"{name} is slowed down: {', '.join(gpu.throttled)}",
                *([f"{gpu.temperature} °C"] if gpu.temperature is not None else []),
                cause="its cooling or its power limit",
                remedy="see to cooling and power (nvidia-smi -q -d POWER,TEMPERATURE): latencies compare badly "
                "meanwhile",
                command=command,
            )
        if others:
            said = True
            yield note(
                "gpu-shared",
                f"others use {name}",
                *(f"process {pid} ({program}): {held} MiB" for pid, program, held in others[:5]),
                remedy="choose gpu_devices of its own for the engine, where latencies vary",
                command="nvidia-smi",
            )
        if not said:
            busy = "" if gpu.busy is None else f", {gpu.busy} % busy"
            yield fine("gpu", f"{name} has {free} of {gpu.total_mib} MiB free{busy}, and is not slowed down")
    if not facts.gpus:
        yield NotLooked("gpu", "the GPU: nvidia-smi names none")


CHECKS = (Check("gpu", gpus),)
