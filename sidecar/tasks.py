"""Side tasks: named, owned and watched, so that none dies unseen."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from .faults import where

_log = logging.getLogger(__name__)


class Tasks:
    """Owns every task of the process."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        #: Names of tasks that ended by an exception, each once.
        self.failed: list[str] = []

    def spawn(self, work: Coroutine[Any, Any, None], name: str = "relay") -> "asyncio.Task[None]":
        """Run `work` until it ends or `close` cancels it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            if task.get_name() not in self.failed:
                self.failed.append(task.get_name())
            _log.error("task %s died\n%s", task.get_name(), where(error))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
