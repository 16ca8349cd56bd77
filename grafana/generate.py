"""Write the files of this room that are made by code: `python -m specwatch_grafana.generate [--check]`.

They are checked in, so that nobody needs the SDK who only uses them. `--check` writes nothing: it names the files that
differ from what would be made, and exits 1 if there are any.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from . import alerting, boards, manifests, rules

ROOM = Path(__file__).parent

#: Each gives the files of one kind: path in this room -> text.
PARTS: tuple[Callable[[], Mapping[str, str]], ...] = (boards.files, rules.files, alerting.files, manifests.files)


def files() -> dict[str, str]:
    """All of them."""
    return {path: text for part in PARTS for path, text in part().items()}


def differing(made: Mapping[str, str], room: Path) -> list[str]:
    """Paths whose file is missing or has another text, and dashboards that nothing makes."""
    changed = [path for path, text in made.items() if not _has(room / path, text)]
    left_over = [f"dashboards/{path.name}" for path in (room / "dashboards").glob("*.json")]
    return sorted([*changed, *(path for path in left_over if path not in made)])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m specwatch_grafana.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; name what differs and exit 1")
    check = parser.parse_args().check
    made = files()
    different = differing(made, ROOM)
    for path in different:
        print(path)
        if not check and path in made:
            (ROOM / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOM / path).write_text(made[path])
    return 1 if check and different else 0


def _has(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
