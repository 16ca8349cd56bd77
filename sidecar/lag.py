"""How late the event loop is: everything that passes through the sidecar has waited that long, at worst."""

import asyncio
import time

from .probes.growth import Longest

_EVERY_S = 0.25


class LoopLag:
    def __init__(self) -> None:
        self._longest = Longest(60.0)

    async def run(self) -> None:
        """Measure, until cancelled."""
        while True:
            due = time.monotonic() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            now = time.monotonic()
            self._longest.add(max(now - due, 0.0), now)

    def longest(self, monotonic: float) -> float:
        """The longest lag of the last minute, s; 0 before the first look."""
        return self._longest.of(monotonic)
