"""When to decide on what has changed, and on how much: soon, on as much as possible at once, and not for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_SECOND = 1.0
LEAST_STEPS, MOST_STEPS = 100, 500
"""Trials of one decision."""


class Pace:
    """`changed` says that there is something to decide; `due` waits for the moment, and `took` tells what it cost.

    A change is decided on when `quiet` seconds have gone by in which nothing else came, so that a burst is one
    decision, and after `window` seconds at the latest. Where there is always something, `rest` times what the last
    decision took passes first, up to a second: what happens meanwhile costs no decision of its own, and the rest of the
    process has its time. It is no more than the window where the last decision kept the writers busy and stopped before
    its end (`go_on`). Who comes after a pause waits for `quiet` alone.

    While more was decided than is being written (`behind`), another decision helps nobody: it would be made too early,
    and stand in line. It is made when the line is short again, or, for who would be ahead in that line, after a second
    and that rest.

    Nothing else is done while a decision is made: pods wait for their hosts, probes for their answer and the lease for
    its renewal. `steps`, the trials that the next decision may make, follow what trials cost in this cluster, so that a
    decision takes about `longest` seconds at most: fewer when the last took longer, more when it stopped far from that.
    """

    def __init__(
        self,
        quiet: float,
        window: float,
        rest: float,
        *,
        longest: float = 0.5,
        behind: Callable[[], bool] = lambda: False,
    ) -> None:
        self.steps = MOST_STEPS
        self._longest = longest
        self._quiet = quiet
        self._window = window
        self._rest = rest
        self._behind = behind
        self._took = 0.0
        self._rested_at = 0.0
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()

    async def due(self) -> None:
        await self._changed.wait()
        loop = asyncio.get_running_loop()
        held_up_until = loop.time() + _SECOND + self._rest * self._took
        while self._behind() and (left := held_up_until - loop.time()) > 0.0:  # noqa: ASYNC110  # a line, not an event
            await asyncio.sleep(min(self._window, left))
        until = loop.time() + self._window
        resting = self._rested_at - loop.time()
        if resting > 0.0:
            await asyncio.sleep(resting)
        while (left := until - loop.time()) > 0.0:
            self._changed.clear()
            await asyncio.sleep(min(self._quiet, left))
            if not self._changed.is_set():
                break
        self._changed.clear()

    def took(self, seconds: float, steps: int = 0, *, go_on: bool = False) -> None:
        """A decision is made, and took so long and so many trials."""
        if seconds > self._longest:
            wanted = min(self.steps, int(steps * self._longest / seconds))
            self.steps = max(LEAST_STEPS, self.steps // 4, wanted)
        elif steps >= self.steps and seconds < self._longest / 2:
            self.steps = min(MOST_STEPS, self.steps * 2)
        self._took = seconds
        rest = min(self._rest * seconds, self._window if go_on else _SECOND)
        self._rested_at = asyncio.get_running_loop().time() + rest
