"""Log files: their ends, and what the launcher makes of an engine's."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ...threads import in_thread
from ..facts import LogFacts, Unseen
from .limits import of_process

#: Lines of each that are kept, and bytes that are read for them.
LINES, MOST_BYTES = 2000, 2 << 20
_DIAGNOSIS_S = 8.0


async def look(path: Path, *, named: bool) -> LogFacts:
    """`named`: by the caller, as an engine's; others are so where they name vLLM. Raises OSError."""
    size, age, tail = await in_thread(lambda: _read(path))
    diagnosis: dict[str, object] | Unseen
    if not named and not any("vllm" in line.lower() for line in tail):
        return LogFacts(path, size, age, tail, Unseen("it is no engine's log", "other"))
    try:
        # The sidecar's room knows nothing of the engine's but what its command prints.
        status, out, err = await of_process(
            _DIAGNOSIS_S, sys.executable, "-m", "specwatch_engine.launch", "--diagnose", str(path)
        )
        diagnosis = json.loads(out) if status == 0 else Unseen(err.decode("utf-8", "replace")[:300].strip(), "failed")
    except (OSError, TimeoutError, ValueError) as error:
        diagnosis = Unseen(f"the launcher did not say what ended it ({type(error).__name__})", "failed")
    return LogFacts(path, size, age, tail, diagnosis)


def _read(path: Path) -> tuple[int, float, tuple[str, ...]]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - MOST_BYTES, 0))
        text = file.read(MOST_BYTES).decode("utf-8", "replace")
    return size, time.time() - path.stat().st_mtime, tuple(text.splitlines()[-LINES:])


def of_run(run_dir: Path, named: Sequence[str]) -> list[Path]:
    """Logs of `specwatch up`, and those that engine files name; only files that are there."""
    found = [*sorted(run_dir.absolute().glob("*.log")), *(Path(each) for each in named)]
    return [path for path in dict.fromkeys(found) if path.is_file()]
