"""`python -m specwatch_engine.launch -c speculative_config.yaml`: one engine, kept running.

Exit status: 0 stopped as asked, 1 the engine failed, 2 the configuration is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from .arguments import Engine, EngineMissing, arguments, changed_environment, environment, installed_engine
from .config import ConfigError, EngineConfig, load
from .diagnosis import diagnose

WRONG_CONFIGURATION = 2
#: Of a log's end, which is looked at for what ended an engine.
MOST_LOG_BYTES = 4 << 20
#: Uvicorn's line once vLLM serves.
STARTED = "Application startup complete"


def main(argv: list[str] | None = None) -> int:
    """Parse `argv` (without the program's name) and do what it says; returns the exit status."""
    args = _parser().parse_args(argv)
    if args.diagnose is not None:
        return _diagnose(args.diagnose)
    try:
        config = load(args.config, host=args.host, port=args.port, log=args.log, fetched=not args.describe)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return WRONG_CONFIGURATION
    try:
        engine: Engine | None = installed_engine()
    except EngineMissing as error:
        engine = None
        if not args.describe:
            print(error, file=sys.stderr)
            return WRONG_CONFIGURATION
    if args.describe:
        print(json.dumps(describe(config, engine), ensure_ascii=False))
        return 0
    assert engine is not None
    if args.dry_run:
        print(dry_run(config, engine))
        return 0
    return _serve(config, engine, args.ready_timeout)


def describe(config: EngineConfig, engine: Engine | None) -> dict[str, object]:
    """What the sidecar wants to know before the engine runs; nothing is started or imported."""
    return {
        "url": config.url,
        "model": config.served_model_names[0],
        "draft_model": config.draft_model,
        "method": config.method,
        "num_speculative_tokens": config.num_speculative_tokens,
        "engine_version": None if engine is None else f"{engine.distribution} {engine.version}",
        "max_num_seqs": config.max_num_seqs,
        "log": str(config.log),
        "target_model": config.model,
        "request_timeout_s": config.request_timeout_s,
    }


def _diagnose(log: Path) -> int:
    """Print, as JSON, what the end of an engine's log tells; works after a crash, with nothing running."""
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - MOST_LOG_BYTES, 0))
            text = file.read(MOST_LOG_BYTES).decode("utf-8", "replace")
    except OSError as error:
        print(f"{log}: {error.strerror}", file=sys.stderr)
        return WRONG_CONFIGURATION
    # Whatever stands before the last start that went well, has been got over.
    found = diagnose(text.rpartition(STARTED)[2], None)
    print(json.dumps(asdict(found), ensure_ascii=False))
    return 0


def dry_run(config: EngineConfig, engine: Engine) -> str:
    """The engine's command line, for a shell, with the variables it changes in front."""
    changes = [f"{k}={shlex.quote(v)}" for k, v in changed_environment(config, engine, os.environ).items()]
    return " ".join([*changes, shlex.join(["vllm", "serve", *arguments(config, engine, os.environ)])])


def _serve(config: EngineConfig, engine: Engine, ready_timeout_s: float) -> int:
    from .progress import Reporter
    from .supervisor import Job, Supervisor, Timing
    from .warmup import warm_up

    reporter = Reporter()
    for note in config.notes:
        reporter.say(f"engine: {note}")
    speculates = config.speculative is not None
    at_one = (config.smallest_speculating_batch or 1) == 1
    if speculates and not at_one:
        reporter.say(
            f"engine: speculation starts at {config.smallest_speculating_batch} requests in a batch: "
            "the warm-up request alone will show no draft tokens"
        )
    draft = Path(config.draft_model).name if config.draft_model else config.method
    about = f"target {config.served_model_names[0]}"
    about += f", draft {draft}, k={config.num_speculative_tokens}" if speculates else ", no speculation"
    job = Job(
        command=[
            sys.executable,
            "-m",
            "specwatch_engine.launch.serve",
            *arguments(config, engine, os.environ),
        ],
        env=environment(config, engine, os.environ),
        url=config.url,
        log=config.log,
        warm_up=lambda: warm_up(
            config.url,
            config.served_model_names[0],
            config.request_timeout_s,
            os.environ.get("VLLM_API_KEY"),
        ),
        ready_text=f" ({about})",
        expects_drafts=speculates and at_one,
        bind=(config.host, config.port),
    )
    return Supervisor(job, reporter, Timing(ready_timeout_s=ready_timeout_s)).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specwatch_engine.launch", description="Serve a target model with its draft on vLLM."
    )
    parser.add_argument("-c", "--config", type=Path, default=Path("speculative_config.yaml"), metavar="FILE")
    parser.add_argument("--host", help="address to listen on (default: the file's, else 127.0.0.1)")
    parser.add_argument("--port", type=_port, help="port to listen on (default: the file's, else 8200)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="the engine's log (default: .run/engine-PORT.log)")
    parser.add_argument(
        "--ready-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="limit for one start (default: 600)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--describe", action="store_true", help="print one JSON line about the engine and exit")
    what.add_argument(
        "--diagnose", type=Path, metavar="LOG", help="print as JSON why an engine ended, by its log, and exit"
    )
    what.add_argument("--dry-run", action="store_true", help="print the vllm command line and exit")
    return parser


def _port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError("a port is a number from 1 to 65535")
    return number


if __name__ == "__main__":
    sys.exit(main())
