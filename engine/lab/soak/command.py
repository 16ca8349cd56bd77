"""`specwatch soak`: real prompts for minutes, hours or days, and whether anything drifts meanwhile.

Exit status: 0 stable; 1 drift or failed; 2 cannot tell, or wrong use; 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any

from .. import prompts, report, stand
from ..load import check
from ..options import positive
from ..progress import Say
from ..prompts import Prompt
from ..run import Run, RunError, State
from ..stand import Engine, EngineOptions, StandError
from .drift import LEAST_AFTER, LEAST_MINUTES, LEAST_REFERENCE, reference
from .load import MOST_AT_A_RATE, Load, Phase, served_model
from .memory import listener
from .minutes import ROWS, Soak, elapsed
from .private import Watched, private
from .series import Reader
from .verdict import DRIFT, FAILED, STABLE, UNKNOWN, Ended, judge

EXIT = {STABLE: 0, DRIFT: 1, FAILED: 1, UNKNOWN: 2}
DEFAULT_CONCURRENCY = 4
#: Where the sidecar is reached may differ when a run goes on.
MAY_CHANGE = frozenset(("proxy", "api", "events"))
_YEAR_MINUTES = 366 * 24 * 60
_DEFINITIONS = {
    "p": "accepted / drafted tokens (pooled), as the sidecar records them",
    "drift": "a lasting change of a figure that chance would hardly explain: in simulated runs without any, less than "
    "one in a hundred was said to drift, and up to one in twelve where minutes strongly resemble their neighbours",
    "began": "the minute from which on the figure was most likely another",
    "baseline": "requests served without speculation, which a busy machine slows as much",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those that the commands share, as `--prompts` and `--engine`, are there; some mean something else here."""
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=_minutes_of_hours, dest="minutes", metavar="N", help="how long")
    length.add_argument("--minutes", type=_minutes, metavar="N", help="the same in minutes")
    parser.add_argument(
        "--then", metavar="FILE@MINUTES", help="send those of another file from so many minutes on: a rehearsal"
    )
    parser.add_argument("--rate", type=_rate, metavar="R", help="requests a second, at even distances")
    parser.add_argument(
        "--concurrency",
        type=positive,
        metavar="C",
        help=f"requests in flight (default: {DEFAULT_CONCURRENCY}); with --rate, at most (default: {MOST_AT_A_RATE})",
    )
    parser.add_argument(
        "--number", type=positive, help="only so many of the prompts (default: all), again and again in another order"
    )
    parser.add_argument(
        "--events", metavar="SOCKET", help="where the plugin of the engine at --engine sends its events, for similarity"
    )
    group = parser.add_argument_group("a sidecar that runs, in place of one of the soak's own")
    group.add_argument("--proxy", type=stand.url, metavar="URL", help="where its clients connect")
    group.add_argument(
        "--api", type=stand.url, metavar="URL", help="its admin port; SPECWATCH_ADMIN_READ_TOKEN is its token"
    )


def run(args: argparse.Namespace, run: Run, say: Say) -> int:
    """The exit status. Raises RunError, StandError or PromptError for what cannot be used."""
    try:
        report.ready()
    except report.ReportError as error:
        raise RunError(str(error)) from None
    phases = _checked(args, say, run)
    rows = run.rows(ROWS)
    left = args.minutes - elapsed(rows)
    for sentence in _untold(args.minutes, phases) if left > 0 else ():
        say(f"warning: {sentence}")
    if rows and left > 0:
        gap = max(time() - rows[-1]["at"] - 60, 0.0)
        run.append(ROWS, {"gap_s": round(gap), "minute": round(elapsed(rows), 3), "at": rows[-1]["at"] + 60})
        say(f"The soak goes on at minute {elapsed(rows):.0f} of {args.minutes:g}.")
    try:
        if left > 0:
            _soaked(args, run, phases, say, rows)
    except KeyboardInterrupt:
        _tell(args, run)
        raise
    verdict = _tell(args, run)
    run.save(state=State.DONE, verdict=verdict)
    summary = run.told["summary"]
    say(f"{summary['title']}: {verdict}")
    for reason in summary["reasons"]:
        say(f"  {reason}")
    say(f"Report: {run.folder / report.HTML}")
    return EXIT[verdict]


def _tell(args: argparse.Namespace, run: Run) -> str:
    """Judge the rows, and draw it; the verdict."""
    files = {"minutes": f"{ROWS}.jsonl", "report": report.HTML, "report as Markdown": report.MARKDOWN}
    files |= {name: name for name in ("sidecar.log", "engine.log", "launch.log") if (run.folder / name).exists()}
    summary = judge(run.rows(ROWS), Ended(args.minutes, files))
    run.save(summary=summary.json())
    shown = ("prompts", "then", "rate", "concurrency", "seed", "proxy")
    facts = {name: value for name in shown if (value := getattr(args, name)) is not None}
    report.write(run.folder, summary, facts=facts | (run.told["fingerprint"] or {}), definitions=_DEFINITIONS)
    return summary.verdict


def _soaked(args: argparse.Namespace, run: Run, phases: list[Phase], say: Say, rows: list[dict[str, Any]]) -> None:
    scenarios = sorted({prompt.scenario for phase in phases for prompt in phase.prompts})
    with _engine(args, run, say) as engine:
        if engine is not None:
            check(engine, [prompt for phase in phases for prompt in phase.prompts])
            if rows:
                stand.same_engine(engine, run.told["fingerprint"] or {})
            run.save(fingerprint=engine.fingerprint)
        with _sidecar(args, engine, run, scenarios) as watched:
            say(f"Requests go through {watched.proxy}; the run is in {run.folder}.")
            run.reopen()
            asyncio.run(_go(args, run, phases, say, rows, engine, watched))


async def _go(
    args: argparse.Namespace,
    run: Run,
    phases: list[Phase],
    say: Say,
    rows: list[dict[str, Any]],
    engine: Engine | None,
    watched: Watched,
) -> None:
    key = os.environ.get("VLLM_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    model = engine.model if engine is not None else await served_model(watched.proxy, headers)
    if model is None:
        raise StandError(f"--proxy: {watched.proxy}/v1/models names no model: give the URL that clients use")
    load = Load(
        url=watched.proxy,
        model=model,
        phases=phases,
        rate=args.rate,
        concurrency=args.concurrency or (MOST_AT_A_RATE if args.rate else DEFAULT_CONCURRENCY),
        seed=args.seed,
        headers=headers,
        passed=max((row["pass"] for row in rows if "pass" in row), default=0),
    )
    reader = Reader(watched.api, watched.api_token)
    soak = Soak(run, engine, watched, load, reader, say, args.minutes, elapsed(rows))
    try:
        await soak.go()
    finally:
        await reader.close()


@contextmanager
def _engine(args: argparse.Namespace, run: Run, say: Say) -> Iterator[Engine | None]:
    """None where only a sidecar is named."""
    if not any((args.engine, args.config, args.target, args.draft)):
        yield None
    elif args.engine is not None:
        # Not `stand.engine`, which puts the cap back that it found: a soak sets none, and in its hours others may.
        yield stand.attached(EngineOptions.of(args), say)
    else:
        with stand.engine(EngineOptions.of(args), run, say) as engine:
            yield engine


@contextmanager
def _sidecar(args: argparse.Namespace, engine: Engine | None, run: Run, scenarios: list[str]) -> Iterator[Watched]:
    if args.proxy is not None:
        token = os.environ.get("SPECWATCH_ADMIN_READ_TOKEN") or os.environ.get("SPECWATCH_ADMIN_TOKEN")
        yield Watched(args.proxy.rstrip("/").removesuffix("/v1"), args.api.rstrip("/"), token, listener(args.api))
        return
    assert engine is not None
    events = engine.events if args.events is None else Path(args.events)
    with private(engine, run, scenarios, events) as watched:
        yield watched


# ---- what was given


def _checked(args: argparse.Namespace, say: Say, run: Run | None = None) -> list[Phase]:
    """The prompts by when they are sent. Raises RunError, PromptError or StandError for what cannot be used."""
    if args.minutes is None:
        raise RunError("--minutes: how long? give --minutes 30, or --hours 24")
    if (args.proxy is None) != (args.api is None):
        raise RunError("--proxy and --api go together: where clients connect, and the admin port of that sidecar")
    for name in ("proxy", "api"):
        if not (getattr(args, name) or "http://").startswith(("http://", "https://")):
            raise RunError(f"--{name}: {getattr(args, name)!r} is no URL: write it as http://127.0.0.1:8000")
    if args.proxy is None or any((args.engine, args.config, args.target, args.draft)):
        EngineOptions.of(args)
    phases = [Phase(0.0, _prompts(args, args.prompts, say, run))]
    if args.then is not None:
        file, _, after = args.then.rpartition("@")
        try:
            begins = float(after)
        except ValueError:
            begins = 0.0
        if not file or not 0 < begins < args.minutes:
            raise RunError(
                f"--then: {args.then!r} must be FILE@MINUTES, as reports.jsonl@30, with less than the"
                f" {args.minutes:g} minutes of the soak"
            )
        phases.append(Phase(begins * 60, _prompts(args, file, say, run)))
    return phases


def _untold(minutes: float, phases: list[Phase]) -> list[str]:
    """What so many minutes leave untold, whatever is measured."""
    if minutes < LEAST_MINUTES:
        words = f"--minutes: {minutes:g} are too few to tell whether anything drifts, which takes {LEAST_MINUTES}"
        return [f"{words}: only failures will be told"]
    # A minute more to each side, as that in which it comes is of neither.
    before, behind = max(reference(minutes), LEAST_REFERENCE) + 1, LEAST_AFTER + 1
    return [
        f"--then: a change at minute {phase.from_s / 60:g} of {minutes:g} will hardly be found: give it "
        f"{math.ceil(before)} minutes before it, and {behind} behind it"
        for phase in phases[1:]
        if not before <= phase.from_s / 60 <= minutes - behind
    ]


def _prompts(args: argparse.Namespace, source: str, say: Say, run: Run | None) -> list[Prompt]:
    found = prompts.limited(prompts.read(source, say, run=run), args.max_tokens)
    found = prompts.greedy(found) if args.greedy else found
    return found if args.number is None else prompts.sample(found, args.number, args.seed)


def _minutes(text: str) -> float:
    return _number(text, 1.0, _YEAR_MINUTES, "minutes, from 1 to a year")


def _minutes_of_hours(text: str) -> float:
    return 60 * _number(text, 1 / 60, _YEAR_MINUTES / 60, "hours, from a minute to a year")


def _rate(text: str) -> float:
    return _number(text, 1e-3, 1e4, "requests a second, from 0.001 to 10,000")


def _number(text: str, least: float, most: float, words: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"must be a number of {words}, not {text!r}")
    return number
