"""Serves blocks on a real engine: sets the cap, sends the batch, writes the cell down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from ...launch.speculation import WITHOUT_DRAFT
from ..control import ControlError
from ..load import Batch, Reply, replies
from ..progress import Say
from ..prompts import Prompt
from ..run import Run
from ..stand import Engine, StandError
from .cells import PLAIN, Cell, answer_of
from .plan import Turn

CELLS = "cells"
OPT_OUT, COLD = "opt-out", "cold"
#: Draft tokens a step, of those asked for, below which something else limits them.
_OBEYED = 0.9


class Server:
    """One engine, whose cap it changes. The stand gives it back. `soft` is the plugin's reason why drafts can only be
    dropped; empty where the proposer is told how many to make.
    """

    def __init__(self, engine: Engine, run: Run, say: Say, baseline: str) -> None:
        if engine.token is None or not engine.control.can_cap:
            raise StandError(
                "the number of draft tokens of this engine cannot be changed while it serves: start it with `specwatch "
                "engine` (which loads the plugin) and SPECWATCH_ENGINE_TOKEN set, here to the same value; or have the "
                "sweep start it, by -c FILE"
            )
        self._engine, self._run, self._say = engine, run, say
        self._control = engine.control
        self._cold = baseline == COLD and engine.plain_url is None
        self.soft = ""
        state = self._control.state()[0]
        try:
            self._control.cap(state.get("cap"), "hard")
            self._mode = "hard"
        except ControlError as error:
            if "only soft" not in str(error):
                raise
            self._mode, self.soft = "soft", str(error).partition("because ")[2] or str(error)
        self._drafts_all = state.get("method") not in WITHOUT_DRAFT and not self.soft
        if self._cold:
            self._try_cold()

    @property
    def baseline(self) -> str:
        """As results name it."""
        return self._engine.baseline + (", cold" if self._cold else "")

    def warm_up(self, prompts: Sequence[Prompt], concurrency: int, most: int) -> None:
        """A batch at the largest k, and one of plain decoding, which are not counted.

        Raises StandError where the engine then drafts fewer tokens than it was told to.
        """
        found = [answer_of(reply) for reply in self._batch(prompts, concurrency, most)[1]]
        steps = sum(each.steps or 0 for each in found if each)
        drafted = sum(each.drafted or 0 for each in found if each)
        if not steps:
            raise StandError(
                "the replies tell nothing of speculation: start vLLM with --per-request-spec-decode-metrics detailed "
                "(`specwatch engine` does), without data parallelism or n > 1"
            )
        if self._drafts_all and drafted / steps < _OBEYED * most:
            raise StandError(
                f"the engine was told to draft {most} tokens a step and drafted {drafted / steps:.1f} at {concurrency} "
                "in flight: a table or rule by batch size in its configuration stands above the cap; take it out "
                "there, or have the sweep start the engine, by -c FILE"
            )
        self._batch(prompts, concurrency, PLAIN)

    def block(self, stage: str, turn: Turn, prompts: Sequence[Prompt]) -> list[Cell]:
        """Serve and write down all cells of a block.

        First its prompts are sent once for a single token each: then every cell finds them in the prefix cache, not
        all but the first one.
        """
        if not self._cold:
            self._batch([_one_token(prompt) for prompt in prompts], turn.concurrency, turn.order[0])
        began, cells = time.time(), []
        for place, k in enumerate(turn.order):
            batch, got = self._batch(prompts, turn.concurrency, k)
            cell = Cell(
                stage,
                turn.round,
                turn.concurrency,
                k,
                place,
                len(turn.order),
                began,
                batch.seconds,
                batch.completion_tokens,
                batch.requests,
                {str(name): number for name, number in batch.failures.items()},
                sorted((each for reply in got if (each := answer_of(reply))), key=lambda each: each.prompt),
            )
            cells.append(cell)
            self._run.append(CELLS, cell.row())
        return cells

    def _batch(self, prompts: Sequence[Prompt], concurrency: int, k: int) -> tuple[Batch, list[Reply]]:
        opts_out = k == PLAIN and not self._cold
        if not opts_out:
            self._control.cap(k, COLD if k == PLAIN else self._mode)
        got: list[Reply] = []
        batch = asyncio.run(
            replies(self._engine, prompts, concurrency=concurrency, plain=opts_out, on_reply=got.append)
        )
        if batch.failures.total() == batch.requests:
            raise StandError(f"all {batch.requests} requests of a batch failed, the first with: {batch.first_failure}")
        if batch.drafted_plain:
            raise StandError(
                f"{batch.drafted_plain} requests that opted out of speculation were drafted for all the same: there is "
                "no plain decoding to compare with; give --plain URL of an engine without speculation"
            )
        if not opts_out and (now := self._control.in_force()) != k:
            raise StandError(
                f"the engine's cap was set to {k} and is {now} now: something else steers it, as a sidecar's fallback "
                "does; stop that for the time of the sweep (`specwatch fallback speculative`), then go on"
            )
        return batch, got

    def _try_cold(self) -> None:
        try:
            self._control.cap(PLAIN, COLD)
        except ControlError as error:
            raise StandError(f"--baseline cold: {error}: give --baseline opt-out") from error


def _one_token(prompt: Prompt) -> Prompt:
    name = "max_completion_tokens" if prompt.body.get("max_completion_tokens") is not None else "max_tokens"
    return replace(prompt, body={**prompt.body, name: 1})
