"""What others need to help, in one file, without secrets and without a word of a prompt or a reply."""

import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..settings import Settings
from ..versions import HIDDEN, changed_settings
from .facts import Facts, Machine, SidecarFacts, Unseen
from .findings import Report, as_json
from .hide import HandedOn

#: Fields of answers that hold texts of models or of people, whatever they say.
_TEXTS = ("target_text", "draft_text", "final_text", "text", "report")


class BundleError(Exception):
    """It cannot be written; says why."""


def write(file: Path, facts: Facts, report: Report) -> dict[str, int]:
    """Write the bundle; the sizes of what is in it, by name, in bytes. Raises BundleError.

    It has its name only once it is whole, and only its owner may read it.
    """
    hide = HandedOn(facts.settings)
    parts = {name: _json(value, hide) for name, value in _values(facts, report).items()}
    for number, log in enumerate(facts.logs):
        text = "\n".join([f"# {log.path}, {log.size} bytes", *hide.log(log.tail), ""])
        parts[f"logs/{number}-{log.path.name}.txt"] = hide(text).encode()
    part = file.with_name(f".{file.name}.part")
    try:
        # One that another has put there would be his to read.
        part.unlink(missing_ok=True)
        with (
            open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out,
            tarfile.open(fileobj=out, mode="w:gz") as tar,
        ):
            for name, content in parts.items():
                entry = tarfile.TarInfo(f"specwatch-doctor/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                tar.addfile(entry, io.BytesIO(content))
        part.replace(file)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise BundleError(f"{file}: {error.strerror}") from None
    return {name: len(content) for name, content in parts.items()}


def _values(facts: Facts, report: Report) -> Mapping[str, Any]:
    side, machine = facts.sidecar, facts.machine
    found: dict[str, Any] = {
        "findings.json": as_json(report),
        "settings.json": redacted(facts.settings),
        "gpu.json": facts.gpus,
        "engines.json": {
            name: {"server": each.server, "cores": each.cores, "counters": _counters(each.text)}
            for name, each in facts.engines.items()
        },
        "neighbours.json": list(facts.neighbours),
        "database.json": facts.database,
        "tokenizers.json": facts.pair if isinstance(facts.pair, Unseen) else _pair(facts.pair.report),
    }
    if isinstance(machine, Machine):
        found["packages.json"] = dict(machine.packages)
        found["platform.json"] = {
            "platform": machine.platform,
            "open_files": machine.open_files,
            "disks": machine.disks,
            "spool": machine.spool,
        }
    if isinstance(side, SidecarFacts):
        found |= {
            f"{name}.json": getattr(side, name)
            for name in ("ready", "summary", "windows", "alignment", "fallback", "alerts", "events")
        }
        found["quality.json"] = side.quality
    return found


def redacted(settings: Settings) -> dict[str, str]:
    """All settings, `default` where they are at it; secrets, and rules of what is private, are hidden."""
    changed = changed_settings(settings)
    return {
        name: HIDDEN if name in ("redact", "scenario_rules") and name in changed else changed.get(name, "default")
        for name in Settings.model_fields
    }


def _counters(text: bytes | Unseen) -> object:
    """vLLM's own lines, without the histograms' buckets."""
    if isinstance(text, Unseen):
        return text
    lines = text.decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.startswith("vllm") and "_bucket" not in line and "_created" not in line][
        :500
    ]


def _pair(report: Any) -> dict[str, Any]:
    """The counts of the comparison; texts of tokens are a model's vocabulary, and not needed."""
    whole: dict[str, Any] = msgspec.to_builtins(report)
    return {name: value for name, value in whole.items() if name not in ("moved", "findings")}


def _json(value: object, hide: Callable[[str], str]) -> bytes:
    return json.dumps(_plain(value, hide), indent=1, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _plain(value: object, hide: Callable[[str], str]) -> object:
    """As JSON has it, each text without what is private in it."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return hide(value)
        case Unseen():
            return {"not_looked_at": hide(value.why)}
        case datetime() | date():
            return value.isoformat()
        case Path():
            return hide(str(value))
        case Mapping():
            return {
                hide(str(key)): "[left out]" if key in _TEXTS and each else _plain(each, hide)
                for key, each in value.items()
            }
        case list() | tuple() | set() | frozenset():
            return [_plain(each, hide) for each in value]
        case msgspec.Struct():
            return _plain(msgspec.to_builtins(value), hide)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return _plain(asdict(value), hide)
        case _:
            return hide(str(value))
