"""`specwatch doctor`: looks at everything at once, and says what is wrong and what to do."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..settings import Settings

#: Exit status where it could not look: a log that is not there, a bundle that cannot be written.
CANNOT_LOOK = 2


def doctor(settings: Settings, *, logs: Sequence[Path] = (), bundle: Path | None = None, as_json: bool = False) -> int:
    """Looks, prints what was found, and returns the exit status: 0 nothing, 1 findings, 2 it could not look at all.

    `logs` are files of engines (those of `specwatch up` and of the setting engine are known), `bundle` is the
    .tar.gz to write for others to look at. Takes 20 s at most. Findings are faults and warnings; notes are none.
    """
    from rich.console import Console

    from .bundle import BundleError, write
    from .findings import as_json as report_json
    from .findings import run
    from .gather import look
    from .hide import Shown
    from .order import ALL
    from .show import show

    began = time.monotonic()
    if (wrong := _wrong(logs, bundle)) is not None:
        return _refuse(wrong)
    hide = Shown(settings)
    errors = Console(stderr=True)
    with errors.status("looking at engine, sidecar, database and logs"):
        facts = look(settings, [each.absolute() for each in logs])
        report = run(ALL, facts)
    if as_json:
        print(json.dumps(report_json(report, hide), indent=2))
    else:
        show(report, Console(highlight=False), hide, time.monotonic() - began)
    if bundle is not None:
        try:
            sizes = write(bundle, facts, report)
        except BundleError as error:
            return _refuse(f"--bundle: {error}")
        # Beside the JSON, which programs read.
        out = errors if as_json else Console(highlight=False)
        out.print(f"\n{bundle} holds, without secrets, prompts and replies:", markup=False, soft_wrap=True)
        for name, size in sizes.items():
            out.print(f"  {name:28} {size:>9,} bytes", markup=False, highlight=False)
    return report.exit_status


def _wrong(logs: Sequence[Path], bundle: Path | None) -> str | None:
    """What is wrong with the arguments, in a sentence that names the option."""
    for log in logs:
        try:
            # Of a pipe the end never comes.
            if not log.is_dir() and log.exists() and not log.is_file():
                return f"--log: {log} is no file; name the log file of an engine"
            with log.open("rb"):
                pass
        except OSError as error:
            return f"--log: {log}: {error.strerror}; name the log file of an engine"
    if bundle is None:
        return None
    if not bundle.name.endswith((".tar.gz", ".tgz")):
        return f"--bundle: {bundle} must end in .tar.gz"
    if not bundle.absolute().parent.is_dir():
        return f"--bundle: there is no folder {bundle.absolute().parent}"
    return f"--bundle: {bundle} is a folder" if bundle.is_dir() else None


def _refuse(message: str) -> int:
    print(f"specwatch doctor: {message}", file=sys.stderr)
    return CANNOT_LOOK
