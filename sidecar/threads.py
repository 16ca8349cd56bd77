"""Work that blocks, in a thread that nobody has to wait for: a disk or name server that hangs ends no process late."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], name: str = "specwatch-look") -> T:
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

    threading.Thread(target=run, daemon=True, name=name).start()
    return await done
