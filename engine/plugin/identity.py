"""Which weights lie in a folder, and what they run on: short texts that two engines have alike or not.

Standard library only. Nothing here raises; what cannot be told is None.
"""

import hashlib
import json
import os
import platform
import struct
import time
from pathlib import Path
from typing import Any

#: Longest header that safetensors itself accepts, bytes.
_MAX_HEADER = 100_000_000
#: Of each tensor so many bytes are read, from its middle: training changes all of a tensor, or nearly so.
_SAMPLE = 4_096
#: Tensors of a file that are sampled, evenly chosen where it has more. A draft model seldom has as many, so that
#: one of which a single layer was trained further is told from what it was; a target of 100 GB has some 1,000 in
#: all, which a local disk gives in far less than a second.
_MOST_SAMPLES = 512
#: How long an engine's start may wait for it, s; a disk on a network may take some ms for each sample.
_LIMIT_S = 30.0
#: Hexadecimal digits of a digest.
_DIGITS = 16
_WHOLE = ("config.json", "model.safetensors.index.json")


def digest(folder: str | Path | None) -> str | None:
    """Of a checkpoint's content: its configuration and index, and of each *.safetensors file its name, size, header
    and samples of the data. None where there is no such file in `folder`, it cannot be read, or that takes too long.

    Not proof against intent: bytes that are not sampled can be another's.
    """
    if folder is None:
        return None
    until = time.monotonic() + _LIMIT_S
    try:
        path = Path(folder)
        files = sorted(path.glob("*.safetensors"))
        if not files:
            return None
        found = hashlib.sha256()
        for name in _WHOLE:
            if (path / name).is_file():
                _put(found, name.encode(), (path / name).read_bytes())
        for file in files:
            _weights(found, file, until)
        return found.hexdigest()[:_DIGITS]
    except Exception:
        # Whatever it is, an engine starts without.
        return None


def _put(found: Any, *parts: bytes) -> None:
    # With its length, so that no two lists of parts are one text.
    for part in parts:
        found.update(struct.pack("<Q", len(part)) + part)


def _weights(found: Any, file: Path, until: float) -> None:
    """Format: https://github.com/huggingface/safetensors#format. Raises TimeoutError after `until`, monotonic."""
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > _MAX_HEADER:
            raise ValueError(f"the header claims {length} bytes")
        content = stream.read(length)
        header = json.loads(content)
        header.pop("__metadata__", None)
        _put(found, file.name.encode(), struct.pack("<Q", size), content)
        spans = sorted(tuple(map(int, entry["data_offsets"])) for entry in header.values())
        number = min(len(spans), _MOST_SAMPLES)
        for each in range(number):
            if time.monotonic() > until:
                raise TimeoutError
            first, last = spans[each * len(spans) // number]
            stream.seek(8 + length + max(first, (first + last - _SAMPLE) // 2))
            _put(found, stream.read(min(_SAMPLE, max(0, last - first))))


def processor() -> str:
    """`cpu: MODEL x THREADS`, the hardware threads of the whole machine."""
    return f"cpu: {_model()} x {os.cpu_count() or 1}"


def _model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return " ".join(value.split())
    except OSError:
        pass
    # Processors of other kinds give no name there.
    return platform.machine() or "unknown"
