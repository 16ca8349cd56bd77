"""A short fine-tuning of a self-draft's highest layer, by what the target itself says: distillation.

The target answers prompts greedily. On the tokens of its own replies, which are those that a draft is asked to guess,
the draft learns to give the target's distribution: it minimises the mean KL(target || draft) over them. Only its
highest layers and the last norm learn; what lies below is the target's and stays so.

torch and transformers are imported where they are used: the rest of the lab does without them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..progress import Bar, Say
from ..summary import Cell, Table
from . import checkpoint
from .lessons import Lesson, LessonsError, batches, lessons, parted

if TYPE_CHECKING:
    import torch

#: Learning rate times the model's width: AdamW's best one falls as 1/width (G. Yang et al., 2022, "Tensor Programs V").
#: Found on the demo's target, of width 192.
RATE_BY_WIDTH = 0.2
_WARM_UP = 0.05
_LAST_RATE = 0.05
_LARGEST_NORM = 1.0
#: Names of the norm after the last layer.
_LAST_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "final_norm", "norm_f")
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
#: Replies of the target at most: to have one takes far longer than to learn from it once more.
MOST_LESSONS = 600
#: p is told for drafts of this length, the seed's.
K = 4


class TuneError(Exception):
    """What keeps a draft from being tuned: a sentence with the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    prompts: str
    steps: int = 300
    layers: int = 1
    """How many of the highest learn."""
    batch: int = 8
    """Replies a step."""
    rate: float | None = None
    """The highest; None: by the model's width."""
    max_tokens: int = 128
    """Of a reply, where the prompt does not ask for fewer."""
    device: str | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Agreement:
    """How near the draft is to the target on replies that it did not learn from."""

    kl: float
    """Mean of KL(target || draft), in nats a token."""
    top_1: float
    """Share of the tokens at which both would say the same."""
    p: float
    """Accepted to drafted tokens at temperature 0 and k = K, short of the ends of replies."""


@dataclass(frozen=True, slots=True)
class Tuned:
    before: Agreement
    after: Agreement | None
    """None: measured only."""
    kept: bool
    """Whether the tuned weights were written: not where they are no nearer than those that were there."""
    learned: tuple[str, ...]
    """Names of the tensors that learned."""
    lessons: int
    held_out: int
    tokens: int
    """Of the replies that were learned from."""
    rate: float
    options: TuneOptions

    def told(self) -> dict[str, Any]:
        return asdict(self)

    def sentences(self) -> list[str]:
        one, two = self.before, self.after
        if two is None:
            measured = (
                f"Not tuned. On {self.held_out} replies of the target KL(target || draft) is {one.kl:.4f} and top-1 "
                f"agreement {one.top_1:.1%}, which at temperature 0 and k {K} gives a p of about {one.p:.2f}."
            )
            return [measured]
        told = (
            f"Tuned in {self.options.steps} steps on {self.lessons} replies of the target. On {self.held_out} others "
            f"KL(target || draft) was {one.kl:.4f} and is {two.kl:.4f}, top-1 agreement was {one.top_1:.1%} and is "
            f"{two.top_1:.1%}, and p at temperature 0 and k {K}, about {one.p:.2f}, is about {two.p:.2f}."
        )
        if self.kept:
            return [told]
        return [told, "That is no nearer to the target, so the draft has the target's own layers as they were."]

    def table(self) -> Table:
        two = self.after
        rows: list[list[Cell]] = [
            ["KL(target || draft), nats a token", self.before.kl, None if two is None else two.kl],
            ["top-1 agreement", self.before.top_1, None if two is None else two.top_1],
            [f"p at temperature 0 and k {K}, an estimate", self.before.p, None if two is None else two.p],
        ]
        return Table(title="Agreement with the target on held-out replies", columns=["", "before", "after"], rows=rows)


def tune(target: Path, draft: Path, prefix: str, depth: int, options: TuneOptions, say: Say) -> Tuned:
    """Tune the draft in its folder, in its own types of numbers, and measure it before and after.

    `prefix`: of the names of its layers; `depth`: how many it has. The same options give the same draft on the same
    machine. Memory: both models, the draft in float32, and without a GPU both. Raises TuneError; OSError where the
    weights cannot be written.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise TuneError(f"--tune needs torch and transformers, which come with vLLM: {error}") from None
    # Its remarks are about flags of sampling that nobody set.
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # likewise
    torch.manual_seed(options.seed)
    device = _device(options.device)
    teacher = _loaded(target, device, wide=device.type == "cpu")
    student = _loaded(draft, device, wide=True)
    learning = _learning(student, draft, prefix, depth, options.layers)
    most = min(MOST_LESSONS, options.steps * options.batch + 64 if options.steps else 64)
    try:
        found = lessons(teacher, target, options.prompts, options.max_tokens, options.seed, most, say)
    except LessonsError as error:
        raise TuneError(str(error)) from None
    train, held_out = parted(found) if options.steps else ([], found)
    before = agreement(teacher, student, held_out)
    rate = options.rate or RATE_BY_WIDTH / student.get_input_embeddings().weight.shape[1]
    after = None
    if options.steps:
        with say.bar("tuning", options.steps) as bar:
            _train(teacher, student, list(learning.values()), train, options, rate, bar)
        after = agreement(teacher, student, held_out)
    kept = after is not None and after.kl < before.kl
    if kept:
        checkpoint.overwrite(draft, _values(learning, draft))
    return Tuned(
        before=before,
        after=after,
        kept=kept,
        learned=tuple(learning) if options.steps else (),
        lessons=len(train),
        held_out=len(held_out),
        tokens=sum(len(lesson.said) for lesson in train),
        rate=rate,
        options=options,
    )


def _device(name: str | None) -> torch.device:
    import torch

    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise TuneError(f"--device: {name} cannot be used here: {str(error).splitlines()[0]}") from None
    return device


def _loaded(folder: Path, device: torch.device, *, wide: bool) -> Any:
    """A model without gradients; `wide`: in float32, else as it is stored."""
    import torch
    from transformers import AutoModelForCausalLM

    if checkpoint.read_json(folder / checkpoint.CONFIG).get("quantization_config"):
        raise TuneError(f"{folder} is quantised: tune a draft of the model that it was made of")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32 if wide else "auto")
    except Exception as error:  # of any kind: about a configuration, weights, or code that comes with the model
        raise TuneError(f"{folder} cannot be loaded by transformers: {' '.join(str(error).split())[:300]}") from None
    model.requires_grad_(False)
    return model.to(device).eval()  # type: ignore[arg-type]  # transformers decorates `to`


def _learning(student: Any, draft: Path, prefix: str, depth: int, highest: int) -> dict[str, torch.nn.Parameter]:
    """What learns, by its name, which must be the checkpoint's own as well. Raises TuneError."""
    layers = tuple(f"{prefix}{layer}." for layer in range(depth - highest, depth))
    around = prefix.removesuffix(".").rpartition(".")[0]
    norms = tuple(f"{around}.{norm}.".removeprefix(".") for norm in _LAST_NORMS)
    found = {name: each for name, each in student.named_parameters() if name.startswith(layers + norms)}
    stored = {tensor.name: tensor for tensor in checkpoint.tensors(draft)}
    other = next((name for name in found if name not in stored), None)
    if other is not None or not any(name.startswith(layers) for name in found):
        words = f"{other} is not in its file" if other else f"it has no parameter {layers[0]}…"
        raise TuneError(f"transformers names these weights otherwise than they are stored ({words}): do without --tune")
    if odd := next((stored[name].dtype for name in found if stored[name].dtype not in _DTYPES), None):
        raise TuneError(f"weights of type {odd} cannot be tuned: tune a draft of the model that it was made of")
    for each in found.values():
        each.requires_grad_(True)
    return found


def _values(learned: dict[str, torch.nn.Parameter], draft: Path) -> dict[str, bytes]:
    """As they are stored: row-major, of the dtype that they had."""
    import torch

    dtypes = {tensor.name: tensor.dtype for tensor in checkpoint.tensors(draft)}
    found = {}
    for name, each in learned.items():
        stored = each.detach().to("cpu", getattr(torch, _DTYPES[dtypes[name]])).contiguous()
        found[name] = stored.view(torch.uint8).numpy().tobytes()
    return found


def rate_at(step: int, steps: int) -> float:
    """Share of the full learning rate at `step`, from 0: a linear warm-up, then down along a cosine."""
    warm_up = max(1, round(_WARM_UP * steps))
    if step < warm_up:
        return (step + 1) / warm_up
    gone = (step - warm_up) / max(1, steps - warm_up)
    return _LAST_RATE + (1 - _LAST_RATE) * (1 + math.cos(math.pi * gone)) / 2


def _train(
    teacher: Any,
    student: Any,
    learning: Sequence[torch.nn.Parameter],
    train: Sequence[Lesson],
    options: TuneOptions,
    rate: float,
    bar: Bar,
) -> None:
    import torch

    optimizer = torch.optim.AdamW(learning, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    source = batches(train, options.batch, options.seed)
    lately: float | None = None
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * rate_at(step, options.steps)
        batch = next(source)
        tokens = sum(len(lesson.said) for lesson in batch)
        total = 0.0
        for lesson in batch:
            with torch.no_grad():
                truth = _logits(teacher, lesson)
            loss = _divergence(truth, _logits(student, lesson)).sum() / tokens
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(learning, _LARGEST_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        lately = total if lately is None else 0.9 * lately + 0.1 * total
        bar.advance(words=f"KL {lately:.4f}")


def _logits(model: Any, lesson: Lesson) -> torch.Tensor:
    """(tokens said, vocabulary): what the model would say at the place of each.

    One lesson at a time: nothing is padded, and the largest vocabularies have room.
    """
    import torch

    device = model.get_input_embeddings().weight.device
    ids = torch.tensor([[*lesson.asked, *lesson.said[:-1]]], device=device)
    # The logits at a token tell of the one after it.
    logits: torch.Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=len(lesson.said)).logits
    return logits[0, -len(lesson.said) :].float()


def _divergence(truth: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
    """KL(truth || mine) of each row of logits, in nats."""
    from torch.nn import functional

    target = functional.log_softmax(truth, -1)
    divergence = functional.kl_div(functional.log_softmax(mine, -1), target, reduction="none", log_target=True)
    return divergence.sum(-1)


def agreement(teacher: Any, student: Any, held_out: Sequence[Lesson]) -> Agreement:
    """Over the tokens of the replies."""
    import torch

    divergence, right, tokens, drafted, accepted = 0.0, 0, 0, 0, 0
    with torch.no_grad():
        for lesson in held_out:
            truth, mine = _logits(teacher, lesson), _logits(student, lesson)
            divergence += float(_divergence(truth, mine).sum())
            hits = (mine.argmax(-1) == truth.argmax(-1)).tolist()
            right += sum(hits)
            tokens += len(hits)
            counts = replayed(hits, K)
            drafted += counts[0]
            accepted += counts[1]
    return Agreement(kl=divergence / tokens, top_1=right / tokens, p=accepted / drafted if drafted else 0.0)


def replayed(hits: Sequence[bool], k: int) -> tuple[int, int]:
    """Drafted and accepted tokens of greedy verification; `hits[i]`: the draft's guess for token i is the target's.

    Token 0 comes with the prompt's own pass. A step drafts k tokens, accepts up to the first miss, and adds one of the
    target's own. Guesses beyond the reply's end are left out: whether they hold says nothing of the draft.
    """
    drafted, accepted, position = 0, 0, 1
    while position < len(hits):
        guessed = hits[position : position + k]
        right = next((at for at, hit in enumerate(guessed) if not hit), len(guessed))
        drafted += len(guessed)
        accepted += right
        position += right + 1
    return drafted, accepted
