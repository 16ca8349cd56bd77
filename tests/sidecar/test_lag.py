"""The event loop's lag."""

import asyncio
import time
from pathlib import Path

from support.scripted_engine import until

from sidecar.lag import LoopLag
from sidecar.tasks import Tasks

from .test_recorder import recorder


async def test_a_loop_that_stands_still_is_late() -> None:
    tasks, lag = Tasks(), LoopLag()
    assert lag.longest(time.monotonic()) == 0.0
    tasks.spawn(lag.run(), "lag")
    await asyncio.sleep(0)
    time.sleep(0.6)  # noqa: ASYNC251 - this is the fault
    await until(lambda: lag.longest(time.monotonic()) > 0)
    # It had meant to look after a quarter of a second.
    assert lag.longest(time.monotonic()) >= 0.34
    assert lag.longest(time.monotonic() + 61) == 0.0
    await tasks.close()
    assert tasks.failed == []


async def test_it_is_in_the_metrics(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    made.start()
    await asyncio.sleep(0)
    time.sleep(0.6)  # noqa: ASYNC251
    await until(lambda: b"\nspecwatch_event_loop_lag_seconds 0.0\n" not in made.metrics.render())
    await made.stop()
