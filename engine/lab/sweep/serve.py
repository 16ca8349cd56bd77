"""Serves blocks on a real engine: sets the cap, sends the batch, writes the cell down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from ...launch.speculation import WITHOUT_DRAFT
from ..control import ControlError
from ..load import NO_FIGURES, Batch, LoadError, Reply, check_cap, check_plain, one_token, replies
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

    Plain decoding is of the engine without speculation, where there is one; else a cap of 0 is in force for the whole
    cell, as k=0 of a table is. Opting out alone would leave the cap of the cell before, by which each step that admits
    a request still drafts.
    """

    def __init__(self, engine: Engine, run: Run, say: Say, baseline: str) -> None:
        if engine.token is None or not all(each.get("method") for each in engine.control.state()):
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
            if engine.plain_url is None:
                raise StandError(
                    f"there is no plain decoding to compare with: {self.soft}, whatever the cap: give --plain URL of "
                    "an engine of the same target without speculation"
                ) from None
        self._drafts_all = state.get("method") not in WITHOUT_DRAFT and not self.soft
        if self._cold:
            self._try_cold()

    @property
    def baseline(self) -> str:
        """As results name it."""
        return self._engine.baseline + (", cold" if self._cold else "")

    def warm_up(self, prompts: Sequence[Prompt], concurrency: int, most: int) -> tuple[float, float]:
        """A batch of plain decoding, and one at the largest k, which are not counted; the seconds of each.

        Raises StandError where the engine then drafts fewer tokens than it was told to.
        """
        batch, got = self._batch(prompts, concurrency, most)
        found = [answer_of(reply) for reply in got]
        steps = sum(each.steps or 0 for each in found if each)
        drafted = sum(each.drafted or 0 for each in found if each)
        if not steps:
            raise StandError(NO_FIGURES)
        if self._drafts_all and drafted / steps < _OBEYED * most:
            raise StandError(
                f"the engine was told to draft {most} tokens a step and drafted {drafted / steps:.1f} at {concurrency} "
                "in flight: a table or rule by batch size in its configuration stands above the cap; take it out "
                "there, or have the sweep start the engine, by -c FILE"
            )
        return self._batch(prompts, concurrency, PLAIN)[0].seconds, batch.seconds

    def block(self, stage: str, turn: Turn, prompts: Sequence[Prompt]) -> list[Cell]:
        """Serve and write down all cells of a block.

        First its prompts are sent once for a single token each, to the engine without speculation too: then every cell
        finds them in the prefix cache, not all but the first one.
        """
        if not self._cold:
            apart = self._engine.plain_url is not None
            for k in (PLAIN, max(turn.order)) if apart else turn.order[:1]:
                self._batch([one_token(prompt) for prompt in prompts], turn.concurrency, k)
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
        plain = k == PLAIN
        apart = plain and self._engine.plain_url is not None
        if not apart:
            self._control.cap(k, COLD if plain and self._cold else self._mode)
        got: list[Reply] = []
        # A plain request opts out under a cap of 0 too, so that its record is of the arm without speculation.
        batch = asyncio.run(replies(self._engine, prompts, concurrency=concurrency, plain=plain, on_reply=got.append))
        if batch.failures.total() == batch.requests:
            raise LoadError(f"all {batch.requests} requests of a batch failed", batch)
        check_plain(self._engine, batch)
        if not apart:
            check_cap(self._engine, k)
        return batch, got

    def _try_cold(self) -> None:
        try:
            self._control.cap(PLAIN, COLD)
        except ControlError as error:
            raise StandError(f"--baseline cold: {error}: give --baseline opt-out") from error
