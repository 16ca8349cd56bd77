"""Time limits, so that nothing hangs: neither a server that trickles, nor a disk that does not answer."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
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


async def in_thread(work: Callable[[], T]) -> T:
    """As `asyncio.to_thread`, but a thread that hangs keeps nobody from leaving."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(value: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def tell(value: T | None, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(finish, value, error)
        except RuntimeError:  # the loop has ended: nobody waits any more
            return

    def run() -> None:
        try:
            value = work()
        except BaseException as error:  # told to whom waits
            tell(None, error)
        else:
            tell(value, None)

    threading.Thread(target=run, daemon=True, name="doctor").start()
    return await done


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
