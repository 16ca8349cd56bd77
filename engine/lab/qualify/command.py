"""`specwatch qualify`: whether a draft is good enough, and for which scenarios.

It asks a sample of prompts, stratified by scenario, in phases that can each be gone on with; judges what was measured;
and leaves a report and a certificate, which the sidecar reads once a person has signed it off.
"""

import argparse
import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from sidecar.probes.tokenizer_check.compare import compare
from sidecar.probes.tokenizer_check.files import read_model
from sidecar.probes.tokenizer_check.report import Report
from sidecar.probes.vocabulary import NoVocabulary

from ...launch.config import ConfigError, load
from ...launch.speculation import FIXED_LENGTH, WITHOUT_DRAFT, family
from .. import prompts as prompts_of
from .. import report
from ..limits import Limits
from ..options import positive, positives
from ..progress import Say, span
from ..prompts import Prompt
from ..run import Run, RunError, State
from ..stand import Engine, EngineOptions, StandError, same_engine
from ..stand import engine as engine_of
from ..started import configuration
from ..sweep import table
from . import certificate
from .ahead import rest_s, untold
from .certificate import CertificateError
from .findings import Evidence, Judgement, judged
from .gates import Verdict
from .measure import ASKED, OUTPUTS, PAIRS, TRIALS, Asked, Measure, choose, facts, trials_of
from .outputs import Outputs
from .pairs import Pair
from .picture import DEFINITIONS, summary
from .similarity import Similarity
from .step_plan import step_plan

#: A signature can be added to a run that has ended.
MAY_CHANGE = frozenset(("sign_off",))
CERTIFICATE = "certificate.json"
_FACTS, _TOKENIZERS, _DISTURBED = "facts", "tokenizers", "disturbed"
_EXIT = {Verdict.QUALIFIED: 0, Verdict.IN_PART: 1, Verdict.REJECTED: 1, Verdict.CANNOT_TELL: 2}
_BACKENDS = ("sentence-transformers", "universal-sentence-encoder", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_argument_group("what is measured")
    asked.add_argument(
        "--concurrency", type=positive, default=4, help="requests in flight while p is measured (default: %(default)s)"
    )
    asked.add_argument(
        "--concurrencies",
        type=positives,
        default=[1, 4, 8],
        metavar="1,4,8",
        help="at which latency is compared with plain decoding (default: 1,4,8)",
    )
    asked.add_argument(
        "--pairs",
        type=positive,
        default=50,
        help="prompts of each scenario that are answered both ways, at one concurrency (default: %(default)s)",
    )
    asked.add_argument(
        "--step-prompts",
        type=positive,
        default=48,
        help="most prompts for the step times (default: %(default)s)",
    )
    asked.add_argument(
        "--similarity",
        choices=_BACKENDS,
        default=_BACKENDS[0],
        help="what compares replies that differ (default: %(default)s)",
    )
    elsewhere = parser.add_argument_group("of an engine whose folders are not here")
    elsewhere.add_argument("--target-tokenizer", metavar="FOLDER", help="a folder of the target here, or its name")
    elsewhere.add_argument("--draft-tokenizer", metavar="FOLDER", help="the same of the draft")
    limits = parser.add_argument_group("limits, which the certificate records")
    limits.add_argument("--p", type=_share, default=Limits().p, help="least acceptance rate (default: %(default)s)")
    limits.add_argument(
        "--draft-step",
        type=_share,
        default=Limits().draft_step,
        help="draft step / target step below this (default: a third)",
    )
    signed = parser.add_argument_group("the certificate")
    signed.add_argument("--sign-off", metavar="NAME", help="who answers for it; also with --resume of a run that ended")
    signed.add_argument("--valid-days", type=_days, default=float(certificate.VALID_DAYS), help="default: %(default)g")


def run(args: argparse.Namespace, run: Run, say: Say) -> int:
    """Measure what is missing, and judge. Raises the faults that the command line knows."""
    try:
        report.ready()
        if args.sign_off is not None:
            certificate.check_name(args.sign_off)
        if run.told["verdict"] is None or not (run.folder / CERTIFICATE).exists():
            _measure(args, run, say)
        return _finish(args, run, say)
    except (CertificateError, report.ReportError) as error:
        raise RunError(str(error)) from error


# ---- measuring


def _measure(args: argparse.Namespace, run: Run, say: Say) -> None:
    if run.rows(_DISTURBED):
        raise StandError("a part of this run was measured while something else steered the engine: begin a new run")
    there = prompts_of.read(args.prompts, say, run=run)
    shares = prompts_of.shares(there)
    chosen = prompts_of.limited(prompts_of.sample(there, args.number, args.seed), args.max_tokens)
    if args.greedy:
        chosen = prompts_of.greedy(chosen)
    each = f"at least {prompts_of.LEAST} of each where there are as many"
    say(f"{len(chosen)} of {len(there)} prompts, of {len(shares)} scenarios, {each}")
    for sentence in untold(Counter(prompt.scenario for prompt in chosen), args.step_prompts, args.pairs):
        say(f"warning: {sentence}")
    options, every_k = _options(args, run, say)
    with engine_of(options, run, say) as engine:
        if engine.k == 0:
            raise StandError(f"--engine: the engine at {engine.url} does not speculate: there is no draft to qualify")
        for row in run.rows(_FACTS)[:1]:
            same_engine(engine, row["fingerprint"])
        run.save(fingerprint=engine.fingerprint)
        asyncio.run(_phases(args, run, say, engine, every_k, chosen, shares))


async def _phases(
    args: argparse.Namespace,
    run: Run,
    say: Say,
    engine: Engine,
    every_k: bool,
    chosen: list[Prompt],
    shares: dict[str, float],
) -> None:
    if engine.token is not None:
        # The certificate is for the engine as it is configured.
        engine.control.cap(None)
    plan = step_plan(engine, every_k=every_k)
    if not run.rows(_FACTS):
        run.append(_FACTS, facts(engine, chosen, shares, plan))
    if not run.rows(_TOKENIZERS):
        run.append(_TOKENIZERS, await asyncio.to_thread(tokenizers, args, engine))
    for reason in (plan.reason, run.rows(_TOKENIZERS)[-1].get("reason")):
        if reason is not None:
            say(f"warning: the draft can be rejected, but not qualified: {reason}")
    # Scenarios are told apart where p is measured, or at the first where that is not among them.
    at = args.concurrency if args.concurrency in args.concurrencies else args.concurrencies[0]
    paired = {c: choose(chosen, args.pairs if c == at else None, c) for c in args.concurrencies}
    pairs = {c: len(found) for c, found in paired.items()}
    told = f"p is measured with {len(chosen)} prompts at {args.concurrency} in flight"
    if plan.plain is not None:
        beside = ", ".join(f"{number} at {c}" for c, number in pairs.items())
        told += f"; then step times with at most {args.step_prompts}, and both ways are compared: {beside} in flight"
    say(told)
    measure = Measure(engine, run, chosen, say)
    await measure.acceptance(args.concurrency)
    undisturbed(run, engine)
    if plan.plain is None:
        return
    left = rest_s(
        [msgspec.convert(row, Asked) for row in run.rows(ASKED)],
        args.concurrency,
        arms=len(plan.caps) + 1,
        trials=args.step_prompts - len(run.rows(TRIALS)),
        pairs={c: number - sum(row["concurrency"] == c for row in run.rows(PAIRS)) for c, number in pairs.items()},
    )
    if left:
        say(f"the rest takes about {span(left)} at most")
    await measure.steps(plan, args.step_prompts, args.draft_step)
    similarity = Similarity(args.similarity)
    try:
        for concurrency in args.concurrencies:
            await measure.pairs(concurrency, paired[concurrency], similarity)
            undisturbed(run, engine)
    finally:
        similarity.close()


def undisturbed(run: Run, engine: Engine) -> None:
    """Raises StandError where somebody capped the engine meanwhile: p of fewer draft tokens is higher."""
    if engine.token is None or (now := engine.control.in_force()) == engine.k:
        return
    run.append(_DISTURBED, {"cap": now})
    raise StandError(
        f"the engine may draft {now} tokens a step now, not the {engine.k} of its configuration: something else steers "
        "it, as a sidecar's fallback does; stop that meanwhile (`specwatch fallback speculative`), and begin a new run"
    )


def tokenizers(args: argparse.Namespace, engine: Engine) -> dict[str, Any]:
    """A row: the report on the files of both models, as `specwatch tokenizers` tells it, or why there is none; neither
    where drafts come of no model.
    """
    method = engine.fingerprint.get("method")
    target = args.target_tokenizer or args.target or engine.target
    draft = args.draft_tokenizer or args.draft or engine.draft
    if not draft and family(method) in WITHOUT_DRAFT:
        return {"report": None, "reason": None}
    for whose, name in (("target", target), ("draft", draft)):
        if not name:
            remedy = "" if engine.token is not None else "set SPECWATCH_ENGINE_TOKEN, or "
            words = f"the engine does not tell its {whose}: {remedy}give --{whose}-tokenizer"
            return {"report": None, "reason": words}
    # A head that was trained for the target drafts in its ids.
    head = method not in (None, "draft_model")
    try:
        found = compare(read_model(str(target)), read_model(str(draft), head=head), False if head else None)
    except NoVocabulary as error:
        # Its remedies are settings of the sidecar.
        words = str(error).split("; name it")[0]
        return {"report": None, "reason": f"{words}: give --target-tokenizer, --draft-tokenizer, or both"}
    return {"report": msgspec.to_builtins(found)}


# ---- judging


def evidence(run: Run, limits: Limits) -> Evidence:
    """What the rows of a run tell. Raises RunError where it has not begun."""
    known = run.rows(_FACTS)
    if not known:
        raise RunError(f"{run.folder} has no measurements: begin a new run")
    row = (run.rows(_TOKENIZERS) or [{"report": None, "reason": "the run ended before"}])[-1]
    checked = row["report"]
    # Of requests that were asked again, the last counts.
    asked = {each.prompt: each for each in (msgspec.convert(row, Asked) for row in run.rows(ASKED))}
    outputs = {
        (each.prompt, each.concurrency): each for each in (msgspec.convert(r, Outputs) for r in run.rows(OUTPUTS))
    }
    return Evidence(
        known[0],
        limits,
        list(asked.values()),
        trials_of(run),
        [msgspec.convert(row, Pair) for row in run.rows(PAIRS)],
        list(outputs.values()),
        row["reason"] if checked is None else msgspec.convert(checked, Report),
        None if run.rows(PAIRS) else known[0].get("no_steps") or "no pairs were measured",
    )


def _finish(args: argparse.Namespace, run: Run, say: Say) -> int:
    found = evidence(run, Limits(args.p, args.draft_step))
    made = judged(found)
    document = _certificate(args, run, found, made)
    run.write(CERTIFICATE, certificate.text(document))
    files = {"certificate": CERTIFICATE, "report": report.HTML, "report as Markdown": report.MARKDOWN}
    drawn = summary(found, made, files)
    report.write(run.folder, drawn, facts=_told(args, run, found, document), definitions=DEFINITIONS)
    run.save(state=State.DONE, verdict=made.verdict.value, summary=drawn.json())
    _say(say, run, made, document)
    return _EXIT[made.verdict]


def _certificate(args: argparse.Namespace, run: Run, found: Evidence, made: Judgement) -> dict[str, Any]:
    """Raises CertificateError."""
    now = time.time()
    issued = now
    path = run.folder / CERTIFICATE
    if path.exists():
        # It is signed, and is as old as it was.
        issued = datetime.fromisoformat(certificate.read(path.read_bytes())["issued_at"]).timestamp()
    good = made.verdict.certifies
    document = certificate.make(
        run=run.id,
        verdict=made.verdict.value,
        fingerprint=found.facts["fingerprint"],
        p=_rounded(made.overall.p),
        limits=msgspec.to_builtins(found.limits),
        scenarios={
            each.name: {
                "certified": good and each.certified,
                "p": _rounded(each.figures.p),
                "low": _rounded(each.figures.low),
                "high": _rounded(each.figures.high),
                "requests": each.figures.requests,
                "why": each.why if good or not each.certified else f"{each.why} But the verdict is {made.verdict}.",
            }
            for each in made.scenarios
        },
        now=issued,
        valid_days=args.valid_days,
    )
    return document if args.sign_off is None else certificate.sign(document, args.sign_off, now)


def _told(args: argparse.Namespace, run: Run, found: Evidence, document: Mapping[str, Any]) -> dict[str, object]:
    """What the report says of the run."""
    known, engine = found.facts, found.facts["fingerprint"]
    signed = document["signed_off_by"]
    return {
        "run": run.id,
        "began": run.told["started_at"],
        "certificate": (f"signed off by {signed}" if signed else "unsigned: the sidecar refuses it")
        + f", valid until {document['expires_at']}",
        "engine": f"vLLM {engine.get('vllm') or 'of a version that is not told'} at {known['url']}",
        "target": known["target"],
        "draft": known["draft"],
        "method": engine.get("method"),
        "k": found.k,
        "device": engine.get("device"),
        "prompts": args.prompts,
        "sampled": f"{known['sampled']}, seed {args.seed}",
        "concurrency": f"{args.concurrency} for p; {', '.join(map(str, args.concurrencies))} for latency",
        "limits": f"p {found.limits.p:g}, draft step {found.limits.draft_step:g} of a target step",
        "specwatch": run.told["version"],
    }


def _say(say: Say, run: Run, made: Judgement, document: Mapping[str, Any]) -> None:
    say(f"{made.verdict}")
    for reason in made.reasons:
        say(f"- {reason}")
    say(f"report: {run.folder / report.HTML}")
    signed = document["signed_off_by"]
    words = f"signed off by {signed}"
    if not signed:
        words = f"unsigned: `specwatch qualify --sign-off NAME --resume {run.folder}` signs it"
    none = "" if made.verdict.certifies else "; it certifies no scenario"
    say(f"certificate: {run.folder / CERTIFICATE}, {words}{none}")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


# ---- options


def _options(args: argparse.Namespace, run: Run, say: Say) -> tuple[EngineOptions, bool]:
    """The engine to be qualified, and whether its table has every k whose steps are timed.

    One that the lab starts gets such a table: vLLM runs other ks without the CUDA graphs that it has for its own.
    """
    options = EngineOptions.of(args)
    if options.engine is not None:
        return options, False
    source = configuration(options, run)
    try:
        config = load(source)
    except ConfigError:
        return options, False  # the launcher says what is wrong
    most = config.num_speculative_tokens
    if config.speculative is None or config.method in FIXED_LENGTH or most is None:
        return options, False
    own = config.speculative.get(table.KEY) or [[1, config.max_num_seqs, most]]
    rows = table.with_every((1, most), own, max(args.concurrency, *args.concurrencies), config.max_num_seqs)
    if rows is None:
        say(f"max_num_seqs {config.max_num_seqs} leaves no room for a table of every k: on a GPU, set it higher")
        return options, False
    try:
        text = table.tuned(source, rows, "as it is qualified: each k that is timed is in it")
    except table.TableError as error:
        say(str(error))
        return options, False
    return replace(options, config=run.write("speculative_config.qualified.yaml", text), target=None, draft=None), True


def _share(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) < 1:
            return number
    raise argparse.ArgumentTypeError(f"must be a number between 0 and 1, not {text!r}")


def _days(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) <= certificate.MOST_DAYS:
            return number
    raise argparse.ArgumentTypeError(f"must be a number of days, {certificate.MOST_DAYS} at most, not {text!r}")
