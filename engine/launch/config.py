"""speculative_config.yaml -> a checked, frozen `EngineConfig`, or one `ConfigError` with every fault."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .checks import check_devices, check_speculation
from .document import ConfigError, Entry, read
from .gather import Gathered, gather
from .options import devices
from .speculation import detected_method

__all__ = ["ConfigError", "EngineConfig", "build", "load"]

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8200
DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_REQUEST_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class EngineConfig:
    """One engine: what to serve, how to speculate, where to listen.

    `target` and `speculative` hold vLLM's own option names with values that passed their checks;
    local model paths in them are absolute. `offline` is true when nothing has to come from a hub.
    `notes` are sentences the user should read once at start. Times are in seconds.
    """

    source: Path
    model: str
    served_model_names: tuple[str, ...]
    host: str
    port: int
    draft_model: str | None
    method: str | None
    num_speculative_tokens: int | None
    max_num_seqs: int
    smallest_speculating_batch: int | None
    target: Mapping[str, Any]
    speculative: Mapping[str, Any] | None
    extra_args: Mapping[str, Any]
    request_timeout_s: float
    gpu_devices: tuple[str, ...]
    log: Path
    offline: bool
    notes: tuple[str, ...]

    @property
    def url(self) -> str:
        """Where clients on this machine reach the engine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def load(
    path: Path,
    *,
    host: str | None = None,
    port: int | None = None,
    log: Path | None = None,
    fetched: bool = True,
) -> EngineConfig:
    """Read and check the file at `path`; `host`, `port` and `log` stand above what it says.

    With `fetched` false a local model may still be missing: enough to describe the engine, not to start it.
    Raises ConfigError naming every fault with its line.
    """
    return build(read(path), path, host=host, port=port, log=log, fetched=fetched)


def build(
    entries: tuple[Entry, ...],
    path: Path,
    *,
    host: str | None = None,
    port: int | None = None,
    log: Path | None = None,
    fetched: bool = True,
) -> EngineConfig:
    """The same for a document already read; relative paths start at the folder of `path`."""
    found = gather(entries)
    folder = path.absolute().parent
    model, model_local = _model(found, "target", "model", folder, fetched)
    tokenizer, tokenizer_local = _model(found, "target", "tokenizer", folder, fetched)
    draft, draft_local = _model(found, "speculative", "model", folder, fetched)
    if model is None and not found.has("target", "model"):
        found.fault(1, "model is missing: name the target model, a folder or a hub name")
    target = found.side("target")
    target.update({"model": model} | ({"tokenizer": tokenizer} if tokenizer else {}))
    target.setdefault("max_num_seqs", DEFAULT_MAX_NUM_SEQS)
    names = target.pop("served_model_name", None) or _plain_name(found.value("target", "model"), model_local)
    speculative = found.side("speculative")
    if draft:
        speculative["model"] = draft
    method = detected_method(speculative.get("method"), draft)
    k = speculative.get("num_speculative_tokens")
    smallest = check_speculation(found, speculative, method, target)
    check_devices(found, target)
    if found.problems:
        raise ConfigError(str(path), found.problems)
    port = port or found.value("launch", "port") or DEFAULT_PORT
    written_log = found.value("launch", "log")
    return EngineConfig(
        source=path,
        model=str(model),
        served_model_names=(names,) if isinstance(names, str) else tuple(names),
        host=host or found.value("launch", "host") or DEFAULT_HOST,
        port=port,
        draft_model=draft,
        method=method,
        num_speculative_tokens=k,
        max_num_seqs=target["max_num_seqs"],
        smallest_speculating_batch=smallest,
        target=MappingProxyType(target),
        speculative=MappingProxyType(speculative) if speculative else None,
        extra_args=MappingProxyType(dict(found.extra)),
        request_timeout_s=float(found.value("launch", "request_timeout_s") or DEFAULT_REQUEST_TIMEOUT_S),
        gpu_devices=devices(found.value("launch", "gpu_devices")) or (),
        log=(log or (folder / written_log if written_log else Path(f".run/engine-{port}.log"))).absolute(),
        offline=model_local and (draft is None or draft_local) and (tokenizer is None or tokenizer_local),
        notes=tuple(found.notes),
    )


def _model(found: Gathered, side: str, name: str, folder: Path, fetched: bool) -> tuple[str | None, bool]:
    """The model as vLLM should get it, and whether it lies on this machine."""
    text = found.value(side, name)
    if text is None:
        return None, False
    path = folder / Path(text).expanduser() if not text.startswith("~") else _home(text)
    if path.exists():
        return str(path.resolve()), True
    # `models/target` is a possible hub name; a folder `models` beside the file tells what was meant.
    parts = Path(text).parts
    if text[0] in "./~" or len(parts) > 2 or (len(parts) == 2 and (folder / parts[0]).is_dir()):
        if not fetched:
            return os.path.normpath(path), True
        entry, there = found.entry(side, name), os.path.normpath(path)
        found.fault(entry.line, f"{entry.key}: there is no model at {there}; check the path or fetch the model")
        return None, True
    return text, False


def _home(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # no such user
        return Path(text)


def _plain_name(written: str | None, local: bool) -> str:
    return (Path(written).name if written and local else written) or "model"
