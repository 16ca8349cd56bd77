"""The file of the engine that is swept: the user's own, or one of the run, whose engine may draft every k."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ...launch.config import load
from ...launch.speculation import FIXED_LENGTH
from ..run import Run
from ..stand import EngineOptions, StandError
from ..started import configuration
from . import table


def source(args: argparse.Namespace, run: Run) -> Path | None:
    """The engine's own file, where there is one. Raises StandError."""
    named = args.config or args.engine_config
    if args.engine_config and args.engine is None:
        raise StandError("--engine-config: goes with --engine; an engine that is started has its file from -c")
    if named is not None:
        if not Path(named).is_file():
            option = "-c" if args.config else "--engine-config"
            raise StandError(f"{option}: there is no file {named}: name a speculative_config.yaml")
        return Path(named)
    if args.engine is not None:
        return None
    return configuration(_asked_of_stand(args), run)


def options(args: argparse.Namespace, file: Path | None, run: Run) -> EngineOptions:
    """The engine to be swept: where the lab starts it, one with the largest k, and a table that allows it at every
    batch size of the sweep and has the others at sizes that it does not reach, so that vLLM captures its CUDA graphs
    for all of them.
    """
    asked = _asked_of_stand(args)
    if asked.engine is not None or file is None:
        return asked
    config = load(file)
    if config.speculative is None:
        raise StandError(f"-c: {file} has no draft model: there is no k to sweep")
    if config.method in FIXED_LENGTH:
        return replace(asked, config=file, target=None, draft=None)
    flat = [[1, config.max_num_seqs, max(args.k)]]
    rows = table.with_every(args.k, flat, max(args.concurrency), config.max_num_seqs) or flat
    text = table.tuned(file, rows, "as the sweep runs it: the cap decides")
    return replace(asked, config=run.write("speculative_config.swept.yaml", text), target=None, draft=None)


def ks_of(file: Path | None) -> frozenset[int]:
    """The ks of the table in an engine's file; none where there is no table, or no file."""
    speculative = None if file is None else load(file, fetched=False).speculative
    return frozenset(k for _, _, k in (speculative or {}).get(table.KEY) or ())


def _asked_of_stand(args: argparse.Namespace) -> EngineOptions:
    # Its --k is one number, the sweep's are many.
    return EngineOptions.of(argparse.Namespace(**{**vars(args), "k": None}), k=max(args.k))
