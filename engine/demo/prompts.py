"""A file of prompts for the lab, of the demo's dialogues: `python -m specwatch_engine.demo.prompts FILE`.

One JSON object a line, as `specwatch qualify --prompts` reads them; which they are, the seed alone decides.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .dialogues import SCENARIOS, Dialogue, misdirected, mix
from .traffic import INCIDENT, LONGEST_REPLY, MIXES, parse_mix

DEFAULT_NUMBER = 3_000


def prompts(
    number: int, weights: Mapping[str, float], seed: int = 0, *, incident: bool = False
) -> Iterator[dict[str, Any]]:
    """`number` prompts by scenario weight; `incident`: one scenario asks something else (`misdirected`).

    Some come more than once, as in real traffic: the scenarios would otherwise not keep their weights.
    """
    items: Iterator[Dialogue] = mix(f"prompts-{seed}", weights, number)
    for item in misdirected(f"prompts-{seed}", items) if incident else items:
        yield {
            "scenario": item.scenario,
            "messages": list(item.prompt),
            "max_tokens": LONGEST_REPLY,
            "temperature": 0,
        }


def main(arguments: list[str] | None = None) -> int:
    """Command line. 0: the file is written; 1: it cannot be; 2: bad arguments."""
    parser = argparse.ArgumentParser(prog="python -m specwatch_engine.demo.prompts", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--number", type=int, default=DEFAULT_NUMBER, help="prompts (default: %(default)s)")
    parser.add_argument(
        "--mix", default="balanced", help=f"{', '.join(MIXES)}, or scenario=weight,… of {', '.join(SCENARIOS)}"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.number < 1:
        parser.error(f"--number must be at least 1, not {options.number}")
    try:
        weights, later = parse_mix(options.mix)
    except ValueError as error:
        parser.error(f"--mix: {error}")
    if later != weights:
        parser.error(f"--mix: {options.mix} changes on the way, which a file of prompts cannot")
    made = prompts(options.number, weights, options.seed, incident=options.mix == INCIDENT)
    try:
        with options.file.open("w", encoding="utf-8") as file:
            for each in made:
                file.write(json.dumps(each, ensure_ascii=False) + "\n")
    except OSError as error:
        print(f"{options.file} cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1
    print(f"{options.number} prompts are in {options.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
