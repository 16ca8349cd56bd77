"""What is made of the engine's events: alignment, by files and live, and the recent drafts for a person to look at.

Answers are plain dicts with the field names of `sidecar.api.models`. No text is stored, but for that of single
tokens that were found to be moved.
"""

import asyncio
import logging
import time
from array import array
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from .engine_request import EngineRequest, Hello
from .probes.alignment import Alignment, Moved, State
from .probes.decoder import Decoder
from .probes.drafts import UNSEEN, Position, Step, choices, positions
from .probes.tokenizer_check.report import Report
from .probes.tokenizer_check.standing import Standing
from .probes.vocabulary import NoVocabulary

_log = logging.getLogger(__name__)

#: Tokens an answer of `drafts` holds at most, so that making its JSON takes some milliseconds.
MOST_TOKENS = 10_000

#: Verify steps looked at per turn of the event loop, in about half a millisecond.
STEPS_A_TURN = 256

Texts = tuple[str | None, str | None]
#: When a request finished, the request, and its steps.
_Kept = tuple[float, EngineRequest, Sequence[Step]]
Spawn = Callable[[Coroutine[Any, Any, None], str], object]
#: Hears of a token when it is first named: the draft model, the token, and its texts by target and draft.
Told = Callable[[str | None, Moved, Texts], None]


class Proposals:
    """One per process. For use in the event loop, but for `drafts`."""

    def __init__(
        self, target_tokenizer: Path | None, draft_tokenizer: Path | None, recent: int, spawn: Spawn, told: Told
    ) -> None:
        """The folders win over what the engine says; the `recent` newest requests are kept for `drafts`."""
        self._folders = target_tokenizer, draft_tokenizer
        self._spawn = spawn
        self._told = told
        self.alignment = Alignment()
        self._since = time.time()
        self._recent: deque[tuple[float, EngineRequest]] = deque(maxlen=recent)
        self._cores: dict[int, Hello] = {}
        self._hello: Hello | None = None
        self._swapped: str | None = None
        self._decoder: Decoder | None = None
        self._texts: dict[tuple[int, int], Texts] = {}
        self._standing = Standing()

    def add(self, request: EngineRequest) -> None:
        """Take in a finished request."""
        hello = request.hello
        known = self._cores.get(hello.engine)
        if known != hello:
            self._cores[hello.engine] = hello
            # The cores of one engine come one by one, and are of the same models.
            if known is not None or self._hello is None or _models(hello) != _models(self._hello):
                self._hello, self._swapped = hello, None
                self._begin(hello)
        now = time.time()
        if self._recent.maxlen:
            self._recent.append((now, request))
        self._look(self._decoder, request.steps, request.output_tokens, now)

    def _look(
        self, decoder: Decoder | None, steps: Sequence[Step], left: int, now: float, goes_on: bool = False
    ) -> None:
        """Look at the steps of a request, a turn's worth at a time; `left` tokens of the reply are theirs."""
        if decoder is not self._decoder or self._hello is None:
            return
        part, rest = steps[:STEPS_A_TURN], steps[STEPS_A_TURN:]
        self._standing.look(part)
        if moved := self.alignment.add(part, left, now, goes_on=goes_on):
            self._spawn(self._tell(moved, decoder, self._swapped or self._hello.draft_model), "alignment")
        if rest:
            left -= sum(len(emitted) for _, emitted in part)
            asyncio.get_running_loop().call_soon(self._look, decoder, rest, left, now, True)

    def swapped(self, checkpoint: str) -> None:
        """The engine has taken the draft in the folder `checkpoint` in place of the one it had."""
        if self._hello is not None:
            self._swapped = checkpoint
            self._begin(self._hello)

    def close(self) -> None:
        if self._decoder is not None:
            self._decoder.close()

    def _begin(self, hello: Hello) -> None:
        """Forget what was counted, and read the tokenizers."""
        self.close()
        self._decoder = None
        self._recent.clear()
        self._texts.clear()
        self._since = time.time()
        if hello.method is None:
            self._unknown("the engine does not speculate")
            return
        target = self._folders[0] or hello.target_tokenizer or hello.target_model
        own = hello.draft_model if _in_own_ids(hello) else None
        draft = self._folders[1] or ((self._swapped or own) if own else target)
        if target is None or draft is None:
            self._unknown("the engine does not name its models: set target_tokenizer, draft_tokenizer")
            return
        self._unknown("the tokenizers are being read")
        self._decoder = Decoder(str(target), str(draft))
        checkpoint = self._folders[1] or self._swapped or hello.draft_model
        self._spawn(self._read(self._decoder, hello, checkpoint), "tokenizers")

    def _unknown(self, reason: str) -> None:
        self._standing.reset(reason)
        self.alignment.reset(unknown=reason)

    async def _read(self, decoder: Decoder, hello: Hello, checkpoint: object) -> None:
        ids: array[int] = array("i")
        unknown = None
        try:
            ids = await asyncio.to_thread(decoder.draft_ids)
        except NoVocabulary as error:
            unknown = str(error)
        if decoder is not self._decoder:
            return
        if unknown is not None:
            _log.warning("tokenizers: %s; whether draft and target are aligned stays unknown", unknown)
        self._since = time.time()
        self.alignment.reset(ids, unknown)
        if unknown is not None:
            self._standing.reset(unknown)
            return
        self._standing.reset("the files are being compared", len(ids))
        checked = await asyncio.to_thread(_check, decoder, hello, checkpoint)
        if decoder is self._decoder:
            self._standing.take(checked)

    async def _tell(self, moved: Sequence[Moved], decoder: Decoder | None, draft_model: str | None) -> None:
        target, draft = await asyncio.to_thread(
            _words, decoder, [each.target_id for each in moved], [each.draft_id for each in moved]
        )
        for each in moved:
            texts = target.get(each.target_id), draft.get(each.draft_id)
            if decoder is self._decoder:
                self._texts[each.target_id, each.draft_id] = texts
            _log.warning(
                "tokenizers: %s is id %d in the target and %d in the draft, seen %d times (%s)",
                "a token" if texts[0] is None else repr(texts[0]),
                each.target_id,
                each.draft_id,
                each.count,
                each.kind,
            )
            self._told(draft_model, each, texts)

    def texts_of(self, request: EngineRequest) -> Callable[[], tuple[str | None, str | None, str | None]]:
        """What gives draft text and final text of a request that just finished, and why one is missing. It blocks."""
        return partial(_texts, self._decoder, request)

    @property
    def misaligned(self) -> tuple[bool, str]:
        """Whether draft and target know tokens by other ids, as seen live or critically by their files; and why."""
        state, reason = self.alignment.state()
        critical = None if state is State.MISALIGNED else self._standing.critical
        return state is State.MISALIGNED or critical is not None, critical or reason

    # ---- what the admin port tells

    def state(self) -> dict[str, Any]:
        """`Alignment`."""
        counted = self.alignment
        state, reason = counted.state()
        hello, moved = self._hello, counted.moved()
        return {
            "state": state,
            "reason": reason,
            "since": datetime.fromtimestamp(self._since, UTC),
            "target_model": hello.target_model if hello is not None else None,
            "draft_model": self._swapped or (hello.draft_model if hello is not None else None),
            "requests": counted.requests,
            "positions": counted.positions,
            "rejections": counted.rejections,
            "same_text_other_id": counted.same_text_other_id,
            "moved_tokens": len(moved),
            "moved": [self._moved(each) for each in moved],
            "static": self._standing.state()
            | {"share_at_moved": counted.at_moved / counted.positions if counted.positions else None},
        }

    def _moved(self, moved: Moved) -> dict[str, Any]:
        target_text, draft_text = self._texts.get((moved.target_id, moved.draft_id), (None, None))
        return {
            "kind": moved.kind,
            "target_id": moved.target_id,
            "draft_id": moved.draft_id,
            "target_text": target_text,
            "draft_text": draft_text,
            "count": moved.count,
            "share": moved.share,
            "first_seen": datetime.fromtimestamp(moved.first_seen, UTC),
            "last_seen": datetime.fromtimestamp(moved.last_seen, UTC),
        }

    def drafts(self, limit: int) -> list[dict[str, Any]]:
        """`Draft`s of the newest requests, newest first; fewer than `limit` where replies are long. Blocks."""
        decoder, tokens = self._decoder, 0
        found: list[_Kept] = []
        for at, request in reversed(list(self._recent)):
            steps = request.steps
            tokens += sum(len(drafted) + len(emitted) for drafted, emitted in steps)
            if len(found) >= limit or (found and tokens > MOST_TOKENS):
                break
            found.append((at, request, steps))
        seen = [list(positions(steps, request.output_tokens)) for _, request, steps in found]
        every = [each for steps in seen for step in steps for each in step]
        target, draft = _words(
            decoder,
            {each.target for each in every if each.target is not None},
            {each.draft for each in every if each.draft is not None and each.draft >= 0},
        )
        answers = [
            _draft(at, request, [[_position(each, target, draft) for each in step] for step in steps])
            for (at, request, _), steps in zip(found, seen, strict=True)
        ]
        for answer, texts in zip(answers, _replies(decoder, found), strict=True):
            answer |= texts
        return answers


def _check(decoder: Decoder, hello: Hello, checkpoint: object) -> Report | str:
    if checkpoint is None:
        return f"there is no draft model (method {hello.method})"
    own = hello.method == "draft_model"
    try:
        return decoder.check(str(checkpoint), head=not own, mapped=own and not _in_own_ids(hello))
    except NoVocabulary as error:
        return str(error)


def _in_own_ids(hello: Hello) -> bool:
    """Whether drafts come in the ids of the draft model's own tokenizer; else in the target's.

    A head that was trained for the target has no ids of its own. And of two vocabularies that differ, vLLM is told to
    map one to the other (use_heterogeneous_vocab), before it hands the drafts on: only then it gives the draft model
    its own tokenizer, and else the target's.
    """
    return hello.method == "draft_model" and hello.draft_tokenizer != hello.draft_model


def _models(hello: Hello) -> tuple[object, ...]:
    return (hello.method, hello.target_model, hello.target_tokenizer, hello.draft_model, hello.draft_tokenizer)


def _words(
    decoder: Decoder | None, target: Iterable[int], draft: Iterable[int]
) -> tuple[dict[int, str | None], dict[int, str | None]]:
    """The texts of single tokens by id; empty where the tokenizers are not known."""
    target, draft = list(target), list(draft)
    if decoder is not None:
        try:
            texts = decoder.words(target, draft)
        except NoVocabulary:
            pass
        else:
            return dict(zip(target, texts[0], strict=True)), dict(zip(draft, texts[1], strict=True))
    return {}, {}


def _replies(decoder: Decoder | None, found: Sequence[_Kept]) -> list[dict[str, Any]]:
    """Draft text, final text, and why one is missing."""
    chosen = [choices(steps, request.output_tokens) for _, request, steps in found]
    try:
        if decoder is None:
            raise NoVocabulary("the tokenizers are not known")
        texts = decoder.texts([tokens or [] for each in chosen for tokens in each])
    except NoVocabulary as error:
        return [{"draft_text": None, "final_text": None, "reason": str(error)} for _ in found]
    answers = []
    for (_, request, _), (tokens, _), draft, final in zip(found, chosen, texts[::2], texts[1::2], strict=True):
        long = None if request.ids_complete else "the reply is longer than what is kept of it"
        answers.append(
            {
                "draft_text": None if tokens is None else draft,
                "final_text": final,
                "reason": UNSEEN if tokens is None else long,
            }
        )
    return answers


def _texts(decoder: Decoder | None, request: EngineRequest) -> tuple[str | None, str | None, str | None]:
    (found,) = _replies(decoder, [(0.0, request, request.steps)])
    return found["draft_text"], found["final_text"], found["reason"]


def _draft(at: float, request: EngineRequest, steps: list[list[dict[str, Any]]]) -> dict[str, Any]:
    drafted = sum(drafted * count for (drafted, _), count in request.counts.items())
    accepted = sum(accepted * count for (drafted, accepted), count in request.counts.items() if drafted)
    return {
        "request_id": request.reply_id,
        "at": datetime.fromtimestamp(at, UTC),
        "finish_reason": request.finish_reason,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "p": accepted / drafted if drafted else None,
        "steps": steps,
    }


def _position(position: Position, target: dict[int, str | None], draft: dict[int, str | None]) -> dict[str, Any]:
    mark, drafted, emitted = position
    return {
        "mark": mark,
        "draft_id": drafted,
        "draft": None if drafted is None else draft.get(drafted),
        "target_id": emitted,
        "target": None if emitted is None else target.get(emitted),
    }
