"""Orders: how they reach every engine core from the API server, and what a core does with them between two steps."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from ..identity import digest
from ..switch import Refused
from . import hooks
from .hooks import log
from .scheduler import Watch

_SWAPPED = ("before", "after", "stage_s", "commit_s")


def _watch_of(core: Any) -> Watch | None:
    found = getattr(core.scheduler, "_specwatch", None)
    return found if isinstance(found, Watch) else None


def order(core: Any, command: Mapping[str, Any]) -> dict[str, Any]:
    """Runs between two steps of the engine core."""
    watch = _watch_of(core)
    if watch is None:
        if command:
            return {"refused": "this engine does not speculate, or the plugin has failed (see its log)", "param": None}
        return {"engine": core.vllm_config.parallel_config.data_parallel_index, "vllm": hooks.version(), "method": None}
    if command:
        try:
            holes = watch.switch.order(command)
        except Refused as refused:
            return {"refused": str(refused), "param": refused.param}
        log.warning("Specwatch: draft tokens capped at %s, mode %s", watch.switch.cap, watch.switch.mode)
        if holes:
            # Only now, with drafting on again: what is computed anew must fill the draft model's cache as well.
            core.scheduler.reset_prefix_cache(reset_running_requests=True)
    return watch.state(core.scheduler)


def commit(core: Any, checkpoint: str, content: str | None = None) -> dict[str, Any]:
    """Swap the staged weights in, and drop what the old ones left in the cache. Runs between two steps.

    `content` is the checkpoint's digest.
    """
    watch = _watch_of(core)
    began = time.monotonic()
    workers = core.collective_rpc("specwatch_load", None, (checkpoint,))
    if watch is not None:
        watch.swapped(checkpoint, content)
    core.scheduler.reset_prefix_cache(reset_running_requests=True)
    log.warning("Specwatch: the draft model now has the weights of %s", checkpoint)
    return {"workers": workers, "still_s": round(time.monotonic() - began, 4)}


class Client:
    """Reaches every engine core from the API server; what cannot be done raises Refused."""

    #: Between two looks at a swap under way, s; and how long reading a checkpoint may take.
    LOOK_S = 0.05
    STAGE_S = 600.0

    def __init__(self, app: Any) -> None:
        self._core = app.state.engine_client.engine_core

    async def order(self, command: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every core's state after `command`; an empty one only asks."""
        states = await self._all("specwatch_order", dict(command))
        for state in states:
            if "refused" in state:
                raise Refused(state["refused"], state["param"])
        return states

    async def swap(self, checkpoint: str) -> list[dict[str, Any]]:
        """Stage everywhere, and only where all workers of all cores are content put it in place."""
        engines = [state["engine"] for state in await self.order({})]
        try:
            for refusals in await self._workers("specwatch_stage", checkpoint):
                if refusal := next(filter(None, refusals), None):
                    raise Refused(f"checkpoint: {refusal}", "checkpoint")
            await self._settled()
            # Here, as a core would stand still meanwhile.
            content = await asyncio.to_thread(digest, checkpoint)
        except Exception:
            # Those that did not fail hold a whole checkpoint.
            with contextlib.suppress(Exception):
                await self._workers("specwatch_forget")
            raise
        commits = await self._all("specwatch_commit", checkpoint, content)
        return [
            {
                "engine": engine,
                "workers": [{name: each.get(name) for name in _SWAPPED} for each in workers],
                "still_s": commit["still_s"],
            }
            for engine, commit, workers in zip(engines, commits, await self._settled(), strict=True)
        ]

    async def _settled(self) -> list[list[dict[str, Any]]]:
        """By core and worker, once none is busy. Raises Refused where one failed."""
        until = time.monotonic() + self.STAGE_S
        while True:
            found = await self._workers("specwatch_staged")
            every = [each for workers in found for each in workers]
            if error := next((each["error"] for each in every if "error" in each), None):
                raise Refused(f"checkpoint: {error}", "checkpoint")
            if not any(each.get("busy") for each in every):
                return found
            if time.monotonic() > until:
                raise Refused(f"checkpoint: not read after {self.STAGE_S:g} s", "checkpoint")
            await asyncio.sleep(self.LOOK_S)

    async def _workers(self, method: str, *args: Any) -> list[list[Any]]:
        return await self._all("collective_rpc", method, None, args)

    async def _all(self, method: str, *args: Any) -> list[Any]:
        if not hooks.installed:
            raise Refused("the plugin does not know this vLLM and stands down; the engine's log says why")
        return list(await self._core.call_utility_all_async(method, *args))
