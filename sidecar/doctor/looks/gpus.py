"""The GPUs, by nvidia-smi, which the driver brings; nothing of CUDA is loaded."""

import csv
import io
import shutil

from ..facts import Gpu, Unseen
from .limits import of_process

_FIELDS = (
    *("index", "name", "memory.used", "memory.total", "utilization.gpu", "temperature.gpu"),
    "clocks_event_reasons.active",
)
#: Fields that older drivers call otherwise.
_OLDER = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
#: Bits of NVML's clocks event reasons that slow a GPU down; what is left out is idleness or an application's own wish.
_REASONS = {
    0x4: "power cap (software)",
    0x8: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake (hardware)",
}
_LIMIT_S = 8.0


async def look() -> list[Gpu] | Unseen:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Unseen("there is no nvidia-smi here: no NVIDIA GPU, or the engine runs elsewhere", "missing")
    for fields in (_FIELDS, tuple(_OLDER.get(name, name) for name in _FIELDS)):
        try:
            status, out, err = await of_process(
                _LIMIT_S, program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"
            )
        except TimeoutError:
            return Unseen(f"nvidia-smi gave no answer in {_LIMIT_S:g} s: the driver may hang", "slow")
        except OSError as error:
            return Unseen(f"nvidia-smi cannot be run: {error.strerror}", "failed")
        if status == 0:
            break
    else:
        words = " ".join((err or out).decode("utf-8", "replace").split())[:300]
        return Unseen(f"nvidia-smi failed: {words}", "failed")
    processes = await _processes(program)
    return [_gpu(row, processes) for row in _rows(out) if len(row) == len(_FIELDS)]


async def _processes(program: str) -> list[tuple[int, str, int]]:
    query = "--query-compute-apps=pid,process_name,used_memory"
    try:
        status, out, _ = await of_process(_LIMIT_S, program, query, "--format=csv,noheader,nounits")
    except (TimeoutError, OSError):
        return []
    rows = [] if status else _rows(out)
    return [(_whole(row[0]) or 0, row[1].split(" ")[0], _whole(row[2]) or 0) for row in rows if len(row) >= 3]


def _rows(text: bytes) -> list[list[str]]:
    return [
        [each.strip() for each in row]
        for row in csv.reader(io.StringIO(text.decode("utf-8", "replace")))
        if len(row) > 1
    ]


def _gpu(row: list[str], processes: list[tuple[int, str, int]]) -> Gpu:
    _, name, used, total, busy, heat, reasons = row
    try:
        bits = int(reasons, 16)
    except ValueError:
        bits = 0
    slowed = tuple(words for bit, words in _REASONS.items() if bits & bit)
    return Gpu(name, _whole(used) or 0, _whole(total) or 0, _whole(busy), slowed, _whole(heat), tuple(processes))


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None
