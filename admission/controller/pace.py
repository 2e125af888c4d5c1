"""When to decide on what has changed: soon, and on as much as possible at once."""

from __future__ import annotations

import asyncio


class Pace:
    """`changed` says that there is something to decide; `due` waits for the moment, and `took` tells what it cost.

    A change is decided on when `quiet` seconds have gone by in which nothing else came, so that a burst is one
    decision, and after `window` seconds at the latest. Where there is always something, `rest` times what the last
    decision took passes first, within the window: what happens meanwhile costs no decision of its own. Who comes after
    a pause waits for `quiet` alone.
    """

    def __init__(self, quiet: float, window: float, rest: float) -> None:
        self._quiet = quiet
        self._window = window
        self._rest = rest
        self._rested_at = 0.0
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()

    async def due(self) -> None:
        await self._changed.wait()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._window
        resting = min(self._rested_at, until) - loop.time()
        if resting > 0.0:
            await asyncio.sleep(resting)
        while (left := until - loop.time()) > 0.0:
            self._changed.clear()
            await asyncio.sleep(min(self._quiet, left))
            if not self._changed.is_set():
                break
        self._changed.clear()

    def took(self, seconds: float) -> None:
        """A decision is made, and took so long."""
        self._rested_at = asyncio.get_running_loop().time() + self._rest * seconds
