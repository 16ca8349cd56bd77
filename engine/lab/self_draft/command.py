"""`specwatch self-draft TARGET`: a draft model from the target's own lower layers.

The draft keeps the target's embedding, its lowest layers, its last norm and its output, so it needs no training of its
own, reads the same tokens and has room in the same key-value cache. It guesses what the target would say if it stopped
thinking early. Written as bytes from file to file, without torch, whatever the model's size.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from .. import prompts
from ..limits import Limits
from ..progress import Say
from ..run import ROOT, Run, State
from ..summary import Cell, Summary, Table
from . import checkpoint, shallow
from .checkpoint import CheckpointError
from .layers import LayersError
from .lessons import LEAST
from .place import whole
from .shallow import Plan
from .tune import Tuned, TuneError, TuneOptions, tune

#: In the folder of a draft: what it was made of.
STAMP = "self_draft.json"
#: vLLM 0.32 takes a draft for one of another method where its path, in lower case, has one of these.
_TAKEN_FOR_OTHERS = ("eagle-", "eagle3", "dflash", "dspark")
_MADE, _NOT_MADE = 0, 2


class SelfDraftError(Exception):
    """An option that cannot be followed: a sentence that names it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = TuneOptions(prompts="")
    parser.add_argument("target", help="folder of the target model, or its name in the local cache of the hub")
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--layers", type=int, metavar="N", help="keep the lowest N (default: the most below a third)")
    depth.add_argument("--pick", metavar="0,2,5", help="keep these layers, numbered anew")
    parser.add_argument("--out", metavar="DIR", help=f"the draft's folder (default: one below {ROOT})")
    parser.add_argument("--force", action="store_true", help="replace a draft that stands there")
    parser.add_argument("--json", action="store_true", help="print what was made as JSON")
    group = parser.add_argument_group("a short fine-tuning of the highest kept layer, by the target's own replies")
    group.add_argument("--tune", action="store_true")
    group.add_argument("--prompts", metavar="FILE", help="what the target is asked: as for specwatch qualify")
    group.add_argument("--steps", type=int, default=default.steps, help="0: measure only (default: %(default)s)")
    group.add_argument(
        "--tune-layers", type=int, default=default.layers, metavar="N", help="that learn (default: %(default)s)"
    )
    group.add_argument("--batch", type=int, default=default.batch, help="replies a step (default: %(default)s)")
    group.add_argument("--rate", type=float, help="highest learning rate (default: by the model's width)")
    group.add_argument(
        "--max-tokens", type=int, default=default.max_tokens, help="longest reply (default: %(default)s)"
    )
    group.add_argument("--device", help="cpu, cuda, cuda:1 (default: cuda where there is one)")
    group.add_argument("--seed", type=int, default=default.seed, help="(default: %(default)s)")


def run(args: argparse.Namespace, run: Run | None, say: Say) -> int:
    """Make the draft that `args` describe; returns the exit status. `run`, where there is one, tells of it too."""
    try:
        made = _made(args, say)
    except (SelfDraftError, CheckpointError, TuneError) as error:
        return _failed(str(error), run, say)
    except LayersError as error:
        return _failed(f"{args.target}: {error}", run, say)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _failed(f"the draft could not be written: {error.strerror or error}{where}", run, say)
    if run is not None:
        run.save(state=State.DONE, verdict=made.verdict, summary=made)
    for sentence in (made.title, *made.reasons):
        say(sentence)
    if args.json:
        print(json.dumps(made.json(), ensure_ascii=False, indent=2))
    return _MADE


def _failed(why: str, run: Run | None, say: Say) -> int:
    say(f"error: {why}")
    if run is not None:
        run.save(
            state=State.FAILED, verdict="cannot tell", summary=Summary("Self-draft: not made", "cannot tell", [why])
        )
    return _NOT_MADE


def _made(args: argparse.Namespace, say: Say) -> Summary:
    try:
        plan = shallow.planned(args.target, args.layers, args.pick)
    except ValueError as error:
        raise SelfDraftError(f"{'--layers' if args.pick is None else '--pick'} {error}") from None
    out = destination(args.out, args.target, plan, force=args.force)
    options = _tuning(args, plan)
    tuned: Tuned | None = None
    with whole(out) as folder:
        shallow.write(plan, folder, say)
        if options is not None:
            tuned = tune(plan.target, folder, plan.stack.prefix, len(plan.kept), options, say)
        told = {
            "made_by": "specwatch self-draft",
            "target": str(plan.target),
            "target_layers": plan.stack.count,
            "kept_layers": plan.kept,
            "tuned": None if tuned is None else tuned.told(),
        }
        checkpoint.write_json(folder / STAMP, told)
    return summary(plan, args.target, out, args.prompts, tuned)


def destination(out: str | None, name: str, plan: Plan, *, force: bool) -> Path:
    """Where the draft goes, absolute; `name`: the target's as it was given. Raises SelfDraftError where it may not."""
    if out is None:
        own = Path(name).absolute().name if os.path.exists(name) else name.rpartition("/")[2]
        depth = str(len(plan.kept)) if plan.lowest else "-".join(map(str, plan.kept))
        out = str(ROOT / f"{own}-self-draft-{depth}")
    place = Path(os.path.abspath(os.path.expanduser(out)))
    here, target = place.resolve(), plan.target.resolve()
    if here == target or target in here.parents or here in target.parents:
        raise SelfDraftError(f"--out: {place} and the target's folder {target} hold one another: name another folder")
    if taken := next((part for part in _TAKEN_FOR_OTHERS if part in str(place).lower()), None):
        raise SelfDraftError(
            f"--out: vLLM takes a draft with {taken!r} in its path for one of another method: name another than {place}"
        )
    if not os.path.lexists(place) or (place.is_dir() and not any(place.iterdir())):
        return place
    if not force:
        raise SelfDraftError(f"--out: {place} is there already: name another folder, or replace it by --force")
    if not (place / STAMP).is_file():
        raise SelfDraftError(f"--out: {place} was not made by self-draft, so it stays: name another folder")
    return place


def _tuning(args: argparse.Namespace, plan: Plan) -> TuneOptions | None:
    if not args.tune:
        if args.prompts is not None:
            raise SelfDraftError("--prompts is of use with --tune only: add that, or leave it out")
        return None
    if args.prompts is None:
        raise SelfDraftError("--tune needs --prompts FILE: what the target is asked, to learn from its replies")
    for name, least in (("steps", 0), ("tune_layers", 1), ("batch", 1), ("max_tokens", 2)):
        if getattr(args, name) < least:
            raise SelfDraftError(f"--{name.replace('_', '-')} must be at least {least}, not {getattr(args, name)}")
    if args.tune_layers > len(plan.kept):
        raise SelfDraftError(f"--tune-layers is at most {len(plan.kept)}, as many as are kept, not {args.tune_layers}")
    if args.rate is not None and not 0 < args.rate < 1:
        raise SelfDraftError(f"--rate must be between 0 and 1, not {args.rate}")
    if not args.prompts.startswith(("http://", "https://")):
        # Those of a sidecar take minutes to read, and are told of once the target is there.
        _check_prompts(args.prompts)
    return TuneOptions(
        prompts=args.prompts,
        steps=args.steps,
        layers=args.tune_layers,
        batch=args.batch,
        rate=args.rate,
        max_tokens=args.max_tokens,
        device=args.device,
        seed=args.seed,
    )


def _check_prompts(file: str) -> None:
    """Raises SelfDraftError where there are too few, before the target is loaded and asked."""
    try:
        number = len(prompts.read(file))
    except prompts.PromptError as error:
        raise SelfDraftError(str(error)) from None
    if number < LEAST:
        raise SelfDraftError(f"--prompts: {file} has {number}, and {LEAST} are the least: give more")


def summary(plan: Plan, target: str, out: Path, prompts: str | None, tuned: Tuned | None) -> Summary:
    """What was made, and what it may be worth until it is measured."""
    count = len(plan.kept)
    which = f"the lowest {count}" if plan.lowest else f"{count} ({', '.join(map(str, plan.kept))})"
    share = plan.numbers / plan.target_numbers
    had = (
        f"The draft has {which} of {plan.stack.count} layers: {_count(plan.numbers)} of {_count(plan.target_numbers)} "
        f"parameters ({share:.0%}), {_size(plan.size)}. Its tokenizer is the target's."
    )
    reasons = [
        had,
        _expectation(plan),
        *([] if tuned is None else tuned.sentences()),
        f"It is in {out}. Next: specwatch qualify --target {target} --draft {out} --prompts {prompts or 'FILE'}",
    ]
    rows: list[list[Cell]] = [
        ["layers", plan.stack.count, count],
        ["parameters", plan.target_numbers, plan.numbers],
        ["size, bytes", plan.target_size, plan.size],
        ["share of a target step by layers, an estimate", 1.0, round(plan.share_of_layers, 3)],
    ]
    if plan.share_of_bytes is not None:
        rows.append(["share of a target step by bytes read, an estimate", 1.0, round(plan.share_of_bytes, 3)])
    return Summary(
        title=f"Self-draft of {target}",
        verdict="made",
        reasons=reasons,
        tables=[
            Table("The draft beside its target", ["", "target", "draft"], rows),
            *([] if tuned is None else [tuned.table()]),
        ],
        files={"draft": str(out)},
    )


def _expectation(plan: Plan) -> str:
    by_layers, by_bytes = plan.share_of_layers, plan.share_of_bytes
    words = f"A draft step should take about {by_layers:.2f} of a target step by its share of the layers"
    if by_bytes is not None:
        words += f", {by_bytes:.2f} by the bytes read for a token, output matrix and all"
    # One more layer than the default would be at the gate, so nothing is said of the default by layers.
    limit = Limits().draft_step
    beyond = max(by_layers, by_bytes or 0.0) >= limit
    gate = f"; the gate is below {limit:.2f}, so it may need fewer layers" if beyond else ""
    return f"{words}{gate}. These are estimates; specwatch qualify measures it."


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.2f} million"


def _size(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.2f} MB"
