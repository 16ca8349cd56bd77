"""Stands in for `specwatch_engine.lab` as a process: `python -m support.scripted_lab KIND [--out DIR] [how it ends]`.

What it writes is what the lab does: run.json, and a lock with its process id.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def main() -> int:
    kind, *rest = sys.argv[1:]
    if "--help" in rest:
        print(f"usage: specwatch {kind} [--out DIR]")
        return 0
    folder = Path(rest[rest.index("--out") + 1]) if "--out" in rest else Path(".run/lab") / f"{kind}-1"
    print(json.dumps(rest), flush=True)
    if "wrong" in rest:
        return 2
    folder.mkdir(parents=True)
    (folder / ".lock").write_text(f"{os.getpid()}\n")
    told: dict[str, Any] = {
        "id": f"{kind}-1-abc",
        "kind": kind,
        "state": "running",
        "started_at": "2026-01-31T12:00:00.000Z",
        "ended_at": None,
        "verdict": None,
        "summary": None,
        "options": {"engine": "http://127.0.0.1:1"},
        "fingerprint": {"target": "/t", "draft": "/d", "k": 4},
        "version": "0",
    }

    def save(**changes: Any) -> None:
        (folder / "part").write_text(json.dumps(told | changes))
        (folder / "part").replace(folder / "run.json")

    save()
    if "waits" in rest:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        print("waits", flush=True)
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            save(state="interrupted", ended_at="2026-01-31T12:30:00.000Z")
            return 130
    if "dies" in rest:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    summary = {"title": "A run", "verdict": "rejected", "reasons": ["p is low."]}
    save(state="done", ended_at="2026-01-31T13:00:00.000Z", verdict="rejected", summary=summary)
    return 1


if __name__ == "__main__":
    sys.exit(main())
