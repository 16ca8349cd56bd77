"""Side tasks: none dies unseen."""

import asyncio

from sidecar.tasks import Tasks


async def test_a_death_is_told_once_by_name_and_the_rest_ends_at_close() -> None:
    async def dies() -> None:
        raise RuntimeError("broken")

    tasks = Tasks()
    stays = tasks.spawn(asyncio.sleep(60), "stays")
    for _ in range(3):
        tasks.spawn(dies(), "dies")
    await asyncio.sleep(0.01)
    assert tasks.failed == ["dies"]
    await tasks.close()
    assert stays.cancelled()
    assert tasks.failed == ["dies"]
