"""Time limits, so that nothing hangs: neither a server that trickles, nor a disk that does not answer."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ..facts import Unseen

T = TypeVar("T")


async def within(limit_s: float, work: Awaitable[T]) -> T | Unseen:
    """What `work` gives, or that it did not in time, or failed."""
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError:
        return Unseen(f"it took longer than {limit_s:g} s", "slow")
    except Exception as error:
        return Unseen(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", "failed")


async def of_process(limit_s: float, *command: str) -> tuple[int, bytes, bytes]:
    """Exit status, output and errors of a command, 4 MiB at most of each. Raises OSError or TimeoutError.

    It is ended when the time is up.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    return process.returncode or 0, out[: 4 << 20], err[: 4 << 20]
